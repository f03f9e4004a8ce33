package store

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/rigelbuild/compass-operator/internal/store/pg"
	"github.com/rigelbuild/compass-operator/internal/store/storetest"
)

const pollEvery = 5 * time.Millisecond

// until polls a condition that only Postgres can tell, to a deadline.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.NewTimer(20 * time.Second)
	defer deadline.Stop()
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("still waiting: %s", what)
		}
	}
}

// waiting reports how many backends wait for a lock of that type.
func (f *fixture) waiting(t *testing.T, lockType string) int {
	t.Helper()
	var n int
	err := f.super.QueryRow(t.Context(), `select count(*) from pg_stat_activity
		where datname = current_database() and wait_event_type = 'Lock' and wait_event = $1`, lockType).Scan(&n)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func (f *fixture) lease(t *testing.T, holder string, change ...func(*LeaseOptions)) *Lease {
	t.Helper()
	o := LeaseOptions{Stream: "main", Holder: holder, TTL: time.Minute}
	for _, c := range change {
		c(&o)
	}
	l, err := f.NewLease(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Release(context.WithoutCancel(t.Context())) })
	return l
}

func (f *fixture) acquired(t *testing.T, holder string, change ...func(*LeaseOptions)) *Lease {
	t.Helper()
	l := f.lease(t, holder, change...)
	if err := l.Acquire(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	return l
}

func (l *Lease) mustFence(t *testing.T) Fence {
	t.Helper()
	fence, ok := l.Fence()
	if !ok {
		t.Fatal("the lease is not held")
	}
	return fence
}

// expire makes the lease run out by the database's clock, as time would.
func (f *fixture) expire(t *testing.T) {
	t.Helper()
	f.mustExec(t, `update compass.delivery_leases set expires_at = clock_timestamp() - interval '1 second' where stream = 'main'`)
}

func rename(handle string) func(*pgx.Batch) {
	return func(b *pgx.Batch) { b.Queue(sqlRename, handle, "a_1") }
}

// Holds REQ-228: what a writer must be, one by one. Whoever is not writes nothing.
func TestStaleWriterWritesNothing(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	ctx := WithTenant(t.Context(), tenantA)
	fence := f.acquired(t, "one").mustFence(t)
	if err := f.writerDo(ctx, fence, rename("written")); err != nil {
		t.Fatal(err)
	}
	refused := func(reason string, ctx context.Context, fence Fence, want error) {
		t.Helper()
		if err := f.writerDo(ctx, fence, rename("stale")); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", reason, err, want)
		}
		if got := f.handles(t)[1]; got != "written" {
			t.Fatalf("%s: wrote %q", reason, got)
		}
	}
	older, lucky := fence, fence
	older.Epoch--
	lucky.Nonce = "of a lease that a failover forgot"
	refused("an older epoch", ctx, older, ErrStaleWriter)
	refused("the same epoch, another nonce", ctx, lucky, ErrStaleWriter)
	refused("a tenant of another stream", WithTenant(t.Context(), tenantB), fence, ErrStaleWriter)

	f.mustExec(t, `update compass.tenants set frozen = true where id = $1`, tenantA)
	refused("a tenant that is being moved", ctx, fence, ErrFrozen)
	f.mustExec(t, `update compass.tenants set frozen = false where id = $1`, tenantA)

	f.expire(t)
	refused("an expired lease that nobody took yet", ctx, fence, ErrStaleWriter)
	f.acquired(t, "two")
	refused("a lease that was taken over", ctx, fence, ErrStaleWriter)
}

// Holds REQ-228: there is no moment between the check and the write. A takeover waits for the batch that passed the check,
// and the batch after it is refused. Without the share that assert_writer takes of the lease the takeover does not wait.
func TestTakeoverWaitsForTheBatchBefore(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	ctx := WithTenant(t.Context(), tenantA)
	fence := f.acquired(t, "frozen").mustFence(t)

	blocker := storetest.Connect(t, f.db.Super)
	tx, err := blocker.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `select from compass.accounts where id = 'a_1' for update`); err != nil {
		t.Fatal(err)
	}
	wrote := make(chan error, 1)
	go func() { wrote <- f.writerDo(ctx, fence, rename("in time")) }()
	until(t, "the writer stands at the locked row", func() bool { return f.waiting(t, "transactionid") == 1 })

	f.expire(t)
	taken := make(chan error, 1)
	next := f.lease(t, "next")
	go func() { taken <- next.Acquire(t.Context(), 0) }()
	until(t, "the takeover waits for the writer", func() bool {
		select {
		case err := <-taken:
			t.Fatalf("the takeover did not wait for the batch before it: %v", err)
		default:
		}
		return f.waiting(t, "transactionid") == 2
	})
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-wrote; err != nil {
		t.Errorf("the batch that passed the check: %v", err)
	}
	if err := <-taken; err != nil {
		t.Fatal(err)
	}
	if err := f.writerDo(ctx, fence, rename("too late")); !errors.Is(err, ErrStaleWriter) {
		t.Errorf("the batch after the takeover: %v, want ErrStaleWriter", err)
	}
	if got := f.handles(t)[1]; got != "in time" {
		t.Errorf("handle %q, want what was written before the takeover", got)
	}
}

