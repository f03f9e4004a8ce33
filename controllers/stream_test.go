package controllers_test

import (
	"crypto/rand"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/rigelbuild/compass-operator/api/v1alpha1"
	"github.com/rigelbuild/compass-operator/internal/fabric"
	"github.com/rigelbuild/compass-operator/internal/fabric/natstest"
	"github.com/rigelbuild/compass-operator/internal/naming"
	"github.com/rigelbuild/compass-operator/internal/store"
)

// Holds REQ-208, REQ-213: a worker that cannot run is told as such, with what to do, and heals when the cause goes.
func TestWorkerThatCannotRun(t *testing.T) {
	t.Parallel()
	th := newThread(t, v1alpha1.DeletionPolicyRetain)
	const available = v1alpha1.ConditionWorkerAvailable
	for name, c := range map[string]struct {
		condition appsv1.DeploymentCondition
		says      []string
	}{
		"it does not start": {
			appsv1.DeploymentCondition{Type: appsv1.DeploymentProgressing, Status: corev1.ConditionFalse, Reason: "ProgressDeadlineExceeded"},
			[]string{"does not start (ProgressDeadlineExceeded)", "spec.worker.resources", "kubectl -n " + th.namespace + " describe pods"},
		},
		"a quota": {
			appsv1.DeploymentCondition{
				Type: appsv1.DeploymentReplicaFailure, Status: corev1.ConditionTrue, Reason: "FailedCreate",
				Message: `pods "main-compass-delivery-5d9c-x7" is forbidden: exceeded quota: small, requested: pods=1`,
			},
			[]string{"may not be made", "exceeded quota: small"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			dep := &appsv1.Deployment{}
			th.get(t, dep, "main-compass-delivery")
			dep.Status.AvailableReplicas, dep.Status.ReadyReplicas = 0, 0
			dep.Status.Conditions = []appsv1.DeploymentCondition{c.condition}
			th.status(t, dep)
			_, _ = th.once(t, &v1alpha1.DeliveryStream{}, "main")
			th.says(t, th.stream, available, is("False", "PodsFailed"), c.says...)
			th.says(t, th.stream, v1alpha1.ConditionReady, is("False", "PodsFailed"))
			th.said(t, "Warning PodsFailed")
			th.kubelet(t) // the cause goes
			th.settle(t, th.stream)
			th.mustBeReady(t, th.stream)
		})
	}
}

// Holds REQ-208: a second stream for everybody gets nothing, because it has nobody; it takes over when the first goes.
func TestSecondStreamForAll(t *testing.T) {
	t.Parallel()
	th := newThread(t, v1alpha1.DeletionPolicyDelete)
	second := th.newStream(t, "zsecond", "main")
	th.settle(t, second, th.stream, th.tenant)
	refused := func() {
		t.Helper()
		for _, condition := range []string{
			v1alpha1.ConditionTenantsPlaced, v1alpha1.ConditionStreamReady, v1alpha1.ConditionDeadLetterReady, v1alpha1.ConditionWorkerAvailable,
		} {
			th.says(t, second, condition, is("False", "TenantConflict"), "DeliveryStream main carries all tenants already", "delete one of the two")
		}
		if th.get(t, &appsv1.Deployment{}, "zsecond-compass-delivery") {
			t.Error("the one that is refused has a worker")
		}
		th.mustBeReady(t, th.stream, th.tenant)
	}
	refused()
	if th.get(t, &corev1.Secret{}, "zsecond-compass-delivery") {
		t.Error("the one that is refused has credentials")
	}
	// It comes to its own when the first wants less, and loses what it has when that wants all again.
	first := &v1alpha1.DeliveryStream{}
	th.update(t, first, "main", func() { first.Spec.Tenants = v1alpha1.TenantSelection{Names: []string{"acme"}} })
	th.settle(t, th.stream, second)
	th.mustBeReady(t, second)
	th.update(t, first, "main", func() { first.Spec.Tenants = v1alpha1.TenantSelection{All: true} })
	th.settle(t, th.stream, second)
	refused()

	th.removeObject(t, th.stream)
	th.settle(t, second, th.tenant)
	th.settle(t, second, th.tenant)
	th.mustBeReady(t, second, th.tenant)
}

