package store

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/rigelbuild/compass-operator/internal/store/pg"
	"github.com/rigelbuild/compass-operator/internal/store/storetest"
)

// Holds REQ-086, REQ-088, REQ-097, REQ-107: each door sees and changes its tenant's rows and no others.
func TestDoorsAreScoped(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	ctx := WithTenant(t.Context(), tenantA)

	got, err := query(ctx, f.Store, pgx.RowTo[string], sqlHandles)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"ada"}, got); diff != "" {
		t.Errorf("query: %s", diff)
	}
	if tag, err := f.exec(ctx, sqlRename, "x", "a_2"); err != nil || tag.RowsAffected() != 0 {
		t.Errorf("exec changed %d rows of another tenant (%v)", tag.RowsAffected(), err)
	}
	if _, err := f.exec(ctx, sqlInsert, tenantB, "a_3", "mallory"); pg.Code(err) != "42501" {
		t.Errorf("insert for another tenant: %v, want it refused by row-level security", err)
	}
	err = f.inTenantTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		for _, first := range []bool{true, false} {
			rows, err := tx.Query(ctx, sqlHandles)
			if err != nil {
				return err
			}
			got, err := pgx.CollectRows(rows, pgx.RowTo[string])
			if diff := cmp.Diff([]string{"ada"}, got); diff != "" {
				t.Errorf("transaction, first statement %v: %s", first, diff)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff([]string{"ada", "bob"}, f.handles(t)); diff != "" {
		t.Errorf("after all: %s", diff)
	}
}

// Holds REQ-090, REQ-099: without a tenant nothing is sent, by any door.
func TestDoorsNeedATenant(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for name, ctx := range map[string]context.Context{
		"none":  t.Context(),
		"empty": WithTenant(t.Context(), ""),
		"NUL":   WithTenant(t.Context(), tenantA+"\x00"),
	} {
		_, queryErr := query(ctx, f.Store, pgx.RowTo[string], sqlHandles)
		_, execErr := f.exec(ctx, sqlRename, "x", "a_1")
		_, txErr := f.beginTenantTx(ctx)
		for door, err := range map[string]error{
			"query": queryErr, "exec": execErr, "beginTenantTx": txErr,
			"do":       f.do(ctx, func(*pgx.Batch) { t.Errorf("%s: do filled a batch", name) }),
			"writerDo": f.writerDo(ctx, Fence{}, func(*pgx.Batch) { t.Errorf("%s: writerDo filled a batch", name) }),
		} {
			if !errors.Is(err, ErrNoTenant) {
				t.Errorf("%s tenant: %s: %v, want ErrNoTenant", name, door, err)
			}
		}
	}
	if id := f.ResolveTenant(t.Context()); id != "" {
		t.Errorf("without Bootstrap an empty context resolves to %q", id)
	}
}

// Holds REQ-007, REQ-087, REQ-094: the bootstrap tenant is made once, and stands in only where the store says so.
func TestBootstrapTenant(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for range 2 {
		s := f.open(t, func(c *Config) { c.Bootstrap = true })
		ids, err := query(t.Context(), s, pgx.RowTo[TenantID], `select id from compass.tenants`)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]TenantID{BootstrapTenantID}, ids); diff != "" {
			t.Error(diff)
		}
		if id := s.ResolveTenant(WithTenant(t.Context(), tenantB)); id != tenantB {
			t.Errorf("the context's tenant was passed over for %q", id)
		}
	}
}

// A second write that fails undoes the first; so does a deferred failure at the end.
func TestDoIsAllOrNone(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	ctx := WithTenant(t.Context(), tenantA)
	err := f.do(ctx, func(b *pgx.Batch) {
		b.Queue(sqlInsert, tenantA, "a_3", "eve")
		b.Queue(sqlInsert, tenantA, "a_4", "ada")
	})
	if !errors.Is(err, ErrConflict) {
		t.Errorf("do = %v, want ErrConflict", err)
	}
	if diff := cmp.Diff([]string{"ada", "bob"}, f.handles(t)); diff != "" {
		t.Error(diff)
	}
}

// Rows that a batch delivered before it failed are not returned: they never came to be.
func TestRowsAreProvisionalUntilTheEnd(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.mustExec(t, `alter table compass.accounts add constraint late unique (tenant_id, display_name) deferrable initially deferred`)
	const insert = `insert into compass.accounts (tenant_id, id, kind, handle) values ($1, 'a_3', 'person', 'eve') returning handle`
	got, err := query(WithTenant(t.Context(), tenantA), f.Store, pgx.RowTo[string], insert, tenantA)
	if !errors.Is(err, ErrConflict) || got != nil {
		t.Errorf("query = %v, %v; want no rows and ErrConflict", got, err)
	}
}

