package controllers_test

import (
	"testing"

	"github.com/rigelbuild/compass-operator/api/v1alpha1"
	"github.com/rigelbuild/compass-operator/internal/store/storetest"
)

// Holds REQ-206 and operator lessons 8, 36: SQL access is a login that sees its tenant's rows and no others, is replaced with
// the other credentials, and goes when it is no longer asked for, but not with what it made.
func TestSQLAccess(t *testing.T) {
	t.Parallel()
	th := newThread(t, v1alpha1.DeletionPolicyRetain)
	other := th.newTenant(t, "other", "main")
	acme := &v1alpha1.CompassTenant{}
	edit := func(change func()) {
		t.Helper()
		th.update(t, acme, "acme", change)
		th.settle(t, th.tenant)
	}
	th.settle(t, other)
	edit(func() { acme.Spec.SQLAccess = v1alpha1.SQLAccess{Enabled: true, Connections: 3} })
	th.mustBeReady(t, th.tenant)
	if th.get(t, acme, "acme"); acme.Status.Secrets.SQL != "acme-sql" {
		t.Errorf("secrets %+v", acme.Status.Secrets)
	}
	first := th.secret(t, "acme-sql")
	conn := storetest.Connect(t, string(first["uri"]))
	var mine, limit int
	if err := conn.QueryRow(t.Context(), "select count(distinct tenant_id), (select rolconnlimit from pg_roles where rolname = current_user) from accounts").Scan(&mine, &limit); err != nil || mine != 1 || limit != 3 {
		t.Errorf("%d tenants seen, limit %d, %v; want its own, and 3", mine, limit, err)
	}
	if _, err := conn.Exec(t.Context(), "delete from compass.accounts"); err == nil {
		t.Error("it may delete")
	}
	for _, key := range []string{"type", "provider", "host", "port", "database", "username", "password"} {
		if len(first[key]) == 0 {
			t.Errorf("no %s in the Secret", key)
		}
	}
	edit(func() { acme.Annotations = map[string]string{v1alpha1.AnnotationRotate: "1"} })
	th.mustBeReady(t, th.tenant)
	if storetest.Opens(t, string(first["uri"])) {
		t.Error("the old password opens")
	}
	second := th.secret(t, "acme-sql")
	maker := storetest.Connect(t, string(second["uri"]))
	if _, err := maker.Exec(t.Context(), "set default_transaction_read_only = off"); err != nil {
		t.Fatal(err)
	}
	var object uint32
	if err := maker.QueryRow(t.Context(), "select pg_catalog.lo_create(0)").Scan(&object); err != nil {
		t.Fatal(err)
	}
	edit(func() { acme.Spec.SQLAccess.Enabled = false })
	th.says(t, th.tenant, v1alpha1.ConditionCredentialsReady, is("False", "RoleOwnsObjects"), "owns 1 objects", "reassign owned by")
	if _, err := storetest.Connect(t, th.superDSN(t)).Exec(t.Context(), "select pg_catalog.lo_unlink($1)", object); err != nil {
		t.Fatal(err)
	}
	th.settle(t, th.tenant)
	th.mustBeReady(t, th.tenant)
	if th.secret(t, "acme-sql") != nil {
		t.Error("the Secret is left")
	}
	if storetest.Opens(t, string(second["uri"])) {
		t.Error("the login is left")
	}
	if th.get(t, acme, "acme"); acme.Status.Secrets.SQL != "" {
		t.Errorf("secrets %+v", acme.Status.Secrets)
	}
}
