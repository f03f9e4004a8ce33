package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// TenantRow is a tenant and its placement, as whoever provisions wants or sees them.
type TenantRow struct {
	ID          TenantID
	Slug        string
	DisplayName string
	// Limits is column tenants.limits, see TenantLimits.
	Limits json.RawMessage
	Stream string // who delivers for it; empty: nobody
	Claim  int64  // rises whenever the tenant changes hands (K3)
	// Draining: its worker was asked to let go of it.
	Draining bool
	// Database is where it lives. EnsureTenant makes it there; what is there already stays where it is.
	Database int
}

// Differs names what of a tenant EnsureTenant would change.
func (t TenantRow) Differs(want TenantRow) []string {
	var out []string
	if t.DisplayName != want.DisplayName {
		out = append(out, "display name")
	}
	if !sameJSON(t.Limits, want.Limits) {
		out = append(out, "limits")
	}
	return out
}

const (
	sqlTenantRows = `
select t.id, t.slug, t.display_name, t.limits, coalesce(p.stream, ''), coalesce(p.claim, 0), coalesce(p.draining, false), coalesce(p.database_id, -1)
  from compass.tenants t left join compass.placements p on p.tenant_id = t.id`
	sqlTenantRow   = sqlTenantRows + ` where t.slug = $1`
	sqlEveryTenant = sqlTenantRows + ` where t.id <> $1 order by t.slug`
	sqlTenantsOf   = sqlTenantRows + ` where t.id <> $1 and (p.stream = $2 or t.slug = any ($3)) order by t.slug`

	sqlChangeTenant = `
update compass.tenants t set display_name = $2, limits = $3 where t.id = $1 and (t.display_name, t.limits) is distinct from ($2, $3)`
	sqlPlaceTenant = `
update compass.placements p set stream = nullif($3, ''), claim = greatest(p.claim + 1, compass.number()), draining = false
 where p.tenant_id = $1 and coalesce(p.stream, '') = $2
returning p.tenant_id, '', '', null::jsonb, coalesce(p.stream, ''), p.claim, p.draining, p.database_id`
	sqlDrainTenant = `
with asked as (
    update compass.placements p set draining = true where p.tenant_id = $1 and p.stream = $2 and not p.draining
)
select p.tenant_id, '', '', null::jsonb, p.stream, p.claim, true, p.database_id
  from compass.placements p where p.tenant_id = $1 and p.stream = $2`
	sqlPurgeTenant  = `select compass.purge_tenant($1)`
	sqlCountTenants = `select count(*) from compass.tenants t where t.id <> $1`
)

// EnsureTenant finds a tenant by its slug, which is what people know it by, or makes it under want.ID; the row is the
// truth, so an id that was minted before a crash and never stored is forgotten. Display name and limits are brought to
// what is wanted, the placement is left alone. It returns what is then there, and needs the provision right.
func (s *Store) EnsureTenant(ctx context.Context, want TenantRow) (TenantRow, error) {
	seen, err := s.TenantBySlug(ctx, want.Slug)
	if errors.Is(err, ErrNotFound) || err == nil && seen.Database < 0 {
		if err == nil { // half made: a crash came between its rows
			want.ID = seen.ID
		}
		if err = s.makeTenant(ctx, want); err == nil {
			seen, err = s.TenantBySlug(ctx, want.Slug)
		}
	}
	if err == nil && len(seen.Differs(want)) > 0 {
		err = s.atHome(ctx, seen.Database, func(b *pgx.Batch) { b.Queue(sqlChangeTenant, seen.ID, want.DisplayName, want.Limits) })
		if err == nil {
			seen, err = s.TenantBySlug(ctx, want.Slug)
		}
	}
	if err == nil {
		err = s.followPlacement(ctx, seen)
	}
	return seen, wrapf(err, "ensure tenant %q", want.Slug)
}

// TenantBySlug reads a tenant; ErrNotFound. It needs the provision right.
func (s *Store) TenantBySlug(ctx context.Context, slug string) (TenantRow, error) {
	rows, err := provisionQuery(ctx, s, 0, pgx.RowToStructByPos[TenantRow], sqlTenantRow, slug)
	row, err := only(rows, err)
	return row, wrapf(err, "find tenant %q", slug)
}

// Tenants reads every tenant but the bootstrap tenant, sorted by slug. It needs the provision right.
func (s *Store) Tenants(ctx context.Context) ([]TenantRow, error) {
	rows, err := provisionQuery(ctx, s, 0, pgx.RowToStructByPos[TenantRow], sqlEveryTenant, BootstrapTenantID)
	return rows, wrapf(err, "list tenants")
}

// TenantsOf reads the tenants that are with a stream and those of some slugs, sorted by slug. It needs the provision right.
func (s *Store) TenantsOf(ctx context.Context, stream string, slugs []string) ([]TenantRow, error) {
	if slugs == nil {
		slugs = []string{}
	}
	rows, err := provisionQuery(ctx, s, 0, pgx.RowToStructByPos[TenantRow], sqlTenantsOf, BootstrapTenantID, stream, slugs)
	return rows, wrapf(err, "list tenants of stream %s", stream)
}

