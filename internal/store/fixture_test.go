package store

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/rigelbuild/compass-operator/internal/store/storetest"
)

// The tenants of most tests: each has one person.
const (
	tenantA TenantID = "t_0000000000000000000000000a"
	tenantB TenantID = "t_0000000000000000000000000b"
)

// fixture is a store on a fresh database with two tenants.
type fixture struct {
	*Store
	db    *storetest.Database
	super *pgx.Conn
}

func newFixture(t *testing.T, change ...func(*Config)) *fixture {
	t.Helper()
	db := storetest.NewDatabase(t)
	f := &fixture{db: db, super: storetest.Connect(t, db.Super)}
	f.mustExec(t, `insert into compass.tenants (id, slug) values ($1, 'a'), ($2, 'b')`, tenantA, tenantB)
	f.mustExec(t, `insert into compass.placements (tenant_id, stream, claim) values ($1, 'main', 1), ($2, 'other', 1)`, tenantA, tenantB)
	f.mustExec(t, `insert into compass.accounts (tenant_id, id, kind, handle) values ($1, 'a_1', 'person', 'ada'), ($2, 'a_2', 'person', 'bob')`,
		tenantA, tenantB)
	f.Store = f.open(t, change...)
	return f
}

func (f *fixture) open(t *testing.T, change ...func(*Config)) *Store {
	t.Helper()
	config := Config{Databases: []Database{{App: f.db.App, System: f.db.System, Provision: f.db.Provision, Direct: f.db.Direct}}}
	for _, c := range change {
		c(&config)
	}
	s, err := Open(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func (f *fixture) mustExec(t *testing.T, sql string, args ...any) {
	t.Helper()
	if _, err := f.super.Exec(t.Context(), sql, args...); err != nil {
		t.Fatal(err)
	}
}

// mustExecLate is mustExec for a cleanup, on a connection of its own: the test's are closed by then.
func (f *fixture) mustExecLate(t *testing.T, sql string) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	conn, err := pgx.Connect(ctx, f.db.Super)
	if err != nil {
		t.Error(err)
		return
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, sql, pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Error(err)
	}
}

// handles returns the handles of all accounts, as a superuser sees them.
func (f *fixture) handles(t *testing.T) []string {
	t.Helper()
	rows, err := f.super.Query(t.Context(), `select handle from compass.accounts order by handle`)
	if err != nil {
		t.Fatal(err)
	}
	out, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return out
}

const (
	sqlHandles = `select handle from compass.accounts order by handle`
	sqlInsert  = `insert into compass.accounts (tenant_id, id, kind, handle) values ($1, $2, 'person', $3)`
	sqlRename  = `update compass.accounts set handle = $1 where id = $2`
)
