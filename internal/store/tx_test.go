package store

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
)

// Scopes do not nest: RELEASE SAVEPOINT would keep the inner tenant.
func TestTransactionRefusesAnotherTenant(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	ctx, other := WithTenant(t.Context(), tenantA), WithTenant(t.Context(), tenantB)
	tx, err := f.beginTenantTx(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(ctx) //nolint:errcheck // the test is over
	for _, started := range []bool{false, true} {
		if started {
			if _, err := tx.Exec(ctx, sqlRename, "eve", "a_1"); err != nil {
				t.Fatal(err)
			}
		}
		_, execErr := tx.Exec(other, sqlRename, "x", "a_2")
		_, queryErr := tx.Query(other, sqlHandles) //nolint:sqlclosecheck // it is refused
		_, beginErr := tx.Begin(other)
		for name, err := range map[string]error{
			"Exec": execErr, "Query": queryErr, "Begin": beginErr,
			"QueryRow":  tx.QueryRow(other, sqlHandles).Scan(new(string)),
			"SendBatch": tx.SendBatch(other, &pgx.Batch{}).Close(),
		} {
			if !errors.Is(err, errOtherTenant) {
				t.Errorf("started %v: %s for another tenant: %v", started, name, err)
			}
		}
	}
}

// A door inside a transaction would wait for a place that the transaction itself holds.
func TestDoorsRefuseInsideATransaction(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	err := f.inTenantTx(WithTenant(t.Context(), tenantA), func(ctx context.Context, _ pgx.Tx) error {
		_, err := query(ctx, f.Store, pgx.RowTo[string], sqlHandles)
		return err
	})
	if !errors.Is(err, errNested) {
		t.Errorf("a door inside a transaction: %v", err)
	}
}

func TestTransactionEnds(t *testing.T) {
	t.Parallel()
	f := newFixture(t, func(c *Config) {
		c.MaxConns, c.Limits = 1, func(TenantID) Limits { return Limits{Transactions: 1} }
	})
	ctx := WithTenant(t.Context(), tenantA)
	boom := errors.New("boom")
	err := f.inTenantTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, sqlRename, "eve", "a_1"); err != nil {
			return err
		}
		return boom
	})
	if !errors.Is(err, boom) {
		t.Errorf("the callback's error became %v", err)
	}
	if diff := cmp.Diff([]string{"ada", "bob"}, f.handles(t)); diff != "" {
		t.Errorf("a failed transaction left: %s", diff)
	}

	cancelled, cancel := context.WithCancel(ctx)
	err = f.inTenantTx(cancelled, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, sqlRename, "eve", "a_1")
		cancel()
		return errors.Join(err, ctx.Err())
	})
	if !errors.Is(err, context.Canceled) || errors.Is(err, ErrUnavailable) {
		t.Errorf("a cancelled transaction: %v", err)
	}

	// Place and connection were given back each time, or this would wait for ever.
	err = f.inTenantTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, sqlRename, "eve", "a_1")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"bob", "eve"}, f.handles(t)); diff != "" {
		t.Error(diff)
	}
}

// What a transaction offers beyond statements must not lead around its scope.
func TestTransactionOffersNoWayAround(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	ctx := WithTenant(t.Context(), tenantA)
	tx, err := f.beginTenantTx(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if tx.Conn() != nil {
		t.Error("the connection is within reach")
	}
	if _, err := tx.CopyFrom(ctx, pgx.Identifier{"compass", "accounts"}, nil, nil); err == nil {
		t.Error("CopyFrom is open")
	}
	if _, err := tx.Prepare(ctx, "x", "select 1"); err == nil {
		t.Error("Prepare is open")
	}
	if err := tx.Rollback(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(ctx, sqlHandles); !errors.Is(err, pgx.ErrTxClosed) {
		t.Errorf("Exec after the end: %v", err)
	}
	if err := tx.Commit(ctx); !errors.Is(err, pgx.ErrTxClosed) {
		t.Errorf("Commit after the end: %v", err)
	}
}

// The first statement's batch is closed with its rows, however the caller leaves them.
func TestFirstRowsAndThenMore(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	leave := map[string]func(pgx.Rows) error{
		"closed at once": func(r pgx.Rows) error { r.Close(); return r.Err() },
		"read to the end, not closed": func(r pgx.Rows) error {
			for r.Next() {
			}
			return r.Err()
		},
		"collected": func(r pgx.Rows) error { _, err := pgx.CollectRows(r, pgx.RowTo[string]); return err },
	}
	for name, how := range leave {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := f.inTenantTx(WithTenant(t.Context(), tenantA), func(ctx context.Context, tx pgx.Tx) error {
				rows, err := tx.Query(ctx, sqlHandles)
				if err != nil {
					return err
				}
				if err := how(rows); err != nil {
					return err
				}
				inner, err := tx.Begin(ctx)
				if err != nil {
					return err
				}
				if _, err := inner.Exec(ctx, sqlRename, "x", "a_1"); err != nil {
					return err
				}
				return inner.Rollback(ctx)
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
}
