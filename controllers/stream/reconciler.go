package stream

import (
	"context"
	"errors"
	"time"

	appsv1 "k8s.io/api/apps/v1"
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

// IndexServer is the field index of DeliveryStreams by ServerOf, for whoever sets up the cache.
const IndexServer = "stream.server"

// ServerOf is the value of IndexServer: the server's namespace and name.
func ServerOf(d *v1alpha1.DeliveryStream) string { return Server(d).String() }

// Server is where the stream's server is: in its own namespace, because its worker holds credentials for every tenant (T1).
func Server(d *v1alpha1.DeliveryStream) client.ObjectKey {
	return client.ObjectKey{Namespace: d.Namespace, Name: d.Spec.ServerRef.Name}
}

// Systems are the ports of a Reconciler; *backend.Pool is all of them.
type Systems struct {
	Placements placements
	Leases     leases
	Streams    streams
}

// Options of a Reconciler. All are required.
type Options struct {
	Frame    flow.Frame
	Children kube.Children
	Images   kube.Images
	Systems  Systems
	Now      func() time.Time
}

// Reconciler reconciles DeliveryStreams.
type Reconciler struct {
	Options
	contests *contests
}

// New checks the options.
func New(o Options) (*Reconciler, error) {
	if o.Systems.Placements == nil || o.Systems.Leases == nil || o.Systems.Streams == nil || o.Children.Client == nil ||
		o.Children.Live == nil || o.Frame.Client == nil || o.Now == nil || o.Images.Compass == "" {
		return nil, errors.New("stream reconciler: an option is missing")
	}
	return &Reconciler{o, &contests{}}, nil
}

// scope is what one pass knows, in the order in which it learns it.
type scope struct {
	stream *v1alpha1.DeliveryStream
	key    client.ObjectKey
	names  naming.StreamChildren
	kids   kube.Children
	served bool // it had been whole before, so a server that is not there is gone

	server     *v1alpha1.CompassServer
	at         backend.Place
	spec       fabric.StreamSpec
	admitted   bool
	listed     []v1alpha1.DeliveryStream // of the same server
	placed     *int
	consumer   *fabric.ConsumerSeen
	deployment *appsv1.Deployment
	lease      *store.LeaseSeen
	looked     time.Time // at the lease
	backlog    *store.Backlog
	gone       bool // the server, before what was to be removed from it
}

// Reconcile is one look at one DeliveryStream.
func (r *Reconciler) Reconcile(ctx context.Context, stream *v1alpha1.DeliveryStream) (res reconcile.Result, err error) {
	s := &scope{stream: stream, key: client.ObjectKeyFromObject(stream), served: stream.Status.ObservedGeneration > 0}
	p := flow.Begin(r.Frame, stream, s, r.steps()...)
	defer func() {
		if res, err = p.End(ctx, report, err); undelivered(stream) {
			res = p.NoLater(res, recount)
		}
	}()
	s.kids = r.Children.In(p.Drift())

	if s.names, err = naming.StreamChildrenOf(stream.Name); err != nil {
		return res, fault.Terminal(v1alpha1.ReasonInvalidSpec, err)
	}
	if p.Paused() {
		return res, nil
	}
	if p.Deleting() {
		r.contests.forget(s.key)
		if err = p.Teardown(ctx, r.removeWorker, r.releaseTenants, r.removeStream); err == nil && s.gone {
			p.Left(ctx, "Its CompassServer was deleted first, so what it has in NATS stays there")
		}
		return res, err
	}
	if err = p.EnsureFinalizer(ctx); err != nil {
		return res, err
	}
	return res, p.Steps(ctx)
}

// steps: the first of each system resolves the server; it is looked up once.
func (r *Reconciler) steps() []flow.Step[scope] {
	queue, worker := []string{v1alpha1.ConditionStreamReady}, []string{v1alpha1.ConditionWorkerAvailable}
	return []flow.Step[scope]{
		{Condition: v1alpha1.ConditionStreamReady, Run: r.ensureStream},
		{Condition: v1alpha1.ConditionDeadLetterReady, Run: r.ensureDeadLetters},
		{Condition: v1alpha1.ConditionConsumerReady, Needs: queue, Run: r.ensureConsumer},
		{Condition: v1alpha1.ConditionTenantsPlaced, Run: r.placeTenants}, // also without a queue, but nobody else's tenants
		{Condition: v1alpha1.ConditionWorkerAvailable, Run: r.ensureWorker},
		{Condition: v1alpha1.ConditionSingleWriter, Needs: worker, Run: r.judgeWriter},
	}
}

// resolve finds the server and reads what it has published; once per pass.
func (r *Reconciler) resolve(ctx context.Context, s *scope) (err error) {
	if s.server != nil {
		return nil
	}
	server, err := backend.Find(ctx, s.kids.Client, Server(s.stream), s.served)
	if err != nil {
		return err
	}
	if s.at, err = backend.Resolve(ctx, s.kids, server); err != nil {
		return err
	}
	if s.spec, err = desireStream(s.stream); err != nil {
		return fault.Terminal(v1alpha1.ReasonInvalidSpec, err)
	}
	s.server = server
	return nil
}
