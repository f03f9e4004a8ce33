package controllers

import (
	"context"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/rigelbuild/compass-operator/api/v1alpha1"
	"github.com/rigelbuild/compass-operator/controllers/backend"
	"github.com/rigelbuild/compass-operator/controllers/stream"
	"github.com/rigelbuild/compass-operator/controllers/tenant"
	"github.com/rigelbuild/compass-operator/internal/naming"
)

// The rights of the operator, from which config/rbac/role.yaml and the chart are made.
//
// +kubebuilder:rbac:groups=compass.rigel.build,resources=compassservers;compasstenants;deliverystreams,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=compass.rigel.build,resources=compassservers/status;compasstenants/status;deliverystreams/status,verbs=patch
// +kubebuilder:rbac:groups=compass.rigel.build,resources=compassservers/finalizers;compasstenants/finalizers;deliverystreams/finalizers,verbs=update
// +kubebuilder:rbac:groups=apps,resources=deployments;statefulsets,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups=core,resources=secrets,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups=core,resources=configmaps;services;serviceaccounts,verbs=get;list;watch;create;patch
// +kubebuilder:rbac:groups=core,resources=namespaces,verbs=get
// +kubebuilder:rbac:groups=core,resources=persistentvolumeclaims,verbs=get;delete
// +kubebuilder:rbac:groups=policy,resources=poddisruptionbudgets,verbs=get;list;watch;create;patch
// +kubebuilder:rbac:groups=networking.k8s.io,resources=networkpolicies,verbs=get;list;watch;create;patch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// byOthers: what we ourselves wrote of a child is no news; the pass that wrote it has looked at it. Nobody else sets the
// annotation, and after a restart everything is looked at anyway.
func byOthers() builder.Predicates {
	applied := func(obj client.Object) string { return obj.GetAnnotations()[naming.AnnotationApplied] }
	return builder.WithPredicates(predicate.Funcs{
		CreateFunc: func(event.CreateEvent) bool { return false },
		UpdateFunc: func(e event.UpdateEvent) bool {
			is := applied(e.ObjectNew)
			return is == "" || is == applied(e.ObjectOld)
		},
	})
}

func workloads() []client.Object {
	return []client.Object{&appsv1.Deployment{}, &appsv1.StatefulSet{}, &policyv1.PodDisruptionBudget{}}
}

// edited: what a user changes of one of our kinds; what we write into its status is no news to ourselves.
func edited() predicate.Predicate {
	return predicate.Or(predicate.GenerationChangedPredicate{}, predicate.AnnotationChangedPredicate{})
}

func watchServer(mgr manager.Manager, o controller.Options, r reconcile.Reconciler, heard source.Source) error {
	b := builder.ControllerManagedBy(mgr).Named("server").WithOptions(o).
		For(&v1alpha1.CompassServer{}, builder.WithPredicates(edited()))
	for _, child := range children() {
		b = b.Owns(child, byOthers())
	}
	// A tenant publishes the way into a database of its own, and what lets a fleet of its own in.
	b = b.Watches(&corev1.Secret{}, handler.EnqueueRequestsFromMapFunc(func(_ context.Context, obj client.Object) []reconcile.Request {
		labels := obj.GetLabels()
		if kind := labels[naming.LabelComponent]; kind != naming.ComponentDatabase && kind != naming.ComponentFleet {
			return nil
		}
		return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: obj.GetNamespace(), Name: labels[naming.LabelServer]}}}
	}))
	b = b.Watches(&corev1.Secret{}, keptBy(naming.LabelServer), builder.WithPredicates(lost()))
	return b.Watches(&v1alpha1.DeliveryStream{}, counting()).WatchesRawSource(heard).Complete(r)
}

// keptBy finds whose keys a Secret holds. They outlive their object and have no owner, so a label says it.
func keptBy(label string) handler.EventHandler {
	return handler.EnqueueRequestsFromMapFunc(func(_ context.Context, obj client.Object) []reconcile.Request {
		name := obj.GetLabels()[label]
		if name == "" {
			return nil
		}
		return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: obj.GetNamespace(), Name: name}}}
	})
}

