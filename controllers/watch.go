package controllers

import (
	"context"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/rigelbuild/compass-operator/api/v1alpha1"
	"github.com/rigelbuild/compass-operator/controllers/stream"
	"github.com/rigelbuild/compass-operator/controllers/tenant"
)

// The rights of the operator, from which config/rbac/role.yaml and the chart are made.
//
// +kubebuilder:rbac:groups=compass.rigel.build,resources=compassservers;compasstenants;deliverystreams,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=compass.rigel.build,resources=compassservers/status;compasstenants/status;deliverystreams/status,verbs=patch
// +kubebuilder:rbac:groups=compass.rigel.build,resources=compassservers/finalizers;compasstenants/finalizers;deliverystreams/finalizers,verbs=update
// +kubebuilder:rbac:groups=apps,resources=deployments;statefulsets,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups=core,resources=secrets,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups=core,resources=configmaps;services;serviceaccounts,verbs=get;list;watch;create;patch
// +kubebuilder:rbac:groups=core,resources=persistentvolumeclaims,verbs=get;delete
// +kubebuilder:rbac:groups=policy,resources=poddisruptionbudgets,verbs=get;list;watch;create;patch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

func workloads() []client.Object {
	return []client.Object{&appsv1.Deployment{}, &appsv1.StatefulSet{}, &policyv1.PodDisruptionBudget{}}
}

// edited: what a user changes of one of our kinds; what we write into its status is no news to ourselves.
func edited() predicate.Predicate {
	return predicate.Or(predicate.GenerationChangedPredicate{}, predicate.AnnotationChangedPredicate{})
}

func watchServer(mgr manager.Manager, o controller.Options, r reconcile.Reconciler) error {
	b := builder.ControllerManagedBy(mgr).Named("server").WithOptions(o).
		For(&v1alpha1.CompassServer{}, builder.WithPredicates(edited()))
	for _, child := range children() {
		b = b.Owns(child)
	}
	// How many streams refer to a server is a figure of its status.
	return b.Watches(&v1alpha1.DeliveryStream{}, handler.EnqueueRequestsFromMapFunc(func(_ context.Context, obj client.Object) []reconcile.Request {
		if d, ok := obj.(*v1alpha1.DeliveryStream); ok {
			return []reconcile.Request{{NamespacedName: stream.Server(d)}}
		}
		return nil
	}), builder.WithPredicates(comesAndGoes())).Complete(r)
}

func watchTenant(mgr manager.Manager, o controller.Options, r reconcile.Reconciler) error {
	c := mgr.GetClient()
	return builder.ControllerManagedBy(mgr).Named("tenant").WithOptions(o).
		For(&v1alpha1.CompassTenant{}, builder.WithPredicates(edited())).
		Owns(&corev1.Secret{}).
		Watches(&v1alpha1.CompassServer{}, handler.EnqueueRequestsFromMapFunc(tenantsOf(c)), builder.WithPredicates(readiness())).
		// A stream that takes tenants in or lets them go changes who delivers for them.
		Watches(&v1alpha1.DeliveryStream{}, handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, obj client.Object) []reconcile.Request {
			d, ok := obj.(*v1alpha1.DeliveryStream)
			if !ok {
				return nil
			}
			return tenantsAt(ctx, c, tenant.IndexServer, stream.Server(d).String())
		}), builder.WithPredicates(placement())).
		// When one who has a slug goes, the next in line may have it.
		Watches(&v1alpha1.CompassTenant{}, handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, obj client.Object) []reconcile.Request {
			t, ok := obj.(*v1alpha1.CompassTenant)
			if !ok {
				return nil
			}
			return tenantsAt(ctx, c, tenant.IndexSlug, tenant.SlugOf(t))
		}), builder.WithPredicates(gone())).
		Complete(r)
}

