package store

import (
	"context"
	"slices"

	"github.com/jackc/pgx/v5"
)

// A tenant lives in one database. Database 0 knows in which: it has a row and the placement of every tenant (X1). Where the
// tenant lives elsewhere, its row in database 0 is frozen, so that a writer with a stale route is refused, and its own
// database has the row and a copy of the placement, which sweeps and worker writes join: written last when a stream claims
// the tenant, and first when it lets go.

const (
	sqlMakeTenant = `
insert into compass.tenants (id, slug, display_name, limits, frozen) values ($1, $2, $3, $4, $5) on conflict do nothing`
	sqlMakePlace = `
insert into compass.placements (tenant_id, database_id) select t.id, $2 from compass.tenants t where t.slug = $1 on conflict do nothing`

	sqlHome = `select p.database_id from compass.placements p where p.tenant_id = $1`

	// A claim only rises, so an older word never overwrites a newer one.
	sqlFollowPlacement = `
update compass.placements p set stream = nullif($2, ''), claim = $3, draining = $4
 where p.tenant_id = $1 and p.claim <= $3 and (coalesce(p.stream, ''), p.claim, p.draining) is distinct from ($2, $3, $4)`
)

// makeTenant makes a tenant where it shall live. The slug is taken first and the route is made last: a tenant is found by
// nobody before it is whole. What a crash left half made is finished.
func (s *Store) makeTenant(ctx context.Context, want TenantRow) error {
	home := want.Database
	row := func(b *pgx.Batch, frozen bool) {
		b.Queue(sqlMakeTenant, want.ID, want.Slug, want.DisplayName, want.Limits, frozen)
	}
	if home != 0 {
		err := s.provisionDo(ctx, 0, func(b *pgx.Batch) { row(b, true) })
		if err != nil {
			return err
		}
		err = s.provisionDo(ctx, home, func(b *pgx.Batch) {
			row(b, false)
			b.Queue(sqlMakePlace, want.Slug, home)
		})
		if err != nil {
			return err
		}
	}
	return s.provisionDo(ctx, 0, func(b *pgx.Batch) {
		row(b, home != 0)
		b.Queue(sqlMakePlace, want.Slug, home)
	})
}

// homeOf reads where a tenant lives; 0 for one that nobody knows.
func (s *Store) homeOf(ctx context.Context, tenant TenantID) (int, error) {
	homes, err := provisionQuery(ctx, s, 0, pgx.RowTo[int], sqlHome, tenant)
	if err != nil || len(homes) == 0 {
		return 0, err
	}
	return homes[0], nil
}

// atHome runs statements in database 0 and where the tenant lives.
func (s *Store) atHome(ctx context.Context, home int, fill func(b *pgx.Batch)) error {
	for _, id := range slices.Compact([]int{0, home}) {
		if err := s.provisionDo(ctx, id, fill); err != nil {
			return err
		}
	}
	return nil
}

// followPlacement brings the placement of the tenant's own database to that of database 0, and writes only a difference.
func (s *Store) followPlacement(ctx context.Context, seen TenantRow) error {
	if seen.Database <= 0 {
		return nil
	}
	return s.provisionDo(ctx, seen.Database, func(b *pgx.Batch) {
		b.Queue(sqlFollowPlacement, seen.ID, seen.Stream, seen.Claim, seen.Draining)
	})
}
