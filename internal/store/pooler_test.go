package store

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/rigelbuild/compass-operator/internal/store/pg"
	"github.com/rigelbuild/compass-operator/internal/store/schema"
	"github.com/rigelbuild/compass-operator/internal/store/storetest"
	"github.com/rigelbuild/compass-operator/migrations"
)

// Holds lesson B42: what stands in front is seen, not guessed.
func TestDetectPooler(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	b := storetest.NewBouncer(t, f.db, 1)
	for name, c := range map[string]struct {
		dsn  string
		want bool
	}{"direct": {f.db.Straight(t, f.db.App), false}, "pooled": {b.Through(t, f.db.App), true}} {
		conn := storetest.Connect(t, c.dsn)
		for range 3 { // leaves nothing behind that a second look would stumble over
			pooler, err := pg.DetectPooler(t.Context(), conn)
			if err != nil || pooler.Present != c.want {
				t.Errorf("%s: %+v, %v; want present %v", name, pooler, err, c.want)
			}
		}
	}
}

// Holds REQ-105, lessons B42, B44: the same store behind a pooler in transaction mode, in every exec mode that is right
// there; the one that is not is refused with the cure.
func TestStoreBehindPooler(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	b := storetest.NewBouncer(t, f.db, 2)
	pooled := func(mode string) Config {
		return Config{ExecMode: mode, Databases: []Database{{App: b.Through(t, f.db.App), System: b.Through(t, f.db.System), Provision: b.Through(t, f.db.Provision)}}}
	}
	_, err := Open(t.Context(), pooled("statement"))
	if tracked := tracksStatements(t, b.Through(t, f.db.App)); !tracked && (err == nil || !strings.Contains(err.Error(), "max_prepared_statements")) {
		t.Errorf("named statements behind a pooler that does not track them: %v", err)
	}
	for _, mode := range []string{"", "describe", "exec"} {
		t.Run("mode "+mode, func(t *testing.T) {
			t.Parallel()
			s, err := Open(t.Context(), pooled(mode))
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			if err := crowd(t.Context(), s, 8, 40); err != nil {
				t.Error(err)
			}
			if _, err := systemQuery(t.Context(), s, LoopSweep, 0, pgx.RowTo[string], sqlHandles); err != nil {
				t.Error(err)
			}
			if err := s.provisionDo(t.Context(), 0, func(b *pgx.Batch) { b.Queue(`select 1`) }); err != nil {
				t.Error(err)
			}
		})
	}
}

func tracksStatements(t *testing.T, dsn string) bool {
	t.Helper()
	pooler, err := pg.DetectPooler(t.Context(), storetest.Connect(t, dsn))
	if err != nil {
		t.Fatal(err)
	}
	return pooler.Tracked
}

// crowd has both tenants use every door side by side, some calls failing on purpose, and returns an error where a tenant
// saw anything but its own row.
func crowd(ctx context.Context, s *Store, callers, calls int) error {
	var wg sync.WaitGroup
	errs := make([]error, callers)
	for i := range callers {
		wg.Go(func() {
			tenant, want := tenantA, "ada"
			if i%2 == 1 {
				tenant, want = tenantB, "bob"
			}
			ctx := WithTenant(ctx, tenant)
			for n := range calls {
				if err := crowdCall(ctx, s, want, n); err != nil {
					errs[i] = fmt.Errorf("caller %d call %d: %w", i, n, err)
					return
				}
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

func crowdCall(ctx context.Context, s *Store, want string, n int) error {
	var got string
	var err error
	switch n % 4 {
	case 0:
		got, err = queryOne(ctx, s, pgx.RowTo[string], sqlHandles)
	case 1:
		err = s.do(ctx, func(b *pgx.Batch) {
			b.Queue(sqlRename, want, "nobody")
			b.Queue(sqlHandles).QueryRow(func(row pgx.Row) error { return row.Scan(&got) })
		})
	case 2:
		err = s.inTenantTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, sqlRename, want, "nobody"); err != nil {
				return err
			}
			return tx.QueryRow(ctx, sqlHandles).Scan(&got)
		})
	case 3:
		if _, err := s.exec(ctx, `select 1 / 0`); pg.Code(err) != "22012" {
			return fmt.Errorf("a call that must fail: %w", err)
		}
		got = want
	}
	if err == nil && got != want {
		err = fmt.Errorf("saw %q", got)
	}
	return err
}

// Holds REQ-109: one server connection behind the pooler serves A, then somebody without a scope, then B.
func TestPooledReuseBehindPooler(t *testing.T) {
	t.Parallel()
	s := seed(t)
	b := storetest.NewBouncer(t, s.db, 1)
	store := s.open(t, func(c *Config) { c.MaxConns, c.Databases[0].App = 1, b.Through(t, s.db.App) })
	s.everyVerb(t)
	reusedPool(t, store, s.relations)

	// Another client of the pooler gets the same server connection.
	stranger := storetest.Connect(t, b.Through(t, s.db.App))
	if _, err := query(WithTenant(t.Context(), tenantA), store, pgx.RowTo[string], sqlHandles); err != nil {
		t.Fatal(err)
	}
	for _, r := range s.relations {
		var seen int
		sql := fmt.Sprintf(`select count(*) from compass.%s`, r.name)
		if err := stranger.QueryRow(t.Context(), sql, pgx.QueryExecModeExec).Scan(&seen); err != nil || seen > 0 {
			t.Errorf("a stranger sees %d rows of %s (%v)", seen, r.name, err)
		}
	}
}

// Behind a pooler the doors cost what they cost direct.
func TestRoundTripsBehindPooler(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	b := storetest.NewBouncer(t, f.db, 1)
	proxy := storetest.NewProxy(t, b.Through(t, f.db.App), 0)
	s := f.open(t, func(c *Config) { c.MaxConns, c.Databases[0].App = 1, proxy.Through(t, f.db.App) })
	for _, call := range tripCalls(s) {
		ctx := WithTenant(t.Context(), tenantA)
		for range 2 { // once before, so that statements are known
			proxy.Reset()
			if err := call.run(ctx); err != nil {
				t.Fatalf("%s: %v", call.name, err)
			}
		}
		if got := proxy.Trips(); got != call.want {
			t.Errorf("%s: %d round trips, want %d", call.name, got, call.want)
		}
	}
}

// Leases and migrations need a session of their own, and say so.
func TestSessionsRefuseAPooler(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	b := storetest.NewBouncer(t, f.db, 1)
	s := f.open(t, func(c *Config) { c.Databases[0].Direct = b.Through(t, f.db.Direct) })
	if _, err := s.directConn(t.Context(), 0); err == nil || !strings.Contains(err.Error(), "pooler") {
		t.Errorf("a lease through a pooler: %v", err)
	}
	all, err := schema.Load(migrations.FS)
	if err != nil {
		t.Fatal(err)
	}
	r, err := schema.New(schema.Options{DSN: b.Through(t, f.db.Admin), Migrations: all})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Up(t.Context()); err == nil || !strings.Contains(err.Error(), "pooler") {
		t.Errorf("migrations through a pooler: %v", err)
	}
}
