package move

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/rigelbuild/compass-operator/internal/store/pg"
)

// batchRows bounds what is held in memory: a message has at most some hundred kilobytes.
const batchRows = 200

// table is a table of the tenant's, parents before children.
type table struct {
	Name     string
	Columns  []string
	Identity string // its identity column, "" for none
}

// sqlTables are the tables with a tenant, and for each how many tables stand above it by foreign keys.
const sqlTables = `
with recursive mine as (
    select c.oid, c.relname::text as name from pg_class c
     where c.relnamespace = 'compass'::regnamespace and c.relkind = 'r' and c.relname not in ('tenants', 'placements')
       and exists (select from pg_attribute a where a.attrelid = c.oid and a.attname = 'tenant_id' and not a.attisdropped)
), depth as (
    select m.oid, 0 as d from mine m
    union all
    select k.conrelid, d.d + 1 from depth d join pg_constraint k on k.confrelid = d.oid and k.contype = 'f' and k.conrelid <> d.oid
     where d.d < 20
)
select m.name,
       array(select a.attname::text from pg_attribute a where a.attrelid = m.oid and a.attnum > 0 and not a.attisdropped and a.attgenerated = '' order by a.attnum),
       coalesce((select a.attname::text from pg_attribute a where a.attrelid = m.oid and a.attidentity <> ''), '')
  from mine m order by (select max(d.d) from depth d where d.oid = m.oid), m.name`

func tables(ctx context.Context, tx pgx.Tx) ([]table, error) {
	rows, err := tx.Query(ctx, sqlTables)
	if err != nil {
		return nil, err
	}
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[table])
	if err == nil && len(all) == 0 {
		err = errors.New("no table with a tenant was found")
	}
	return all, err
}

// carry copies everything that the tenant has, in one transaction of each side, and returns the claim that it will have.
// What an earlier try left in the target goes first.
func carry(ctx context.Context, zero, source, target *side) (claim int64, err error) {
	place, err := zero.placement(ctx)
	if err != nil {
		return 0, err
	}
	err = source.scoped(ctx, func(from pgx.Tx) error {
		// Whoever holds a head is done before the copy begins, whoever comes after sees the freeze [T4].
		if _, err := from.Exec(ctx, `select from compass.channel_heads h where h.tenant_id = $1 for update`, source.tenant); err != nil {
			return err
		}
		return target.scoped(ctx, func(to pgx.Tx) error {
			if err := target.empty(ctx, to); err != nil {
				return err
			}
			if err := carryTenant(ctx, from, to, source.tenant); err != nil {
				return err
			}
			if claim, err = place.claimIn(ctx, to); err != nil {
				return err
			}
			if target.id != 0 { // whose placement is the routing truth, and is flipped last
				place.Database, place.Claim = target.id, claim
				if err := putPlacement(ctx, to, place); err != nil {
					return err
				}
			}
			all, err := tables(ctx, from)
			if err != nil {
				return err
			}
			for _, t := range all {
				if err := t.carry(ctx, from, to); err != nil {
					return fmt.Errorf("copy %s: %w", t.Name, err)
				}
			}
			return carryLeases(ctx, from, to)
		})
	})
	return claim, err
}

// carryTenant copies the tenant, still frozen.
func carryTenant(ctx context.Context, from, to pgx.Tx, tenant string) error {
	var row string
	if err := from.QueryRow(ctx, `select to_jsonb(t)::text from compass.tenants t where t.id = $1`, tenant).Scan(&row); err != nil {
		return err
	}
	_, err := to.Exec(ctx, `
insert into compass.tenants select r.* from jsonb_populate_record(null::compass.tenants, $1::jsonb || '{"frozen": true}') r
on conflict (id) do update set slug = excluded.slug, display_name = excluded.display_name, limits = excluded.limits,
       created_at_unix_ms = excluded.created_at_unix_ms, frozen = true`, row)
	return err
}

// placement is a row of placements.
type placement struct {
	Tenant   string
	Database int
	Stream   *string
	Claim    int64
	Draining bool
}

// placement reads the tenant's from the routing truth.
func (s *side) placement(ctx context.Context) (p placement, err error) {
	err = s.scoped(ctx, func(tx pgx.Tx) error {
		const sql = `select p.tenant_id, p.database_id, p.stream, p.claim, p.draining from compass.placements p where p.tenant_id = $1`
		return tx.QueryRow(ctx, sql, s.tenant).Scan(&p.Tenant, &p.Database, &p.Stream, &p.Claim, &p.Draining)
	})
	return p, err
}

