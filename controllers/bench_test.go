package controllers_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/rigelbuild/compass-operator/api/v1alpha1"
	"github.com/rigelbuild/compass-operator/internal/naming"
	"github.com/rigelbuild/compass-operator/internal/store/storetest"
)

// benchAt is how many tenants and streams BenchmarkOperator has; hack/bench-operator sets it.
const benchAt = "COMPASS_BENCH_OBJECTS"

// foreign is how many Secrets of somebody else's, of 35 KiB each, lie beside the objects: 280 MB in all.
const foreign = 8000

// usual is how often the manager looks at what is well, unless told otherwise.
const usual = 10 * time.Minute

// benchForeign makes them fewer, for who looks at something else.
const benchForeign = "COMPASS_BENCH_FOREIGN"

// BenchmarkOperator measures the manager as a process of its own against a real API server, Postgres and NATS: tenants and
// streams to Ready beside a program that makes the same calls and decides nothing, writes while idle, memory, and how soon a
// new object is Ready after a restart. Deployments are made available, and leases taken, by a stub: stubKubelet.
func BenchmarkOperator(b *testing.B) {
	n, err := strconv.Atoi(os.Getenv(benchAt))
	if err != nil || n < 1 {
		n = 20
	}
	for range b.N {
		benchOperator(b, n)
	}
}

func benchOperator(b *testing.B, n int) {
	secrets := foreign
	if s := os.Getenv(benchForeign); s != "" {
		secrets, _ = strconv.Atoi(s)
	}
	w := newBench(b, n)
	m := w.start(b, usual)
	m.quiet(b)
	empty := m.rss(b)
	m.stop(b)
	w.foreignSecrets(b, secrets)
	m = w.start(b, usual)
	m.quiet(b)
	b.ReportMetric(m.rss(b)-empty, "MiB-for-foreign-secrets")
	w.create(b, w.server())
	w.await(b, "CompassServer", 1)
	w.leaseBy(b)
	b.ReportMetric(empty, "MiB-empty")
	b.Logf("with %d Secrets of somebody else's: %.0f MiB, before them %.0f", secrets, m.rss(b), empty)

	floor := w.tenantFloor(b)
	began := time.Now()
	w.createMany(b, n, "t", func(name string) client.Object { return w.tenant(name) })
	w.await(b, "CompassTenant", n)
	took := time.Since(began)
	compare(b, n, took, floor, "tenants")
	m.told(b, "tenants")

	floor = w.streamFloor(b)
	began = time.Now()
	w.createMany(b, n, "s", func(name string) client.Object { return w.stream(name, "t"+name[1:]) })
	w.await(b, "DeliveryStream", n)
	took = time.Since(began)
	compare(b, n, took, floor, "streams")
	m.told(b, "streams")
	m.quiet(b)
	m.told(b, "quiet")
	b.ReportMetric(m.rss(b), "MiB-full")

	m.stop(b)
	m = w.start(b, 20*time.Second)
	m.resyncs(b, 2*n+1)
	m.quiet(b)
	writes, rows := m.writes(b), w.rowsWritten(b)
	m.resyncs(b, 3*(2*n+1))
	writes, rows = m.writes(b)-writes, w.rowsWritten(b)-rows
	b.ReportMetric(writes, "idle-API-writes")
	b.ReportMetric(rows, "idle-rows-written")
	b.Logf("three idle looks at everything: %.0f writes to the API server, %.0f rows", writes, rows)

	m.stop(b)
	m = w.start(b, usual)
	m.resyncs(b, 1) // what was there before waits in its queues
	passes := m.passes(b)
	began = time.Now()
	w.create(b, w.tenant("late"))
	w.await(b, "CompassTenant", n+1)
	took = time.Since(began)
	part := (m.passes(b) - passes) / float64(2*n+1)
	b.ReportMetric(took.Seconds(), "s-new-after-restart")
	b.ReportMetric(part, "backlog-part-before-it")
	b.Logf("a new one after a restart with %d: %.2f s, after %.3f of the backlog", 2*n, took.Seconds(), part)
	b.ReportMetric(m.rss(b), "MiB-restarted")
	m.stop(b)
}

// compare reports how long n took, and as soon as it is known: a run at a thousand takes minutes.
func compare(b *testing.B, n int, took, floor time.Duration, what string) {
	b.Helper()
	b.ReportMetric(float64(n)/floor.Seconds(), "floor-"+what+"/s")
	b.ReportMetric(float64(n)/took.Seconds(), what+"/s")
	b.ReportMetric(took.Seconds()/floor.Seconds(), what+"-to-floor")
	b.Logf("%d %s: %.1f s, the floor %.1f s, %.2f of it", n, what, took.Seconds(), floor.Seconds(), took.Seconds()/floor.Seconds())
}

