package store

import (
	"context"
	"crypto/rand"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/rigelbuild/compass-operator/internal/store/pg"
	"github.com/rigelbuild/compass-operator/internal/store/storetest"
)

// The isolation suite asks the catalogue which tables there are, so a new one is covered without anyone remembering: every
// table with tenant_id (and tenants) has one row of tenantA and one of tenantB, and each way of not being tenantA is tried
// with each verb.

// relation is a tenant-owned table.
type relation struct {
	name   string
	key    string // the column that names the tenant
	insert []string
}

const (
	sqlTenantTables = `
select c.relname::text from pg_class c
 where c.relnamespace = 'compass'::regnamespace and c.relkind in ('r', 'p')
   and (c.relname = 'tenants' or exists (select from pg_attribute a where a.attrelid = c.oid and a.attname = 'tenant_id' and not a.attisdropped))
 order by 1`
	sqlColumns = `
select a.attname::text, format_type(a.atttypid, null),
       coalesce((select string_agg(pg_get_constraintdef(k.oid), ' ') from pg_constraint k
                  where k.conrelid = a.attrelid and k.contype = 'c' and a.attnum = any (k.conkey)), '')
  from pg_attribute a where a.attrelid = $1::regclass and a.attnum > 0 and not a.attisdropped
   and a.attidentity = '' and a.attgenerated = '' order by a.attnum`
)

// seeded is a database with one row per tenant in every tenant-owned table, whose app role may try every verb on it: what
// is then refused, row-level security refuses, not a missing grant.
type seeded struct {
	*fixture
	relations []relation
}

func newSeeded(t *testing.T) *seeded {
	t.Helper()
	s := seed(t)
	s.everyVerb(t)
	return s
}

// everyVerb is after a store was opened, where one is: it would be refused for these rights.
func (s *seeded) everyVerb(t *testing.T) {
	t.Helper()
	s.mustExec(t, `grant select, insert, update, delete on all tables in schema compass to `+pg.Ident(s.db.Roles.App))
}

// seed is newSeeded with the rights that the product gives.
func seed(t *testing.T) *seeded {
	t.Helper()
	s := &seeded{fixture: newFixture(t)}
	f := s.fixture
	f.mustExec(t, `truncate compass.tenants cascade`)
	f.mustExec(t, `set session_replication_role = replica`) // no triggers: rows need no parents
	for _, name := range catalogue(t, f, sqlTenantTables) {
		r := relation{name: name, key: "tenant_id"}
		if name == "tenants" {
			r.key = "id"
		}
		for _, tenant := range []TenantID{tenantA, tenantB} {
			columns, values := sampleRow(t, f, r, tenant)
			f.mustExec(t, fmt.Sprintf(`insert into compass.%s (%s) values (%s)`, name, columns, values))
		}
		columns, values := sampleRow(t, f, r, tenantA)
		r.insert = []string{columns, values}
		s.relations = append(s.relations, r)
	}
	f.mustExec(t, `set session_replication_role = origin`)
	if len(s.relations) < 15 {
		t.Fatalf("only %d tenant-owned tables were found", len(s.relations))
	}
	return s
}

func catalogue(t *testing.T, f *fixture, sql string, args ...any) []string {
	t.Helper()
	rows, err := f.super.Query(t.Context(), sql, args...)
	if err != nil {
		t.Fatal(err)
	}
	out, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return out
}

var literal = regexp.MustCompile(`'([^']*)'::text`)

// sampleRow makes up a row: every column has a value that its type and its checks allow.
func sampleRow(t *testing.T, f *fixture, r relation, tenant TenantID) (columns, values string) {
	t.Helper()
	rows, err := f.super.Query(t.Context(), sqlColumns, "compass."+r.name)
	if err != nil {
		t.Fatal(err)
	}
	type column struct{ Name, Type, Checks string }
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[column])
	if err != nil {
		t.Fatal(err)
	}
	var names, vals []string
	for _, c := range all {
		names = append(names, pg.Ident(c.Name))
		var v string
		switch {
		case c.Name == r.key:
			v = string(tenant)
		case c.Type == "text" && literal.MatchString(c.Checks) && literal.FindStringSubmatch(c.Checks)[1] != "":
			v = literal.FindStringSubmatch(c.Checks)[1]
		default:
			v = map[string]string{
				"text": "x" + string(tenant), "name": "x" + string(tenant), "bigint": "7", "integer": "7", "boolean": "false",
				"jsonb": "{}", "text[]": "{}", "bytea": "x" + string(tenant), "timestamp with time zone": "now",
			}[c.Type]
			if v == "" {
				t.Fatalf("table %s: teach sampleRow a value of type %s", r.name, c.Type)
			}
		}
		vals = append(vals, "'"+v+"'")
	}
	return strings.Join(names, ", "), strings.Join(vals, ", ")
}

