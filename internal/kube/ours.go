package kube

import (
	"maps"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/rigelbuild/compass-operator/api/v1alpha1"
	"github.com/rigelbuild/compass-operator/internal/fault"
	"github.com/rigelbuild/compass-operator/internal/naming"
)

// Labels returns the labels of a child: the ones everybody's tools know, and ours, by which the cache and mustBeOurs know
// it. key is one of naming.LabelServer, LabelTenant and LabelStream, and owner the name of that object.
func Labels(key, owner, component string) map[string]string {
	return map[string]string{
		naming.LabelName:      naming.PartOf,
		naming.LabelInstance:  owner,
		naming.LabelPartOf:    naming.PartOf,
		naming.LabelManagedBy: naming.ManagedBy,
		naming.LabelComponent: component,
		key:                   owner,
	}
}

// Selector is the part of Labels that selects pods; a selector cannot change, so it holds no more than it must.
func Selector(key, owner, component string) map[string]string {
	return map[string]string{naming.LabelComponent: component, key: owner}
}

// Merge returns the union of maps; later ones win.
func Merge(ms ...map[string]string) map[string]string {
	out := map[string]string{}
	for _, m := range ms {
		maps.Copy(out, m)
	}
	return out
}

// mustBeOurs refuses to touch what somebody else made. A controller reference decides; without one our labels do, so that
// a child that lost its reference comes back, and one that never had any is known.
func mustBeOurs(c Children, live, want, owner client.Object) error {
	controller := metav1.GetControllerOf(live)
	switch {
	case controller == nil && sameLabels(live, want):
		return nil
	case controller == nil || owner == nil:
	case controller.UID == owner.GetUID():
		return nil
	case controller.Kind == kindOf(c, owner) && controller.Name == owner.GetName():
		return fault.Waiting(v1alpha1.ReasonWaitingForDependency, "the one of a deleted object of the same name is still being removed")
	}
	reason := v1alpha1.ReasonObjectConflict
	if _, ok := live.(*corev1.Secret); ok {
		reason = v1alpha1.ReasonSecretConflict
	}
	return fault.Waiting(reason, "it exists and is not ours: rename or remove it, or give this object another name")
}

func sameLabels(live, want client.Object) bool {
	have := live.GetLabels()
	for key, value := range want.GetLabels() {
		ours := key == naming.LabelManagedBy || strings.HasPrefix(key, naming.Group+"/")
		if ours && have[key] != value {
			return false
		}
	}
	return have[naming.LabelManagedBy] == naming.ManagedBy
}
