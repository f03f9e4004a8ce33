package store

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/rigelbuild/compass-operator/internal/store/storetest"
)

// pair is a store on two databases: tenantA lives in database 0, tenantB in database 1, behind a proxy.
type pair struct {
	*Store
	zero, one *storetest.Database
	proxy     *storetest.Proxy
	superZero *pgx.Conn
}

func newPair(t *testing.T, change ...func(*Config)) *pair {
	t.Helper()
	p := &pair{zero: storetest.NewDatabase(t), one: storetest.NewDatabase(t)}
	p.superZero = storetest.Connect(t, p.zero.Super)
	superOne := storetest.Connect(t, p.one.Super)
	for _, c := range []struct {
		conn   *pgx.Conn
		tenant TenantID
		handle string
	}{{p.superZero, tenantA, "ada"}, {superOne, tenantB, "bob"}} {
		b := &pgx.Batch{}
		b.Queue(`insert into compass.tenants (id, slug) values ($1, $1)`, c.tenant)
		b.Queue(`insert into compass.accounts (tenant_id, id, kind, handle) values ($1, 'a_1', 'person', $2)`, c.tenant, c.handle)
		if err := c.conn.SendBatch(t.Context(), b).Close(); err != nil {
			t.Fatal(err)
		}
	}
	b := &pgx.Batch{} // database 0 has the routes of all: for that it has a row of every tenant
	b.Queue(`insert into compass.tenants (id, slug) values ($1, $1)`, tenantB)
	b.Queue(`insert into compass.placements (tenant_id, database_id) values ($1, 0), ($2, 1)`, tenantA, tenantB)
	if err := p.superZero.SendBatch(t.Context(), b).Close(); err != nil {
		t.Fatal(err)
	}
	p.proxy = storetest.NewProxy(t, p.one.App, 0)
	p.Store = p.open(t, change...)
	return p
}

func (p *pair) open(t *testing.T, change ...func(*Config)) *Store {
	t.Helper()
	config := Config{Databases: []Database{{ID: 0, App: p.zero.App}, {ID: 1, App: p.proxy.Through(t, p.one.App)}}}
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

func handlesOf(ctx context.Context, s *Store, id TenantID) ([]string, error) {
	return query(WithTenant(ctx, id), s, pgx.RowTo[string], sqlHandles)
}

// Holds REQ-093, REQ-207 (store side): a tenant's call goes to its own database and to no other.
func TestRouteByPlacement(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	for id, want := range map[TenantID]string{tenantA: "ada", tenantB: "bob"} {
		got, err := handlesOf(t.Context(), p.Store, id)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{want}, got); diff != "" {
			t.Errorf("%s: %s", id, diff)
		}
	}
	if _, err := handlesOf(t.Context(), p.Store, "t_0000000000000000000000000z"); !errors.Is(err, ErrNotFound) {
		t.Errorf("a tenant without a placement: %v, want ErrNotFound (REQ-090)", err)
	}
}

// A route is remembered for its time, and forgotten when asked.
func TestRouteIsRememberedAndForgotten(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	p := newPair(t, func(c *Config) { c.Now = func() time.Time { return now } })
	move := func(to int) {
		if _, err := p.superZero.Exec(t.Context(), `update compass.placements set database_id = $1 where tenant_id = $2`, to, tenantB); err != nil {
			t.Fatal(err)
		}
	}
	expect := func(when string, want ...string) {
		t.Helper()
		got, err := handlesOf(t.Context(), p.Store, tenantB)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got, cmp.Transformer("len", func(s []string) int { return len(s) })); diff != "" {
			t.Errorf("%s: %s", when, diff)
		}
	}
	expect("at first", "bob")
	move(0)
	expect("remembered", "bob")
	p.ForgetRoute(tenantB)
	expect("forgotten")
	move(1)
	expect("remembered again")
	now = now.Add(defaultRouteTTL)
	expect("after its time", "bob")
	move(9)
	p.ForgetRoute(tenantB)
	if _, err := handlesOf(t.Context(), p.Store, tenantB); !errors.Is(err, ErrUnavailable) {
		t.Errorf("a database that this process does not have: %v, want ErrUnavailable", err)
	}
}

// Holds REQ-239: a dead database delays its own tenants, at start and later, and nobody has to restart.
func TestDeadDatabaseDelaysOnlyItsTenants(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	check := func(when string, s *Store, wantB error) {
		t.Helper()
		if _, err := handlesOf(t.Context(), s, tenantA); err != nil {
			t.Errorf("%s: the living database's tenant: %v", when, err)
		}
		if _, err := handlesOf(t.Context(), s, tenantB); !errors.Is(err, wantB) {
			t.Errorf("%s: the other's tenant: %v, want %v", when, err, wantB)
		}
	}
	check("all well", p.Store, nil)
	p.proxy.SetDown(true)
	check("dead", p.Store, ErrUnavailable)
	late := p.open(t)
	check("dead at start", late, ErrUnavailable)
	p.proxy.SetDown(false)
	check("back", late, nil)
	check("back", p.Store, nil)
}