// verbs tries everything on tenantA's row of r and says what got through.
func verbs(ctx context.Context, q execer, r relation) []string {
	var through []string
	var seen int
	if err := q.QueryRow(ctx, fmt.Sprintf(`select count(*) from compass.%s where %s = $1`, r.name, r.key), tenantA).Scan(&seen); err != nil {
		through = append(through, "select failed: "+err.Error()) // 42704 would be one
	} else if seen > 0 {
		through = append(through, "select")
	}
	for verb, sql := range map[string]string{
		"update":       fmt.Sprintf(`update compass.%s set %[2]s = %[2]s where %[2]s = '%[3]s'`, r.name, r.key, tenantA),
		"steal":        fmt.Sprintf(`update compass.%s set %[2]s = '%[3]s'`, r.name, r.key, tenantA),
		"delete":       fmt.Sprintf(`delete from compass.%s where %s = '%s'`, r.name, r.key, tenantA),
		"insert":       fmt.Sprintf(`insert into compass.%s (%s) values (%s)`, r.name, r.insert[0], r.insert[1]),
		"insert quiet": fmt.Sprintf(`insert into compass.%s (%s) values (%s) on conflict do nothing`, r.name, r.insert[0], r.insert[1]),
	} {
		tag, err := q.Exec(ctx, sql)
		switch {
		case err == nil && tag.RowsAffected() > 0:
			through = append(through, verb)
		case err != nil && pg.Code(err) != "42501" && pg.Code(err) != "CP004": // CP004: its own message, settled
			through = append(through, verb+" failed otherwise: "+err.Error()) // an oracle: it says more than "no"
		}
	}
	slices.Sort(through)
	return through
}

type execer interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// Holds REQ-095, REQ-096, REQ-097, REQ-098, REQ-107, REQ-108, REQ-110; lessons B46, B48.
func TestNobodyElseReachesARow(t *testing.T) {
	t.Parallel()
	s := newSeeded(t)
	scope := func(value string) func(context.Context, *pgx.Conn) error {
		return func(ctx context.Context, c *pgx.Conn) error {
			_, err := c.Exec(ctx, `select set_config('compass.tenant_id', $1, false)`, value)
			return err
		}
	}
	within := func(end string) func(context.Context, *pgx.Conn) error {
		return func(ctx context.Context, c *pgx.Conn) error {
			for _, sql := range []string{"begin", `select set_config('compass.tenant_id', '` + string(tenantA) + `', true)`, end} {
				if _, err := c.Exec(ctx, sql); err != nil {
					return err
				}
			}
			return nil
		}
	}
	asOwner := func(ctx context.Context, c *pgx.Conn) error {
		_, err := c.Exec(ctx, "set role "+pg.Ident(s.db.Roles.Owner))
		return err
	}
	app := s.db.Straight(t, s.db.App) // sessions are set on purpose
	for _, way := range []struct {
		name    string
		dsn     string
		prepare func(context.Context, *pgx.Conn) error
	}{
		{"never set", app, nil},
		{"empty", app, scope("")},
		{"another tenant", app, scope(string(tenantB))},
		{"rolled back", app, within("rollback")},
		{"committed before", app, within("commit")},
		{"forged: injection", app, scope(string(tenantA) + `' or '1'='1`)},
		{"forged: wildcard", app, scope("%")},
		{"forged: blank after", app, scope(string(tenantA) + " ")},
		{"forged: upper case", app, scope(strings.ToUpper(string(tenantA)))},
		{"forged: prefix", app, scope(string(tenantA)[:10])},
		{"owner without a scope", s.db.Admin, asOwner},
	} {
		t.Run(way.name, func(t *testing.T) {
			t.Parallel()
			c := storetest.Connect(t, way.dsn)
			if way.prepare != nil {
				if err := way.prepare(t.Context(), c); err != nil {
					t.Fatal(err)
				}
			}
			for _, r := range s.relations {
				if through := verbs(t.Context(), c, r); len(through) > 0 {
					t.Errorf("%s: %v", r.name, through)
				}
			}
		})
	}
}

// The suite is worth something only if the same probes get through where they may.
func TestItsOwnTenantReachesARow(t *testing.T) {
	t.Parallel()
	s := newSeeded(t)
	c := storetest.Connect(t, s.db.Straight(t, s.db.App))
	for _, r := range s.relations {
		through := ""
		err := pgx.BeginFunc(t.Context(), c, func(tx pgx.Tx) error {
			if _, err := tx.Exec(t.Context(), `select set_config('compass.tenant_id', $1, true)`, tenantA); err != nil {
				return err
			}
			var mine, all int
			err := tx.QueryRow(t.Context(), fmt.Sprintf(`select count(*) filter (where %s = $1), count(*) from compass.%s`, r.key, r.name), tenantA).Scan(&mine, &all)
			through = fmt.Sprint(mine, " of ", all)
			return err
		})
		if err != nil || through != "1 of 1" {
			t.Errorf("%s: sees %s (%v), want its one row and no other", r.name, through, err)
		}
	}
}

