package tenant

import (
	"context"
	"errors"
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
	if err := naming.ValidSlug(s.slug); err != nil {
		return fault.Terminal(v1alpha1.ReasonReservedSlug, fmt.Errorf("spec.slug: %w", err))
	}
	if err := r.mustBeFirst(ctx, s); err != nil {
		return err
	}
	if s.server, err = backend.Find(ctx, s.kids.Client, key, s.tenant.Status.TenantID != ""); err != nil {
		return err
	}
	if err := r.mustConsent(ctx, s); err != nil {
		return err
	}
	s.at, err = backend.Resolve(ctx, s.kids, s.server)
	return err
}

// mustBeFirst: of all objects that name this slug on this server the oldest has it.
func (r *Reconciler) mustBeFirst(ctx context.Context, s *scope) error {
	list := &v1alpha1.CompassTenantList{}
	if err := s.kids.Client.List(ctx, list, client.MatchingFields{IndexSlug: SlugOf(s.tenant)}); err != nil {
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
	if s.tenant.Status.TenantID == "" {
		if err := r.firstLook(ctx, s); err != nil {
			return err
		}
	}
	row, err := r.Systems.Rows.EnsureTenant(ctx, s.at, store.TenantRow{
		ID: store.TenantID(r.ids.Tenant()), Slug: s.slug, DisplayName: s.tenant.Spec.DisplayName, Limits: wanted, Database: s.wanted(),
	})
	if err != nil {
		return err
	}
	s.row = &row
	return nil
}

// firstLook sees whether the tenant is there already. One that is not is made where it shall live, so that has to be there.
func (r *Reconciler) firstLook(ctx context.Context, s *scope) (err error) {
	if s.row, err = r.Systems.Rows.FindTenant(ctx, s.at, s.slug); err != nil {
		return err
	}
	switch {
	case s.row != nil:
		if err := s.mustAdopt(); err != nil {
			s.row = nil // it is not this object's yet
			return err
		}
		return nil
	case !s.dedicated():
		return nil
	}
	if err := r.ensureHome(ctx, s); err != nil {
		return err
	}
	if !s.at.Knows(s.wanted()) {
		return s.notTakenIn()
	}
	return nil
}

// ensureAccount makes the account's keys, once, and brings the account to every NATS server.
func (r *Reconciler) ensureAccount(ctx context.Context, s *scope) error {
	kept, err := kube.Keep(ctx, s.kids, nil, s.secret(s.names.Keys), func(have map[string][]byte) (map[string][]byte, error) {
		if err := s.mustBeWhole(have); err != nil {
			return nil, err
		}
		_, added, err := fabric.CompleteTenantKeys(have)
		return added, damaged(err)
	})
	if err != nil {
		return err
	}
	if s.keys, _, err = fabric.CompleteTenantKeys(kept); err != nil {
		return damaged(err)
	}
	s.revoked = revoked(kept, r.Now())
	account := desireAccount(s)
	graves, err := backend.GravesOf(s.kids, s.server)
	if err != nil {
		return err
	}
	if err := graves.Fill(ctx, account.Public); err != nil { // keys that were restored are an account that lives again
		return err
	}
	if err := r.Systems.Accounts.EnsureAccount(ctx, s.at, account, s.tenant.Spec.AdoptionPolicy); err != nil {
		return err
	}
	s.account = account.Public
	return nil
}

// mustBeWhole: the tenant was seen to have an account, and the Secret with its keys is gone. Another account would leave the
// first with nobody who can end it.
func (s *scope) mustBeWhole(have map[string][]byte) error {
	if s.tenant.Status.Account == "" || len(have) > 0 {
		return nil
	}
	return fault.Waiting(v1alpha1.ReasonIdentityConflict, fmt.Sprintf("the keys of NATS account %s are gone: restore it from a "+
		"backup, or delete this object and create it anew", s.tenant.Status.Account))
}

func damaged(err error) error {
	if err == nil {
		return nil
	}
	return fault.Waiting(v1alpha1.ReasonInvalidSecret, err.Error()+": restore the Secret from a backup")
}

// ensureCredentials publishes the token of the tenant's admin account, a copy of the one that is kept with the keys.
func (r *Reconciler) ensureCredentials(ctx context.Context, s *scope) error {
	life, err := desireTokenLife(s.tenant, r.Now())
	if err != nil {
		return fault.Terminal(v1alpha1.ReasonInvalidSpec, err)
	}
	keeper := backend.TokenKeeper{
		Tokens: r.Systems.Rows, Kids: s.kids, Secret: s.secret(s.names.Keys), Tenant: s.row.ID,
		Mint: func() (string, error) { return r.ids.Token(string(s.row.ID)) }, Whole: s.mustBeWhole,
	}
	token, err := keeper.Keep(ctx, s.at, life)
	if err != nil {
		return err
	}
	if _, err = kube.Apply(ctx, s.kids, s.tenant, s.apiSecret(token.Text)); err != nil {
		return err
	}
	s.token, s.life = &token, life
	return errors.Join(r.ensureSQL(ctx, s), r.ensureNATS(ctx, s))
}

// judgeDelivery tells who carries the tenant. The placement is the truth; one that names a stream which is gone is nobody.
func (r *Reconciler) judgeDelivery(ctx context.Context, s *scope) error {
	if s.row.Stream == "" {
		return fault.Told(v1alpha1.ReasonNoStream, "no DeliveryStream carries this tenant: its messages are kept and stay owed; "+
			"make one with spec.tenants.all or name it in one")
	}
	stream := &v1alpha1.DeliveryStream{}
	switch err := s.kids.Client.Get(ctx, client.ObjectKey{Namespace: s.server.Namespace, Name: s.row.Stream}, stream); {
	case apierrors.IsNotFound(err):
		return fault.Told(v1alpha1.ReasonNoStream,
			fmt.Sprintf("DeliveryStream %s, which carried this tenant, is gone: its messages are kept and stay owed; make it again, or another", s.row.Stream))
	case err != nil:
		return fault.Transient(v1alpha1.ReasonReconcileFailed, fmt.Errorf("read DeliveryStream: %w", err))
	}
	usage, err := r.Systems.Rows.TenantUsage(ctx, s.at, *s.row)
	if err != nil {
		return err
	}
	s.usage = &usage
	return nil
}
