package controllers_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/rigelbuild/compass-operator/api/v1alpha1"
	"github.com/rigelbuild/compass-operator/controllers/backend"
	"github.com/rigelbuild/compass-operator/controllers/flow"
	"github.com/rigelbuild/compass-operator/controllers/server"
	"github.com/rigelbuild/compass-operator/controllers/stream"
	"github.com/rigelbuild/compass-operator/controllers/tenant"
	"github.com/rigelbuild/compass-operator/internal/fabric"
	"github.com/rigelbuild/compass-operator/internal/kube"
	"github.com/rigelbuild/compass-operator/internal/store"
	"github.com/rigelbuild/compass-operator/internal/store/admin"
	"github.com/rigelbuild/compass-operator/internal/store/schema"
)

// calls counts what an operator asks of the world, and lets one of it fail.
type calls struct {
	n      int
	writes []string // to the API server
	failAt int      // the n-th call fails after it took effect, as if its answer was lost; 0: none

	failed map[string]bool // what has failed once already; nil: nothing fails for its name
	armed  bool            // the next call that has not, does
}

var errLost = errors.New("the answer was lost")

// call does what is asked for and counts it.
func (c *calls) call(what string, do func() error) error {
	c.n++
	if err := do(); err != nil {
		return err
	}
	if c.armed && !c.failed[what] {
		c.failed[what], c.armed = true, false
		return errLost
	}
	if c.n == c.failAt {
		return errLost
	}
	return nil
}

func value[T any](c *calls, what string, do func() (T, error)) (T, error) {
	var v T
	err := c.call(what, func() (err error) { v, err = do(); return err })
	return v, err
}

// operator is one process of the operator, with its reconcilers called directly.
type operator struct {
	*ground
	calls  *calls
	server *server.Reconciler
	tenant *tenant.Reconciler
	stream *stream.Reconciler
	client client.Client
	events []string
	ahead  time.Duration // of the operator's clock
}

func (op *operator) now() time.Time { return time.Now().Add(op.ahead) }

// later lets time pass for the operator.
func (op *operator) later(d time.Duration) { op.ahead += d }

type recorder struct{ op *operator }

func (r recorder) Eventf(_, _ runtime.Object, kind, reason, _, _ string, _ ...any) {
	r.op.events = append(r.op.events, kind+" "+reason)
}

func newOperator(t *testing.T, g *ground, c *calls) *operator {
	t.Helper()
	return newOperatorOf(t, g, c, "dev")
}

// newOperatorOf is one of some version, which it runs Servers and workers of.
func newOperatorOf(t *testing.T, g *ground, c *calls, version string) *operator {
	t.Helper()
	op := &operator{ground: g, calls: c}
	op.client = indexed{counted(g.api, c)}
	kids := kube.Children{Client: op.client, Live: counted(g.api, c)}
	frame := flow.Frame{
		Client: op.client, Events: recorder{op}, Now: op.now, Spread: func(d time.Duration) time.Duration { return d },
		Resync: time.Hour, Poll: time.Minute, Step: 5 * time.Minute, Budget: 10 * time.Minute,
	}
	images := kube.Images{Compass: "localhost/compass:" + version, NATS: "localhost/nats:dev", PullPolicy: "IfNotPresent"}
	pool := counting{g.pool, c}
	var err1, err2, err3 error
	op.server, err1 = server.New(server.Options{
		Frame: frame, Children: kids, Images: images, Rand: rand.Reader, Now: op.now,
		Systems: server.Systems{Databases: pool, Platform: pool, Transport: pool, Sessions: g.pool},
	})
	op.tenant, err2 = tenant.New(tenant.Options{
		Frame: frame, Children: kids, Rand: rand.Reader, Now: op.now, Systems: tenant.Systems{Rows: pool, Accounts: pool, Logins: pool, Homes: pool},
	})
	op.stream, err3 = stream.New(stream.Options{
		Frame: frame, Children: kids, Images: images, Now: op.now,
		Systems: stream.Systems{Placements: pool, Leases: pool, Streams: pool},
	})
	if err := errors.Join(err1, err2, err3); err != nil {
		t.Fatal(err)
	}
	return op
}

