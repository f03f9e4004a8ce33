package controllers_test

import (
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/rigelbuild/compass-operator/api/v1alpha1"
	"github.com/rigelbuild/compass-operator/internal/store/storetest"
)

// Holds REQ-210: under drift: Report what somebody else changed is told, by name, and nothing of it is written; what the
// spec newly asks for is done all the same, and Repair puts the rest back.
func TestReport(t *testing.T) {
	t.Parallel()
	th := newThread(t, v1alpha1.DeletionPolicyRetain)
	server, acme, stream := &v1alpha1.CompassServer{}, &v1alpha1.CompassTenant{}, &v1alpha1.DeliveryStream{}
	set := func(policy v1alpha1.DriftPolicy) {
		t.Helper()
		th.update(t, server, "main", func() { server.Spec.Drift = policy })
		th.update(t, acme, "acme", func() { acme.Spec.Drift = policy })
		th.update(t, stream, "main", func() { stream.Spec.Drift = policy })
		th.settle(t, th.server, th.tenant, th.stream)
	}
	set(v1alpha1.DriftPolicyReport)
	th.mustBeReady(t, th.server, th.tenant, th.stream)

	dsn, err := storetest.WithDatabase(th.postgres.SuperDSN, th.database)
	if err != nil {
		t.Fatal(err)
	}
	super := storetest.Connect(t, dsn)
	sql := func(statement string) {
		t.Helper()
		if _, err := super.Exec(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	sql("alter role " + th.database + "_app createdb")
	sql("update compass.tenants set display_name = 'Somebody' where slug = 'acme'")
	dep := &appsv1.Deployment{}
	th.update(t, dep, "main-compass-delivery", func() { dep.Spec.Template.Spec.Containers[0].Image = "evil:1" })
	th.delete(t, &corev1.Service{}, "main-nats")
	if err := th.pool.RemoveStream(t.Context(), th.place(t), "main"); err != nil {
		t.Fatal(err)
	}
	th.calls.writes, th.events = nil, nil
	th.settle(t, th.server, th.tenant, th.stream)
	drifted := is("False", "DriftDetected")
	th.says(t, th.server, v1alpha1.ConditionDatabaseReady, drifted, "nocreatedb", "spec.drift is Report")
	th.says(t, th.server, v1alpha1.ConditionFabricReady, drifted, "Service "+th.namespace+"/main-nats (removed)")
	th.says(t, th.tenant, v1alpha1.ConditionDatabaseReady, drifted, "the row of tenant acme (display name)")
	th.says(t, th.stream, v1alpha1.ConditionStreamReady, drifted, "the JetStream stream of main (removed)")
	th.says(t, th.stream, v1alpha1.ConditionWorkerAvailable, drifted, "Deployment "+th.namespace+"/main-compass-delivery", "spec.template.spec.containers")
	for _, w := range th.calls.writes {
		if !strings.HasPrefix(w, "status ") {
			t.Errorf("written under Report: %s", w)
		}
	}
	th.said(t, "Warning DriftDetected")

	// An edit is no drift: all of the object is made as it asks, and looked at with the new policy.
	set(v1alpha1.DriftPolicyRepair)
	th.mustBeReady(t, th.server, th.tenant, th.stream)
	if th.get(t, dep, "main-compass-delivery"); dep.Spec.Template.Spec.Containers[0].Image != "localhost/compass:dev" {
		t.Error("the image stayed")
	}
}

// Holds REQ-206, REQ-236: a server takes tenants of other namespaces when it consents, and the tenant's credentials go to the
// tenant's namespace alone; those of the system stay in the server's (operator ask 4).
func TestConsent(t *testing.T) {
	t.Parallel()
	th := newThread(t, v1alpha1.DeletionPolicyRetain)
	away := &ground{api: th.api, namespace: th.namespace + "-away"}
	away.create(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: away.namespace, Labels: map[string]string{"team": "x"}}})
	o := &v1alpha1.CompassTenant{ObjectMeta: metav1.ObjectMeta{Namespace: away.namespace, Name: "guest"}}
	o.Spec.ServerRef = v1alpha1.ServerReference{Name: "main", Namespace: th.namespace}
	away.create(t, o)
	guest := aTenant("guest")
	home := th.ground
	look := func(consent v1alpha1.TenantNamespaces) {
		t.Helper()
		s := &v1alpha1.CompassServer{}
		home.update(t, s, "main", func() { s.Spec.AllowedTenants.Namespaces = consent })
		th.settle(t, th.server)
		th.ground = away
		for range 3 {
			_, _ = th.once(t, guest.kind(), guest.name)
		}
		th.ground = home
	}
	accepted := v1alpha1.ConditionServerAccepted
	refused := is("False", "WaitingForConsent")
	look(v1alpha1.TenantNamespaces{From: v1alpha1.NamespacesFromSame})
	away.says(t, guest, accepted, refused, "of its own namespace only", "spec.allowedTenants")
	look(v1alpha1.TenantNamespaces{From: v1alpha1.NamespacesFromSelector, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"team": "y"}}})
	away.says(t, guest, accepted, refused, "of namespaces with labels team=y only")
	if away.secret(t, "guest-api") != nil {
		t.Error("who is refused has credentials")
	}
	look(v1alpha1.TenantNamespaces{From: v1alpha1.NamespacesFromSelector, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"team": "x"}}})
	away.says(t, guest, accepted, is("True", "Applied"))
	away.says(t, guest, v1alpha1.ConditionCredentialsReady, is("True", "Applied"))
	if away.secret(t, "guest-api") == nil || away.secret(t, "guest-keys") == nil || home.secret(t, "guest-api") != nil {
		t.Error("the credentials are not in the tenant's namespace, or not only there")
	}
	secrets := &corev1.SecretList{}
	if err := th.api.List(t.Context(), secrets, client.InNamespace(away.namespace)); err != nil {
		t.Fatal(err)
	}
	for _, s := range secrets.Items {
		for key, value := range s.Data {
			if strings.Contains(string(value), "postgres://") {
				t.Errorf("key %s of Secret %s opens the database", key, s.Name)
			}
		}
	}
	look(v1alpha1.TenantNamespaces{From: v1alpha1.NamespacesFromAll})
	away.says(t, guest, accepted, is("True", "Applied"))
	look(v1alpha1.TenantNamespaces{From: v1alpha1.NamespacesFromSame})
	away.says(t, guest, accepted, refused)
	if away.secret(t, "guest-api") == nil {
		t.Error("what was given was taken away")
	}
}
