package tenant

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/rigelbuild/compass-operator/api/v1alpha1"
	"github.com/rigelbuild/compass-operator/controllers/backend"
	"github.com/rigelbuild/compass-operator/internal/fabric"
	"github.com/rigelbuild/compass-operator/internal/fault"
	"github.com/rigelbuild/compass-operator/internal/kube"
	"github.com/rigelbuild/compass-operator/internal/naming"
	"github.com/rigelbuild/compass-operator/internal/store"
)

// accept finds the server, and sees that it takes this tenant and that nobody older has the slug.
func (r *Reconciler) accept(ctx context.Context, s *scope) (err error) {
	key := Server(s.tenant)
	if key.Namespace != s.key.Namespace {
		return fault.Waiting(v1alpha1.ReasonWaitingForConsent,
			fmt.Sprintf("CompassServer %s takes tenants of its own namespace only: make this object there", key))
	}
	if err := naming.ValidSlug(s.slug); err != nil {
		return fault.Terminal(v1alpha1.ReasonReservedSlug, fmt.Errorf("spec.slug: %w", err))
	}
	if err := r.mustBeFirst(ctx, s); err != nil {
		return err
	}
	if s.server, err = backend.Find(ctx, r.Children.Client, key, s.tenant.Status.TenantID != ""); err != nil {
		return err
	}
	s.at, err = backend.Resolve(ctx, r.Children, s.server)
	return err
}

// mustBeFirst: of all objects that name this slug on this server the oldest has it.
func (r *Reconciler) mustBeFirst(ctx context.Context, s *scope) error {
	list := &v1alpha1.CompassTenantList{}
	if err := r.Children.Client.List(ctx, list, client.MatchingFields{IndexSlug: SlugOf(s.tenant)}); err != nil {
		return fault.Transient(v1alpha1.ReasonReconcileFailed, fmt.Errorf("list tenants: %w", err))
	}
	if first := oldest(list.Items); first != nil && first.UID != s.tenant.UID {
		return fault.Waiting(v1alpha1.ReasonSlugConflict, fmt.Sprintf("the slug %q is that of CompassTenant %s/%s, which is older: "+
			"give this one another spec.slug, or delete one of the two", s.slug, first.Namespace, first.Name))
	}
	return nil
}

// oldest is who has a slug: by age, and by name where that does not tell.
func oldest(claimers []v1alpha1.CompassTenant) *v1alpha1.CompassTenant {
	var first *v1alpha1.CompassTenant
	for i := range claimers {
		if next := &claimers[i]; first == nil || before(next, first) {
			first = next
		}
	}
	return first
}

func before(a, b *v1alpha1.CompassTenant) bool {
	if !a.CreationTimestamp.Equal(&b.CreationTimestamp) {
		return a.CreationTimestamp.Before(&b.CreationTimestamp)
	}
	return a.Namespace+"/"+a.Name < b.Namespace+"/"+b.Name
}

// ensureRow makes the tenant's row, or finds it. An id is minted for each try and kept by the row alone.
func (r *Reconciler) ensureRow(ctx context.Context, s *scope) error {
	wanted, err := desireLimits(s.tenant.Spec.Limits)
	if err != nil {
		return fault.Terminal(v1alpha1.ReasonInvalidSpec, err)
	}
	row, err := r.Systems.Rows.EnsureTenant(ctx, s.at, store.TenantRow{
		ID: store.TenantID(r.ids.Tenant()), Slug: s.slug, DisplayName: s.tenant.Spec.DisplayName, Limits: wanted,
	})
	if err != nil {
		return err
	}
	s.row = &row
	return nil
}

// ensureAccount makes the account's keys, once, and brings the account to every NATS server.
func (r *Reconciler) ensureAccount(ctx context.Context, s *scope) error {
	kept, err := kube.Keep(ctx, r.Children, nil, s.secret(s.names.Keys), func(have map[string][]byte) (map[string][]byte, error) {
		_, added, err := fabric.CompleteTenantKeys(have)
		return added, damaged(err)
	})
	if err != nil {
		return err
	}
	if s.keys, _, err = fabric.CompleteTenantKeys(kept); err != nil {
		return damaged(err)
	}
	account := desireAccount(s)
	if err := r.Systems.Accounts.EnsureAccount(ctx, s.at, account); err != nil {
		return err
	}
	s.account = account.Public
	return nil
}

func damaged(err error) error {
	if err == nil {
		return nil
	}
	return fault.Waiting(v1alpha1.ReasonInvalidSecret, err.Error()+": restore the Secret from a backup")
}

// ensureCredentials publishes the token of the tenant's admin account. It is stored before Postgres hears of it.
func (r *Reconciler) ensureCredentials(ctx context.Context, s *scope) error {
	kept, err := kube.Keep(ctx, r.Children, s.tenant, s.secret(s.names.API), func(have map[string][]byte) (map[string][]byte, error) {
		if len(have[backend.KeyToken]) > 0 {
			return nil, nil
		}
		token, err := r.ids.Token(string(s.row.ID))
		return map[string][]byte{backend.KeyToken: []byte(token)}, err
	})
	if err != nil {
		return err
	}
	token := kept[backend.KeyToken]
	if err := r.Systems.Rows.EnsureAdmin(ctx, s.at, s.row.ID, string(token)); err != nil {
		return err
	}
	if _, err = kube.Apply(ctx, r.Children, s.tenant, s.apiSecret(token)); err != nil {
		return err
	}
	s.published = true
	return nil
}

// judgeDelivery tells who carries the tenant. The placement is the truth; one that names a stream which is gone is nobody.
func (r *Reconciler) judgeDelivery(ctx context.Context, s *scope) error {
	if s.row.Stream == "" {
		return fault.Waiting(v1alpha1.ReasonNoStream, "no DeliveryStream carries this tenant: its messages are kept and stay owed; "+
			"make one with spec.tenants.all or name it in one")
	}
	stream := &v1alpha1.DeliveryStream{}
	switch err := r.Children.Client.Get(ctx, client.ObjectKey{Namespace: s.server.Namespace, Name: s.row.Stream}, stream); {
	case apierrors.IsNotFound(err):
		return fault.Waiting(v1alpha1.ReasonNoStream,
			fmt.Sprintf("DeliveryStream %s, which carried this tenant, is gone: its messages are kept and stay owed; make it again, or another", s.row.Stream))
	case err != nil:
		return fault.Transient(v1alpha1.ReasonReconcileFailed, fmt.Errorf("read DeliveryStream: %w", err))
	}
	return nil
}
