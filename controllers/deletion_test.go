package controllers_test

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/rigelbuild/compass-operator/api/v1alpha1"
	"github.com/rigelbuild/compass-operator/internal/naming"
	"github.com/rigelbuild/compass-operator/internal/store/admin"
	"github.com/rigelbuild/compass-operator/internal/store/storetest"
)

// thread is the three kinds, Ready.
type thread struct {
	*operator
	server, tenant, stream named
	database               string
}

func newThread(t *testing.T, policy v1alpha1.DeletionPolicy) thread {
	t.Helper()
	g := newGround(t)
	th := thread{operator: newOperator(t, g, &calls{})}
	th.server = g.newServer(t, "main", func(o *v1alpha1.CompassServer) { o.Spec.DeletionPolicy = policy; th.database = o.Spec.Database.Name })
	th.tenant = g.newTenant(t, "acme", "main", func(o *v1alpha1.CompassTenant) { o.Spec.DeletionPolicy = policy })
	th.stream = g.newStream(t, "main", "main", func(o *v1alpha1.DeliveryStream) { o.Spec.DeletionPolicy = policy })
	th.settle(t, th.server, th.tenant, th.stream)
	th.mustBeReady(t, th.server, th.tenant, th.stream)
	return th
}

// removeObject asks for a deletion and lets it take its course.
func (th thread) removeObject(t *testing.T, o named) {
	t.Helper()
	th.delete(t, o.kind(), o.name)
	th.settle(t, o)
}

func (th thread) isGone(t *testing.T, o named) bool {
	t.Helper()
	return !th.get(t, o.kind(), o.name)
}

// superDSN opens the server's database as a superuser.
func (th thread) superDSN(t *testing.T) string {
	t.Helper()
	dsn, err := storetest.WithDatabase(th.postgres.SuperDSN, th.database)
	if err != nil {
		t.Fatal(err)
	}
	return dsn
}

func (th thread) observe(t *testing.T) admin.Observation {
	t.Helper()
	a, err := admin.New(admin.Options{DSN: th.postgres.AdminDSN})
	if err != nil {
		t.Fatal(err)
	}
	seen, err := a.Observe(t.Context(), th.database)
	if err != nil {
		t.Fatal(err)
	}
	return seen
}

// Holds REQ-211: under Delete everything that was made goes, in an order in which nothing is missed.
func TestDelete(t *testing.T) {
	t.Parallel()
	th := newThread(t, v1alpha1.DeletionPolicyDelete)
	th.removeObject(t, th.stream)
	if !th.isGone(t, th.stream) || th.get(t, &appsv1.Deployment{}, "main-compass-delivery") {
		t.Fatal("the stream or its worker is left")
	}
	s := th.open(t, "main-databases")
	if row, err := s.TenantBySlug(t.Context(), "acme"); err != nil || row.Stream != "" {
		t.Errorf("the tenant is with %q, %v; want nobody", row.Stream, err)
	}
	th.settle(t, th.tenant)
	th.says(t, th.tenant, v1alpha1.ConditionDelivering, is("False", "NoStream"))

	th.removeObject(t, th.tenant)
	if !th.isGone(t, th.tenant) || th.secret(t, "acme-keys") != nil {
		t.Error("the tenant or its keys are left")
	}
	if n, err := s.CountTenants(t.Context()); n != 0 || err != nil {
		t.Errorf("%d tenants are left in the database, %v", n, err)
	}
	s.Close()

	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: th.namespace, Name: "data-main-nats-0", Labels: map[string]string{naming.LabelServer: "main"}},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
		},
	}
	th.create(t, claim)
	th.removeObject(t, th.server)
	if !th.isGone(t, th.server) || th.secret(t, "main-keys") != nil {
		t.Error("the server or its keys are left")
	}
	if th.get(t, claim, claim.Name) && claim.DeletionTimestamp.IsZero() {
		t.Error("the volume of NATS is left")
	}
	if seen := th.observe(t); seen.Exists || len(seen.Roles) > 0 {
		t.Errorf("left in Postgres: %+v", seen)
	}
}

