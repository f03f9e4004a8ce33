package kube

import (
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
)

// Stuck says why a Deployment gets no further, as Kubernetes tells it of the generation that it has seen; "" where it does.
// refused: it may not even make pods, because of a quota or a policy.
func Stuck(d *appsv1.Deployment) (why string, refused bool) {
	for _, c := range d.Status.Conditions {
		switch {
		case c.Type == appsv1.DeploymentReplicaFailure && c.Status == corev1.ConditionTrue:
			return withoutPod(c.Message), true
		case c.Type == appsv1.DeploymentProgressing && c.Status == corev1.ConditionFalse:
			why = c.Reason
		}
	}
	return why, false
}

// withoutPod takes the pod's name, which is another at each attempt, from what Kubernetes says of it.
func withoutPod(message string) string {
	if _, why, ok := strings.Cut(message, " is forbidden: "); ok {
		message = why
	}
	return strings.TrimSpace(message)
}

// RolledOut reports whether every pod of a Deployment is of its newest template, and available.
func RolledOut(d *appsv1.Deployment) bool {
	s := d.Status
	return s.ObservedGeneration >= d.Generation && s.UpdatedReplicas == s.Replicas && s.AvailableReplicas == s.Replicas
}
