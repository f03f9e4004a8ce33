package store

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// maxRoutes bounds what is remembered, because a tenant id comes from outside; when it is full, all is forgotten.
const maxRoutes = 50_000

// routes remembers where tenants live. Only the app role's scoped read fills it, so it says of a tenant what that tenant
// may know.
type routes struct {
	mu    sync.Mutex
	known map[TenantID]route
}

type route struct {
	database int
	found    bool
	until    time.Time
}

const sqlRoute = `select database_id from compass.placements where tenant_id = $1`

// route finds the database of a tenant. With one database there is nothing to find: row-level security shows an unknown
// tenant nothing there. With more, database 0 has the truth (X1): a tenant without a placement is ErrNotFound.
func (s *Store) route(ctx context.Context, tenant TenantID) (*database, error) {
	if len(s.databases) == 1 {
		return s.databases[0], nil
	}
	now := s.config.Now()
	if r, ok := s.routes.get(tenant, now); ok {
		return s.follow(ctx, tenant, r)
	}
	id, err := s.readRoute(ctx, tenant)
	if err != nil && !errors.Is(err, ErrNotFound) {
		return nil, fmt.Errorf("find the database of tenant %s: %w", tenant, err)
	}
	r := route{database: id, found: err == nil, until: now.Add(s.config.RouteTTL)}
	s.routes.put(tenant, r)
	return s.follow(ctx, tenant, r)
}

func (s *Store) follow(ctx context.Context, tenant TenantID, r route) (*database, error) {
	if !r.found {
		return nil, fmt.Errorf("tenant %s: %w", tenant, ErrNotFound)
	}
	return s.database(ctx, r.database)
}

func (s *Store) readRoute(ctx context.Context, tenant TenantID) (int, error) {
	limits := s.config.Limits(tenant).orDefault()
	sc := scope{tenant: tenant, limits: limits}
	b := &pgx.Batch{}
	b.Queue(sqlScopeReadOnly, tenant, sc.timeout())
	return only(collect(ctx, s.databases[0].app, b, pgx.RowTo[int], sqlRoute, []any{tenant}))
}

// heard drops the route of a tenant that was found frozen: it is being moved, or it was and lives elsewhere by now.
func (s *Store) heard(tenant TenantID, err error) error {
	if errors.Is(err, ErrFrozen) {
		s.ForgetRoute(tenant)
	}
	return err
}

// ForgetRoute drops what is remembered of where a tenant lives: to be called when its placement is known to have changed.
func (s *Store) ForgetRoute(tenant TenantID) {
	s.routes.mu.Lock()
	defer s.routes.mu.Unlock()
	delete(s.routes.known, tenant)
}

func (r *routes) get(tenant TenantID, now time.Time) (route, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	known, ok := r.known[tenant]
	return known, ok && now.Before(known.until)
}

func (r *routes) put(tenant TenantID, to route) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.known == nil || len(r.known) >= maxRoutes {
		r.known = map[TenantID]route{}
	}
	r.known[tenant] = to
}
