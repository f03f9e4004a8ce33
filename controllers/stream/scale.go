package stream

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/rigelbuild/compass-operator/api/v1alpha1"
	"github.com/rigelbuild/compass-operator/internal/fault"
	"github.com/rigelbuild/compass-operator/internal/kube"
)

// applyWorker makes the worker's Deployment as wanted. A number of replicas that somebody else set is undone and told, or,
// where that happens again and again, left for a while.
func (r *Reconciler) applyWorker(ctx context.Context, s *scope, want *appsv1.Deployment) (err error) {
	scaled, who, err := r.scaledBy(ctx, s, want)
	if err != nil {
		return err
	}
	if scaled != nil && s.kids.Drift.Allow("the scale of the worker") == nil && !r.contests.found(s.key, r.Now()) {
		s.deployment = scaled
		return nil
	}
	if s.deployment, err = kube.Apply(ctx, s.kids, s.stream, want); err != nil || scaled == nil {
		return err
	}
	r.Frame.Metrics.ScaleReverted(s.key)
	r.Frame.Tell(s.stream, v1alpha1.ReasonScaleReverted, fmt.Sprintf("%s had set %d replicas of Deployment %s, which is %d again: "+
		"for more throughput make another DeliveryStream and give it some of the tenants", who, replicas(scaled), want.Name, replicas(want)))
	return nil
}

// scaledBy returns the worker's Deployment if its number of replicas is somebody else's, and whose.
func (r *Reconciler) scaledBy(ctx context.Context, s *scope, want *appsv1.Deployment) (live *appsv1.Deployment, who string, err error) {
	live = &appsv1.Deployment{}
	switch err := s.kids.Client.Get(ctx, client.ObjectKeyFromObject(want), live); {
	case apierrors.IsNotFound(err):
		return nil, "", nil
	case err != nil:
		return nil, "", fault.Transient(v1alpha1.ReasonApplyFailed, fmt.Errorf("read Deployment: %w", err))
	}
	if who = kube.SetBy(live, "f:spec", "f:replicas"); who == "" || replicas(live) == replicas(want) {
		return nil, "", nil
	}
	return live, who, nil
}

func replicas(d *appsv1.Deployment) int32 {
	if d.Spec.Replicas == nil {
		return 1
	}
	return *d.Spec.Replicas
}

// quarrel says who and what to do.
func (s *scope) quarrel() string {
	return fmt.Sprintf("somebody keeps setting the replicas of Deployment %s, and this operator undoes it less and less often: remove the "+
		"HorizontalPodAutoscaler or whatever else does it; one of the pods writes all the same, which the lease sees to", s.names.Worker)
}
