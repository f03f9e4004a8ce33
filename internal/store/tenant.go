package store

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"

	"github.com/rigelbuild/compass-operator/internal/naming"
)

// TenantID names a tenant (REQ-086). It decides which rows a statement sees; where it came from a token or a reference it
// is a hint that row-level security then judges, never authority (design T5).
type TenantID string

// BootstrapTenantID is the tenant that every database has, slug "system", the home of the platform admins. Its id is the
// same everywhere, so that nobody has to look it up before there is a tenant to look it up with.
const BootstrapTenantID TenantID = naming.TenantPrefix + "00000000000000000000000000"

type tenantKey struct{}

// WithTenant returns a context whose statements are scoped to id (REQ-088).
func WithTenant(ctx context.Context, id TenantID) context.Context {
	return context.WithValue(ctx, tenantKey{}, id)
}

// TenantFromContext returns the tenant of the context; false where it has none or an empty one.
func TenantFromContext(ctx context.Context) (TenantID, bool) {
	id, _ := ctx.Value(tenantKey{}).(TenantID)
	return id, id != ""
}

// ResolveTenant returns the tenant of the context. Where it has none, that is the bootstrap tenant if the store was opened
// with Bootstrap (standalone), else "" (REQ-007, REQ-090).
func (s *Store) ResolveTenant(ctx context.Context) TenantID {
	if id, ok := TenantFromContext(ctx); ok {
		return id
	}
	if s.config.Bootstrap {
		return BootstrapTenantID
	}
	return ""
}

const (
	sqlBootstrapTenant = `insert into compass.tenants (id, slug, display_name) values ($1, $2, 'System') on conflict do nothing`
	sqlBootstrapPlace  = `insert into compass.placements (tenant_id, database_id) values ($1, $2) on conflict do nothing`
)

// BootstrapTenant makes the bootstrap tenant in every database if it is not there, and returns its id (REQ-087). A database
// other than 0 that is away is logged: it has the tenant when somebody looks again. It needs the provision right.
func (s *Store) BootstrapTenant(ctx context.Context) (TenantID, error) {
	var others sync.WaitGroup
	defer others.Wait()
	for _, id := range s.DatabaseIDs()[1:] {
		others.Go(func() {
			if err := s.bootstrap(ctx, id); err != nil {
				s.config.Log.WarnContext(ctx, "Could not make the bootstrap tenant", "database", id, "error", err)
			}
		})
	}
	if err := s.bootstrap(ctx, 0); err != nil {
		return "", fmt.Errorf("make bootstrap tenant: %w", err)
	}
	return BootstrapTenantID, nil
}

func (s *Store) bootstrap(ctx context.Context, database int) error {
	return s.provisionDo(ctx, database, func(b *pgx.Batch) {
		b.Queue(sqlBootstrapTenant, BootstrapTenantID, naming.SystemSlug)
		b.Queue(sqlBootstrapPlace, BootstrapTenantID, database)
	})
}

// validTenant keeps a value that cannot be a tenant's id from reaching a setting. It is not a look-up.
func validTenant(id TenantID) error {
	if id == "" || strings.ContainsRune(string(id), 0) {
		return ErrNoTenant
	}
	return nil
}