func watchStream(mgr manager.Manager, o controller.Options, r reconcile.Reconciler) error {
	c := mgr.GetClient()
	return builder.ControllerManagedBy(mgr).Named("stream").WithOptions(o).
		For(&v1alpha1.DeliveryStream{}, builder.WithPredicates(edited())).
		Owns(&appsv1.Deployment{}).Owns(&corev1.Secret{}).Owns(&corev1.ConfigMap{}).Owns(&corev1.ServiceAccount{}).
		Watches(&v1alpha1.CompassServer{}, handler.EnqueueRequestsFromMapFunc(streamsOf(c)), builder.WithPredicates(readiness())).
		// A tenant that has its row, or is gone, is to be placed, or not any more.
		Watches(&v1alpha1.CompassTenant{}, handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, obj client.Object) []reconcile.Request {
			t, ok := obj.(*v1alpha1.CompassTenant)
			if !ok {
				return nil
			}
			return streamsAt(ctx, c, tenant.Server(t))
		}), builder.WithPredicates(rows())).
		// Who carries a tenant depends on what the other streams of the server ask for.
		Watches(&v1alpha1.DeliveryStream{}, handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, obj client.Object) []reconcile.Request {
			d, ok := obj.(*v1alpha1.DeliveryStream)
			if !ok {
				return nil
			}
			return streamsAt(ctx, c, stream.Server(d))
		}), builder.WithPredicates(predicate.Or(placement(), gone()))).
		Complete(r)
}

func tenantsOf(c client.Client) handler.MapFunc {
	return func(ctx context.Context, obj client.Object) []reconcile.Request {
		return tenantsAt(ctx, c, tenant.IndexServer, client.ObjectKeyFromObject(obj).String())
	}
}

func streamsOf(c client.Client) handler.MapFunc {
	return func(ctx context.Context, obj client.Object) []reconcile.Request {
		return streamsAt(ctx, c, client.ObjectKeyFromObject(obj))
	}
}

// A mapper that cannot look things up answers nobody: the resync comes to everybody.

func tenantsAt(ctx context.Context, c client.Client, index, value string) []reconcile.Request {
	list := &v1alpha1.CompassTenantList{}
	if err := c.List(ctx, list, client.MatchingFields{index: value}); err != nil {
		return nil
	}
	out := make([]reconcile.Request, 0, len(list.Items))
	for i := range list.Items {
		out = append(out, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
	}
	return out
}

func streamsAt(ctx context.Context, c client.Client, server types.NamespacedName) []reconcile.Request {
	list := &v1alpha1.DeliveryStreamList{}
	if err := c.List(ctx, list, client.MatchingFields{stream.IndexServer: server.String()}); err != nil {
		return nil
	}
	out := make([]reconcile.Request, 0, len(list.Items))
	for i := range list.Items {
		out = append(out, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
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
		type fact struct{ database, fabric, schema, deleting bool }
		is := func(kind string) bool { return meta.IsStatusConditionTrue(s.Status.Conditions, kind) }
		return fact{
			is(v1alpha1.ConditionDatabaseReady), is(v1alpha1.ConditionFabricReady), is(v1alpha1.ConditionSchemaReady),
			!s.DeletionTimestamp.IsZero(),
		}
	})
}

// placement: a stream asks for others, or carries others.
func placement() predicate.Predicate {
	return changed(func(obj client.Object) any {
		d, ok := obj.(*v1alpha1.DeliveryStream)
		if !ok {
			return nil
		}
		type fact struct {
			generation, tenants int64
			placed, deleting    bool
		}
		return fact{
			d.Generation, d.Status.Tenants, meta.IsStatusConditionTrue(d.Status.Conditions, v1alpha1.ConditionTenantsPlaced),
			!d.DeletionTimestamp.IsZero(),
		}
	})
}

// rows: a tenant has its row.
func rows() predicate.Predicate {
	return changed(func(obj client.Object) any {
		t, ok := obj.(*v1alpha1.CompassTenant)
		if !ok {
			return nil
		}
		return t.Status.TenantID
	})
}

// changed lets an update pass if a fact, which must be comparable, differs; everything that comes or goes passes.
func changed(fact func(client.Object) any) predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool { return fact(e.ObjectOld) != fact(e.ObjectNew) }}
}

func comesAndGoes() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(event.UpdateEvent) bool { return false }}
}

func gone() predicate.Predicate {
	return predicate.Funcs{
		CreateFunc: func(event.CreateEvent) bool { return false },
		UpdateFunc: func(event.UpdateEvent) bool { return false },
	}
}