// halfABatch is a batch of a writer that Postgres has done and was not told to commit: its connection broke before the end,
// and nobody said so.
func (f *fixture) halfABatch(t *testing.T, fence Fence, tenant TenantID) *pgconn.PgConn {
	t.Helper()
	conn := storetest.Connect(t, f.db.App).PgConn()
	say := conn.Frontend()
	for _, s := range [][]string{
		{sqlScope, string(tenant), "60000"},
		{sqlAssertWriter, fence.Stream, strconv.FormatInt(fence.Epoch, 10), fence.Nonce, string(tenant)},
	} {
		bind := &pgproto3.Bind{}
		for _, arg := range s[1:] {
			bind.Parameters = append(bind.Parameters, []byte(arg))
		}
		say.SendParse(&pgproto3.Parse{Query: s[0]})
		say.SendBind(bind)
		say.SendExecute(&pgproto3.Execute{})
	}
	say.Send(&pgproto3.Flush{})
	if err := say.Flush(); err != nil {
		t.Fatal(err)
	}
	for done := 0; done < 2; {
		m, err := say.Receive()
		if err != nil {
			t.Fatal(err)
		}
		switch m := m.(type) {
		case *pgproto3.CommandComplete:
			done++
		case *pgproto3.ErrorResponse:
			t.Fatal(m.Message)
		}
	}
	return conn
}

// Holds REQ-228: a batch of which the end never comes keeps a takeover waiting once, and is ended by the next try.
func TestTakeoverEndsHalfABatch(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	fence := f.acquired(t, "cut off").mustFence(t)
	conn := f.halfABatch(t, fence, tenantA)
	next := f.lease(t, "next")
	if err := next.Acquire(t.Context(), 0); !errors.Is(err, ErrLeaseHeld) {
		t.Fatalf("while its author holds the lease: %v, want ErrLeaseHeld", err)
	}
	f.expire(t)
	ctx, cancel := context.WithCancel(t.Context())
	gave := make(chan error, 1)
	go func() { gave <- next.Acquire(ctx, 0) }()
	until(t, "it waits for the batch", func() bool {
		select {
		case err := <-gave:
			t.Fatalf("it did not wait: %v", err)
		default:
		}
		return f.waiting(t, "transactionid") == 1
	})
	cancel()
	if err := <-gave; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	ctx, cancel = context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := next.Acquire(ctx, 0); err != nil {
		t.Fatalf("under a lease that is over: %v", err)
	}
	if m, err := conn.Frontend().Receive(); err == nil {
		if e, ok := m.(*pgproto3.ErrorResponse); !ok || e.Code != "57P01" && e.Code != "08P01" {
			t.Errorf("the author of half a batch was told %#v", m)
		}
	}
}

// Holds REQ-228: under a snapshot that is older than the lock the check would pass, so it refuses.
func TestAssertWriterRefusesRepeatableRead(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	fence := f.acquired(t, "one").mustFence(t)
	conn := storetest.Connect(t, f.db.Straight(t, f.db.App))
	for level, want := range map[pgx.TxIsoLevel]string{pgx.RepeatableRead: "CP003", pgx.Serializable: "CP003", pgx.ReadCommitted: ""} {
		tx, err := conn.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: level})
		if err != nil {
			t.Fatal(err)
		}
		if _, err = tx.Exec(t.Context(), sqlScope, tenantA, "5000"); err != nil {
			t.Fatal(err)
		}
		_, err = tx.Exec(t.Context(), sqlAssertWriter, fence.Stream, fence.Epoch, fence.Nonce, tenantA)
		if got := pg.Code(err); got != want {
			t.Errorf("%s: %v, want code %q", level, err, want)
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// A fenced store has no other way to write.
func TestFencedStoreWritesOnlyWithAFence(t *testing.T) {
	t.Parallel()
	f := newFixture(t, func(c *Config) { c.Fenced = true })
	ctx := WithTenant(t.Context(), tenantA)
	if _, err := f.exec(ctx, sqlRename, "unfenced", "a_1"); err == nil {
		t.Error("exec wrote without a fence")
	}
	if _, err := query(ctx, f.Store, pgx.RowTo[string], sqlRename+` returning handle`, "unfenced", "a_1"); err == nil {
		t.Error("query wrote without a fence")
	}
	fence := f.acquired(t, "one").mustFence(t)
	if err := f.writerDo(ctx, fence, rename("fenced")); err != nil {
		t.Error(err)
	}
	if got := f.handles(t)[1]; got != "fenced" {
		t.Errorf("handle %q", got)
	}
}

// A drain is confirmed behind the fence, per tenant and claim.
func TestConfirmDrain(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	ctx := WithTenant(t.Context(), tenantA)
	fence := f.acquired(t, "one").mustFence(t)
	if err := f.ConfirmDrain(ctx, fence, 17); err != nil {
		t.Fatal(err)
	}
	stale := fence
	stale.Nonce = "x"
	if err := f.ConfirmDrain(ctx, stale, 18); !errors.Is(err, ErrStaleWriter) {
		t.Errorf("a stale worker confirmed: %v", err)
	}
	var claim int64
	err := f.super.QueryRow(t.Context(), `select (drained ->> $1)::bigint from compass.delivery_leases where stream = 'main'`, tenantA).Scan(&claim)
	if err != nil || claim != 17 {
		t.Errorf("confirmed claim %d (%v), want 17", claim, err)
	}
}

// Holds REQ-090: a placement is the tenant's own row, and an unknown tenant has none.
func TestPlacement(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	p, err := f.Placement(WithTenant(t.Context(), tenantB))
	if err != nil || p.Stream != "other" || p.Claim != 1 {
		t.Errorf("placement %+v (%v)", p, err)
	}
	if _, err := f.Placement(WithTenant(t.Context(), "t_nobody")); !errors.Is(err, ErrNotFound) {
		t.Errorf("unknown tenant: %v, want ErrNotFound", err)
	}
}
