package tenant

import (
	"context"
	"errors"
	"io"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/rigelbuild/compass-operator/api/v1alpha1"
	"github.com/rigelbuild/compass-operator/controllers/backend"
	"github.com/rigelbuild/compass-operator/controllers/flow"
	"github.com/rigelbuild/compass-operator/internal/fabric"
	"github.com/rigelbuild/compass-operator/internal/fault"
	"github.com/rigelbuild/compass-operator/internal/kube"
	"github.com/rigelbuild/compass-operator/internal/naming"
	"github.com/rigelbuild/compass-operator/internal/store"
)

// Field indexes of CompassTenants, for whoever sets up the cache.
const (
	IndexServer = backend.IndexTenantServer // by ServerOf
	IndexSlug   = "tenant.slug"             // by SlugOf
)

// ServerOf is the value of IndexServer: the server's namespace and name.
func ServerOf(t *v1alpha1.CompassTenant) string { return Server(t).String() }

// SlugOf is the value of IndexSlug: everybody with the same one claims the same tenant.
func SlugOf(t *v1alpha1.CompassTenant) string { return SlugAt(Server(t), t.SlugOrName()) }

// SlugAt is the value of IndexSlug for a slug at a server.
func SlugAt(server client.ObjectKey, slug string) string { return server.String() + "/" + slug }

// Systems are the ports of a Reconciler; *backend.Pool is all of them.
type Systems struct {
	Rows     rows
	Accounts accounts
	Logins   logins
	Homes    homes
}

// Options of a Reconciler. All are required.
type Options struct {
	Frame    flow.Frame
	Children kube.Children
	Systems  Systems
	Rand     io.Reader // of ids and tokens
	Now      func() time.Time
}

// Reconciler reconciles CompassTenants.
type Reconciler struct {
	Options
	ids *naming.IDs
}

// New checks the options.
func New(o Options) (*Reconciler, error) {
	if o.Systems.Rows == nil || o.Systems.Accounts == nil || o.Systems.Logins == nil || o.Systems.Homes == nil || o.Children.Client == nil || o.Children.Live == nil ||
		o.Frame.Client == nil || o.Rand == nil || o.Now == nil {
		return nil, errors.New("tenant reconciler: an option is missing")
	}
	return &Reconciler{Options: o, ids: &naming.IDs{Now: o.Now, Rand: o.Rand}}, nil
}

// scope is what one pass knows, in the order in which it learns it.
type scope struct {
	tenant *v1alpha1.CompassTenant
	key    client.ObjectKey
	names  naming.TenantChildren
	kids   kube.Children
	slug   string

	server  *v1alpha1.CompassServer
	at      backend.Place
	row     *store.TenantRow
	account string // public key
	keys    fabric.AccountKeys
	revoked map[string]time.Time // users of the account that are refused, and since when
	token   *backend.Token       // published
	life    backend.TokenLife
	sql     bool // published
	inNATS  bool // what enters NATS is published
	usage   *backend.Usage
	home    *home // seen whole in this pass
	gone    bool  // the server, before what was to be removed from it
}

// Server is where the tenant's server is.
func Server(t *v1alpha1.CompassTenant) client.ObjectKey {
	key := client.ObjectKey{Namespace: t.Spec.ServerRef.Namespace, Name: t.Spec.ServerRef.Name}
	if key.Namespace == "" {
		key.Namespace = t.Namespace
	}
	return key
}

// Reconcile is one look at one CompassTenant.
func (r *Reconciler) Reconcile(ctx context.Context, tenant *v1alpha1.CompassTenant) (res reconcile.Result, err error) {
	s := &scope{tenant: tenant, key: client.ObjectKeyFromObject(tenant), slug: tenant.SlugOrName()}
	p := flow.Begin(r.Frame, tenant, s, r.steps()...)
	defer func() { res, err = p.End(ctx, report, err) }()
	s.kids = r.Children.In(p.Drift())

	if s.names, err = naming.TenantChildrenOf(tenant.Name); err != nil {
		return res, fault.Terminal(v1alpha1.ReasonInvalidSpec, err)
	}
	if p.Paused() {
		return res, nil
	}
	if p.Deleting() {
		if err = p.Teardown(ctx, r.removeFleet, r.removeAccount, r.removeSQL, r.removeRow, r.removeHome, r.removeKeys); err == nil && s.gone {
			p.Left(ctx, "Its CompassServer was deleted first, so what it has in Postgres and NATS stays there")
		}
		return res, err
	}
	if err = p.EnsureFinalizer(ctx); err != nil {
		return res, err
	}
	return res, p.Steps(ctx)
}

func (r *Reconciler) steps() []flow.Step[scope] {
	accepted, row := []string{v1alpha1.ConditionServerAccepted}, []string{v1alpha1.ConditionDatabaseReady}
	return []flow.Step[scope]{
		{Condition: v1alpha1.ConditionServerAccepted, Run: r.accept},
		{Condition: v1alpha1.ConditionDatabaseReady, Needs: accepted, Run: r.ensureRow},
		{Condition: v1alpha1.ConditionAccountReady, Needs: row, Run: r.ensureAccount},
		{Condition: v1alpha1.ConditionCredentialsReady, Needs: row, Run: r.ensureCredentials},
		{Condition: v1alpha1.ConditionDelivering, Needs: row, Run: r.judgeDelivery},
		// Last, so that a database of its own which is not there yet keeps nothing waiting that works where the tenant lives.
		{Condition: v1alpha1.ConditionDatabaseReady, Needs: accepted, Run: r.settleHome},
	}
}