func TestQueryOne(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	ctx := WithTenant(t.Context(), tenantA)
	if got, err := queryOne(ctx, f.Store, pgx.RowTo[string], sqlHandles); err != nil || got != "ada" {
		t.Errorf("queryOne = %q, %v", got, err)
	}
	if _, err := queryOne(ctx, f.Store, pgx.RowTo[string], sqlHandles+" limit 0"); !errors.Is(err, ErrNotFound) {
		t.Errorf("no row: %v, want ErrNotFound", err)
	}
	if _, err := queryOne(ctx, f.Store, pgx.RowTo[int], "select generate_series(1, 2)"); err == nil || errors.Is(err, ErrNotFound) {
		t.Errorf("two rows: %v, want an error of its own", err)
	}
}

// Holds REQ-099 (design section 5): what a call costs in round trips, counted on the wire, in every exec mode.
func TestRoundTrips(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"statement", "describe", "exec"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			app := f.db.Straight(t, f.db.App) // no pooler would serve every mode
			proxy := storetest.NewProxy(t, app, 0)
			s := f.open(t, func(c *Config) {
				c.ExecMode, c.MaxConns, c.Databases = mode, 1, []Database{{App: proxy.Through(t, app)}}
			})
			for _, call := range tripCalls(s) {
				ctx := WithTenant(t.Context(), tenantA)
				if err := call.run(ctx); err != nil { // once before, so that statements are known
					t.Fatalf("%s: %v", call.name, err)
				}
				proxy.Reset()
				if err := call.run(ctx); err != nil {
					t.Fatalf("%s: %v", call.name, err)
				}
				if got := proxy.Trips(); got != call.want {
					t.Errorf("%s: %d round trips, want %d", call.name, got, call.want)
				}
			}
		})
	}
}

type tripCall struct {
	name string
	want int
	run  func(context.Context) error
}

func tripCalls(s *Store) []tripCall {
	statements := func(k int) func(context.Context) error {
		return func(ctx context.Context) error {
			return s.inTenantTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
				for range k {
					if _, err := tx.Exec(ctx, sqlRename, "ada", "a_1"); err != nil {
						return err
					}
				}
				return nil
			})
		}
	}
	return []tripCall{
		{"query", 1, func(ctx context.Context) error {
			_, err := query(ctx, s, pgx.RowTo[string], sqlHandles)
			return err
		}},
		{"exec", 1, func(ctx context.Context) error { _, err := s.exec(ctx, sqlRename, "ada", "a_1"); return err }},
		{"do of three", 1, func(ctx context.Context) error {
			return s.do(ctx, func(b *pgx.Batch) {
				for range 3 {
					b.Queue(sqlRename, "ada", "a_1")
				}
			})
		}},
		{"transaction of none", 0, statements(0)},
		{"transaction of one", 2, statements(1)},
		{"transaction of three", 4, statements(3)},
		{"transaction that reads first", 3, func(ctx context.Context) error {
			return s.inTenantTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
				var handle string
				if err := tx.QueryRow(ctx, sqlHandles).Scan(&handle); err != nil {
					return err
				}
				_, err := tx.Exec(ctx, sqlRename, handle, "a_1")
				return err
			})
		}},
	}
}

// A batch that fails leaves its connection usable: no reconnect storm from ordinary conflicts.
func TestFailuresKeepTheConnection(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	proxy := storetest.NewProxy(t, f.db.App, 0)
	s := f.open(t, func(c *Config) { c.MaxConns, c.Databases[0].App = 1, proxy.Through(t, f.db.App) })
	ctx := WithTenant(t.Context(), tenantA)
	if _, err := query(ctx, s, pgx.RowTo[string], sqlHandles); err != nil {
		t.Fatal(err)
	}
	proxy.Reset()
	for range 20 {
		if _, err := s.exec(ctx, sqlInsert, tenantA, "a_1", "again"); !errors.Is(err, ErrConflict) {
			t.Fatalf("exec = %v, want ErrConflict", err)
		}
		err := s.inTenantTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, sqlInsert, tenantA, "a_1", "again")
			return err
		})
		if !errors.Is(err, ErrConflict) {
			t.Fatalf("transaction = %v, want ErrConflict", err)
		}
	}
	if got := proxy.Connections(); got != 0 {
		t.Errorf("40 failures made %d new connections, want none", got)
	}
}
