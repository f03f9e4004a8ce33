package controllers_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/rigelbuild/compass-operator/api/v1alpha1"
	"github.com/rigelbuild/compass-operator/controllers"
	"github.com/rigelbuild/compass-operator/controllers/backend"
	"github.com/rigelbuild/compass-operator/internal/fabric/natstest"
	"github.com/rigelbuild/compass-operator/internal/naming"
	"github.com/rigelbuild/compass-operator/internal/store/admin"
	"github.com/rigelbuild/compass-operator/internal/store/storetest"
)

// cluster is the one API server of this test process. There is nothing behind it: no controller, no kubelet.
var cluster = sync.OnceValues(func() (*rest.Config, error) {
	if os.Getenv("KUBEBUILDER_ASSETS") == "" {
		return nil, errors.New("KUBEBUILDER_ASSETS names no folder with etcd and kube-apiserver: hack/cluster/build envtest prints one")
	}
	if err := bind(); err != nil {
		return nil, err
	}
	environment.CRDDirectoryPaths = []string{"../config/crd/bases"}
	environment.ErrorIfCRDPathMissing = true
	// Slow is no failure: a busy machine takes a minute for what an idle one does in five seconds.
	environment.ControlPlaneStartTimeout, environment.ControlPlaneStopTimeout = 5*time.Minute, time.Minute
	return environment.Start()
})

var environment = &envtest.Environment{}

// bind ties etcd and kube-apiserver to this process: when it is killed nobody stops them, and they would run for ever. The
// folder of programs becomes one of scripts that ask the kernel for a signal at our end.
func bind() error {
	assets := os.Getenv("KUBEBUILDER_ASSETS")
	dir, err := os.MkdirTemp("", "compass-assets-")
	if err != nil {
		return err
	}
	unbind = func() error { return os.RemoveAll(dir) }
	for _, program := range []string{"etcd", "kube-apiserver", "kubectl"} {
		script := fmt.Sprintf("#!/bin/sh\nexec setpriv --pdeathsig SIGKILL -- %s/%s \"$@\"\n", assets, program)
		if err := os.WriteFile(filepath.Join(dir, program), []byte(script), 0o700); err != nil { //nolint:gosec // a program
			return err
		}
	}
	return os.Setenv("KUBEBUILDER_ASSETS", dir)
}

// unbind removes what bind made.
var unbind = func() error { return nil }

func TestMain(m *testing.M) {
	log.SetLogger(logr.Discard())
	code := m.Run()
	if err := errors.Join(environment.Stop(), unbind()); err != nil {
		fmt.Fprintln(os.Stderr, "stop API server:", err)
	}
	os.Exit(code)
}

func newScheme(tb testing.TB) *runtime.Scheme {
	tb.Helper()
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		tb.Fatal(err)
	}
	return scheme
}

// newClient talks to the API server itself, so that a test sees what is stored now.
func newClient(tb testing.TB) client.WithWatch {
	tb.Helper()
	config, err := cluster()
	if err != nil {
		tb.Fatal(err)
	}
	config = rest.CopyConfig(config)
	config.QPS = -1
	c, err := client.NewWithWatch(config, client.Options{Scheme: newScheme(tb)})
	if err != nil {
		tb.Fatal(err)
	}
	return c
}

// indexed answers what a cache would by its field indexes.
type indexed struct{ client.Client }

func (c indexed) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	var o client.ListOptions
	o.ApplyOptions(opts)
	if o.FieldSelector == nil {
		return c.Client.List(ctx, list, opts...)
	}
	want := o.FieldSelector.Requirements()[0]
	o.FieldSelector = nil
	if err := c.Client.List(ctx, list, &o); err != nil {
		return err
	}
	items, err := meta.ExtractList(list)
	if err != nil {
		return err
	}
	var kept []runtime.Object
	for _, item := range items {
		if obj, ok := item.(client.Object); ok && matches(obj, want.Field, want.Value) {
			kept = append(kept, item)
		}
	}
	return meta.SetList(list, kept)
}

func matches(obj client.Object, field, value string) bool {
	for _, index := range controllers.Indexes() {
		if index.Field != field {
			continue
		}
		for _, v := range index.Value(obj) {
			if v == value {
				return true
			}
		}
	}
	return false
}

// ground is what stands behind the API server in one test: a namespace, a Postgres with databases of its own, NATS, and
// somebody who does what the kubelet and Kubernetes' own controllers would.
type ground struct {
	api       client.WithWatch
	namespace string
	postgres  *storetest.Server
	pool      *backend.Pool

	mu      sync.Mutex
	nats    map[string]*natstest.Server // by URL inside the cluster
	conf    map[string]string           // what each runs with
	writers map[string]*writer          // by stream
	halted  map[string]bool             // names of workloads whose pods do not come up
}

