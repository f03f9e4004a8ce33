package backend

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/rigelbuild/compass-operator/api/v1alpha1"
	"github.com/rigelbuild/compass-operator/internal/fault"
	"github.com/rigelbuild/compass-operator/internal/naming"
	"github.com/rigelbuild/compass-operator/internal/store"
)

const (
	adminHandle = "admin"
	actor       = "operator"
)

// EnsureSystem makes the bootstrap tenant.
func (p *Pool) EnsureSystem(ctx context.Context, at Place) error {
	s, err := p.store(ctx, at)
	if err != nil {
		return err
	}
	_, err = s.BootstrapTenant(ctx)
	return interpretStore(err)
}

// EnsureAdmin sees that a token opens the admin account of a tenant, and makes account and token if they are not there. A
// token that was revoked stays so.
func (p *Pool) EnsureAdmin(ctx context.Context, at Place, tenant store.TenantID, token string) error {
	if _, _, err := naming.ParseToken(token); err != nil {
		return fault.Waiting(v1alpha1.ReasonInvalidSecret, "the published token is damaged: delete its Secret, and another is made")
	}
	s, err := p.store(ctx, at)
	if err != nil {
		return err
	}
	hash := naming.TokenHash(token)
	if opens, err := opens(ctx, s, tenant, hash); err != nil || opens {
		return interpretStore(err)
	}
	ids := &naming.IDs{Now: p.now, Rand: rand.Reader}
	account := store.Account{ID: ids.Account(), Handle: adminHandle, DisplayName: "Administrator"}
	err = s.EnsureAdmin(ctx, tenant, account, store.NewToken{ID: ids.TokenID(), Account: account.ID, Hash: hash, Actor: actor})
	if errors.Is(err, store.ErrConflict) {
		return fault.Waiting(v1alpha1.ReasonAccountConflict,
			fmt.Sprintf("the account @%s of the tenant is no admin: make it one, or rename it", adminHandle))
	}
	if err != nil {
		return interpretStore(err)
	}
	if opens, err := opens(ctx, s, tenant, hash); err != nil || opens {
		return interpretStore(err)
	}
	return fault.Waiting(v1alpha1.ReasonTokenConflict, "the published token was revoked: set the annotation "+
		naming.AnnotationRotate+" to a new value, and another is made")
}

// TokenSince tells when a token was made; the zero time where the tenant has no such token.
func (p *Pool) TokenSince(ctx context.Context, at Place, tenant store.TenantID, token string) (time.Time, error) {
	s, err := p.store(ctx, at)
	if err != nil {
		return time.Time{}, err
	}
	seen, err := s.FindToken(store.WithTenant(ctx, tenant), naming.TokenHash(token))
	if errors.Is(err, store.ErrNotFound) {
		return time.Time{}, nil
	}
	return time.UnixMilli(seen.CreatedAtUnixMs), interpretStore(err)
}

// RevokeToken ends a token. Absent is success.
func (p *Pool) RevokeToken(ctx context.Context, at Place, tenant store.TenantID, token string) error {
	s, err := p.store(ctx, at)
	if err != nil {
		return err
	}
	ctx = store.WithTenant(ctx, tenant)
	seen, err := s.FindToken(ctx, naming.TokenHash(token))
	if err == nil && !seen.Revoked {
		err = s.RevokeToken(ctx, seen.ID, actor)
	}
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	return interpretStore(err)
}

// opens tells whether a token opens an admin account of the tenant.
func opens(ctx context.Context, s *store.Store, tenant store.TenantID, hash [32]byte) (bool, error) {
	caller, err := s.Authenticate(store.WithTenant(ctx, tenant), hash)
	if errors.Is(err, store.ErrNotFound) {
		return false, nil
	}
	return err == nil && caller.Admin(), err
}

// EnsureEnrolment stores the hash of an enrolment token of a fleet, and tells whether it can still let somebody in.
func (p *Pool) EnsureEnrolment(ctx context.Context, at Place, token, fleet string) (usable bool, err error) {
	s, err := p.store(ctx, at)
	if err != nil {
		return false, err
	}
	usable, err = s.EnsureRunnerToken(ctx, naming.TokenHash(token), fleet)
	return usable, interpretStore(err)
}

// CountTenants counts the tenants, without the bootstrap tenant.
func (p *Pool) CountTenants(ctx context.Context, at Place) (int64, error) {
	s, err := p.store(ctx, at)
	if err != nil {
		return 0, err
	}
	n, err := s.CountTenants(ctx)
	return n, interpretStore(err)
}

// FindTenant finds the tenant's row; nil where there is none.
func (p *Pool) FindTenant(ctx context.Context, at Place, slug string) (*store.TenantRow, error) {
	s, err := p.store(ctx, at)
	if err != nil {
		return nil, err
	}
	row, err := s.TenantBySlug(ctx, slug)
	if errors.Is(err, store.ErrNotFound) || err == nil && row.Database < 0 { // or half made
		return nil, nil
	}
	return &row, interpretStore(err)
}

