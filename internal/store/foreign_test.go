package store

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// A tenant's own database may answer anything; what it may cost is bounded, and the shared one is not (design section 5).
func TestForeignDatabaseIsBounded(t *testing.T) {
	t.Parallel()
	p := newPair(t, func(c *Config) { c.Limits = func(TenantID) Limits { return Limits{StatementTimeout: time.Minute} } })
	a, b := WithTenant(t.Context(), tenantA), WithTenant(t.Context(), tenantB)
	for name, sql := range map[string]string{
		"rows without end": `select i::text from generate_series(1, 100001) i`,
		"one huge row":     `select repeat('x', 80 * 1024 * 1024)`,
		"bytes in all":     `select repeat('x', 4 * 1024 * 1024) from generate_series(1, 70)`,
	} {
		if _, err := query(b, p.Store, pgx.RowTo[string], sql); !errors.Is(err, errTooMuch) || !errors.Is(err, ErrUnavailable) {
			t.Errorf("%s: %v, want ErrUnavailable and why", name, err)
		}
	}
	rows, err := query(a, p.Store, pgx.RowTo[string], `select i::text from generate_series(1, 100001) i`)
	if err != nil || len(rows) != 100001 {
		t.Errorf("the shared database: %d rows, %v", len(rows), err)
	}
	if _, err := handlesOf(t.Context(), p.Store, tenantB); err != nil {
		t.Errorf("after that: %v", err)
	}

	p.databases[1].app.patience = 200 * time.Millisecond
	p.proxy.Pause(true)
	defer p.proxy.Pause(false)
	calls := map[string]func() error{
		"query": func() error { _, err := query(b, p.Store, pgx.RowTo[string], sqlHandles); return err },
		"do":    func() error { _, err := p.exec(b, sqlRename, "bob", "a_1"); return err },
		"transaction": func() error {
			return p.inTenantTx(b, func(ctx context.Context, tx pgx.Tx) error {
				return tx.QueryRow(ctx, sqlHandles).Scan(new(string))
			})
		},
	}
	for name, call := range calls {
		if err := call(); !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, ErrUnavailable) {
			t.Errorf("%s of a database that is silent: %v, want it to end", name, err)
		}
	}
	if _, err := handlesOf(t.Context(), p.Store, tenantA); err != nil {
		t.Errorf("the living database's tenant: %v", err)
	}
}