// lost: what nobody owns, and so nobody else hears of, is deleted.
func lost() predicate.Predicate {
	return predicate.Funcs{
		CreateFunc: func(event.CreateEvent) bool { return false },
		UpdateFunc: func(event.UpdateEvent) bool { return false },
		DeleteFunc: func(e event.DeleteEvent) bool { return metav1.GetControllerOf(e.Object) == nil },
	}
}

// counting: how many streams refer to a server is a figure of its status, which may be a little late, so that a thousand that
// come together cost it a few looks.
func counting() handler.EventHandler {
	count := func(obj client.Object, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
		if d, ok := obj.(*v1alpha1.DeliveryStream); ok {
			q.AddAfter(reconcile.Request{NamespacedName: stream.Server(d)}, figuresAfter)
		}
	}
	return handler.Funcs{
		CreateFunc: func(_ context.Context, e event.CreateEvent, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			count(e.Object, q)
		},
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			count(e.Object, q)
		},
	}
}

// figuresAfter is how late a figure of a status may be.
const figuresAfter = 10 * time.Second

func watchTenant(mgr manager.Manager, o controller.Options, r reconcile.Reconciler, heard source.Source) error {
	c := mgr.GetClient()
	return builder.ControllerManagedBy(mgr).Named("tenant").WithOptions(o).
		For(&v1alpha1.CompassTenant{}, builder.WithPredicates(edited())).
		Owns(&corev1.Secret{}, byOthers()).Watches(&corev1.Secret{}, keptBy(naming.LabelTenant), builder.WithPredicates(lost())).
		Watches(&v1alpha1.CompassServer{}, handler.EnqueueRequestsFromMapFunc(tenantsOf(c)), builder.WithPredicates(readiness())).
		Watches(&corev1.Secret{}, handler.EnqueueRequestsFromMapFunc(tenantsTrusting(c)), builder.WithPredicates(authorities())).
		// Whom a stream takes in or lets go hears of it; those of one that goes, or comes back, are looked at.
		Watches(&v1alpha1.DeliveryStream{}, handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, obj client.Object) []reconcile.Request {
			d, ok := obj.(*v1alpha1.DeliveryStream)
			if !ok {
				return nil
			}
			return tenantsAt(ctx, c, tenant.IndexServer, stream.Server(d).String(), func(t *v1alpha1.CompassTenant) bool {
				return t.Status.Stream == d.Name
			})
		}), builder.WithPredicates(leaving())).
		// When one who has a slug goes, the next in line may have it.
		Watches(&v1alpha1.CompassTenant{}, handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, obj client.Object) []reconcile.Request {
			t, ok := obj.(*v1alpha1.CompassTenant)
			if !ok {
				return nil
			}
			return tenantsAt(ctx, c, tenant.IndexSlug, tenant.SlugOf(t), nil)
		}), builder.WithPredicates(gone())).
		WatchesRawSource(heard).
		Complete(r)
}

func watchStream(mgr manager.Manager, o controller.Options, r reconcile.Reconciler, heard source.Source) error {
	c := mgr.GetClient()
	return builder.ControllerManagedBy(mgr).Named("stream").WithOptions(o).
		For(&v1alpha1.DeliveryStream{}, builder.WithPredicates(edited())).
		Owns(&appsv1.Deployment{}, byOthers()).Owns(&corev1.Secret{}, byOthers()).Owns(&corev1.ConfigMap{}, byOthers()).
		Owns(&corev1.ServiceAccount{}, byOthers()).Owns(&networkingv1.NetworkPolicy{}, byOthers()).
		Watches(&v1alpha1.CompassServer{}, handler.EnqueueRequestsFromMapFunc(streamsOf(c)), builder.WithPredicates(readiness())).
		Watches(&corev1.Secret{}, handler.EnqueueRequestsFromMapFunc(streamsTrusting(c)), builder.WithPredicates(authorities())).
		// A tenant that has its row, or is gone, is to be placed, or not any more.
		Watches(&v1alpha1.CompassTenant{}, handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, obj client.Object) []reconcile.Request {
			t, ok := obj.(*v1alpha1.CompassTenant)
			if !ok {
				return nil
			}
			return streamsAt(ctx, c, tenant.Server(t), func(d *v1alpha1.DeliveryStream) bool {
				return d.Name == t.Status.Stream || stream.MayClaim(d, t.SlugOrName(), t.Labels)
			})
		}), builder.WithPredicates(rows())).
		// Who carries a tenant depends on what the other streams of the server ask for.
		Watches(&v1alpha1.DeliveryStream{}, handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, obj client.Object) []reconcile.Request {
			d, ok := obj.(*v1alpha1.DeliveryStream)
			if !ok {
				return nil
			}
			return streamsAt(ctx, c, stream.Server(d), func(other *v1alpha1.DeliveryStream) bool {
				return other.Name != d.Name && stream.Rivals(d, other)
			})
		}), builder.WithPredicates(claims())).
		WatchesRawSource(heard).
		Complete(r)
}

