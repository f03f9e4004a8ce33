package stream

import (
	"context"

	appsv1 "k8s.io/api/apps/v1"

	"github.com/rigelbuild/compass-operator/api/v1alpha1"
	"github.com/rigelbuild/compass-operator/internal/fault"
	"github.com/rigelbuild/compass-operator/internal/kube"
	"github.com/rigelbuild/compass-operator/internal/naming"
)

// reach resolves the server for a removal. gone: there is none any more, so there is nothing to remove from it. A server
// that is there and cannot be entered is waited for.
func (r *Reconciler) reach(ctx context.Context, s *scope) (gone bool, err error) {
	s.served = true
	err = r.resolve(ctx, s)
	if fault.ReasonOf(err) == v1alpha1.ReasonServerGone {
		s.gone = true
		return true, nil
	}
	return false, err
}

// removeWorker stops the worker and waits until it has: what follows takes its work away.
func (r *Reconciler) removeWorker(ctx context.Context, s *scope) error {
	return kube.Remove(ctx, s.kids, s.stream, &appsv1.Deployment{ObjectMeta: s.meta(naming.ComponentDelivery)})
}

// releaseTenants leaves the tenants with nobody.
func (r *Reconciler) releaseTenants(ctx context.Context, s *scope) error {
	gone, err := r.reach(ctx, s)
	if err != nil || gone {
		return err
	}
	tenants, err := r.Systems.Placements.Tenants(ctx, s.at)
	if err != nil {
		return err
	}
	for _, t := range tenants {
		if t.Stream != s.key.Name {
			continue
		}
		if _, err := r.Systems.Placements.PlaceTenant(ctx, s.at, t, ""); err != nil {
			return err
		}
	}
	return nil
}

// removeStream deletes queue, consumer and dead letters; the truth of those is in Postgres.
func (r *Reconciler) removeStream(ctx context.Context, s *scope) error {
	gone, err := r.reach(ctx, s)
	if err != nil || gone {
		return err
	}
	return r.Systems.Streams.RemoveStream(ctx, s.at, s.key.Name)
}