func newGround(tb testing.TB) *ground {
	tb.Helper()
	g := &ground{
		api: newClient(tb), namespace: "t-" + strings.ToLower(rand.Text())[:10], postgres: storetest.Postgres(tb),
		nats: map[string]*natstest.Server{}, conf: map[string]string{}, writers: map[string]*writer{}, halted: map[string]bool{},
	}
	g.pool = backend.NewPool(backend.Options{Dir: tb.TempDir(), Dial: g.dial, Routes: time.Millisecond})
	tb.Cleanup(func() {
		for _, w := range g.writers {
			w.stop()
		}
		g.pool.Close()
	})
	g.create(tb, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: g.namespace}})
	g.adminSecret(tb, "postgres-admin")
	return g
}

// dial maps the address of a NATS inside the cluster to where its servers listen.
func (g *ground) dial(u string) []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	var at []string
	for i := range 3 {
		if s, ok := g.nats[ordinal(u, i)]; ok && (i == 0 || s.Running()) {
			at = append(at, s.URL())
		}
	}
	if len(at) == 0 {
		return []string{"nats://127.0.0.1:1"} // nobody
	}
	return at
}

func (g *ground) create(tb testing.TB, obj client.Object) {
	tb.Helper()
	if err := g.api.Create(tb.Context(), obj); err != nil {
		tb.Fatal(err)
	}
}

func (g *ground) get(t *testing.T, obj client.Object, name string) bool {
	t.Helper()
	err := g.api.Get(t.Context(), client.ObjectKey{Namespace: g.namespace, Name: name}, obj)
	if client.IgnoreNotFound(err) != nil {
		t.Fatal(err)
	}
	return err == nil
}

func (g *ground) update(t *testing.T, obj client.Object, name string, edit func()) {
	t.Helper()
	if !g.get(t, obj, name) {
		t.Fatalf("no %T %s", obj, name)
	}
	edit()
	if err := g.api.Update(t.Context(), obj); err != nil {
		t.Fatal(err)
	}
}

func (g *ground) delete(t *testing.T, obj client.Object, name string) {
	t.Helper()
	obj.SetNamespace(g.namespace)
	obj.SetName(name)
	if err := g.api.Delete(t.Context(), obj); err != nil {
		t.Fatal(err)
	}
}

func (g *ground) secret(t *testing.T, name string) map[string][]byte {
	t.Helper()
	s := &corev1.Secret{}
	if !g.get(t, s, name) {
		return nil
	}
	return s.Data
}

// adminSecret opens Postgres as an admin that is no superuser.
func (g *ground) adminSecret(tb testing.TB, name string) {
	tb.Helper()
	g.create(tb, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: g.namespace, Name: name}, StringData: map[string]string{"uri": g.postgres.AdminDSN}})
}

// adminParts is the same in parts.
func (g *ground) adminParts(t *testing.T) map[string]string {
	t.Helper()
	u, err := url.Parse(g.postgres.AdminDSN)
	if err != nil {
		t.Fatal(err)
	}
	password, _ := u.User.Password()
	return map[string]string{"host": u.Hostname(), "port": u.Port(), "username": u.User.Username(), "password": password, "sslmode": "disable"}
}

// database returns a name that no other test uses; what is made under it goes with the test.
func (g *ground) database(tb testing.TB) string {
	tb.Helper()
	name := "o" + strings.ToLower(rand.Text())[:12]
	a, err := admin.New(admin.Options{DSN: g.postgres.AdminDSN})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := a.Remove(context.WithoutCancel(tb.Context()), name); err != nil {
			tb.Errorf("drop database: %v", err)
		}
	})
	return name
}

// kubelet does once what Kubernetes would do with what is there: runs NATS, starts pods, takes leases, collects garbage.
func (g *ground) kubelet(t *testing.T) {
	t.Helper()
	g.runSets(t)
	g.runDeployments(t)
}

func (g *ground) runSets(t *testing.T) {
	t.Helper()
	list := &appsv1.StatefulSetList{}
	if err := g.api.List(t.Context(), list, client.InNamespace(g.namespace)); err != nil {
		t.Fatal(err)
	}
	for i := range list.Items {
		set := &list.Items[i]
		if g.collect(t, set) || g.halted[set.Name] {
			continue
		}
		g.runNATS(t, set)
		want := appsv1.StatefulSetStatus{
			ObservedGeneration: set.Generation, Replicas: *set.Spec.Replicas, ReadyReplicas: *set.Spec.Replicas, UpdatedReplicas: *set.Spec.Replicas,
			AvailableReplicas: *set.Spec.Replicas,
		}
		if !equality.Semantic.DeepEqual(set.Status, want) {
			set.Status = want
			g.status(t, set)
		}
	}
}

