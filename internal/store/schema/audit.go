package schema

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/rigelbuild/compass-operator/internal/naming"
	"github.com/rigelbuild/compass-operator/internal/store/pg"
)

// Finding is a table that is not in its shape, and the statements that put it back; none where only a person can.
type Finding struct {
	Table   string
	Problem string
	Fix     []string
}

func (f Finding) String() string { return f.Table + ": " + f.Problem }

// Audit is what was seen of the shape of a schema.
type Audit struct {
	// Skipped: a migration or a lock stood in the way and nothing was judged. Ask again.
	Skipped  bool
	Findings []Finding
}

const (
	auditLockTimeout = "2000" // ms: an audit never makes readers queue behind it for longer
	lockNotAvailable = "55P03"
	// Whether nobody else holds lockHistory. A role that only looks may not ask for that lock.
	sqlNobodyMigrates = `
select not exists (select from pg_catalog.pg_locks l
 where l.locktype = 'relation' and l.relation = pg_catalog.to_regclass('compass.schema_migrations') and l.mode = 'ExclusiveLock' and l.granted
   and l.database = (select d.oid from pg_catalog.pg_database d where d.datname = pg_catalog.current_database())
   and l.pid <> pg_catalog.pg_backend_pid())`
)

// relation is a table, view or partition of schema compass as the catalogue has it.
type relation struct {
	Name          string
	Kind          string // r table, p partitioned table, v view, m materialized view, f foreign table
	Owner         string
	TenantOwned   bool // has a column tenant_id, or is tenants itself
	Enabled       bool
	Forced        bool
	InvokerRights bool
}

// policy is one row-level security policy.
type policy struct {
	Table, Name string
	Command     string // * r a w d
	Permissive  bool
	Roles       []string
	Using       string
	Check       string
}

const (
	sqlRelations = `
select c.relname::text, c.relkind::text, pg_catalog.pg_get_userbyid(c.relowner)::text,
       c.relname = 'tenants' or exists (select from pg_catalog.pg_attribute a
          where a.attrelid = c.oid and a.attname = 'tenant_id' and not a.attisdropped),
       c.relrowsecurity, c.relforcerowsecurity,
       coalesce(c.reloptions && array['security_invoker=true', 'security_invoker=on', 'security_invoker=1'], false)
  from pg_catalog.pg_class c
 where c.relkind in ('r', 'p', 'v', 'm', 'f')
   and c.relnamespace = (select n.oid from pg_catalog.pg_namespace n where n.nspname = 'compass')
 order by c.relname`
	sqlPolicies = `
select c.relname::text, p.polname::text, p.polcmd::text, p.polpermissive,
       array(select case r.o when 0 then 'public' else pg_catalog.pg_get_userbyid(r.o)::text end
               from pg_catalog.unnest(p.polroles) r (o) order by 1),
       coalesce(pg_catalog.pg_get_expr(p.polqual, p.polrelid), ''), coalesce(pg_catalog.pg_get_expr(p.polwithcheck, p.polrelid), '')
  from pg_catalog.pg_policy p join pg_catalog.pg_class c on c.oid = p.polrelid
 where c.relnamespace = (select n.oid from pg_catalog.pg_namespace n where n.nspname = 'compass')
 order by c.relname, p.polname`
)

// Look judges every table of the database by its shape (design O4): any role may. It is skipped while a migration runs,
// and rather than wait for a table's lock.
func Look(ctx context.Context, conn *pgx.Conn, roles naming.Roles) (a Audit, err error) {
	err = pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		a, err = look(ctx, tx, roles)
		return err
	})
	return skipOnLock(a, err)
}

func skipOnLock(a Audit, err error) (Audit, error) {
	if pg.Code(err) == lockNotAvailable {
		return Audit{Skipped: true}, nil
	}
	if err != nil {
		return a, fmt.Errorf("audit the schema: %w", pg.Interpret(err))
	}
	return a, nil
}

func look(ctx context.Context, tx pgx.Tx, roles naming.Roles) (Audit, error) {
	var free bool
	// The path decides which names are printed with their schema: an impostor's must be.
	const bounds = "select pg_catalog.set_config('lock_timeout', $1, true), pg_catalog.set_config('search_path', 'pg_catalog', true)"
	if _, err := tx.Exec(ctx, bounds, auditLockTimeout); err != nil {
		return Audit{}, err
	}
	if err := tx.QueryRow(ctx, sqlNobodyMigrates).Scan(&free); err != nil {
		return Audit{}, err
	}
	if !free {
		return Audit{Skipped: true}, nil
	}
	findings, err := readFindings(ctx, tx, roles)
	return Audit{Findings: findings}, err
}

