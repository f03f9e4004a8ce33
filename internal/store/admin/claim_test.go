package admin_test

import (
	"context"
	"crypto/rand"
	"errors"
	"strings"
	"testing"

	"github.com/rigelbuild/compass-operator/internal/naming"
	"github.com/rigelbuild/compass-operator/internal/store/admin"
	"github.com/rigelbuild/compass-operator/internal/store/pg"
	"github.com/rigelbuild/compass-operator/internal/store/storetest"
)

// claimed is an admin beside the name of a database that goes away with the test, whatever the test did.
func claimed(t *testing.T) (*admin.Admin, string) {
	t.Helper()
	server := storetest.Postgres(t)
	a, err := admin.New(admin.Options{DSN: server.AdminDSN})
	if err != nil {
		t.Fatal(err)
	}
	name := "c" + strings.ToLower(rand.Text())[:10]
	super := storetest.Connect(t, server.SuperDSN)
	t.Cleanup(func() {
		roles, _ := naming.RolesOf(name)
		_, _ = super.Exec(context.WithoutCancel(t.Context()), "drop database if exists "+pg.Ident(name)+" with (force)")
		for _, r := range []string{roles.App, roles.System, roles.Provision, roles.Tenant, roles.Owner} {
			_, _ = super.Exec(context.WithoutCancel(t.Context()), "drop role if exists "+pg.Ident(r))
		}
	})
	return a, name
}

// Holds REQ-211: of two who were pointed at one database the first keeps it.
func TestClaim(t *testing.T) {
	t.Parallel()
	a, name := claimed(t)
	const first, second = "prod/main", "test/o'main"
	if err := a.Claim(t.Context(), name, second); err != nil {
		t.Fatalf("claim of a database that is not there: %v", err)
	}
	if _, err := a.Ensure(t.Context(), admin.Spec{Database: name, Passwords: passwords()}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := a.Claim(t.Context(), name, first); err != nil {
			t.Fatal(err)
		}
	}
	err := a.Claim(t.Context(), name, second)
	other, ok := errors.AsType[admin.ClaimedError](err)
	if !errors.Is(err, admin.ErrClaimed) || !ok || other.By != first {
		t.Fatalf("the second claim: %v, want one of %s", err, first)
	}
	super := storetest.Connect(t, storetest.Postgres(t).SuperDSN)
	if _, err := super.Exec(t.Context(), other.Release); err != nil {
		t.Fatalf("the statement that ends the claim: %v", err)
	}
	if err := a.Claim(t.Context(), name, second); err != nil {
		t.Errorf("after it was ended: %v", err)
	}
}

func TestClaimLeavesOtherWordsAlone(t *testing.T) {
	t.Parallel()
	a, name := claimed(t)
	if _, err := a.Ensure(t.Context(), admin.Spec{Database: name, Passwords: passwords()}); err != nil {
		t.Fatal(err)
	}
	super := storetest.Connect(t, storetest.Postgres(t).SuperDSN)
	if _, err := super.Exec(t.Context(), "comment on database "+name+" is 'ours since 2019'"); err != nil {
		t.Fatal(err)
	}
	if err := a.Claim(t.Context(), name, "prod/main"); err != nil {
		t.Fatal(err)
	}
	var text string
	if err := super.QueryRow(t.Context(), "select shobj_description(oid, 'pg_database') from pg_database where datname = $1", name).Scan(&text); err != nil {
		t.Fatal(err)
	}
	if text != "ours since 2019" {
		t.Errorf("comment %q", text)
	}
}