// EnsureTenant makes or finds the tenant's row.
func (p *Pool) EnsureTenant(ctx context.Context, at Place, want store.TenantRow) (store.TenantRow, error) {
	s, err := p.store(ctx, at)
	if err != nil {
		return store.TenantRow{}, err
	}
	row, err := s.TenantBySlug(ctx, want.Slug)
	var fields []string
	switch {
	case errors.Is(err, store.ErrNotFound):
		fields = []string{"removed"}
	case err != nil:
		return row, interpretStore(err)
	default:
		fields = row.Differs(want)
	}
	what := "the row of tenant " + want.Slug
	if len(fields) > 0 {
		if err := at.Drift.Allow(what, fields...); err != nil {
			return row, err
		}
	} else if row.Database == naming.DatabaseZero {
		return row, nil
	}
	row, err = s.EnsureTenant(ctx, want) // what is elsewhere, or half made, it looks after itself
	if err == nil && len(fields) > 0 {
		at.Drift.Wrote(what, fields...)
	}
	return row, interpretStore(err)
}

// RemoveTenant purges a tenant, found by its slug, with everything that it has. Absent is success. One that a stream still
// carries is taken from it first; its worker may then write nothing more for it.
func (p *Pool) RemoveTenant(ctx context.Context, at Place, slug string) error {
	s, err := p.store(ctx, at)
	if err != nil {
		return err
	}
	row, err := s.TenantBySlug(ctx, slug)
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	if err == nil && row.Stream != "" {
		err = s.PlaceTenant(ctx, row.ID, row.Stream, "")
	}
	if err == nil {
		err = s.PurgeTenant(ctx, row.ID)
	}
	return interpretStore(err)
}

// Tenants lists every tenant but the bootstrap tenant, sorted by slug.
func (p *Pool) Tenants(ctx context.Context, at Place) ([]store.TenantRow, error) {
	s, err := p.store(ctx, at)
	if err != nil {
		return nil, err
	}
	rows, err := s.Tenants(ctx)
	return rows, interpretStore(err)
}

// TenantsOf lists the tenants with a stream and those of some slugs, sorted by slug.
func (p *Pool) TenantsOf(ctx context.Context, at Place, stream string, slugs []string) ([]store.TenantRow, error) {
	s, err := p.store(ctx, at)
	if err != nil {
		return nil, err
	}
	rows, err := s.TenantsOf(ctx, stream, slugs)
	return rows, interpretStore(err)
}

// PlaceTenant hands a tenant from the stream that it was seen with to another; nobody is "". moved is false where somebody else
// was faster.
func (p *Pool) PlaceTenant(ctx context.Context, at Place, tenant store.TenantRow, to string) (moved bool, err error) {
	s, err := p.store(ctx, at)
	if err != nil {
		return false, err
	}
	err = s.PlaceTenant(ctx, tenant.ID, tenant.Stream, to)
	if errors.Is(err, store.ErrConflict) {
		return false, nil
	}
	if err == nil {
		p.tell(Heard{Server: at.Server, Slug: tenant.Slug})
	}
	return err == nil, interpretStore(err)
}

// DrainTenant asks the worker of a stream to let go of a tenant.
func (p *Pool) DrainTenant(ctx context.Context, at Place, id store.TenantID, stream string) error {
	s, err := p.store(ctx, at)
	if err != nil {
		return err
	}
	return interpretStore(s.DrainTenant(ctx, id, stream))
}

// Lease tells who writes for a stream in one of the databases.
func (p *Pool) Lease(ctx context.Context, at Place, stream string, database int) (store.LeaseSeen, error) {
	s, err := p.store(ctx, at)
	if err != nil {
		return store.LeaseSeen{}, err
	}
	seen, err := s.ReadLease(ctx, stream, database)
	return seen, interpretStore(err)
}

// Backlog counts what a stream has not delivered, and what was set aside.
func (p *Pool) Backlog(ctx context.Context, at Place, stream string) (store.Backlog, error) {
	s, err := p.store(ctx, at)
	if err != nil {
		return store.Backlog{}, err
	}
	b, err := s.StreamBacklog(ctx, store.SweepQuery{Stream: stream})
	if err != nil {
		return b, interpretStore(err)
	}
	p.addOthers(ctx, s, stream, &b)
	return b, nil
}

// addOthers adds what tenants with databases of their own have not been delivered. One that is away is its tenant's concern,
// whose status says so; nobody waits for it.
func (p *Pool) addOthers(ctx context.Context, s *store.Store, stream string, sum *store.Backlog) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var all sync.WaitGroup
	var mu sync.Mutex
	for _, id := range s.DatabaseIDs()[1:] {
		all.Go(func() {
			of, err := s.StreamBacklog(ctx, store.SweepQuery{Database: id, Stream: stream})
			if err != nil {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			sum.Owed, sum.Pending, sum.Held, sum.DeadLetters = sum.Owed+of.Owed, sum.Pending+of.Pending, sum.Held+of.Held, sum.DeadLetters+of.DeadLetters
		})
	}
	all.Wait()
}

// Usage is what a tenant has, and what of it was not delivered.
type Usage struct {
	Messages    int64 // at most store.CountedMost
	Owed        int64
	DeadLetters int64
}

// TenantUsage counts it.
func (p *Pool) TenantUsage(ctx context.Context, at Place, row store.TenantRow) (Usage, error) {
	s, err := p.store(ctx, at)
	if err != nil {
		return Usage{}, err
	}
	messages, err := s.CountMessages(store.WithTenant(ctx, row.ID))
	if err != nil {
		return Usage{}, interpretStore(err)
	}
	b, err := s.StreamBacklog(ctx, store.SweepQuery{Database: row.Database, Stream: row.Stream, Tenant: row.ID})
	return Usage{Messages: messages, Owed: b.Owed + b.Pending, DeadLetters: b.DeadLetters}, interpretStore(err)
}