// claimIn is a claim above the one that the tenant has, by the clock of the database that it comes to.
func (p placement) claimIn(ctx context.Context, tx pgx.Tx) (claim int64, err error) {
	err = tx.QueryRow(ctx, `select greatest($1::bigint + 1, compass.number())`, p.Claim).Scan(&claim)
	return claim, err
}

func putPlacement(ctx context.Context, tx pgx.Tx, p placement) error {
	_, err := tx.Exec(ctx, `
insert into compass.placements as p (tenant_id, database_id, stream, claim, draining) values ($1, $2, $3, $4, $5)
on conflict (tenant_id) do update set database_id = excluded.database_id, stream = excluded.stream, claim = excluded.claim,
       draining = excluded.draining where p.claim <= excluded.claim`, p.Tenant, p.Database, p.Stream, p.Claim, p.Draining)
	return err
}

// carry copies a table's rows as jsonb, which keeps every type that we use exactly, a batch at a time.
func (t table) carry(ctx context.Context, from, to pgx.Tx) error {
	name := pg.Ident("compass", t.Name)
	quoted := make([]string, len(t.Columns))
	for i, c := range t.Columns {
		quoted[i] = pg.Ident(c)
	}
	columns := strings.Join(quoted, ", ")
	insert := fmt.Sprintf(`insert into %[1]s (%[2]s) overriding system value
		select %[2]s from jsonb_populate_recordset(null::%[1]s, $1::jsonb)`, name, columns)
	if _, err := from.Exec(ctx, fmt.Sprintf(`declare carried no scroll cursor for select to_jsonb(t)::text from %s t`, name)); err != nil {
		return err
	}
	for {
		rows, err := from.Query(ctx, fmt.Sprintf(`fetch %d from carried`, batchRows))
		if err != nil {
			return err
		}
		batch, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			return err
		}
		if len(batch) == 0 {
			break
		}
		if _, err := to.Exec(ctx, insert, "["+strings.Join(batch, ",")+"]"); err != nil {
			return err
		}
	}
	if _, err := from.Exec(ctx, `close carried`); err != nil {
		return err
	}
	return t.raiseIdentity(ctx, to, name)
}

// raiseIdentity keeps the target from giving out numbers that came with the rows.
func (t table) raiseIdentity(ctx context.Context, to pgx.Tx, name string) error {
	if t.Identity == "" {
		return nil
	}
	_, err := to.Exec(ctx, fmt.Sprintf(`
select setval(s.seq, greatest(nextval(s.seq), (select coalesce(max(%[2]s), 0) + 1 from %[1]s)))
  from (select pg_get_serial_sequence('%[1]s', '%[3]s')::regclass as seq) s`, name, pg.Ident(t.Identity), t.Identity))
	return err
}

// carryLeases takes along the leases of the Runners that host the tenant's sessions: without one a session looks dead until
// its Runner's next heartbeat.
func carryLeases(ctx context.Context, from, to pgx.Tx) error {
	var leases string
	err := from.QueryRow(ctx, `
select coalesce(jsonb_agg(to_jsonb(l)), '[]')::text from compass.runner_leases l
 where l.runner_id in (select b.runner_id from compass.session_bindings b where b.live)`).Scan(&leases)
	if err != nil {
		return err
	}
	_, err = to.Exec(ctx, `
insert into compass.runner_leases select * from jsonb_populate_recordset(null::compass.runner_leases, $1::jsonb) on conflict do nothing`, leases)
	return err
}

// empty removes all that the tenant has in this database but its row, and the placement where that is the routing truth.
func (s *side) empty(ctx context.Context, tx pgx.Tx) error {
	all, err := tables(ctx, tx)
	if err != nil {
		return err
	}
	slices.Reverse(all)
	names := make([]string, 0, len(all)+1)
	for _, t := range all {
		names = append(names, t.Name)
	}
	if s.id != 0 {
		names = append(names, "placements")
	}
	for _, name := range names {
		if _, err := tx.Exec(ctx, fmt.Sprintf(`delete from %s where tenant_id = $1`, pg.Ident("compass", name)), s.tenant); err != nil {
			return fmt.Errorf("empty %s: %w", name, err)
		}
	}
	return nil
}

// hasRows tells whether there is anything to be emptied.
func (s *side) hasRows(ctx context.Context) (there bool, err error) {
	err = s.scoped(ctx, func(tx pgx.Tx) error {
		all, err := tables(ctx, tx)
		if err != nil {
			return err
		}
		var parts []string
		for _, t := range all {
			parts = append(parts, fmt.Sprintf(`exists (select from %s)`, pg.Ident("compass", t.Name)))
		}
		return tx.QueryRow(ctx, `select `+strings.Join(parts, " or ")).Scan(&there)
	})
	return there, err
}
