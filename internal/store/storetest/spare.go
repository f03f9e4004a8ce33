package storetest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/rigelbuild/compass-operator/internal/store/pg"
)

// spares are databases that a test has done with. To make and migrate one is most of what a small test costs, and to
// empty one is next to nothing; so the next test gets it, if the last one left all but the rows as it was.
type spares struct {
	mu   sync.Mutex
	free []spare
}

type spare struct {
	db   *Database
	made string
}

func (s *spares) take() (spare, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.free) == 0 {
		return spare{}, false
	}
	last := s.free[len(s.free)-1]
	s.free = s.free[:len(s.free)-1]
	return last, true
}

func (s *spares) give(one spare) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.free = append(s.free, one)
}

// spareDatabase returns a migrated database without a row, a used one if there is any.
func (s *Server) spareDatabase(tb testing.TB, fresh func() *Database) *Database {
	tb.Helper()
	if os.Getenv(envPooled) != "" { // the pooler's connections would outlive the test
		return s.throughPooler(tb, fresh())
	}
	if s.Log == "" { // somebody else's server is left as it was
		return fresh()
	}
	one, ok := s.spares.take()
	if !ok {
		one.db = fresh()
		var err error
		if one.made, err = one.db.fingerprint(tb.Context()); err != nil {
			tb.Fatalf("look at the new database: %v", err)
		}
	}
	tb.Cleanup(func() {
		if !tb.Failed() && one.db.empty(one.made) == nil {
			s.spares.give(one)
		}
	})
	db := *one.db
	return &db
}

var errChanged = errors.New("the database is not as it was made")

// empty removes every row and every session. A database that is not as it was made, or is not there, is an error: it is
// forgotten then, and goes with the server.
func (db *Database) empty(made string) error {
	ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
	defer cancel()
	conn, err := pgx.Connect(ctx, db.Super)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	const others = `select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()`
	if _, err := conn.Exec(ctx, others); err != nil {
		return err
	}
	now, err := fingerprint(ctx, conn, db)
	if err != nil {
		return err
	}
	if now != made {
		return errChanged
	}
	rows, err := conn.Query(ctx, `select relname::text from pg_class
		where relnamespace = 'compass'::regnamespace and relkind = 'r' and relname <> 'schema_migrations'`)
	if err != nil {
		return err
	}
	tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}
	for i, name := range tables {
		tables[i] = pg.Ident("compass", name)
	}
	_, err = conn.Exec(ctx, "truncate "+strings.Join(tables, ", ")+" restart identity")
	return err
}

func (db *Database) fingerprint(ctx context.Context) (string, error) {
	conn, err := pgx.Connect(ctx, db.Super)
	if err != nil {
		return "", err
	}
	defer conn.Close(ctx)
	return fingerprint(ctx, conn, db)
}

// sqlFingerprint is everything that a test may have changed but the rows: what is left out makes the next test stumble.
// Statistics belong to it, because plans follow from them.
const sqlFingerprint = `
with mine as (select n.oid from pg_namespace n where n.nspname !~ '^pg_' and n.nspname <> 'information_schema'),
ours as (select r.oid from pg_roles r where r.rolname = any ($1)),
parts as (
    select 'namespace ' || n::text as part from pg_namespace n where n.oid in (select oid from mine)
    union all select format('class %s %s %s %s %s %s %s %s %s', c.oid, c.relname, c.relkind, c.relowner, c.relacl, c.relrowsecurity,
                     c.relforcerowsecurity, c.reloptions, c.reltuples > 0) from pg_class c where c.relnamespace in (select oid from mine)
    union all select format('attribute %s %s %s %s %s %s', a.attrelid, a.attname, a.atttypid, a.attnotnull, a.attisdropped, a.attacl)
                from pg_attribute a join pg_class c on c.oid = a.attrelid where c.relnamespace in (select oid from mine)
    union all select 'proc ' || p::text from pg_proc p where p.pronamespace in (select oid from mine)
    union all select 'policy ' || p::text from pg_policy p
    union all select 'constraint ' || c::text from pg_constraint c where c.connamespace in (select oid from mine)
    union all select 'trigger ' || t::text from pg_trigger t
    union all select 'default acl ' || d::text from pg_default_acl d
    union all select 'statistics of ' || s.starelid from pg_statistic s join pg_class c on c.oid = s.starelid where c.relnamespace in (select oid from mine)
    union all select 'large objects ' || count(*) from pg_largeobject_metadata
    union all select 'event trigger ' || e::text from pg_event_trigger e
    union all select 'history ' || m::text from compass.schema_migrations m
    union all select 'database ' || d.datname || d.datdba || d.datallowconn || d.datconnlimit || coalesce(d.datacl::text, '')
                     || coalesce(shobj_description(d.oid, 'pg_database'), '') from pg_database d where d.datname = current_database()
    union all select format('setting %s %s %s', s.setdatabase, s.setrole, s.setconfig) from pg_db_role_setting s
               where s.setdatabase in (select oid from pg_database where datname = current_database()) or s.setrole = any (array(select oid from ours))
    union all select 'role ' || r::text from pg_authid r where r.oid = any (array(select oid from ours))
    union all select 'member ' || m::text from pg_auth_members m where m.roleid = any (array(select oid from ours)) or m.member = any (array(select oid from ours))
)
select md5(string_agg(part, E'\n' order by part)) from parts`

func fingerprint(ctx context.Context, conn *pgx.Conn, db *Database) (made string, err error) {
	roles := []string{db.Roles.Owner, db.Roles.App, db.Roles.System, db.Roles.Provision, db.Roles.Tenant}
	if err := conn.QueryRow(ctx, sqlFingerprint, roles).Scan(&made); err != nil {
		return "", fmt.Errorf("fingerprint: %w", err)
	}
	return made, nil
}
