package server

import (
	"context"
	"fmt"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/rigelbuild/compass-operator/api/v1alpha1"
	"github.com/rigelbuild/compass-operator/internal/fault"
	"github.com/rigelbuild/compass-operator/internal/kube"
	"github.com/rigelbuild/compass-operator/internal/naming"
)

// ensureServers runs the Servers. They need the schema; NATS they wait for themselves.
func (r *Reconciler) ensureServers(ctx context.Context, s *scope) error {
	if s.identity == nil {
		return fault.Waiting(v1alpha1.ReasonWaitingForDependency, "the keys of NATS are not made yet: see condition FabricReady")
	}
	at, err := s.place()
	if err != nil {
		return err
	}
	text, err := s.serverConfig(at)
	if err != nil {
		return fmt.Errorf("render configuration: %w", err)
	}
	if _, err := r.ensureCreds(ctx, s); err != nil {
		return err
	}
	if _, err := kube.Apply(ctx, r.Children, s.server, s.serverConfigMap(text)); err != nil {
		return err
	}
	if _, err := kube.Apply(ctx, r.Children, s.server, s.serverAccount()); err != nil {
		return err
	}
	if _, err := kube.Apply(ctx, r.Children, s.server, s.serverService()); err != nil {
		return err
	}
	if _, err := kube.Apply(ctx, r.Children, s.server, s.serverBudget()); err != nil {
		return err
	}
	dep, err := kube.Apply(ctx, r.Children, s.server, s.serverDeployment(r.Images, kube.Hash(string(text), string(s.logins))))
	if err != nil {
		return err
	}
	s.deployed, s.available = true, dep.Status.AvailableReplicas
	return availability(dep, s.selector(naming.ComponentServer).MatchLabels)
}

// availability judges what the Deployment says of the newest generation. One that is stuck says why.
func availability(dep *appsv1.Deployment, selector map[string]string) error {
	waits := fault.Waiting(v1alpha1.ReasonWaitingForPods, waitingForPods("the Server", dep.Namespace, selector))
	if dep.Status.ObservedGeneration < dep.Generation {
		return waits
	}
	available := false
	for _, c := range dep.Status.Conditions {
		switch {
		case c.Type == appsv1.DeploymentAvailable && c.Status == corev1.ConditionTrue:
			available = true
		case c.Type == appsv1.DeploymentReplicaFailure && c.Status == corev1.ConditionTrue:
			return fault.Waiting(v1alpha1.ReasonWaitingForPods, "no pod can be made: "+strings.TrimSpace(c.Message))
		}
	}
	if !available {
		return waits
	}
	return nil
}