// counted is a client whose writes and live reads are calls.
func counted(c client.WithWatch, count *calls) client.Client {
	write := func(verb string, o client.Object, do func() error) error {
		count.writes = append(count.writes, verb+" "+o.GetName())
		return count.call(fmt.Sprintf("%s %T %s %s", verb, o, o.GetObjectKind().GroupVersionKind().Kind, o.GetName()), do)
	}
	return interceptor.NewClient(c, interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			return write("create", o, func() error { return c.Create(ctx, o, opts...) })
		},
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
			return write("patch", o, func() error { return c.Patch(ctx, o, p, opts...) })
		},
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
			return write("delete", o, func() error { return c.Delete(ctx, o, opts...) })
		},
		SubResourcePatch: func(
			ctx context.Context, c client.Client, sub string, o client.Object, p client.Patch, opts ...client.SubResourcePatchOption,
		) error {
			return write(sub, o, func() error { return c.SubResource(sub).Patch(ctx, o, p, opts...) })
		},
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			return count.call(fmt.Sprintf("get %T %s", o, key.Name), func() error { return c.Get(ctx, key, o, opts...) })
		},
	})
}

// counting is the pool with every call counted.
type counting struct {
	pool *backend.Pool
	c    *calls
}

func (p counting) Observe(ctx context.Context, at backend.Admin, database string) (admin.Observation, error) {
	return value(p.c, "Observe", func() (admin.Observation, error) { return p.pool.Observe(ctx, at, database) })
}

func (p counting) EnsureDatabase(ctx context.Context, at backend.Admin, owner string, spec admin.Spec) (admin.Observation, error) {
	return value(p.c, "EnsureDatabase", func() (admin.Observation, error) { return p.pool.EnsureDatabase(ctx, at, owner, spec) })
}

func (p counting) Migrate(ctx context.Context, at backend.Admin, database string) (schema.Status, error) {
	return value(p.c, "Migrate", func() (schema.Status, error) { return p.pool.Migrate(ctx, at, database) })
}

func (p counting) RemoveDatabase(ctx context.Context, at backend.Admin, owner, database string) error {
	return p.c.call("RemoveDatabase", func() error { return p.pool.RemoveDatabase(ctx, at, owner, database) })
}

func (p counting) EnsureSystem(ctx context.Context, at backend.Place) error {
	return p.c.call("EnsureSystem", func() error { return p.pool.EnsureSystem(ctx, at) })
}

func (p counting) EnsureAdmin(ctx context.Context, at backend.Place, id store.TenantID, token string) error {
	return p.c.call("EnsureAdmin", func() error { return p.pool.EnsureAdmin(ctx, at, id, token) })
}

func (p counting) TokenSince(ctx context.Context, at backend.Place, id store.TenantID, token string) (time.Time, error) {
	return value(p.c, "TokenSince", func() (time.Time, error) { return p.pool.TokenSince(ctx, at, id, token) })
}

func (p counting) RevokeToken(ctx context.Context, at backend.Place, id store.TenantID, token string) error {
	return p.c.call("RevokeToken", func() error { return p.pool.RevokeToken(ctx, at, id, token) })
}

func (p counting) EnsureLogin(ctx context.Context, at backend.Place, by backend.Admin, want backend.Login) error {
	return p.c.call("EnsureLogin", func() error { return p.pool.EnsureLogin(ctx, at, by, want) })
}

func (p counting) RemoveLogin(ctx context.Context, at backend.Place, by backend.Admin, database string, id store.TenantID) error {
	return p.c.call("RemoveLogin", func() error { return p.pool.RemoveLogin(ctx, at, by, database, id) })
}

func (p counting) EnsureEnrolment(ctx context.Context, at backend.Place, token, fleet string) (bool, error) {
	return value(p.c, "EnsureEnrolment", func() (bool, error) { return p.pool.EnsureEnrolment(ctx, at, token, fleet) })
}

func (p counting) CountTenants(ctx context.Context, at backend.Place) (int64, error) {
	return value(p.c, "CountTenants", func() (int64, error) { return p.pool.CountTenants(ctx, at) })
}

func (p counting) Probe(ctx context.Context, at backend.Place) error {
	return p.c.call("Probe", func() error { return p.pool.Probe(ctx, at) })
}

func (p counting) EnsureAccounts(ctx context.Context, at backend.Place, servers int, accounts ...fabric.Account) (backend.NATSSeen, error) {
	return value(p.c, "EnsureAccounts", func() (backend.NATSSeen, error) { return p.pool.EnsureAccounts(ctx, at, servers, accounts...) })
}

func (p counting) EnsureTenant(ctx context.Context, at backend.Place, want store.TenantRow) (store.TenantRow, error) {
	return value(p.c, "EnsureTenant", func() (store.TenantRow, error) { return p.pool.EnsureTenant(ctx, at, want) })
}