// Holds REQ-109 (direct): a connection that served A shows nothing of A to whoever uses it next, after every kind of end.
func TestPooledReuse(t *testing.T) {
	t.Parallel()
	s := seed(t)
	store := s.open(t, func(c *Config) { c.MaxConns = 1 })
	s.everyVerb(t)
	reusedPool(t, store, s.relations)
}

// reusedPool uses the one connection of a store for tenantA through each door, then as a careless query would.
func reusedPool(t *testing.T, store *Store, relations []relation) {
	t.Helper()
	ctx := WithTenant(t.Context(), tenantA)
	raw := store.databases[0].app.open
	for name, use := range map[string]func() error{
		"query": func() error { _, err := query(ctx, store, pgx.RowTo[string], sqlHandles); return err },
		"failed query": func() error {
			if _, err := query(ctx, store, pgx.RowTo[string], `select 1 / 0`); pg.Code(err) != "22012" {
				return fmt.Errorf("the query did not fail as it should: %w", err)
			}
			return nil
		},
		"transaction": func() error {
			return store.inTenantTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
				return tx.QueryRow(ctx, sqlHandles).Scan(new(string))
			})
		},
		"rolled back": func() error {
			tx, err := store.beginTenantTx(ctx)
			if err != nil {
				return err
			}
			if err := tx.QueryRow(ctx, sqlHandles).Scan(new(string)); err != nil {
				return err
			}
			return tx.Rollback(ctx)
		},
	} {
		if err := use(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for _, r := range relations {
			if through := verbs(t.Context(), raw, r); len(through) > 0 {
				t.Errorf("after %s: %s: %v", name, r.name, through)
			}
		}
	}
}

// Holds REQ-101: the system role reads everything and writes nothing; provision reaches only what it creates.
func TestOtherRights(t *testing.T) {
	t.Parallel()
	s := newSeeded(t)
	system, provision := storetest.Connect(t, s.db.Straight(t, s.db.System)), storetest.Connect(t, s.db.Straight(t, s.db.Provision))
	creates := []string{"tenants", "placements", "accounts", "account_tokens", "audit_log", "sql_logins"}
	for _, r := range s.relations {
		if through := verbs(t.Context(), system, r); !slices.Equal(through, []string{"select"}) {
			t.Errorf("system on %s: %v, want select alone", r.name, through)
		}
		if slices.Contains(creates, r.name) {
			continue
		}
		_, err := provision.Exec(t.Context(), "select from compass."+r.name)
		if pg.Code(err) != "42501" {
			t.Errorf("provision on %s: %v, want it refused", r.name, err)
		}
	}
}

// Holds REQ-206 (SQL side), lab section 3: a tenant's own login sees its rows, whatever it sets or plants.
func TestTenantLogin(t *testing.T) {
	t.Parallel()
	s := newSeeded(t)
	login := "ct_" + strings.ToLower(rand.Text())[:20]
	s.mustExec(t, fmt.Sprintf(`create role %s login password 'pw' in role %s`, login, pg.Ident(s.db.Roles.Tenant)))
	t.Cleanup(func() { s.mustExecLate(t, `drop owned by `+login+`; drop role `+login) })
	s.mustExec(t, `insert into compass.sql_logins (tenant_id, role_name) values ($1, $2)`, tenantB, login)
	dsn, err := storetest.WithUser(s.db.Straight(t, s.db.App), login, "pw", s.db.Name)
	if err != nil {
		t.Fatal(err)
	}
	for name, trick := range map[string]string{
		"plain":            `select 1`,
		"setting":          `set compass.tenant_id = '` + string(tenantA) + `'`,
		"role app":         `set role ` + pg.Ident(s.db.Roles.App),
		"role owner":       `set role ` + pg.Ident(s.db.Roles.Owner),
		"session":          `set session authorization ` + pg.Ident(s.db.Roles.App),
		"row security off": `set row_security = off`,
		"search path":      `set search_path = pg_temp, public`,
		"plant":            `create temp table login_tenant (x int)`,
		"map itself":       `update compass.sql_logins set tenant_id = '` + string(tenantA) + `'`,
	} {
		c := storetest.Connect(t, dsn)
		_, _ = c.Exec(t.Context(), trick) // whether it is refused or not
		own := 0
		for _, r := range s.relations {
			if through := verbs(t.Context(), c, r); slices.Contains(through, "select") || slices.Contains(through, "update") ||
				slices.Contains(through, "insert") || slices.Contains(through, "insert quiet") || slices.Contains(through, "delete") || slices.Contains(through, "steal") {
				t.Errorf("%s: %s: %v", name, r.name, through)
			}
			var n int
			if c.QueryRow(t.Context(), fmt.Sprintf(`select count(*) from compass.%s where %s = $1`, r.name, r.key), tenantB).Scan(&n) == nil {
				own += n
			}
		}
		if name == "plain" && own == 0 {
			t.Error("the login does not see its own rows, so the rest proves nothing")
		}
	}
}
