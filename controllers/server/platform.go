package server

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/rigelbuild/compass-operator/api/v1alpha1"
	"github.com/rigelbuild/compass-operator/controllers/backend"
	"github.com/rigelbuild/compass-operator/internal/fault"
	"github.com/rigelbuild/compass-operator/internal/kube"
	"github.com/rigelbuild/compass-operator/internal/naming"
	"github.com/rigelbuild/compass-operator/internal/store"
)

// ensurePlatform makes what a deployment has before any tenant does: the bootstrap tenant, its first admin, and a token
// that lets one Runner of the shared fleet in.
func (r *Reconciler) ensurePlatform(ctx context.Context, s *scope) error {
	at, err := s.place()
	if err != nil {
		return err
	}
	if err := r.Systems.Platform.EnsureSystem(ctx, at); err != nil {
		return err
	}
	if err := r.ensureAdmin(ctx, s, at); err != nil {
		return err
	}
	if err := r.ensureEnrolment(ctx, s, at); err != nil {
		return err
	}
	if s.tenants, err = r.Systems.Platform.CountTenants(ctx, at); err != nil {
		return err
	}
	s.streams, err = r.countStreams(ctx, s)
	s.looked = err == nil
	return err
}

// adminOverlap is how long the platform admin's former token is good beside a new one.
const adminOverlap = 24 * time.Hour

// ensureAdmin publishes the platform admin's token, a copy of the one that is kept with the keys. It is replaced when the
// annotation asks.
func (r *Reconciler) ensureAdmin(ctx context.Context, s *scope, at backend.Place) error {
	keeper := backend.TokenKeeper{
		Tokens: r.Systems.Platform, Kids: s.kids, Secret: s.secret(s.names.Keys), Tenant: store.BootstrapTenantID,
		Mint: func() (string, error) { return r.ids.Token(string(store.BootstrapTenantID)) },
	}
	token, err := keeper.Keep(ctx, at, backend.TokenLife{
		Asked: s.server.Annotations[v1alpha1.AnnotationRotate], Overlap: adminOverlap, Now: r.Now(),
	})
	if err != nil {
		return err
	}
	return r.publish(ctx, s, at, s.secret(s.names.Admin), token.Text)
}

// ensureEnrolment publishes an enrolment token. One lets one Runner in; when it was used, the next one takes its place.
func (r *Reconciler) ensureEnrolment(ctx context.Context, s *scope, at backend.Place) error {
	secret := s.secret(s.names.RunnerEnrol)
	fresh := func() (map[string][]byte, error) {
		token, err := r.ids.RunnerToken(naming.SharedFleet)
		return map[string][]byte{backend.KeyToken: []byte(token)}, err
	}
	kept, err := kube.Keep(ctx, s.kids, s.server, secret, func(have map[string][]byte) (map[string][]byte, error) {
		if len(have[backend.KeyToken]) > 0 {
			return nil, nil
		}
		return fresh()
	})
	if err != nil {
		return err
	}
	usable, err := r.Systems.Platform.EnsureEnrolment(ctx, at, string(kept[backend.KeyToken]), naming.SharedFleet)
	switch {
	case err != nil:
		return err
	case usable:
		return r.publish(ctx, s, at, secret, kept[backend.KeyToken])
	}
	next, err := fresh()
	if err != nil {
		return err
	}
	if err := r.publish(ctx, s, at, secret, next[backend.KeyToken]); err != nil {
		return err
	}
	_, err = r.Systems.Platform.EnsureEnrolment(ctx, at, string(next[backend.KeyToken]), naming.SharedFleet)
	return err
}

// publish writes what somebody needs to call the API with a token.
func (r *Reconciler) publish(ctx context.Context, s *scope, at backend.Place, secret *corev1.Secret, token []byte) error {
	secret.Data = map[string][]byte{backend.KeyURL: []byte(at.Endpoint), backend.KeyToken: token, backend.KeyCA: at.CA}
	_, err := kube.Apply(ctx, s.kids, s.server, secret)
	return err
}

// countStreams counts those that refer to this server, which live in its namespace.
func (r *Reconciler) countStreams(ctx context.Context, s *scope) (int32, error) {
	list := &v1alpha1.DeliveryStreamList{}
	if err := s.kids.Client.List(ctx, list, client.InNamespace(s.key.Namespace)); err != nil {
		return 0, fault.Transient(v1alpha1.ReasonReconcileFailed, err)
	}
	n := int32(0)
	for i := range list.Items {
		if list.Items[i].Spec.ServerRef.Name == s.key.Name {
			n++
		}
	}
	return n, nil
}