// Holds REQ-208, REQ-211: what is in JetStream under our name and without our mark is left alone, with the difference told;
// then taken over with what it holds; and refused as long as somebody else says that he manages it.
func TestStreamIsTakenOver(t *testing.T) {
	t.Parallel()
	g := newGround(t)
	op := newOperator(t, g, &calls{})
	server := g.newServer(t, "main")
	op.settle(t, server)
	g.mustBeReady(t, server)
	const theirs, subject = "CMP_main", "compass.q.main.*.*"
	js := g.foreign(t)
	js.Stream(t, theirs, subject, time.Hour, map[string]string{"app.kubernetes.io/managed-by": "somebody"})
	js.Publish(t, "compass.q.main.t_1.x")
	stream := g.newStream(t, "main", "main")
	const ready = v1alpha1.ConditionStreamReady
	o := &v1alpha1.DeliveryStream{}
	adopt := func(p v1alpha1.AdoptionPolicy) {
		t.Helper()
		g.update(t, o, "main", func() { o.Spec.AdoptionPolicy = p })
		op.settle(t, stream)
	}
	op.settle(t, stream)
	g.says(t, stream, ready, is("False", "ObjectConflict"), "managed by somebody", "to be changed are", "maxAge", "maxBytes")
	adopt(v1alpha1.AdoptionIfUnowned)
	g.says(t, stream, ready, is("False", "ObjectConflict"), "managed by somebody")
	js.Stream(t, theirs, subject, time.Hour, nil)
	adopt(v1alpha1.AdoptionNever)
	g.says(t, stream, ready, is("False", "ObjectConflict"), "is not ours", "set spec.adoptionPolicy to IfUnowned", "maxAge")
	if _, maxAge := js.Look(t, theirs); maxAge != time.Hour {
		t.Errorf("it was changed: maxAge %v", maxAge)
	}
	adopt(v1alpha1.AdoptionIfUnowned)
	g.mustBeReady(t, stream)
	if messages, maxAge := js.Look(t, theirs); messages != 1 || maxAge != 168*time.Hour {
		t.Errorf("taken over: %d messages, maxAge %v; want its message kept, and maxAge as the spec has it", messages, maxAge)
	}
}

// Holds REQ-208: a stream that NATS has too few servers for is refused with both figures.
func TestReplicasWantServers(t *testing.T) {
	t.Parallel()
	th := newThread(t, v1alpha1.DeletionPolicyRetain)
	o := &v1alpha1.DeliveryStream{}
	th.update(t, o, "main", func() { o.Spec.Stream.Replicas = 3 })
	th.settle(t, th.stream)
	th.says(t, th.stream, v1alpha1.ConditionStreamReady, is("False", "InvalidSpec"), "spec.stream.replicas is 3, and NATS has servers: 1")
	th.update(t, o, "main", func() { o.Spec.Stream.Replicas = 1 })
	th.settle(t, th.stream)
	th.mustBeReady(t, th.stream)
}

// foreign is somebody at JetStream with the rights of the operator.
func (g *ground) foreign(t *testing.T) natstest.Foreign {
	t.Helper()
	keys, _, err := fabric.CompleteKeys(g.secret(t, "main-keys"))
	if err != nil {
		t.Fatal(err)
	}
	seed, err := fabric.NewUserSeed()
	if err != nil {
		t.Fatal(err)
	}
	user, err := keys.Compass.AdminUser(seed.Public(), naming.AccountCompass)
	if err != nil {
		t.Fatal(err)
	}
	creds, err := fabric.CredsFile(user, seed)
	if err != nil {
		t.Fatal(err)
	}
	for _, server := range g.nats {
		return server.Foreign(t, creds, fabric.AdminInbox)
	}
	t.Fatal("no NATS")
	return natstest.Foreign{}
}

// Holds REQ-243: a tenant that was made through the API is carried like one with an object, says so itself while nobody
// carries it, and is the same tenant when an object names it.
func TestTenantOfTheAPI(t *testing.T) {
	t.Parallel()
	g := newGround(t)
	op := newOperator(t, g, &calls{})
	server := g.newServer(t, "main")
	op.settle(t, server)
	s := g.open(t, "main-databases")
	ids := &naming.IDs{Now: time.Now, Rand: rand.Reader}
	made := store.NewTenant{ID: store.TenantID(ids.Tenant()), Slug: "walkin", Actor: "test", Admin: store.Account{ID: ids.Account(), Handle: "admin"}}
	made.Token = store.NewToken{ID: ids.TokenID(), Hash: naming.TokenHash("walkin")}
	if err := s.CreateTenant(t.Context(), made); err != nil {
		t.Fatal(err)
	}
	carrier := func() string {
		t.Helper()
		status, err := s.TenantStatus(store.WithTenant(t.Context(), made.ID))
		if err != nil {
			t.Fatal(err)
		}
		return status.Stream
	}
	if by := carrier(); by != "" {
		t.Errorf("carried by %q before there is a stream", by)
	}
	stream := g.newStream(t, "main", "main")
	op.settle(t, stream)
	g.mustBeReady(t, stream)
	if by := carrier(); by != "main" {
		t.Errorf("carried by %q, want main", by)
	}
	object := g.newTenant(t, "walkin", "main")
	op.settle(t, object)
	g.mustBeReady(t, object)
	o := &v1alpha1.CompassTenant{}
	if g.get(t, o, "walkin"); o.Status.TenantID != string(made.ID) {
		t.Errorf("the object's tenant is %s, want %s", o.Status.TenantID, made.ID)
	}
}