func readFindings(ctx context.Context, tx pgx.Tx, roles naming.Roles) ([]Finding, error) {
	relations, err := rows[relation](ctx, tx, sqlRelations)
	if err != nil {
		return nil, err
	}
	policies, err := rows[policy](ctx, tx, sqlPolicies)
	if err != nil {
		return nil, err
	}
	rights, err := rows[right](ctx, tx, sqlRights)
	if err != nil {
		return nil, err
	}
	functions, err := rows[function](ctx, tx, sqlFunctions)
	if err != nil {
		return nil, err
	}
	triggers, err := rows[trigger](ctx, tx, sqlSleepers)
	if err != nil {
		return nil, err
	}
	return slices.Concat(judge(relations, policies, roles), judgeRights(rights, roles),
		judgeFunctions(functions, roles), judgeTriggers(triggers)), nil
}

func rows[T any](ctx context.Context, tx pgx.Tx, sql string) ([]T, error) {
	out, err := tx.Query(ctx, sql)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(out, pgx.RowToStructByPos[T])
}

// judge is pure: what of the catalogue is not in its shape.
func judge(relations []relation, policies []policy, roles naming.Roles) []Finding {
	var out []Finding
	for _, r := range relations {
		own := slices.DeleteFunc(slices.Clone(policies), func(p policy) bool { return p.Table != r.Name })
		out = append(out, judgeRelation(r, own, roles)...)
	}
	return out
}

func judgeRelation(r relation, own []policy, roles naming.Roles) []Finding {
	name := pg.Ident(naming.Schema, r.Name)
	var out []Finding
	find := func(problem string, fix ...string) {
		out = append(out, Finding{Table: r.Name, Problem: problem, Fix: fix})
	}
	if r.Owner != roles.Owner {
		find("is owned by "+r.Owner+", whom row-level security would not bind as it binds "+roles.Owner,
			fmt.Sprintf("alter table %s owner to %s", name, pg.Ident(roles.Owner)))
	}
	switch {
	case r.Kind == "m":
		find("is a materialized view, which has no row-level security: drop it")
		return out
	case r.Kind == "f":
		find("is a foreign table, whose rows are somebody else's: drop it")
		return out
	case r.Kind == "v":
		if !r.InvokerRights {
			find("is a view that reads as its owner", fmt.Sprintf("alter view %s set (security_invoker = true)", name))
		}
		return out
	case !r.TenantOwned:
		return out
	}
	if !r.Enabled {
		find("row-level security is not enabled", "alter table "+name+" enable row level security")
	}
	if !r.Forced {
		find("row-level security is not forced on its owner", "alter table "+name+" force row level security")
	}
	return append(out, judgePolicies(r, own, roles)...)
}

func judgePolicies(r relation, own []policy, roles naming.Roles) []Finding {
	name := pg.Ident(naming.Schema, r.Name)
	var out []Finding
	seen := map[string]bool{}
	for _, p := range own {
		want, known := canonical(r.Name, p.Name, roles)
		if known && p.equals(want) {
			seen[p.Name] = true
			continue
		}
		drop := fmt.Sprintf("drop policy %s on %s", pg.Ident(p.Name), name)
		if known && !want.optional {
			seen[p.Name] = true
			out = append(out, Finding{r.Name, "policy " + p.Name + " is not in its canonical form", []string{drop, want.create(name)}})
			continue
		}
		out = append(out, Finding{r.Name, "policy " + p.Name + " is none of the canonical ones", []string{drop}})
	}
	for _, required := range []string{policyApp, policySystem} {
		if !seen[required] {
			want, _ := canonical(r.Name, required, roles)
			out = append(out, Finding{r.Name, "policy " + required + " is missing", []string{want.create(name)}})
		}
	}
	return out
}

// normal makes two printings of one expression equal: versions of Postgres differ in blanks, parentheses, casts of string
// constants and the alias of a sub-select. What is compared has one operator, so parentheses carry no meaning in it; what
// stands in quotes is left as it is.
func normal(expr string) string {
	parts := strings.Split(expr, "'")
	for i := 0; i < len(parts); i += 2 {
		parts[i] = notation.Replace(parts[i])
	}
	return strings.Join(parts, "'")
}

var notation = strings.NewReplacer("::text", "", ` AS "nullif"`, "", " AS login_tenant", "",
	"(", "", ")", "", " ", "", "\n", "", "\t", "")