// ordinal is where the i-th server of a NATS is kept: the first at the address of all.
func ordinal(at string, i int) string {
	if i == 0 {
		return at
	}
	return fmt.Sprintf("%s/%d", at, i)
}

// runNATS starts the servers with the configuration that their pods would have. When that changes each is started anew, the
// last first, and the next when the one before it is ready: as Kubernetes does, whether or not pods were added with it.
func (g *ground) runNATS(t *testing.T, set *appsv1.StatefulSet) {
	t.Helper()
	config := &corev1.ConfigMap{}
	if !g.get(t, config, set.Name) {
		t.Fatalf("StatefulSet %s has no ConfigMap", set.Name)
	}
	at := fmt.Sprintf("nats://%s.%s.svc:%d", set.Name, g.namespace, naming.NATSPort)
	text, n := config.Data["nats.conf"], int(*set.Spec.Replicas)
	peers, files := map[string]*natstest.Server{}, map[string][]byte{}
	for key, value := range g.secret(t, set.Name+"-routes") {
		files["nats-routes/"+key] = value
	}
	for i := range n {
		g.mu.Lock()
		s, ok := g.nats[ordinal(at, i)]
		if !ok {
			s = natstest.New(t)
			g.nats[ordinal(at, i)] = s
		}
		g.mu.Unlock()
		peers[fmt.Sprintf("%s-%d", set.Name, i)] = s
		s.In(natstest.Pod{Name: fmt.Sprintf("%s-%d", set.Name, i), Peers: peers, Files: files})
	}
	var changed []*natstest.Server // those that ran already
	for i := n - 1; i >= 0; i-- {
		s := g.nats[ordinal(at, i)]
		g.mu.Lock()
		same := g.conf[ordinal(at, i)] == text
		g.conf[ordinal(at, i)] = text
		g.mu.Unlock()
		switch {
		case !s.Running():
			s.Start(t, text)
		case !same:
			changed = append(changed, s)
		}
	}
	for _, s := range changed {
		s.Start(t, text)
		eventually(t, "a restarted NATS server is ready", s.Ready)
	}
	for _, s := range peers {
		eventually(t, "every NATS server is ready", s.Ready)
	}
}

func (g *ground) runDeployments(t *testing.T) {
	t.Helper()
	list := &appsv1.DeploymentList{}
	if err := g.api.List(t.Context(), list, client.InNamespace(g.namespace)); err != nil {
		t.Fatal(err)
	}
	for i := range list.Items {
		dep := &list.Items[i]
		if g.collect(t, dep) || g.halted[dep.Name] {
			continue
		}
		replicas := *dep.Spec.Replicas
		if stream := dep.Labels[naming.LabelStream]; stream != "" && !g.work(t, dep, stream, replicas > 0) {
			continue
		}
		want := appsv1.DeploymentStatus{
			ObservedGeneration: dep.Generation, Replicas: replicas, UpdatedReplicas: replicas, ReadyReplicas: replicas, AvailableReplicas: replicas,
			Conditions: []appsv1.DeploymentCondition{{Type: appsv1.DeploymentAvailable, Status: corev1.ConditionTrue, Reason: "MinimumReplicasAvailable"}},
		}
		if !equality.Semantic.DeepEqual(dep.Status, want) {
			dep.Status = want
			g.status(t, dep)
		}
	}
}

func (g *ground) status(t *testing.T, obj client.Object) {
	t.Helper()
	if err := g.api.Status().Update(t.Context(), obj); err != nil {
		t.Fatal(err)
	}
}

// collect is the garbage collector for what was deleted in the foreground.
func (g *ground) collect(t *testing.T, obj client.Object) bool {
	t.Helper()
	if obj.GetDeletionTimestamp().IsZero() {
		return false
	}
	if w := g.writers[obj.GetLabels()[naming.LabelStream]]; w != nil {
		w.stop()
		delete(g.writers, obj.GetLabels()[naming.LabelStream])
	}
	obj.SetFinalizers(nil)
	if err := g.api.Update(t.Context(), obj); client.IgnoreNotFound(err) != nil {
		t.Fatal(err)
	}
	return true
}

// eventually waits until what is asked for is so.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	deadline := time.Now().Add(5 * time.Minute)
	for !is() {
		if time.Now().After(deadline) {
			t.Fatalf("still not: %s", what)
		}
		select {
		case <-t.Context().Done():
			t.Fatal(t.Context().Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
}
