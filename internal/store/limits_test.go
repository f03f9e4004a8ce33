package store

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// Holds REQ-106: a tenant's statement ends at the tenant's own limit, by every door, and is no sign of an outage.
func TestStatementTimeoutIsTheTenants(t *testing.T) {
	t.Parallel()
	f := newFixture(t, func(c *Config) {
		c.MaxConns = 1
		c.Limits = func(id TenantID) Limits {
			if id == tenantA {
				return Limits{StatementTimeout: 50 * time.Millisecond}
			}
			return Limits{}
		}
	})
	const slow = `select pg_sleep(20)`
	ctx := WithTenant(t.Context(), tenantA)
	_, queryErr := query(ctx, f.Store, pgx.RowTo[any], slow)
	_, execErr := f.exec(ctx, slow)
	txErr := f.inTenantTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, sqlRename, "ada", "a_1"); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, slow)
		return err
	})
	for door, err := range map[string]error{"query": queryErr, "exec": execErr, "transaction": txErr} {
		if !errors.Is(err, ErrTimeout) || errors.Is(err, ErrUnavailable) {
			t.Errorf("%s: %v, want ErrTimeout", door, err)
		}
	}
	// The same connection, another tenant: the limit went with its transaction.
	got, err := queryOne(WithTenant(t.Context(), tenantB), f.Store, pgx.RowTo[string], `select current_setting('statement_timeout')`)
	if err != nil || got != "5s" {
		t.Errorf("another tenant's timeout = %q, %v; want the default 5s", got, err)
	}
}

// Holds REQ-106: one tenant's transactions are bounded, and do not bound another's.
func TestTransactionsPerTenant(t *testing.T) {
	t.Parallel()
	f := newFixture(t, func(c *Config) { c.Limits = func(TenantID) Limits { return Limits{Transactions: 2} } })
	ctx := WithTenant(t.Context(), tenantA)
	var open []pgx.Tx
	for range 2 {
		tx, err := f.beginTenantTx(ctx)
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, tx)
	}
	short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	if _, err := query(short, f.Store, pgx.RowTo[string], sqlHandles); !errors.Is(err, ErrTimeout) {
		t.Errorf("a third transaction: %v, want ErrTimeout", err)
	}
	if _, err := query(WithTenant(t.Context(), tenantB), f.Store, pgx.RowTo[string], sqlHandles); err != nil {
		t.Errorf("another tenant: %v", err)
	}
	if err := open[0].Rollback(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := query(ctx, f.Store, pgx.RowTo[string], sqlHandles); err != nil {
		t.Errorf("after one ended: %v", err)
	}
	if err := open[1].Rollback(ctx); err != nil {
		t.Fatal(err)
	}
	if n := len(f.turns.tenants); n != 0 {
		t.Errorf("%d tenants are remembered though none is inside", n)
	}
}

// A transaction that is open over several calls ends with its tenant's timeout also where nobody says anything in it.
func TestTransactionIsBoundedWhileIdle(t *testing.T) {
	t.Parallel()
	f := newFixture(t, func(c *Config) {
		c.Limits = func(TenantID) Limits { return Limits{StatementTimeout: 1234 * time.Millisecond} }
	})
	ctx := WithTenant(t.Context(), tenantA)
	tx, err := f.beginTenantTx(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(ctx) }()
	for _, bound := range []string{"statement_timeout", "idle_in_transaction_session_timeout"} {
		var is string
		if err := tx.QueryRow(ctx, `select current_setting($1)`, bound).Scan(&is); err != nil || is != "1234ms" {
			t.Errorf("%s is %q (%v), want 1234ms", bound, is, err)
		}
	}
}

// A limit that nobody thought about leaves others their part of the pool.
func TestNoTenantTakesTheWholePool(t *testing.T) {
	t.Parallel()
	f := newFixture(t, func(c *Config) {
		c.MaxConns, c.Limits = 4, func(TenantID) Limits { return Limits{Transactions: 50} }
	})
	ctx := WithTenant(t.Context(), tenantA)
	for range 3 {
		tx, err := f.beginTenantTx(ctx)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = tx.Rollback(ctx) }()
	}
	short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	if _, err := query(short, f.Store, pgx.RowTo[string], sqlHandles); !errors.Is(err, ErrTimeout) {
		t.Errorf("a fourth transaction: %v, want ErrTimeout", err)
	}
	if _, err := query(WithTenant(t.Context(), tenantB), f.Store, pgx.RowTo[string], sqlHandles); err != nil {
		t.Errorf("another tenant: %v", err)
	}
}

func TestTurnstileNeverLetsInMoreAndLosesNobody(t *testing.T) {
	t.Parallel()
	const limit, callers = 3, 200
	var ts turnstile
	var inside, worst, entered atomic.Int64
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if i%5 == 0 {
				cancel() // leaves the queue, or finds that its turn has just come
			}
			leave, err := ts.enter(ctx, tenantA, limit)
			if err != nil {
				return
			}
			entered.Add(1)
			for now := inside.Add(1); ; {
				old := worst.Load()
				if now <= old || worst.CompareAndSwap(old, now) {
					break
				}
			}
			inside.Add(-1)
			leave()
		})
	}
	wg.Wait()
	if worst.Load() > limit {
		t.Errorf("%d were inside at once, limit %d", worst.Load(), limit)
	}
	if entered.Load() < callers*4/5 {
		t.Errorf("only %d of the %d that waited came in", entered.Load(), callers*4/5)
	}
	if len(ts.tenants) != 0 {
		t.Errorf("places were lost: %+v", ts.tenants[tenantA])
	}
}

// A caller whose turn comes in the moment in which its context ends passes the place on.
func TestTurnThatComesTooLateIsPassedOn(t *testing.T) {
	t.Parallel()
	var ts turnstile
	leave, err := ts.enter(t.Context(), tenantA, 1)
	if err != nil {
		t.Fatal(err)
	}
	q, turn := ts.tenants[tenantA], make(chan struct{})
	q.waiting = append(q.waiting, turn)
	leave() // hands the place over
	<-turn
	ts.abandon(tenantA, q, turn)
	if len(ts.tenants) != 0 {
		t.Errorf("the place was lost: %+v", *q)
	}
}
