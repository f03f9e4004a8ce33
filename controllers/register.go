package controllers

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/rigelbuild/compass-operator/api/v1alpha1"
	"github.com/rigelbuild/compass-operator/controllers/backend"
	"github.com/rigelbuild/compass-operator/controllers/flow"
	"github.com/rigelbuild/compass-operator/controllers/server"
	"github.com/rigelbuild/compass-operator/controllers/stream"
	"github.com/rigelbuild/compass-operator/controllers/tenant"
	"github.com/rigelbuild/compass-operator/internal/kube"
	"github.com/rigelbuild/compass-operator/internal/naming"
)

// Options of the operator.
type Options struct {
	Images kube.Images   // required
	Pool   *backend.Pool // required
	// Metrics counts; nil counts nothing.
	Metrics *flow.Metrics
	// Resync and Poll see flow.Frame; 0 means its default.
	Resync, Poll time.Duration
	// Concurrency is how many objects of each kind are looked at at once; one server's tenants and streams take half at most.
	// Default 4, 16 and 8.
	Servers, Tenants, Streams int

	asked *flow.Asked // what the queues of all kinds share
}

// The longest pause before something that failed is tried again: what a user mended should show within it.
const (
	firstPause = 500 * time.Millisecond
	lastPause  = 30 * time.Second
)

// sharedAfter is how late a tenant or a stream may learn of a Secret that its server refers to.
const sharedAfter = 3 * time.Second

// CacheOptions keep memory from growing with what is not ours: of the kinds of our children the cache holds what carries
// our label. Referenced Secrets are read one by one, past the cache.
func CacheOptions() cache.Options {
	ours := cache.ByObject{Label: labels.SelectorFromSet(labels.Set{naming.LabelManagedBy: naming.ManagedBy})}
	objects := map[client.Object]cache.ByObject{}
	for _, child := range children() {
		objects[child] = ours
	}
	return cache.Options{ByObject: objects}
}

// Register sets up every kind.
func Register(ctx context.Context, mgr manager.Manager, o Options) error {
	if o.Pool == nil || o.Images.Compass == "" || o.Images.NATS == "" {
		return errors.New("register controllers: images and pool are required")
	}
	if err := index(ctx, mgr.GetFieldIndexer()); err != nil {
		return err
	}
	frame := flow.Frame{
		Client: mgr.GetClient(), Events: mgr.GetEventRecorder(naming.ManagedBy), Metrics: o.Metrics, Resync: o.Resync, Poll: o.Poll,
	}
	kids := kube.Children{
		Client: mgr.GetClient(), Live: mgr.GetAPIReader(),
		Shared: &kube.Recent{Reader: mgr.GetAPIReader(), After: sharedAfter, Now: time.Now}, //nolint:forbidigo // the process's clock
	}
	o.asked = flow.NewAsked(time.Now) //nolint:forbidigo // the process's clock
	for _, kind := range []func(manager.Manager, flow.Frame, kube.Children, Options) error{registerServer, registerTenant, registerStream} {
		if err := kind(mgr, frame, kids, o); err != nil {
			return err
		}
	}
	return nil
}

func registerServer(mgr manager.Manager, frame flow.Frame, kids kube.Children, o Options) error {
	r, err := server.New(server.Options{
		Frame: frame, Children: kids, Images: o.Images, Rand: rand.Reader, Now: time.Now, //nolint:forbidigo // the process's clock
		Systems: server.Systems{Databases: o.Pool, Platform: o.Pool, Transport: o.Pool, Sessions: o.Pool},
	})
	if err != nil {
		return err
	}
	return watchServer(mgr, options(o.Servers, 4), forgetting{reconcile.AsReconciler(mgr.GetClient(), r), mgr.GetClient(), o.Pool}, serverHears(o.Pool))
}

// forgetting closes what is held open of a server that is gone; under Retain nobody sees it go.
type forgetting struct {
	reconcile.Reconciler
	client client.Reader
	pool   *backend.Pool
}

// Reconcile see reconcile.Reconciler.
func (f forgetting) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	err := f.client.Get(ctx, request.NamespacedName, &v1alpha1.CompassServer{})
	if apierrors.IsNotFound(err) {
		f.pool.Forget(request.NamespacedName)
		return reconcile.Result{}, nil
	}
	return f.Reconciler.Reconcile(ctx, request)
}