// The ears of each kind: what somebody did to one stream is that stream's; when NATS was away everything is looked at.

func serverHears(pool *backend.Pool) source.Source {
	return hears(pool, func(_ context.Context, h backend.Heard) []reconcile.Request {
		if h.Stream != "" || h.Tenant != "" || h.Slug != "" {
			return nil
		}
		return []reconcile.Request{{NamespacedName: h.Server}}
	})
}

func tenantsHear(pool *backend.Pool, c client.Client) source.Source {
	return hears(pool, func(ctx context.Context, h backend.Heard) []reconcile.Request {
		switch {
		case h.Stream != "", h.Lost:
			return nil
		case h.Slug != "":
			return tenantsAt(ctx, c, tenant.IndexSlug, tenant.SlugAt(h.Server, h.Slug), nil)
		}
		return tenantsAt(ctx, c, tenant.IndexServer, h.Server.String(), func(t *v1alpha1.CompassTenant) bool {
			return h.Tenant == "" || h.Tenant == t.Status.TenantID
		})
	})
}

func streamsHear(pool *backend.Pool, c client.Client) source.Source {
	return hears(pool, func(ctx context.Context, h backend.Heard) []reconcile.Request {
		switch {
		case h.Lost, h.Tenant != "", h.Slug != "":
			return nil
		case h.Stream != "":
			return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: h.Server.Namespace, Name: h.Stream}}}
		}
		return streamsAt(ctx, c, h.Server, nil)
	})
}

func hears(pool *backend.Pool, who handler.TypedMapFunc[backend.Heard, reconcile.Request]) source.Source {
	return source.TypedChannel(pool.Listen(), handler.TypedEnqueueRequestsFromMapFunc(who))
}

func tenantsOf(c client.Client) handler.MapFunc {
	return func(ctx context.Context, obj client.Object) []reconcile.Request {
		return tenantsAt(ctx, c, tenant.IndexServer, client.ObjectKeyFromObject(obj).String(), nil)
	}
}

func streamsOf(c client.Client) handler.MapFunc {
	return func(ctx context.Context, obj client.Object) []reconcile.Request {
		return streamsAt(ctx, c, client.ObjectKeyFromObject(obj), nil)
	}
}

// A server publishes what verifies it, its Postgres and its NATS in Secrets of its own, and whoever refers to it keeps a copy.

func tenantsTrusting(c client.Client) handler.MapFunc {
	return func(ctx context.Context, obj client.Object) []reconcile.Request {
		return tenantsAt(ctx, c, tenant.IndexServer, publisher(obj).String(), nil)
	}
}

func streamsTrusting(c client.Client) handler.MapFunc {
	return func(ctx context.Context, obj client.Object) []reconcile.Request {
		return streamsAt(ctx, c, publisher(obj), nil)
	}
}

func publisher(obj client.Object) types.NamespacedName {
	return types.NamespacedName{Namespace: obj.GetNamespace(), Name: obj.GetLabels()[naming.LabelServer]}
}

