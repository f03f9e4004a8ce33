package store

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

const (
	sqlRead = `select coalesce(handle, '') from compass.accounts where id = $1`
	sqlMore = sqlRead + ` and not deleted`
	sqlBump = `update compass.accounts set handle = $1 where id = $2`
	sqlLock = `select pg_advisory_xact_lock(1)`

	//compass:hot the drain
	sqlDrain = `select coalesce(m.x, 0) from compass.messages m where m.tenant_id = $1 and m.pos > $2 order by m.pos`
	//compass:hot with a sub-select, whose list may be anything
	sqlSweep = `with a as (select coalesce(x, 0) as x from t where y = $1) select (select 1 from t where t.x = a.x), coalesce(a.x, 1) from a left join b on b.x = a.x`
)

func (s *Store) good(ctx context.Context, id string) error {
	if err := s.exec(ctx, sqlMore, id); err != nil {
		return fmt.Errorf("set password of role %s: %w", id, err)
	}
	if err := s.do(ctx, func(b *pgx.Batch) { b.Queue(sqlBump, id, id); b.Queue(sqlLock) }); err != nil {
		return fmt.Errorf("set x of %s = %w", id, err)
	}
	return s.inTenantTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, sqlDrain, id)
		return err
	})
}

// run hands on what its callers are judged for.
func run(ctx context.Context, tx pgx.Tx, sql string, args ...any) error {
	if _, err := tx.Exec(ctx, sql, args...); err != nil {
		return fmt.Errorf("set role of %s: %w", "x", err)
	}
	return run(ctx, tx, sqlBump)
}

var loop = LoopSweep