// Holds REQ-211 and operator lesson 4: under Retain an object goes at once, whatever can be reached, and what it made stays. Whoever comes next
// under the same name finds it again, with the same keys.
func TestRetain(t *testing.T) {
	t.Parallel()
	th := newThread(t, v1alpha1.DeletionPolicyRetain)
	before := &v1alpha1.CompassTenant{}
	th.get(t, before, "acme")
	keys := th.secret(t, "main-keys")
	th.nats["nats://main-nats."+th.namespace+".svc:4222"].Stop()
	secret := &corev1.Secret{}
	th.update(t, secret, "postgres-admin", func() { secret.Data["uri"] = []byte("postgres://nobody:x@127.0.0.1:1/postgres") })

	for _, o := range []named{th.server, th.tenant, th.stream} {
		if err := th.api.Delete(t.Context(), objectOf(th.namespace, o)); err != nil {
			t.Fatal(err)
		}
		if !th.isGone(t, o) {
			t.Errorf("%s is held", o.name)
		}
	}
	if seen := th.observe(t); !seen.Exists {
		t.Error("the database is gone")
	}
	if !sameData(keys, th.secret(t, "main-keys")) {
		t.Error("the keys are gone or others")
	}
	secret = &corev1.Secret{}
	th.update(t, secret, "postgres-admin", func() { secret.Data["uri"] = []byte(th.postgres.AdminDSN) })
	th.sweep(t)
	th.newServer(t, "main", func(o *v1alpha1.CompassServer) { o.Spec.Database.Name = th.database })
	th.newTenant(t, "acme", "main")
	th.newStream(t, "main", "main")
	th.settle(t, th.server, th.tenant, th.stream)
	th.mustBeReady(t, th.server, th.tenant, th.stream)
	after := &v1alpha1.CompassTenant{}
	th.get(t, after, "acme")
	if after.Status.TenantID != before.Status.TenantID || after.Status.Account != before.Status.Account {
		t.Errorf("tenant %s with account %s, want %s with %s", after.Status.TenantID, after.Status.Account, before.Status.TenantID, before.Status.Account)
	}
	if !sameData(keys, th.secret(t, "main-keys")) {
		t.Error("the keys are others")
	}
}

func objectOf(namespace string, o named) client.Object {
	obj := o.kind()
	obj.SetNamespace(namespace)
	obj.SetName(o.name)
	return obj
}

// sweep is the garbage collector: what an owner that is gone left behind goes.
func (g *ground) sweep(t *testing.T) {
	t.Helper()
	for _, list := range []client.ObjectList{
		&appsv1.DeploymentList{}, &appsv1.StatefulSetList{}, &corev1.SecretList{}, &corev1.ConfigMapList{}, &corev1.ServiceList{}, &corev1.ServiceAccountList{},
		&policyv1.PodDisruptionBudgetList{}, &networkingv1.NetworkPolicyList{},
	} {
		if err := g.api.List(t.Context(), list, client.InNamespace(g.namespace)); err != nil {
			t.Fatal(err)
		}
		for _, obj := range itemsOf(t, list) {
			if metav1.GetControllerOf(obj) == nil {
				continue
			}
			if w := g.writers[obj.GetLabels()[naming.LabelStream]]; w != nil {
				w.stop()
				delete(g.writers, obj.GetLabels()[naming.LabelStream])
			}
			if err := g.api.Delete(t.Context(), obj); client.IgnoreNotFound(err) != nil {
				t.Fatal(err)
			}
		}
	}
}

// Holds REQ-211 and operator lesson 5: in whatever order they go, and with the server gone first, nothing sticks.
func TestServerGoesFirst(t *testing.T) {
	t.Parallel()
	th := newThread(t, v1alpha1.DeletionPolicyDelete)
	th.removeObject(t, th.server)
	if !th.isGone(t, th.server) {
		t.Fatalf("the server is held: %v", th.condition(t, th.server, v1alpha1.ConditionReady))
	}
	th.settle(t, th.tenant, th.stream)
	th.says(t, th.tenant, v1alpha1.ConditionServerAccepted, is("False", "ServerGone"), "create it again, or delete this object")
	th.says(t, th.stream, v1alpha1.ConditionTenantsPlaced, is("False", "ServerGone"))
	th.removeObject(t, th.tenant)
	th.removeObject(t, th.stream)
	if !th.isGone(t, th.tenant) || !th.isGone(t, th.stream) {
		t.Error("a child of a server that is gone is held")
	}
}

// Holds REQ-211 and operator lesson 4: under Delete an object waits for what it cannot reach, says for what and how to let go, and does when told.
func TestBlockedAndForced(t *testing.T) {
	t.Parallel()
	th := newThread(t, v1alpha1.DeletionPolicyDelete)
	th.nats["nats://main-nats."+th.namespace+".svc:4222"].Stop()
	th.delete(t, &v1alpha1.CompassTenant{}, "acme")
	_, _ = th.once(t, &v1alpha1.CompassTenant{}, "acme")
	th.says(t, th.tenant, v1alpha1.ConditionReady, is("False", "DeletionBlocked"), "NATS at ", `annotation compass.rigel.build/force-release="true"`)
	o := &v1alpha1.CompassTenant{}
	th.update(t, o, "acme", func() { o.Annotations = map[string]string{naming.AnnotationForceRelease: "true"} })
	_, _ = th.once(t, &v1alpha1.CompassTenant{}, "acme")
	if !th.isGone(t, th.tenant) {
		t.Error("a forced release is held")
	}
}
