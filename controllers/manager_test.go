package controllers_test

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/yaml"

	"github.com/rigelbuild/compass-operator/api/v1alpha1"
	"github.com/rigelbuild/compass-operator/controllers"
	"github.com/rigelbuild/compass-operator/internal/drift"
	"github.com/rigelbuild/compass-operator/internal/fabric"
	"github.com/rigelbuild/compass-operator/internal/kube"
)

// rightful is a user with the rights that the generated role gives the operator, in one namespace, and no others.
func (g *ground) rightful(t *testing.T) *rest.Config {
	t.Helper()
	text, err := os.ReadFile("../config/rbac/role.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var generated rbacv1.ClusterRole
	if err := yaml.UnmarshalStrict(text, &generated); err != nil {
		t.Fatal(err)
	}
	operator := metav1.ObjectMeta{Namespace: g.namespace, Name: "operator"}
	g.create(t, &rbacv1.Role{ObjectMeta: operator, Rules: generated.Rules})
	g.create(t, &rbacv1.RoleBinding{
		ObjectMeta: operator, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "operator"},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: g.namespace}},
	})
	user, err := environment.AddUser(envtest.User{Name: g.namespace}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return user.Config()
}

// run runs the whole operator for one namespace until the test ends.
func (g *ground) run(t *testing.T) {
	t.Helper()
	options := controllers.CacheOptions()
	options.DefaultNamespaces = map[string]cache.Config{g.namespace: {}}
	mgr, err := manager.New(g.rightful(t), manager.Options{
		Scheme: newScheme(t), Cache: options, Metrics: server.Options{BindAddress: "0"},
		Controller: config.Controller{SkipNameValidation: new(true)}, // several managers in one process
	})
	if err != nil {
		t.Fatal(err)
	}
	err = controllers.Register(t.Context(), mgr, controllers.Options{
		Images: kube.Images{Compass: "localhost/compass:dev", NATS: "localhost/nats:dev"}, Pool: g.pool,
		Resync: time.Hour, Poll: time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("manager: %v", err)
		}
	})
}

// hasStream reports whether JetStream holds a stream as it should be. It writes nothing.
func (g *ground) hasStream(t *testing.T, name string) bool {
	t.Helper()
	at := g.place(t)
	at.Drift = drift.Open(true, true)
	o := &v1alpha1.DeliveryStream{}
	g.get(t, o, name)
	_, err := g.pool.EnsureStream(t.Context(), at, fabric.StreamSpec{Name: name}, v1alpha1.AdoptionNever)
	return err == nil
}

// Holds REQ-202, REQ-209, REQ-210, REQ-219, REQ-224: the manager, with the generated rights and no others, brings everything
// up by its watches, puts drift back long before the resync, and lets go of what is deleted.
func TestManager(t *testing.T) {
	t.Parallel()
	g := newGround(t)
	g.run(t)
	// Everything at once, in the order that helps least.
	stream := g.newStream(t, "main", "main")
	acme := g.newTenant(t, "acme", "main")
	server := g.newServer(t, "main", func(o *v1alpha1.CompassServer) { o.Spec.DeletionPolicy = v1alpha1.DeletionPolicyDelete })
	all := func(objects ...named) func() bool {
		return func() bool {
			g.kubelet(t)
			for _, o := range objects {
				if !g.ready(t, o) {
					return false
				}
			}
			return true
		}
	}
	eventually(t, "all three are Ready", all(server, acme, stream))

	worker := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: g.namespace, Name: "main-compass-delivery"}}
	main := &v1alpha1.CompassServer{}
	g.update(t, main, "main", func() { main.Spec.Telemetry.LogLevel = "error" })
	eventually(t, "a worker learns what its server's spec says", func() bool {
		g.kubelet(t)
		config := &corev1.ConfigMap{}
		return g.get(t, config, worker.Name) && strings.Contains(config.Data["config.yaml"], "level: error")
	})

	if err := g.api.Patch(t.Context(), worker, client.RawPatch(types.MergePatchType, []byte(`{"spec": {"replicas": 2}}`))); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a scaled worker is one again", func() bool {
		return g.get(t, worker, worker.Name) && *worker.Spec.Replicas == 1
	})

	// Lesson 2 and ask 1: who does it to JetStream itself is heard, and so is a NATS that comes back with nothing.
	if err := g.pool.RemoveStream(t.Context(), g.place(t), "main"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a removed stream is back", func() bool { return g.hasStream(t, "main") })

	url := "nats://main-nats." + g.namespace + ".svc:4222"
	g.nats[url].Wipe(t)
	g.nats[url].Start(t, g.conf[url])
	eventually(t, "a NATS without a memory has its streams and accounts again", func() bool {
		g.kubelet(t)
		return g.hasStream(t, "main") && all(server, acme, stream)()
	})

	late := g.newTenant(t, "late", "main")
	eventually(t, "a late tenant is carried", all(late))

	keys := &corev1.Secret{}
	g.get(t, keys, "acme-keys")
	g.delete(t, &corev1.Secret{}, keys.Name)
	eventually(t, "lost keys are said as soon as they are", func() bool {
		o := &v1alpha1.CompassTenant{}
		g.get(t, o, "acme")
		said := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ConditionAccountReady)
		return said != nil && said.Reason == v1alpha1.ReasonIdentityConflict
	})
	g.create(t, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: g.namespace, Name: keys.Name, Labels: keys.Labels}, Data: keys.Data})
	eventually(t, "and keys that were put back are taken", all(acme))

	for _, o := range []named{stream, acme, late, server} {
		g.delete(t, o.kind(), o.name)
	}
	eventually(t, "the server is gone", func() bool {
		g.kubelet(t)
		return !g.get(t, &v1alpha1.CompassServer{}, "main")
	})
}