func (p counting) RemoveTenant(ctx context.Context, at backend.Place, slug string) error {
	return p.c.call("RemoveTenant", func() error { return p.pool.RemoveTenant(ctx, at, slug) })
}

func (p counting) EnsureAccount(ctx context.Context, at backend.Place, account fabric.Account, adopt v1alpha1.AdoptionPolicy) error {
	return p.c.call("EnsureAccount", func() error { return p.pool.EnsureAccount(ctx, at, account, adopt) })
}

func (p counting) Bury(ctx context.Context, at backend.Place, servers int, stones []fabric.Tombstone) error {
	return p.c.call("Bury", func() error { return p.pool.Bury(ctx, at, servers, stones) })
}

func (p counting) RemoveAccount(ctx context.Context, at backend.Place, account fabric.Account) error {
	return p.c.call("RemoveAccount", func() error { return p.pool.RemoveAccount(ctx, at, account) })
}

func (p counting) Tenants(ctx context.Context, at backend.Place) ([]store.TenantRow, error) {
	return value(p.c, "Tenants", func() ([]store.TenantRow, error) { return p.pool.Tenants(ctx, at) })
}

func (p counting) TenantsOf(ctx context.Context, at backend.Place, name string, slugs []string) ([]store.TenantRow, error) {
	return value(p.c, "TenantsOf", func() ([]store.TenantRow, error) { return p.pool.TenantsOf(ctx, at, name, slugs) })
}

func (p counting) PlaceTenant(ctx context.Context, at backend.Place, tenant store.TenantRow, to string) (bool, error) {
	return value(p.c, "PlaceTenant", func() (bool, error) { return p.pool.PlaceTenant(ctx, at, tenant, to) })
}

func (p counting) DrainTenant(ctx context.Context, at backend.Place, id store.TenantID, name string) error {
	return p.c.call("DrainTenant", func() error { return p.pool.DrainTenant(ctx, at, id, name) })
}

func (p counting) Lease(ctx context.Context, at backend.Place, name string, database int) (store.LeaseSeen, error) {
	return value(p.c, "Lease", func() (store.LeaseSeen, error) { return p.pool.Lease(ctx, at, name, database) })
}

func (p counting) Backlog(ctx context.Context, at backend.Place, name string) (store.Backlog, error) {
	return value(p.c, "Backlog", func() (store.Backlog, error) { return p.pool.Backlog(ctx, at, name) })
}

func (p counting) FindTenant(ctx context.Context, at backend.Place, slug string) (*store.TenantRow, error) {
	return value(p.c, "FindTenant", func() (*store.TenantRow, error) { return p.pool.FindTenant(ctx, at, slug) })
}

func (p counting) MoveTenant(ctx context.Context, at backend.Place, id store.TenantID, from, to backend.Home) (bool, error) {
	return value(p.c, "MoveTenant", func() (bool, error) { return p.pool.MoveTenant(ctx, at, id, from, to) })
}

func (p counting) TenantUsage(ctx context.Context, at backend.Place, row store.TenantRow) (backend.Usage, error) {
	return value(p.c, "TenantUsage", func() (backend.Usage, error) { return p.pool.TenantUsage(ctx, at, row) })
}

func (p counting) EnsureStream(ctx context.Context, at backend.Place, spec fabric.StreamSpec, adopt v1alpha1.AdoptionPolicy) (fabric.StreamSeen, error) {
	return value(p.c, "EnsureStream", func() (fabric.StreamSeen, error) { return p.pool.EnsureStream(ctx, at, spec, adopt) })
}

func (p counting) EnsureDeadLetters(ctx context.Context, at backend.Place, spec fabric.StreamSpec, adopt v1alpha1.AdoptionPolicy) (fabric.StreamSeen, error) {
	return value(p.c, "EnsureDeadLetters", func() (fabric.StreamSeen, error) { return p.pool.EnsureDeadLetters(ctx, at, spec, adopt) })
}

func (p counting) EnsureConsumer(ctx context.Context, at backend.Place, spec fabric.StreamSpec, adopt v1alpha1.AdoptionPolicy) (fabric.ConsumerSeen, error) {
	return value(p.c, "EnsureConsumer", func() (fabric.ConsumerSeen, error) { return p.pool.EnsureConsumer(ctx, at, spec, adopt) })
}

func (p counting) RemoveStream(ctx context.Context, at backend.Place, name string) error {
	return p.c.call("RemoveStream", func() error { return p.pool.RemoveStream(ctx, at, name) })
}

