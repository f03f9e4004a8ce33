package controllers_test

import (
	"slices"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/rigelbuild/compass-operator/api/v1alpha1"
	"github.com/rigelbuild/compass-operator/internal/naming"
	"github.com/rigelbuild/compass-operator/internal/store/storetest"
)

// scaleCalm is longer than a quarrel about the scale of a worker is remembered.
const scaleCalm = 11 * time.Minute

// said checks that somebody was told.
func (op *operator) said(t *testing.T, events ...string) {
	t.Helper()
	for _, e := range events {
		if !slices.Contains(op.events, e) {
			t.Errorf("nobody said %q: %v", e, op.events)
		}
	}
}

func itemsOf(t *testing.T, list client.ObjectList) []client.Object {
	t.Helper()
	items, err := meta.ExtractList(list)
	if err != nil {
		t.Fatal(err)
	}
	var out []client.Object
	for _, item := range items {
		if obj, ok := item.(client.Object); ok {
			out = append(out, obj)
		}
	}
	return out
}

// Holds REQ-210: what somebody changed or removed behind the operator's back is put back by the next look, and nothing else
// is touched; Ready means looked at just now.
func TestDrift(t *testing.T) {
	t.Parallel()
	th := newThread(t, v1alpha1.DeletionPolicyRetain)
	ctx := t.Context()
	worker := &appsv1.Deployment{}
	merge := func(obj client.Object, name, patch string) {
		t.Helper()
		obj.SetNamespace(th.namespace)
		obj.SetName(name)
		if err := th.api.Patch(ctx, obj, client.RawPatch(types.MergePatchType, []byte(patch))); err != nil {
			t.Fatal(err)
		}
	}
	o := &v1alpha1.CompassServer{}
	th.get(t, o, "main")
	dsn, err := storetest.WithDatabase(th.postgres.SuperDSN, o.Spec.Database.Name)
	if err != nil {
		t.Fatal(err)
	}
	super := storetest.Connect(t, dsn)
	sql := func(statement string) {
		t.Helper()
		if _, err := super.Exec(ctx, statement); err != nil {
			t.Fatal(err)
		}
	}
	app := o.Spec.Database.Name + "_app"

	t.Run("a worker that was scaled", func(t *testing.T) { // REQ-209, layer 2; operator lesson 47
		for range 3 {
			th.events = nil
			merge(worker, "main-compass-delivery", `{"spec": {"replicas": 2}}`)
			th.settle(t, th.stream)
			if th.get(t, worker, "main-compass-delivery"); *worker.Spec.Replicas != 1 {
				t.Errorf("%d replicas", *worker.Spec.Replicas)
			}
			th.said(t, "Warning ScaleReverted", "Normal DriftRepaired")
		}
		merge(worker, "main-compass-delivery", `{"spec": {"replicas": 2}}`)
		th.settle(t, th.stream)
		if th.get(t, worker, "main-compass-delivery"); *worker.Spec.Replicas != 2 {
			t.Errorf("%d replicas: two controllers write against each other", *worker.Spec.Replicas)
		}
		th.says(t, th.stream, v1alpha1.ConditionSingleWriter, is("False", "ScaleContested"), "main-compass-delivery", "HorizontalPodAutoscaler")
		d := &v1alpha1.DeliveryStream{}
		if th.get(t, d, "main"); d.Status.Writer == nil || d.Status.Writer.Since.IsZero() {
			t.Errorf("writer %+v: somebody writes all the same", d.Status.Writer)
		}
		th.later(scaleCalm) // whoever did it has stopped
		th.settle(t, th.stream)
		if th.get(t, worker, "main-compass-delivery"); *worker.Spec.Replicas != 1 {
			t.Errorf("%d replicas", *worker.Spec.Replicas)
		}
		th.mustBeReady(t, th.stream)
	})
	t.Run("a field of somebody else", func(t *testing.T) {
		merge(worker, "main-compass-delivery", `{"metadata": {"annotations": {"example.com/note": "mine"}}}`)
		th.settle(t, th.stream)
		if th.get(t, worker, "main-compass-delivery"); worker.Annotations["example.com/note"] != "mine" {
			t.Error("it was taken away")
		}
	})
	t.Run("an image that was edited", func(t *testing.T) {
		dep := &appsv1.Deployment{}
		th.update(t, dep, "main-server", func() { dep.Spec.Template.Spec.Containers[0].Image = "evil:1" })
		th.settle(t, th.server)
		if th.get(t, dep, "main-server"); dep.Spec.Template.Spec.Containers[0].Image != "localhost/compass:dev" {
			t.Error("it stayed")
		}
	})
	t.Run("lists that somebody edited", func(t *testing.T) { // whose elements a server-side apply would keep beside ours
		th.events = nil
		svc, dep := &corev1.Service{}, &appsv1.Deployment{}
		th.update(t, svc, "main-server", func() {
			svc.Spec.Ports[0].Port = 9999
			svc.Spec.Selector = map[string]string{"a": "b"}
		})
		th.update(t, dep, "main-server", func() {
			containers := &dep.Spec.Template.Spec.Containers
			*containers = append(*containers, corev1.Container{Name: "beside", Image: "example.com/beside:1"})
			(*containers)[0].Env = append((*containers)[0].Env, corev1.EnvVar{Name: "THEIRS", Value: "1"})
		})
		th.settle(t, th.server)
		th.get(t, svc, "main-server")
		if ports := svc.Spec.Ports; len(ports) != 1 || ports[0].Port == 9999 || svc.Spec.Selector["a"] != "" {
			t.Errorf("ports %+v, selector %v", ports, svc.Spec.Selector)
		}
		th.get(t, dep, "main-server")
		if is := dep.Spec.Template.Spec.Containers; len(is) != 1 || slices.ContainsFunc(is[0].Env, func(e corev1.EnvVar) bool { return e.Name == "THEIRS" }) {
			t.Errorf("containers %+v", is)
		}
		th.said(t, "Normal DriftRepaired")
		th.mustBeReady(t, th.server)
		th.events = nil
		th.settle(t, th.server)
		if len(th.events) != 0 {
			t.Errorf("and again: %v", th.events)
		}
	})
	t.Run("a Service that was removed", func(t *testing.T) {
		th.delete(t, &corev1.Service{}, "main-server")
		th.settle(t, th.server)
		if !th.get(t, &corev1.Service{}, "main-server") {
			t.Error("it is gone")
		}
	})
	t.Run("a published Secret that was removed", func(t *testing.T) { // lesson 28
		old := th.secret(t, "acme-api")
		th.delete(t, &corev1.Secret{}, "acme-api")
		th.settle(t, th.tenant)
		next := th.secret(t, "acme-api")
		if !sameData(old, next) {
			t.Error("what it held is not what was kept with the keys")
		}
		th.mustBeReady(t, th.tenant)
	})
	t.Run("a stream that was removed", func(t *testing.T) { // lesson 2
		th.events = nil
		if err := th.pool.RemoveStream(ctx, th.place(t), "main"); err != nil {
			t.Fatal(err)
		}
		_, err := th.once(t, &v1alpha1.DeliveryStream{}, "main")
		if err != nil {
			t.Error(err)
		}
		th.said(t, "Normal DriftRepaired")
		th.mustBeReady(t, th.stream)
	})
	t.Run("a volume that was lost", func(t *testing.T) {
		at := "nats://main-nats." + th.namespace + ".svc:4222"
		th.nats[at].Wipe(t)
		th.nats[at].Start(t, th.conf[at])
		th.settle(t, th.server, th.tenant, th.stream)
		th.mustBeReady(t, th.server, th.tenant, th.stream)
	})
	t.Run("a role with more rights", func(t *testing.T) { // lessons 24 and 45
		sql("alter role " + app + " createdb connection limit 3")
		th.settle(t, th.server)
		var may bool
		if err := super.QueryRow(ctx, "select rolcreatedb or rolconnlimit <> -1 from pg_roles where rolname = $1", app).Scan(&may); err != nil || may {
			t.Errorf("createdb %v, %v", may, err)
		}
		th.mustBeReady(t, th.server)
	})
	t.Run("a table without its policies", func(t *testing.T) { // lesson 45
		sql("alter table compass.messages no force row level security; drop policy app_scope on compass.messages")
		th.settle(t, th.server)
		var forced bool
		if err := super.QueryRow(ctx, "select relforcerowsecurity from pg_class where oid = 'compass.messages'::regclass").Scan(&forced); err != nil || !forced {
			t.Errorf("forced %v, %v", forced, err)
		}
		th.mustBeReady(t, th.server)
	})
	t.Run("a password that was changed", func(t *testing.T) {
		sql("alter role " + app + " password 'other'")
		th.settle(t, th.server)
		th.mustBeReady(t, th.server)
		_ = th.open(t, "main-databases")
	})
	t.Run("paused", func(t *testing.T) { // lesson 23
		d := &v1alpha1.DeliveryStream{}
		th.update(t, d, "main", func() { d.Annotations = map[string]string{naming.AnnotationPaused: "true"} })
		merge(worker, "main-compass-delivery", `{"spec": {"replicas": 3}}`)
		_, _ = th.once(t, &v1alpha1.DeliveryStream{}, "main")
		th.says(t, th.stream, v1alpha1.ConditionReady, is("Unknown", "Paused"), "compass.rigel.build/paused")
		if th.get(t, worker, "main-compass-delivery"); *worker.Spec.Replicas != 3 {
			t.Error("a paused object was written for")
		}
		th.update(t, d, "main", func() { d.Annotations = nil })
		th.settle(t, th.stream)
		th.mustBeReady(t, th.stream)
	})
	t.Run("lost keys of a tenant", func(t *testing.T) { // lesson 27
		keys := th.secret(t, "acme-keys")
		th.delete(t, &corev1.Secret{}, "acme-keys")
		_, _ = th.once(t, &v1alpha1.CompassTenant{}, "acme")
		th.says(t, th.tenant, v1alpha1.ConditionAccountReady, is("False", "IdentityConflict"), "restore it from a backup")
		if th.secret(t, "acme-keys") != nil {
			t.Fatal("other keys were made")
		}
		back := &corev1.Secret{Data: keys}
		back.Namespace, back.Name, back.Labels = th.namespace, "acme-keys", map[string]string{
			naming.LabelManagedBy: naming.ManagedBy, naming.LabelTenant: "acme", naming.LabelComponent: naming.ComponentSecret,
		}
		th.create(t, back)
		th.settle(t, th.tenant)
		th.mustBeReady(t, th.tenant)
	})
	t.Run("lost keys", func(t *testing.T) { // REQ-212
		keys := th.secret(t, "main-keys")
		th.delete(t, &corev1.Secret{}, "main-keys")
		_, _ = th.once(t, &v1alpha1.CompassServer{}, "main")
		th.says(t, th.server, v1alpha1.ConditionFabricReady, is("False", "IdentityConflict"), "restore it from a backup")
		if th.secret(t, "main-keys") != nil {
			t.Fatal("other keys were made")
		}
		back := &corev1.Secret{Data: keys}
		back.Namespace, back.Name, back.Labels = th.namespace, "main-keys", map[string]string{
			naming.LabelManagedBy: naming.ManagedBy, naming.LabelServer: "main", naming.LabelComponent: naming.ComponentSecret,
		}
		th.create(t, back)
		th.settle(t, th.server)
		th.mustBeReady(t, th.server)
	})
}

