package server

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/rigelbuild/compass-operator/internal/fault"
	"github.com/rigelbuild/compass-operator/internal/kube"
	"github.com/rigelbuild/compass-operator/internal/naming"
)

// Holds REQ-213: Servers that cannot start do not start for ever: what stops them, or where it shows, is said in the same words
// at each attempt, and also while Servers of before are still available.
func TestAvailability(t *testing.T) {
	t.Parallel()
	const (
		look  = "kubectl -n ns describe pods -l compass.rigel.build/component=server,compass.rigel.build/server=main"
		start = "WaitingForPods: the Server is starting: " + look
		stuck = "the pods of Deployment ns/main-server do not start: correct spec.image, spec.server.resources or spec.server.pod, " +
			"if they are the cause that this shows: " + look
	)
	condition := func(kind appsv1.DeploymentConditionType, status corev1.ConditionStatus, message string) appsv1.DeploymentCondition {
		return appsv1.DeploymentCondition{Type: kind, Status: status, Message: message}
	}
	available := condition(appsv1.DeploymentAvailable, corev1.ConditionTrue, "")
	late := condition(appsv1.DeploymentProgressing, corev1.ConditionFalse, `ReplicaSet "main-server-5d6f" has timed out progressing.`)
	refused := func(pod string) appsv1.DeploymentCondition {
		return condition(appsv1.DeploymentReplicaFailure, corev1.ConditionTrue, `pods "main-server-`+pod+`" is forbidden: exceeded quota: q`)
	}
	for name, c := range map[string]struct {
		observed   int64
		conditions []appsv1.DeploymentCondition
		note, err  string
	}{
		"nothing said":        {2, nil, "", start},
		"of a generation ago": {1, []appsv1.DeploymentCondition{available, late}, "", start},
		"available":           {2, []appsv1.DeploymentCondition{available, condition(appsv1.DeploymentProgressing, corev1.ConditionTrue, "")}, "", ""},
		"late":                {2, []appsv1.DeploymentCondition{late}, "", "WaitingForPods: " + stuck},
		"late, and available": {2, []appsv1.DeploymentCondition{late, available}, stuck, ""},
		"refused":             {2, []appsv1.DeploymentCondition{late, refused("a")}, "", "WaitingForPods: no pod can be made: exceeded quota: q"},
		"refused again":       {2, []appsv1.DeploymentCondition{available, refused("b")}, "", "WaitingForPods: no pod can be made: exceeded quota: q"},
	} {
		dep := &appsv1.Deployment{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "main-server", Generation: 2},
			Status:     appsv1.DeploymentStatus{ObservedGeneration: c.observed, Conditions: c.conditions},
		}
		note, err := availability(dep, kube.Selector(naming.LabelServer, "main", naming.ComponentServer))
		got := ""
		if err != nil {
			got = fault.ReasonOf(err) + ": " + err.Error()
		}
		if note != c.note || got != c.err {
			t.Errorf("%s: %q, %q; want %q, %q", name, note, got, c.note, c.err)
		}
	}
}
