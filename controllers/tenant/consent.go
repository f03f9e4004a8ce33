package tenant

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/rigelbuild/compass-operator/api/v1alpha1"
	"github.com/rigelbuild/compass-operator/internal/fault"
)

// mustConsent: a server takes tenants of its own namespace, and of others as it says. What it took and takes no more is
// kept as it is, and nothing more is done for it.
func (r *Reconciler) mustConsent(ctx context.Context, s *scope) error {
	if s.key.Namespace == s.server.Namespace {
		return nil
	}
	allowed := s.server.Spec.AllowedTenants.Namespaces
	refused := func(which string) error {
		return fault.Waiting(v1alpha1.ReasonWaitingForConsent, fmt.Sprintf("CompassServer %s/%s takes tenants of %s only: make this object "+
			"there, or change its spec.allowedTenants", s.server.Namespace, s.server.Name, which))
	}
	switch allowed.From {
	case v1alpha1.NamespacesFromAll:
		return nil
	case v1alpha1.NamespacesFromSelector:
	default:
		return refused("its own namespace")
	}
	selector, err := metav1.LabelSelectorAsSelector(allowed.Selector)
	if err != nil {
		return fault.Waiting(v1alpha1.ReasonWaitingForConsent, fmt.Sprintf(
			"spec.allowedTenants.namespaces.selector of CompassServer %s/%s matches nothing: %v", s.server.Namespace, s.server.Name, err))
	}
	namespace := &corev1.Namespace{}
	if err := s.kids.Live.Get(ctx, client.ObjectKey{Name: s.key.Namespace}, namespace); err != nil {
		return fault.Transient(v1alpha1.ReasonReconcileFailed, fmt.Errorf("read the labels of Namespace %s: %w", s.key.Namespace, err))
	}
	if !selector.Matches(labels.Set(namespace.Labels)) {
		return refused("namespaces with labels " + selector.String())
	}
	return nil
}