// once looks at one object once, as the work queue would have it. An object that is not there is nothing to do.
func (op *operator) once(t *testing.T, obj client.Object, name string) (reconcile.Result, error) {
	t.Helper()
	if !op.get(t, obj, name) {
		return reconcile.Result{}, nil
	}
	switch o := obj.(type) {
	case *v1alpha1.CompassServer:
		return op.server.Reconcile(t.Context(), o)
	case *v1alpha1.CompassTenant:
		return op.tenant.Reconcile(t.Context(), o)
	case *v1alpha1.DeliveryStream:
		return op.stream.Reconcile(t.Context(), o)
	}
	t.Fatalf("no reconciler of %T", obj)
	return reconcile.Result{}, nil
}

// named is one of our objects by its name.
type named struct {
	kind func() client.Object
	name string
}

func aServer(name string) named {
	return named{func() client.Object { return &v1alpha1.CompassServer{} }, name}
}

func aTenant(name string) named {
	return named{func() client.Object { return &v1alpha1.CompassTenant{} }, name}
}

func aStream(name string) named {
	return named{func() client.Object { return &v1alpha1.DeliveryStream{} }, name}
}

// settle looks at the objects in turn, with Kubernetes doing its part, until a whole round changes none of them.
func (op *operator) settle(t *testing.T, objects ...named) {
	t.Helper()
	const rounds = 12
	for range rounds {
		before := op.versions(t, objects)
		for _, o := range objects {
			_, _ = op.once(t, o.kind(), o.name) // what went wrong is in the conditions
		}
		op.kubelet(t)
		if before == op.versions(t, objects) {
			return
		}
	}
	t.Fatalf("not settled after %d rounds", rounds)
}

func (op *operator) versions(t *testing.T, objects []named) string {
	t.Helper()
	all := ""
	for _, o := range objects {
		obj := o.kind()
		if op.get(t, obj, o.name) {
			all += " " + obj.GetResourceVersion()
		}
		all += ";"
	}
	return all
}

// condition is what an object says of one thing.
func (g *ground) condition(t *testing.T, o named, kind string) metav1.Condition {
	t.Helper()
	obj := o.kind()
	if !g.get(t, obj, o.name) {
		t.Fatalf("%T %s is gone", obj, o.name)
	}
	common, _ := obj.(flow.Object)
	if c := meta.FindStatusCondition(common.Common().Conditions, kind); c != nil {
		return *c
	}
	return metav1.Condition{}
}

func (g *ground) ready(t *testing.T, o named) bool {
	t.Helper()
	return g.condition(t, o, v1alpha1.ConditionReady).Status == metav1.ConditionTrue
}

func (g *ground) mustBeReady(t *testing.T, objects ...named) {
	t.Helper()
	for _, o := range objects {
		if g.ready(t, o) {
			continue
		}
		obj := o.kind()
		g.get(t, obj, o.name)
		common, _ := obj.(flow.Object)
		for _, c := range common.Common().Conditions {
			t.Logf("%s: %s %s %s: %s", o.name, c.Type, c.Status, c.Reason, c.Message)
		}
		t.Fatalf("%T %s is not Ready", obj, o.name)
	}
}

// The three objects of most tests.

func (g *ground) newServer(t *testing.T, name string, edit ...func(*v1alpha1.CompassServer)) named {
	t.Helper()
	s := &v1alpha1.CompassServer{ObjectMeta: metav1.ObjectMeta{Namespace: g.namespace, Name: name}}
	s.Spec.Database.AdminSecretRef.Name = "postgres-admin"
	s.Spec.Database.Name = g.database(t)
	s.Spec.Server.Replicas = new(int32(2))
	for _, e := range edit {
		e(s)
	}
	g.create(t, s)
	return aServer(name)
}

func (g *ground) newTenant(t *testing.T, name, of string, edit ...func(*v1alpha1.CompassTenant)) named {
	t.Helper()
	o := &v1alpha1.CompassTenant{ObjectMeta: metav1.ObjectMeta{Namespace: g.namespace, Name: name}}
	o.Spec.ServerRef.Name = of
	for _, e := range edit {
		e(o)
	}
	g.create(t, o)
	return aTenant(name)
}

func (g *ground) newStream(t *testing.T, name, of string, edit ...func(*v1alpha1.DeliveryStream)) named {
	t.Helper()
	o := &v1alpha1.DeliveryStream{ObjectMeta: metav1.ObjectMeta{Namespace: g.namespace, Name: name}}
	o.Spec.ServerRef.Name = of
	o.Spec.Tenants.All = true
	for _, e := range edit {
		e(o)
	}
	g.create(t, o)
	return aStream(name)
}