func registerTenant(mgr manager.Manager, frame flow.Frame, kids kube.Children, o Options) error {
	r, err := tenant.New(tenant.Options{
		Frame: frame, Children: kids, Rand: rand.Reader, Now: time.Now, //nolint:forbidigo // the process's clock
		Systems: tenant.Systems{Rows: o.Pool, Accounts: o.Pool, Logins: o.Pool, Homes: o.Pool},
	})
	if err != nil {
		return err
	}
	how := fairly(mgr.GetClient(), options(o.Tenants, 16), o.asked, tenant.Server)
	return watchTenant(mgr, how, reconcile.AsReconciler(mgr.GetClient(), r), tenantsHear(o.Pool, mgr.GetClient()))
}

func registerStream(mgr manager.Manager, frame flow.Frame, kids kube.Children, o Options) error {
	r, err := stream.New(stream.Options{
		Frame: frame, Children: kids, Images: o.Images, Now: time.Now, //nolint:forbidigo // the process's clock
		Systems: stream.Systems{Placements: o.Pool, Leases: o.Pool, Streams: o.Pool},
	})
	if err != nil {
		return err
	}
	how := fairly(mgr.GetClient(), options(o.Streams, 8), o.asked, stream.Server)
	return watchStream(mgr, how, reconcile.AsReconciler(mgr.GetClient(), r), streamsHear(o.Pool, mgr.GetClient()))
}

// fairly lets one server's objects take half of the places of a kind at most.
func fairly[T any, P interface {
	*T
	client.Object
}](c client.Reader, o controller.Options, asked *flow.Asked, server func(P) client.ObjectKey) controller.Options {
	fair := flow.FairOptions{
		Most: max(o.MaxConcurrentReconciles/2, 1), Idle: max(o.MaxConcurrentReconciles/8, 1), Asked: asked, Now: time.Now, //nolint:forbidigo // the process's clock
		Server: func(request reconcile.Request) client.ObjectKey {
			obj := P(new(T))
			if err := c.Get(context.Background(), request.NamespacedName, obj); err != nil { //nolint:forbidigo // from the cache
				return client.ObjectKey{}
			}
			return server(obj)
		},
	}
	o.NewQueue = func(name string, limiter workqueue.TypedRateLimiter[reconcile.Request]) workqueue.TypedRateLimitingInterface[reconcile.Request] {
		return flow.NewFair(priorityqueue.New(name, func(q *priorityqueue.Opts[reconcile.Request]) { q.RateLimiter = limiter }), fair)
	}
	return o
}

func options(concurrency, standard int) controller.Options {
	if concurrency <= 0 {
		concurrency = standard
	}
	return controller.Options{
		MaxConcurrentReconciles: concurrency, ReconciliationTimeout: flow.PassTimeout,
		// User edits go before resyncs.
		UsePriorityQueue: new(true),
		RateLimiter:      workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](firstPause, lastPause),
	}
}

// index sets up the field indexes that mappers and kinds look things up by.
func index(ctx context.Context, indexer client.FieldIndexer) error {
	for _, i := range Indexes() {
		if err := indexer.IndexField(ctx, i.Object, i.Field, i.Value); err != nil {
			return fmt.Errorf("index %s: %w", i.Field, err)
		}
	}
	return nil
}

// Index is one field index of the cache.
type Index struct {
	Object client.Object
	Field  string
	Value  client.IndexerFunc
}

// Indexes are all of them.
func Indexes() []Index {
	return []Index{
		{&v1alpha1.CompassTenant{}, tenant.IndexServer, of(tenant.ServerOf)},
		{&v1alpha1.CompassTenant{}, tenant.IndexSlug, of(tenant.SlugOf)},
		{&v1alpha1.DeliveryStream{}, stream.IndexServer, of(stream.ServerOf)},
	}
}

// of makes an index function of one kind's value; the cache calls it with nothing else.
func of[T client.Object](value func(T) string) client.IndexerFunc {
	return func(obj client.Object) []string {
		typed, ok := obj.(T)
		if !ok {
			return nil
		}
		return []string{value(typed)}
	}
}

// children are the kinds of objects that we make.
func children() []client.Object {
	return append(workloads(), &corev1.Secret{}, &corev1.ConfigMap{}, &corev1.Service{}, &corev1.ServiceAccount{}, &networkingv1.NetworkPolicy{})
}
