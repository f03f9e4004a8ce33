package tenant

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/rigelbuild/compass-operator/controllers/backend"
	"github.com/rigelbuild/compass-operator/internal/fabric"
	"github.com/rigelbuild/compass-operator/internal/kube"
	"github.com/rigelbuild/compass-operator/internal/naming"
)

// keyEnrolment, in <name>-keys, is the token that lets the next Runner of the tenant's own fleet in.
const keyEnrolment = "fleet.token"

// fleetSecret lies beside the server's own, whose Servers let the Runners in.
func (s *scope) fleetSecret() *corev1.Secret {
	server := Server(s.tenant)
	labels := kube.Labels(naming.LabelServer, server.Name, naming.ComponentFleet)
	labels[naming.LabelSlug] = s.slug
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{
		Namespace: server.Namespace, Name: naming.FleetSecret(server.Name, s.slug), Labels: labels,
	}}
}

// ensureFleet gives the tenant a fleet of its own: its Servers learn the key that lets Runners into the tenant's account, and a
// token that enrols one is kept. It returns that token; none where no fleet is asked for.
func (r *Reconciler) ensureFleet(ctx context.Context, s *scope) (token []byte, err error) {
	kept := s.token.Kept
	if !s.tenant.Spec.NATS.Runners {
		if len(kept[keyEnrolment]) == 0 {
			return nil, nil
		}
		return nil, r.takeFleet(ctx, s)
	}
	keys, missing, err := fabric.CompleteTenantKeys(kept)
	switch {
	case err != nil:
		return nil, damaged(err)
	case missing != nil:
		return nil, withoutAccount()
	}
	secret := s.fleetSecret()
	secret.Data = backend.FleetIssuer(string(s.row.ID), keys)
	if _, err := kube.Apply(ctx, s.kids, nil, secret); err != nil {
		return nil, err
	}
	return r.ensureEnrolment(ctx, s, kept[keyEnrolment])
}

// ensureEnrolment: a token enrols one Runner; when it was used, the next one takes its place.
func (r *Reconciler) ensureEnrolment(ctx context.Context, s *scope, token []byte) ([]byte, error) {
	if len(token) > 0 {
		usable, err := r.Systems.Accounts.EnsureEnrolment(ctx, s.at, string(token), string(s.row.ID))
		if err != nil || usable {
			return token, err
		}
	}
	next, err := r.ids.RunnerToken(string(s.row.ID))
	if err != nil {
		return nil, fmt.Errorf("make enrolment token: %w", err)
	}
	if _, err := kube.Change(ctx, s.kids, s.secret(s.names.Keys), map[string][]byte{keyEnrolment: []byte(next)}); err != nil {
		return nil, err
	}
	_, err = r.Systems.Accounts.EnsureEnrolment(ctx, s.at, next, string(s.row.ID))
	return []byte(next), err
}

// takeFleet: Servers let no more Runners into the account, which reaches nothing any more.
func (r *Reconciler) takeFleet(ctx context.Context, s *scope) error {
	if err := r.dropFleet(ctx, s); err != nil {
		return err
	}
	_, err := kube.Change(ctx, s.kids, s.secret(s.names.Keys), map[string][]byte{keyEnrolment: nil})
	return err
}

func (r *Reconciler) dropFleet(ctx context.Context, s *scope) error {
	return gone(kube.Remove(ctx, s.kids, nil, s.fleetSecret()))
}

// removeFleet is the same for a tenant that goes.
func (r *Reconciler) removeFleet(ctx context.Context, s *scope) error {
	owns, err := r.owns(ctx, s)
	if err != nil || !owns {
		return err
	}
	return r.dropFleet(ctx, s)
}
