package server

import (
	"context"
	"fmt"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/rigelbuild/compass-operator/api/v1alpha1"
	"github.com/rigelbuild/compass-operator/controllers/backend"
	"github.com/rigelbuild/compass-operator/internal/fault"
	"github.com/rigelbuild/compass-operator/internal/kube"
	"github.com/rigelbuild/compass-operator/internal/naming"
)

// ensureServers runs the Servers. They need the schema; NATS they wait for themselves.
func (r *Reconciler) ensureServers(ctx context.Context, s *scope) error {
	at, err := s.place()
	if err != nil {
		return err
	}
	text, err := s.serverConfig(at)
	if err != nil {
		return fmt.Errorf("render configuration: %w", err)
	}
	if err := r.ensureCreds(ctx, s, at); err != nil {
		return err
	}
	if _, err := kube.Apply(ctx, s.kids, s.server, s.serverConfigMap(text)); err != nil {
		return err
	}
	if _, err := kube.Apply(ctx, s.kids, s.server, s.serverAccount()); err != nil {
		return err
	}
	if _, err := kube.Apply(ctx, s.kids, s.server, s.serverService()); err != nil {
		return err
	}
	if _, err := kube.Apply(ctx, s.kids, s.server, s.serverBudget()); err != nil {
		return err
	}
	if _, err := kube.Apply(ctx, s.kids, s.server, s.serverDoors()); err != nil {
		return err
	}
	want := s.serverDeployment(r.Images, kube.Hash(string(text), string(s.logins)))
	want.Annotations = map[string]string{naming.AnnotationDatabases: backend.Numbers(at.Databases)}
	if err := s.leaveScale(ctx, want); err != nil {
		return err
	}
	dep, err := kube.Apply(ctx, s.kids, s.server, want)
	if err != nil {
		return err
	}
	s.deployed, s.available = true, dep.Status.AvailableReplicas
	s.stuck, err = availability(dep, s.selector(naming.ComponentServer).MatchLabels)
	return err
}

// leaveScale: a number of replicas that the spec leaves open is somebody else's. Until that one has set it, it stays what it
// is: to give up a field that nobody else has would make it one.
func (s *scope) leaveScale(ctx context.Context, want *appsv1.Deployment) error {
	if want.Spec.Replicas != nil {
		return nil
	}
	live := &appsv1.Deployment{}
	err := s.kids.Client.Get(ctx, client.ObjectKeyFromObject(want), live)
	if err == nil && kube.SetBy(live, "f:spec", "f:replicas") == "" {
		want.Spec.Replicas = live.Spec.Replicas
	}
	return client.IgnoreNotFound(err)
}

// availability judges what the Deployment says of the newest generation. One that is stuck says why, and beside it, where
// pods of before are available still, what is stuck.
func availability(dep *appsv1.Deployment, selector map[string]string) (stuck string, err error) {
	waits := waitingForPods("the Server", dep.Namespace, selector)
	available := false
	if dep.Status.ObservedGeneration < dep.Generation {
		return "", fault.Waiting(v1alpha1.ReasonWaitingForPods, waits)
	}
	for _, c := range dep.Status.Conditions {
		switch {
		case c.Type == appsv1.DeploymentAvailable && c.Status == corev1.ConditionTrue:
			available = true
		case c.Type == appsv1.DeploymentReplicaFailure && c.Status == corev1.ConditionTrue:
			return "", fault.Waiting(v1alpha1.ReasonWaitingForPods, "no pod can be made: "+withoutPod(c.Message))
		case c.Type == appsv1.DeploymentProgressing && c.Status == corev1.ConditionFalse:
			stuck = fmt.Sprintf("the pods of Deployment %s/%s do not start: correct spec.image, spec.server.resources or spec.server.pod, "+
				"if they are the cause that this shows: %s", dep.Namespace, dep.Name, describePods(dep.Namespace, selector))
		}
	}
	switch {
	case available:
		return stuck, nil
	case stuck != "":
		waits = stuck
	}
	return "", fault.Waiting(v1alpha1.ReasonWaitingForPods, waits)
}

// withoutPod takes the pod's name, which is another at each attempt, from what Kubernetes says of it.
func withoutPod(message string) string {
	if _, why, ok := strings.Cut(message, " is forbidden: "); ok {
		message = why
	}
	return strings.TrimSpace(message)
}
