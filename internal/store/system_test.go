package store

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/rigelbuild/compass-operator/internal/store/pg"
)

// Holds REQ-101, REQ-102: the system role sees across tenants, is reached by named loops alone, and may not write.
func TestSystemDoorIsForNamedLoops(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	got, err := systemQuery(t.Context(), f.Store, LoopSweep, 0, pgx.RowTo[string], sqlHandles)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"ada", "bob"}, got); diff != "" {
		t.Error(diff)
	}
	if _, err := systemQuery(t.Context(), f.Store, "curiosity", 0, pgx.RowTo[string], sqlHandles); err == nil {
		t.Error("a loop that is not on the list was let in")
	}
	if _, err := systemQuery(t.Context(), f.Store, LoopSweep, 0, pgx.RowTo[string], sqlRename, "x", "a_1"); pg.Code(err) != "42501" {
		t.Errorf("the system role wrote a tenant's row: %v", err)
	}
	own, err := systemQuery(t.Context(), f.Store, LoopSweep, 0, pgx.RowTo[string],
		`select query from pg_stat_activity where pid = pg_backend_pid()`)
	if err != nil || len(own) != 1 || !strings.Contains(own[0], "compass loop: sweep") {
		t.Errorf("pg_stat_activity shows %q (%v), want the loop's name", own, err)
	}
}

// Every loop is in the list that an auditor reads.
func TestSystemLoopsAreListed(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile("system.go")
	if err != nil {
		t.Fatal(err)
	}
	if declared := strings.Count(string(source), " SystemLoop = \""); declared != len(systemLoops) {
		t.Errorf("%d loops are declared and %d listed", declared, len(systemLoops))
	}
}

// A process has the rights that it was given connections for, and no others.
func TestRightsThatWereNotGiven(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	s := f.open(t, func(c *Config) {
		c.Databases[0].System, c.Databases[0].Provision, c.Databases[0].Direct = "", "", ""
	})
	if _, err := systemQuery(t.Context(), s, LoopSweep, 0, pgx.RowTo[string], sqlHandles); err == nil {
		t.Error("system door without its right")
	}
	if err := s.provisionDo(t.Context(), 0, func(*pgx.Batch) {}); err == nil {
		t.Error("provision door without its right")
	}
	if _, err := s.directConn(t.Context(), 0); err == nil {
		t.Error("direct connection without its right")
	}
}

func TestProvisionDoor(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	err := f.provisionDo(t.Context(), 0, func(b *pgx.Batch) {
		b.Queue(`insert into compass.tenants (id, slug) values ('t_new', 'new')`)
		b.Queue(`insert into compass.placements (tenant_id) values ('t_new')`)
	})
	if err != nil {
		t.Fatal(err)
	}
	slugs, err := provisionQuery(t.Context(), f.Store, 0, pgx.RowTo[string], `select slug from compass.tenants order by slug`)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"a", "b", "new"}, slugs); diff != "" {
		t.Error(diff)
	}
	if _, err := provisionQuery(t.Context(), f.Store, 0, pgx.RowTo[string], `select id from compass.messages`); pg.Code(err) != "42501" {
		t.Errorf("the provision role reads messages: %v", err)
	}
}

// Holds REQ-228 (store side): a worker's batch happens only while it holds the lease and the tenant is its stream's.
func TestWriterDoor(t *testing.T) {
	t.Parallel()
	f := newFixture(t, func(c *Config) { c.Fenced = true })
	f.mustExec(t, `insert into compass.delivery_leases (stream, holder, epoch, nonce, expires_at, clean)
		values ('main', 'pod', 7, 'n', clock_timestamp() + interval '1 hour', false)`)
	ctx := WithTenant(t.Context(), tenantA)
	held := Fence{Stream: "main", Epoch: 7, Nonce: "n"}
	write := func(b *pgx.Batch) { b.Queue(sqlRename, "eve", "a_1") }

	for name, c := range map[string]struct {
		tenant TenantID
		fence  Fence
	}{
		"lower epoch":             {tenantA, Fence{"main", 6, "n"}},
		"higher epoch":            {tenantA, Fence{"main", 8, "n"}},
		"another's nonce":         {tenantA, Fence{"main", 7, "m"}},
		"unknown stream":          {tenantA, Fence{"nowhere", 7, "n"}},
		"another stream's tenant": {tenantB, held},
	} {
		if err := f.writerDo(WithTenant(t.Context(), c.tenant), c.fence, write); !errors.Is(err, ErrStaleWriter) {
			t.Errorf("%s: %v, want ErrStaleWriter", name, err)
		}
	}
	if diff := cmp.Diff([]string{"ada", "bob"}, f.handles(t)); diff != "" {
		t.Errorf("a stale writer wrote: %s", diff)
	}
	if err := f.writerDo(ctx, held, write); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"bob", "eve"}, f.handles(t)); diff != "" {
		t.Errorf("the holder's write: %s", diff)
	}
	f.mustExec(t, `update compass.tenants set frozen = true where id = $1`, tenantA)
	if err := f.writerDo(ctx, held, write); !errors.Is(err, ErrFrozen) {
		t.Errorf("frozen tenant: %v, want ErrFrozen", err)
	}
	f.mustExec(t, `update compass.tenants set frozen = false`)
	f.mustExec(t, `update compass.delivery_leases set expires_at = clock_timestamp() - interval '1 second'`)
	if err := f.writerDo(ctx, held, write); !errors.Is(err, ErrStaleWriter) {
		t.Errorf("expired lease: %v, want ErrStaleWriter", err)
	}
}

// Protocol, "Fence": the worker has no way to write around its fence.
func TestFencedStoreWritesThroughTheFenceAlone(t *testing.T) {
	t.Parallel()
	f := newFixture(t, func(c *Config) { c.Fenced = true })
	ctx := WithTenant(t.Context(), tenantA)
	_, execErr := f.exec(ctx, sqlRename, "x", "a_1")
	_, txErr := f.beginTenantTx(ctx)
	for door, err := range map[string]error{"exec": execErr, "beginTenantTx": txErr, "do": f.do(ctx, func(*pgx.Batch) {})} {
		if !errors.Is(err, errFenced) {
			t.Errorf("%s: %v, want it refused", door, err)
		}
	}
	if _, err := query(ctx, f.Store, pgx.RowTo[string], sqlRename+" returning handle", "x", "a_1"); !errors.Is(err, ErrUnavailable) || pg.Code(err) != "25006" {
		t.Errorf("a query that writes: %v, want it read only", err)
	}
	if got, err := queryOne(ctx, f.Store, pgx.RowTo[string], sqlHandles); err != nil || got != "ada" {
		t.Errorf("a query that reads: %q, %v", got, err)
	}
}
