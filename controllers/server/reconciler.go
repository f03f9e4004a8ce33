package server

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
	"github.com/rigelbuild/compass-operator/internal/fault"
	"github.com/rigelbuild/compass-operator/internal/kube"
	"github.com/rigelbuild/compass-operator/internal/naming"
	"github.com/rigelbuild/compass-operator/internal/store/admin"
	"github.com/rigelbuild/compass-operator/internal/store/schema"
)

// Systems are the ports of a Reconciler; *backend.Pool is all of them.
type Systems struct {
	Databases databases
	Platform  platform
	Transport transport
	Sessions  sessions
}

// Options of a Reconciler. All are required.
type Options struct {
	Frame    flow.Frame
	Children kube.Children
	Images   kube.Images
	Systems  Systems
	Rand     io.Reader // of keys and passwords
	Now      func() time.Time
}

// Reconciler reconciles CompassServers.
type Reconciler struct {
	Options
	ids *naming.IDs
}

// New checks the options.
func New(o Options) (*Reconciler, error) {
	s := o.Systems
	if s.Databases == nil || s.Platform == nil || s.Transport == nil || s.Sessions == nil || o.Children.Client == nil ||
		o.Children.Live == nil || o.Frame.Client == nil || o.Rand == nil || o.Now == nil || o.Images.Compass == "" || o.Images.NATS == "" {
		return nil, errors.New("server reconciler: an option is missing")
	}
	return &Reconciler{Options: o, ids: &naming.IDs{Now: o.Now, Rand: o.Rand}}, nil
}

// scope is what one pass knows, in the order in which it learns it.
type scope struct {
	server *v1alpha1.CompassServer
	key    client.ObjectKey
	names  naming.ServerChildren
	kids   kube.Children

	admin       backend.Admin
	logins      []byte // connection strings, as <name>-databases has them
	databaseCAs map[string][]byte
	database    *admin.Observation
	schema      *schema.Status
	identity    *identity
	nats        *backend.NATSSeen
	ca          authority
	looked      bool // tenants and streams were counted
	tenants     int64
	streams     int32
	deployed    bool // the Deployment is as wanted
	available   int32
	stuck       string // what keeps newer pods from taking the place of those that are available
}

// place is where the server's systems are, as far as this pass knows.
func (s *scope) place() (backend.Place, error) {
	p := backend.Place{
		Server: s.key, Drift: s.kids.Drift, DatabaseCAs: s.databaseCAs, NATS: []string{backend.NATSURL(s.key, s.names.NATS)},
		Endpoint: backend.Endpoint(s.key, s.names.Server), CA: s.ca.certificate,
	}
	p.Servers = int(s.server.NATSServers())
	if s.identity != nil {
		p.Keys = s.identity.keys
		if s.identity.external != nil {
			p.Enter(*s.identity.external)
			p.Servers = 0 // as many as answer
		}
	}
	if len(s.logins) == 0 {
		return p, nil
	}
	var err error
	p.Databases, err = backend.ParseDatabases(s.logins)
	return p, err
}

// Reconcile is one look at one CompassServer.
func (r *Reconciler) Reconcile(ctx context.Context, server *v1alpha1.CompassServer) (res reconcile.Result, err error) {
	s := &scope{server: server, key: client.ObjectKeyFromObject(server)}
	p := flow.Begin(r.Frame, server, s, r.steps()...)
	defer func() { res, err = p.End(ctx, report, err) }()
	s.kids = r.Children.In(p.Drift())

	if s.names, err = naming.ServerChildrenOf(server.Name); err != nil {
		return res, fault.Terminal(v1alpha1.ReasonInvalidSpec, err)
	}
	if p.Paused() {
		return res, nil
	}
	if p.Deleting() {
		defer r.Systems.Sessions.Forget(s.key)
		return res, p.Teardown(ctx, r.removeWorkloads, r.removeAccounts, r.removeDatabase, r.removeIdentity)
	}
	if err = p.EnsureFinalizer(ctx); err != nil {
		return res, err
	}
	return res, p.Steps(ctx)
}

func (r *Reconciler) steps() []flow.Step[scope] {
	schemaReady := []string{v1alpha1.ConditionSchemaReady}
	return []flow.Step[scope]{
		{Condition: v1alpha1.ConditionDatabaseReady, Run: r.ensureDatabase},
		{Condition: v1alpha1.ConditionSchemaReady, Needs: []string{v1alpha1.ConditionDatabaseReady}, Run: r.ensureSchema},
		{Condition: v1alpha1.ConditionFabricReady, Run: r.ensureIdentity},
		{Condition: v1alpha1.ConditionFabricReady, Run: r.ensureNATS},
		{Condition: v1alpha1.ConditionFabricReady, Run: r.ensureAccounts},
		{Condition: v1alpha1.ConditionServerAvailable, Run: r.ensureCertificates},
		{Condition: v1alpha1.ConditionServerAvailable, Needs: schemaReady, Run: r.ensurePlatform},
		{Condition: v1alpha1.ConditionServerAvailable, Needs: schemaReady, Run: r.ensureServers},
	}
}