// A mapper that cannot look things up answers nobody: the resync comes to everybody. It reads what the cache holds and
// changes none of it. With a thousand of each, whoever need not look must not be asked to: which narrows down, nil does not.

func tenantsAt(ctx context.Context, c client.Client, index, value string, which func(*v1alpha1.CompassTenant) bool) []reconcile.Request {
	list := &v1alpha1.CompassTenantList{}
	if err := c.List(ctx, list, client.MatchingFields{index: value}, client.UnsafeDisableDeepCopy); err != nil {
		return nil
	}
	var out []reconcile.Request
	for i := range list.Items {
		if which == nil || which(&list.Items[i]) {
			out = append(out, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
		}
	}
	return out
}

func streamsAt(ctx context.Context, c client.Client, server types.NamespacedName, which func(*v1alpha1.DeliveryStream) bool) []reconcile.Request {
	list := &v1alpha1.DeliveryStreamList{}
	if err := c.List(ctx, list, client.MatchingFields{stream.IndexServer: server.String()}, client.UnsafeDisableDeepCopy); err != nil {
		return nil
	}
	var out []reconcile.Request
	for i := range list.Items {
		if which == nil || which(&list.Items[i]) {
			out = append(out, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
		}
	}
	return out
}

// readiness: a server became ready or ceased to be, or goes.
func readiness() predicate.Predicate {
	return changed(func(obj client.Object) any {
		s, ok := obj.(*v1alpha1.CompassServer)
		if !ok {
			return nil
		}
		type fact struct {
			database, fabric, schema, deleting bool
			consent                            string
			edit                               int64 // that a whole pass has carried out: workers take much from the server's spec
		}
		is := func(kind string) bool { return meta.IsStatusConditionTrue(s.Status.Conditions, kind) }
		return fact{
			is(v1alpha1.ConditionDatabaseReady), is(v1alpha1.ConditionFabricReady), is(v1alpha1.ConditionSchemaReady),
			!s.DeletionTimestamp.IsZero(), s.Spec.AllowedTenants.String(), s.Status.ObservedGeneration,
		}
	})
}

// authorities: a server publishes another certificate to verify something by. One that is gone is no news until it is back,
// because nobody could copy it meanwhile.
func authorities() predicate.Predicate {
	published := changed(func(obj client.Object) any {
		s, ok := obj.(*corev1.Secret)
		if !ok {
			return nil
		}
		return string(s.Data[backend.KeyCA]) + string(s.Data[backend.KeyDatabases])
	})
	return predicate.And(published, predicate.Funcs{
		CreateFunc: func(e event.CreateEvent) bool { return e.Object.GetLabels()[naming.LabelServer] != "" },
		UpdateFunc: func(e event.UpdateEvent) bool { return e.ObjectNew.GetLabels()[naming.LabelServer] != "" },
		DeleteFunc: func(event.DeleteEvent) bool { return false },
	})
}

// leaving: an object comes or goes.
func leaving() predicate.Predicate {
	return changed(func(obj client.Object) any { return obj.GetDeletionTimestamp().IsZero() })
}

// claims: a stream comes, asks for others, or goes.
func claims() predicate.Predicate {
	return changed(func(obj client.Object) any {
		type fact struct {
			generation int64
			deleting   bool
		}
		return fact{obj.GetGeneration(), !obj.GetDeletionTimestamp().IsZero()}
	})
}

// rows: a tenant has its row, or other labels.
func rows() predicate.Predicate {
	return changed(func(obj client.Object) any {
		t, ok := obj.(*v1alpha1.CompassTenant)
		if !ok {
			return nil
		}
		return t.Status.TenantID + " " + labels.FormatLabels(t.Labels)
	})
}

// changed lets an update pass if a fact, which must be comparable, differs; everything that comes or goes passes.
func changed(fact func(client.Object) any) predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool { return fact(e.ObjectOld) != fact(e.ObjectNew) }}
}

func gone() predicate.Predicate {
	return predicate.Funcs{
		CreateFunc: func(event.CreateEvent) bool { return false },
		UpdateFunc: func(event.UpdateEvent) bool { return false },
	}
}