// Holds REQ-208: a suspended stream runs no worker and is well; what is owed stays owed.
func TestSuspend(t *testing.T) {
	t.Parallel()
	th := newThread(t, v1alpha1.DeletionPolicyRetain)
	d := &v1alpha1.DeliveryStream{}
	th.update(t, d, "main", func() { d.Spec.Suspend = true })
	th.settle(t, th.stream)
	th.mustBeReady(t, th.stream)
	for _, condition := range []string{v1alpha1.ConditionWorkerAvailable, v1alpha1.ConditionReady} { // Ready is what kubectl get shows
		th.says(t, th.stream, condition, is("True", "Suspended"))
	}
	worker := &appsv1.Deployment{}
	if th.get(t, worker, "main-compass-delivery"); *worker.Spec.Replicas != 0 {
		t.Errorf("%d replicas", *worker.Spec.Replicas)
	}
	if th.get(t, d, "main"); d.Status.Writer != nil {
		t.Errorf("writer %+v", d.Status.Writer)
	}
}

// Holds REQ-213: a backend that is away is told as such, and everything that does not need it goes on.
func TestOutage(t *testing.T) {
	t.Parallel()
	th := newThread(t, v1alpha1.DeletionPolicyRetain)
	at := "nats://main-nats." + th.namespace + ".svc:4222"
	th.nats[at].Stop()
	_, err := th.once(t, &v1alpha1.DeliveryStream{}, "main")
	if err == nil {
		t.Error("nobody tries again")
	}
	th.says(t, th.stream, v1alpha1.ConditionStreamReady, is("Unknown", "FabricUnreachable"), at)
	th.says(t, th.stream, v1alpha1.ConditionTenantsPlaced, is("True", "Applied"))
	th.says(t, th.stream, v1alpha1.ConditionWorkerAvailable, is("True", "Available"))
	th.says(t, th.stream, v1alpha1.ConditionConsumerReady, is("Unknown", "WaitingForDependency"))
	th.kubelet(t) // starts it again
	eventually(t, "the connection is back", func() bool {
		_, err := th.once(t, &v1alpha1.DeliveryStream{}, "main")
		return err == nil
	})
	th.mustBeReady(t, th.stream)
}