// CountTenants counts every tenant but the bootstrap tenant. It needs the provision right.
func (s *Store) CountTenants(ctx context.Context) (int64, error) {
	n, err := only(provisionQuery(ctx, s, 0, pgx.RowTo[int64], sqlCountTenants, BootstrapTenantID))
	return n, wrapf(err, "count tenants")
}

// PlaceTenant hands a tenant from one stream to another, under a new claim; an empty name is nobody. ErrConflict where the
// tenant is no longer with from: somebody was faster, and is not undone. It needs the provision right.
func (s *Store) PlaceTenant(ctx context.Context, id TenantID, from, to string) error {
	placed, err := only(provisionQuery(ctx, s, 0, pgx.RowToStructByPos[TenantRow], sqlPlaceTenant, id, from, to))
	if errors.Is(err, ErrNotFound) {
		err = ErrConflict
	}
	if err == nil {
		err = s.followPlacement(ctx, placed)
	}
	return wrapf(err, "place tenant %s", id)
}

// DrainTenant asks the worker of a stream to let go of a tenant; ReadLease tells when it has. Asking again is no change. It
// needs the provision right.
func (s *Store) DrainTenant(ctx context.Context, id TenantID, stream string) error {
	rows, err := provisionQuery(ctx, s, 0, pgx.RowToStructByPos[TenantRow], sqlDrainTenant, id, stream)
	if err == nil && len(rows) == 1 {
		err = s.followPlacement(ctx, rows[0])
	}
	return wrapf(err, "drain tenant %s", id)
}

// PurgeTenant removes a tenant with everything that it has; absent is success. ErrPrecondition while a stream carries it.
// It needs the provision right.
func (s *Store) PurgeTenant(ctx context.Context, id TenantID) error {
	home, err := s.homeOf(ctx, id)
	if err == nil && home != 0 { // the routing truth goes last, or nobody would find the rest
		err = s.provisionDo(ctx, home, func(b *pgx.Batch) { b.Queue(sqlPurgeTenant, id) })
	}
	if err == nil {
		err = s.provisionDo(ctx, 0, func(b *pgx.Batch) { b.Queue(sqlPurgeTenant, id) })
	}
	return wrapf(err, "purge tenant %s", id)
}

// sameJSON compares what is said, not how: Postgres keeps jsonb in an order of its own.
func sameJSON(a, b json.RawMessage) bool {
	var x, y any
	if json.Unmarshal(a, &x) != nil || json.Unmarshal(b, &y) != nil {
		return false
	}
	return fmt.Sprint(x) == fmt.Sprint(y)
}

// LeaseSeen is who holds the lease of a stream, by the database.
type LeaseSeen struct {
	Held   bool // and not over
	Holder string
	Epoch  int64
	// Drained is the claim of each tenant that the worker has let go of.
	Drained map[TenantID]int64
}

// A clean lease was given back.
const sqlReadLease = `select not l.clean and l.expires_at > clock_timestamp(), l.holder, l.epoch, l.drained from compass.lease_read($1) l`

// ReadLease tells who holds a stream's lease in a database; nobody where it was never taken. Each database has one of its
// own [F7], and it is there that a worker says which of the database's tenants it has let go of. It needs the provision right.
func (s *Store) ReadLease(ctx context.Context, stream string, database int) (LeaseSeen, error) {
	rows, err := provisionQuery(ctx, s, database, pgx.RowToStructByPos[LeaseSeen], sqlReadLease, stream)
	if err != nil || len(rows) == 0 {
		return LeaseSeen{}, wrapf(err, "read lease of stream %s in database %d", stream, database)
	}
	return rows[0], nil
}

const sqlStreamDeadLetters = `
select count(*) from compass.dead_letters d join compass.placements p on p.tenant_id = d.tenant_id where p.stream = $1`

// StreamDeadLetters counts the dead letters of the tenants of a stream. It needs the system right.
func (s *Store) StreamDeadLetters(ctx context.Context, stream string) (int64, error) {
	n, err := only(systemQuery(ctx, s, LoopMetrics, 0, pgx.RowTo[int64], sqlStreamDeadLetters, stream))
	return n, wrapf(err, "count dead letters of stream %s", stream)
}

const sqlRunnerTokenState = `select t.bound, t.disabled from compass.runner_token_state($1) t`

// EnsureRunnerToken stores the hash of an enrolment token if it is not there, and tells whether it can still enrol
// somebody. It needs the provision right.
func (s *Store) EnsureRunnerToken(ctx context.Context, hash [32]byte, fleet string) (usable bool, err error) {
	type state struct{ Bound, Disabled bool }
	rows, err := provisionQuery(ctx, s, 0, pgx.RowToStructByPos[state], sqlRunnerTokenState, hash[:])
	if err != nil {
		return false, wrapf(err, "read Runner token")
	}
	if len(rows) == 1 {
		return !rows[0].Bound && !rows[0].Disabled, nil
	}
	err = s.provisionDo(ctx, 0, func(b *pgx.Batch) { b.Queue(sqlIssueRunnerToken, hash[:], fleet) })
	return err == nil, wrapf(err, "issue Runner token of fleet %s", fleet)
}
