package tenant

import (
	"context"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/rigelbuild/compass-operator/api/v1alpha1"
	"github.com/rigelbuild/compass-operator/controllers/backend"
	"github.com/rigelbuild/compass-operator/internal/fabric"
	"github.com/rigelbuild/compass-operator/internal/fault"
	"github.com/rigelbuild/compass-operator/internal/kube"
	"github.com/rigelbuild/compass-operator/internal/store"
)

// reach finds the server for a removal. gone: there is none any more, so there is nothing to remove from it. A server that
// is there and cannot be entered is waited for.
func (r *Reconciler) reach(ctx context.Context, s *scope) (gone bool, err error) {
	if s.server != nil {
		return false, nil
	}
	server, err := backend.Find(ctx, s.kids.Live, Server(s.tenant), true)
	if fault.ReasonOf(err) == v1alpha1.ReasonServerGone {
		s.gone = true
		return true, nil
	}
	if err != nil {
		return false, err
	}
	if s.at, err = backend.Resolve(ctx, s.kids, server); err != nil {
		return false, err
	}
	s.server = server
	return false, nil
}

// owns reports whether the slug is this object's: the loser of a conflict takes nothing from the survivor.
func (r *Reconciler) owns(ctx context.Context, s *scope) (bool, error) {
	err := r.mustBeFirst(ctx, s)
	if fault.ReasonOf(err) == v1alpha1.ReasonSlugConflict {
		return false, nil
	}
	return err == nil, err
}

// removeAccount locks everybody out before their rows go. Without its keys there is no account that could be named.
func (r *Reconciler) removeAccount(ctx context.Context, s *scope) error {
	gone, err := r.reach(ctx, s)
	if err != nil || gone {
		return err
	}
	kept, err := kube.Read(ctx, s.kids, client.ObjectKey{Namespace: s.key.Namespace, Name: s.names.Keys})
	if fault.IsWaiting(err) {
		return nil
	}
	if err != nil {
		return err
	}
	keys, missing, err := fabric.CompleteTenantKeys(kept)
	if err != nil || missing != nil { // not whole: nothing was made with them
		return damaged(err)
	}
	s.keys, s.row = keys, &store.TenantRow{ID: store.TenantID(s.tenant.Status.TenantID)}
	account := desireAccount(s)
	graves, err := backend.GravesOf(s.kids, s.server)
	if err != nil {
		return err
	}
	if err := graves.Dig(ctx, account, r.Now()); err != nil {
		return err
	}
	return r.Systems.Accounts.RemoveAccount(ctx, s.at, account)
}

// removeSQL drops the SQL login, if there ever was one.
func (r *Reconciler) removeSQL(ctx context.Context, s *scope) error {
	kept, err := kube.Read(ctx, s.kids, client.ObjectKey{Namespace: s.key.Namespace, Name: s.names.Keys})
	if fault.IsWaiting(err) || err == nil && len(kept[keySQLPassword]) == 0 {
		return nil
	}
	if err != nil {
		return err
	}
	gone, err := r.reach(ctx, s)
	if err != nil || gone {
		return err
	}
	s.row = &store.TenantRow{ID: store.TenantID(s.tenant.Status.TenantID)}
	return r.removeLogin(ctx, s)
}

// removeRow purges the tenant.
func (r *Reconciler) removeRow(ctx context.Context, s *scope) error {
	owns, err := r.owns(ctx, s)
	if err != nil || !owns {
		return err
	}
	gone, err := r.reach(ctx, s)
	if err != nil || gone {
		return err
	}
	return r.Systems.Rows.RemoveTenant(ctx, s.at, s.slug)
}

// removeHome drops the tenant's own database, if there is one.
func (r *Reconciler) removeHome(ctx context.Context, s *scope) error {
	owns, err := r.owns(ctx, s)
	if err != nil || !owns {
		return err
	}
	gone, err := r.reach(ctx, s)
	if err != nil || gone {
		return err
	}
	own, err := s.findHome(ctx)
	if err != nil || own == nil {
		return err
	}
	return r.leaveHome(ctx, s, own)
}

// removeKeys comes last: until then every earlier step could be repeated with the same keys.
func (r *Reconciler) removeKeys(ctx context.Context, s *scope) error {
	return gone(kube.Remove(ctx, s.kids, nil, s.secret(s.names.Keys)))
}