// bench is the ground of one run: one server on somebody else's NATS, which a process can reach by its address.
type bench struct {
	*ground
	n        int
	database string
	binary   string
	kube     string // path of a kubeconfig

	lease  func(ctx context.Context, stream string) error // takes it for the stub
	leases sync.Mutex
	mu     sync.Mutex
	ready  map[string]map[string]bool // by kind and name
	news   chan struct{}
}

func newBench(b *testing.B, n int) *bench {
	b.Helper()
	w := &bench{ground: newGround(b), n: n, ready: map[string]map[string]bool{}, news: make(chan struct{}, 1)}
	w.database = w.ground.database(b)
	seed, creds := w.theirs(b)
	theirs := w.nats[theirURL]
	w.nats[theirs.URL()] = theirs // a process cannot be told of names inside the cluster
	for name, data := range map[string]map[string][]byte{"nats-operator": {"operator.seed": seed}, "nats-system": {"nats.creds": creds}} {
		w.create(b, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name}, Data: data})
	}
	dir := b.TempDir()
	w.binary, w.kube = filepath.Join(dir, "manager"), filepath.Join(dir, "kubeconfig")
	if out, err := exec.CommandContext(b.Context(), "go", "build", "-o", w.binary, "../cmd/manager").CombinedOutput(); err != nil {
		b.Fatalf("build: %v: %s", err, out)
	}
	user, err := environment.AddUser(envtest.User{Name: "bench", Groups: []string{"system:masters"}}, nil)
	if err != nil {
		b.Fatal(err)
	}
	config, err := user.KubeConfig()
	if err != nil {
		b.Fatal(err)
	}
	if err := os.WriteFile(w.kube, config, 0o600); err != nil {
		b.Fatal(err)
	}
	w.stubKubelet(b)
	for _, list := range []client.ObjectList{&v1alpha1.CompassServerList{}, &v1alpha1.CompassTenantList{}, &v1alpha1.DeliveryStreamList{}} {
		w.follow(b, list)
	}
	return w
}

func (w *bench) server() client.Object {
	s := &v1alpha1.CompassServer{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "main"}}
	s.Spec.Database = v1alpha1.DatabaseSpec{AdminSecretRef: v1alpha1.LocalReference{Name: "postgres-admin"}, Name: w.database}
	s.Spec.Server.Replicas = new(int32(1))
	s.Spec.NATS = v1alpha1.NATSSpec{Mode: v1alpha1.NATSModeExternal, External: &v1alpha1.ExternalNATSSpec{
		URLs: []string{w.nats[theirURL].URL()}, OperatorSecretRef: v1alpha1.LocalReference{Name: "nats-operator"},
		SystemSecretRef: v1alpha1.LocalReference{Name: "nats-system"},
	}}
	return s
}

func (w *bench) tenant(name string) *v1alpha1.CompassTenant {
	o := &v1alpha1.CompassTenant{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name}}
	o.Spec.ServerRef.Name = "main"
	return o
}

func (w *bench) stream(name, tenant string) client.Object {
	o := &v1alpha1.DeliveryStream{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name}}
	o.Spec.ServerRef.Name = "main"
	o.Spec.Tenants.Names = []string{tenant}
	o.Spec.Stream.MaxBytes, o.Spec.DeadLetter.MaxBytes = resource.MustParse("1Mi"), resource.MustParse("1Mi") // a thousand on one disk
	return o
}

// createMany creates with as many at a time as the manager looks at tenants.
func (w *bench) createMany(b *testing.B, n int, prefix string, object func(name string) client.Object) {
	b.Helper()
	each(b, n, tenantsAtOnce, func(ctx context.Context, i int) error {
		return w.api.Create(ctx, object(fmt.Sprintf("%s%d", prefix, i)))
	})
}

// How many the manager looks at at once; the floor does the same.
const tenantsAtOnce, streamsAtOnce = 8, 4

func each(b *testing.B, n, atOnce int, do func(ctx context.Context, i int) error) {
	b.Helper()
	var next atomic.Int64
	errs := make(chan error, atOnce)
	for range cap(errs) {
		go func() {
			var err error
			for i := int(next.Add(1)) - 1; i < n && err == nil; i = int(next.Add(1)) - 1 {
				err = do(b.Context(), i)
			}
			errs <- err
		}()
	}
	for range cap(errs) {
		if err := <-errs; err != nil {
			b.Fatal(err)
		}
	}
}

// foreignSecrets are what other people keep in a cluster; the manager must not.
func (w *bench) foreignSecrets(b *testing.B, n int) {
	b.Helper()
	blob := make([]byte, 35<<10)
	_, _ = rand.Read(blob)
	each(b, n, tenantsAtOnce, func(ctx context.Context, i int) error {
		return w.api.Create(ctx, &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: fmt.Sprintf("foreign-%d", i)}, Data: map[string][]byte{"blob": blob},
		})
	})
}

// follow notes which objects are Ready; a tenant without a stream is as ready as it can be.
func (w *bench) follow(b *testing.B, list client.ObjectList) {
	b.Helper()
	watch, err := w.api.Watch(b.Context(), list, client.InNamespace(w.namespace))
	if err != nil {
		b.Fatal(err)
	}
	go func() {
		for event := range watch.ResultChan() {
			obj, ok := event.Object.(client.Object)
			if !ok {
				continue
			}
			kind, is := "", false
			switch o := obj.(type) {
			case *v1alpha1.CompassServer:
				kind, is = "CompassServer", meta.IsStatusConditionTrue(o.Status.Conditions, v1alpha1.ConditionReady)
			case *v1alpha1.CompassTenant:
				kind, is = "CompassTenant", meta.IsStatusConditionTrue(o.Status.Conditions, v1alpha1.ConditionCredentialsReady)
			case *v1alpha1.DeliveryStream:
				kind, is = "DeliveryStream", meta.IsStatusConditionTrue(o.Status.Conditions, v1alpha1.ConditionReady)
			}
			w.mu.Lock()
			if w.ready[kind] == nil {
				w.ready[kind] = map[string]bool{}
			}
			w.ready[kind][obj.GetName()] = is
			w.mu.Unlock()
			select {
			case w.news <- struct{}{}:
			default:
			}
		}
	}()
}

func (w *bench) await(b *testing.B, kind string, n int) {
	b.Helper()
	deadline := time.After(15 * time.Minute)
	for {
		w.mu.Lock()
		count := 0
		for _, is := range w.ready[kind] {
			if is {
				count++
			}
		}
		w.mu.Unlock()
		if count >= n {
			return
		}
		select {
		case <-w.news:
		case <-deadline:
			b.Fatalf("%d of %d %s are ready", count, n, kind)
		case <-b.Context().Done():
			b.Fatal(b.Context().Err())
		}
	}
}

// stubKubelet makes every Deployment available as soon as it is there, and takes the lease of a worker's stream.
func (w *bench) stubKubelet(b *testing.B) {
	b.Helper()
	watch, err := w.api.Watch(b.Context(), &appsv1.DeploymentList{}, client.InNamespace(w.namespace))
	if err != nil {
		b.Fatal(err)
	}
	work := make(chan *appsv1.Deployment, 4096)
	go func() {
		defer close(work)
		for event := range watch.ResultChan() {
			if d, ok := event.Object.(*appsv1.Deployment); ok && d.Status.ObservedGeneration < d.Generation {
				work <- d
			}
		}
	}()
	for range 8 {
		go func() {
			for d := range work {
				if err := w.makeAvailable(b.Context(), d); err != nil && b.Context().Err() == nil {
					b.Errorf("stub of the kubelet: %v", err)
				}
			}
		}()
	}
}

func (w *bench) makeAvailable(ctx context.Context, d *appsv1.Deployment) error {
	if stream := d.Labels[naming.LabelStream]; stream != "" {
		if err := w.takeLease(ctx, stream); err != nil {
			return err
		}
	}
	n := *d.Spec.Replicas
	d.Status = appsv1.DeploymentStatus{
		ObservedGeneration: d.Generation, Replicas: n, UpdatedReplicas: n, ReadyReplicas: n, AvailableReplicas: n,
		Conditions: []appsv1.DeploymentCondition{{Type: appsv1.DeploymentAvailable, Status: corev1.ConditionTrue, Reason: "MinimumReplicasAvailable"}},
	}
	err := w.api.Status().Update(ctx, d)
	if apierrors.IsConflict(err) {
		return nil // the next event has it
	}
	return err
}

func (w *bench) takeLease(ctx context.Context, stream string) error {
	w.leases.Lock()
	defer w.leases.Unlock()
	return w.lease(ctx, stream)
}

// leaseBy lets the stub take leases over one connection, once the database is there.
func (w *bench) leaseBy(b *testing.B) {
	b.Helper()
	dsn, err := storetest.WithDatabase(w.postgres.SuperDSN, w.database)
	if err != nil {
		b.Fatal(err)
	}
	conn := storetest.Connect(b, dsn)
	w.lease = func(ctx context.Context, stream string) error {
		_, err := conn.Exec(ctx, `
insert into compass.delivery_leases (stream, holder, epoch, nonce, expires_at, clean) values ($1, 'stub', compass.number(), 'stub', 'infinity', false)
on conflict (stream) do update set expires_at = 'infinity', clean = false`, stream)
		return err
	}
}

// rowsWritten is what Postgres says of the server's database.
func (w *bench) rowsWritten(b *testing.B) float64 {
	b.Helper()
	var rows float64
	dsn, err := storetest.WithDatabase(w.postgres.SuperDSN, w.database)
	if err != nil {
		b.Fatal(err)
	}
	err = storetest.Connect(b, dsn).QueryRow(b.Context(),
		"select tup_inserted + tup_updated + tup_deleted from pg_stat_database where datname = $1", w.database).Scan(&rows)
	if err != nil {
		b.Fatal(err)
	}
	return rows
}
