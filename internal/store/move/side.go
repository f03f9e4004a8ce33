package move

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/rigelbuild/compass-operator/internal/naming"
	"github.com/rigelbuild/compass-operator/internal/store/pg"
)

// side is one database that a move touches, as its owner within the tenant's scope.
type side struct {
	id     int
	tenant string
	conn   *pgx.Conn
	roles  naming.Roles
}

func (s *side) close(ctx context.Context) { _ = s.conn.Close(context.WithoutCancel(ctx)) }

// scoped runs fn in a transaction as the owner, who sees this tenant's rows and no others.
func (s *side) scoped(ctx context.Context, fn func(pgx.Tx) error) error {
	return pgx.BeginFunc(ctx, s.conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "set local role "+pg.Ident(s.roles.Owner)); err != nil {
			return fmt.Errorf("act as role %s: %w", s.roles.Owner, err)
		}
		const scope = `select set_config('compass.tenant_id', $1, true), set_config('lock_timeout', '10s', true),
			set_config('idle_in_transaction_session_timeout', '60s', true)`
		if _, err := tx.Exec(ctx, scope, s.tenant); err != nil {
			return err
		}
		return fn(tx)
	})
}

// livesIn reads the routing truth.
func (s *side) livesIn(ctx context.Context) (id int, err error) {
	err = s.scoped(ctx, func(tx pgx.Tx) error {
		return tx.QueryRow(ctx, `select p.database_id from compass.placements p where p.tenant_id = $1`, s.tenant).Scan(&id)
	})
	return id, err
}

// flip changes the routing truth, if it still is what it was. Where the tenant does not live, its row stays frozen.
func (s *side) flip(ctx context.Context, from, to int, claim int64) error {
	return s.scoped(ctx, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `update compass.placements p set database_id = $3, claim = $4 where p.tenant_id = $1 and p.database_id = $2`,
			s.tenant, from, to, claim)
		if err != nil {
			return err
		}
		if tag.RowsAffected() != 1 {
			return fmt.Errorf("%w: it does not live in database %d any more", pg.ErrConflict, from)
		}
		_, err = tx.Exec(ctx, `update compass.tenants t set frozen = $2 where t.id = $1`, s.tenant, to != 0)
		return err
	})
}

// forgetPlacement removes the placement of the database that the tenant leaves: no worker looks there for it any more.
func (s *side) forgetPlacement(ctx context.Context) error {
	return s.scoped(ctx, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `delete from compass.placements p where p.tenant_id = $1`, s.tenant)
		return err
	})
}

func (s *side) setFrozen(ctx context.Context, frozen bool) error {
	return s.scoped(ctx, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `update compass.tenants t set frozen = $2 where t.id = $1 and t.frozen <> $2`, s.tenant, frozen)
		return err
	})
}

// freeze refuses every write from now on. ErrNotFound where the tenant has no row.
func (s *side) freeze(ctx context.Context) error {
	return s.scoped(ctx, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `update compass.tenants t set frozen = true where t.id = $1`, s.tenant)
		if err == nil && tag.RowsAffected() == 0 {
			err = pg.ErrNotFound
		}
		return err
	})
}

// sqlBusy are the transactions of the roles that write. A transaction has its number before its first snapshot, so
// whoever is not among those seen after the freeze had committed sees the freeze.
const sqlBusy = `
select coalesce(array_agg(l.virtualtransaction), '{}')
  from pg_locks l join pg_stat_activity a on a.pid = l.pid
 where l.locktype = 'virtualxid' and a.datname = current_database() and a.usename = any ($1)
   and ($2::text[] is null or l.virtualtransaction = any ($2))`

// awaitQuiet waits until every transaction has ended that began before the freeze and may not have seen it. The bound is on
// the waiting: a question that it cut short would cost the connection, and say no more than that a context ended.
func (s *side) awaitQuiet(ctx context.Context, o Options) error {
	bounded, cancel := context.WithTimeout(ctx, o.Quiet)
	defer cancel()
	writers := []string{s.roles.App, s.roles.Provision}
	var before []string
	if err := s.conn.QueryRow(ctx, sqlBusy, writers, nil).Scan(&before); err != nil {
		return err
	}
	for left := before; len(left) > 0; {
		select {
		case <-bounded.Done():
			return errors.Join(ctx.Err(), fmt.Errorf("%w: %d transactions from before the freeze have not ended", pg.ErrTimeout, len(left)))
		case <-o.After(pollEvery):
		}
		if err := s.conn.QueryRow(ctx, sqlBusy, writers, before).Scan(&left); err != nil {
			return err
		}
	}
	return nil
}

// differ refuses to move within one database that two names or addresses lead to: a lock that is held in it is held.
func differ(ctx context.Context, a, b *side) error {
	const lock = `select pg_try_advisory_lock(hashtextextended('compass move ' || $1, 0))`
	var first, second bool
	if err := a.conn.QueryRow(ctx, lock, a.tenant).Scan(&first); err != nil {
		return err
	}
	if err := b.conn.QueryRow(ctx, lock, b.tenant).Scan(&second); err != nil {
		return err
	}
	switch {
	case !first:
		return fmt.Errorf("%w: another move of it is under way", pg.ErrConflict)
	case !second:
		return ErrSameDatabase
	}
	return nil
}

// sameSchema refuses a copy between databases whose tables may differ.
func sameSchema(ctx context.Context, a, b *side) error {
	const sql = `select coalesce(string_agg(m.version || ':' || m.sha256, ' ' order by m.version), '') from compass.schema_migrations m`
	var texts [2]string
	for i, s := range []*side{a, b} {
		err := s.scoped(ctx, func(tx pgx.Tx) error { return tx.QueryRow(ctx, sql).Scan(&texts[i]) })
		if err != nil {
			return err
		}
	}
	if texts[0] != texts[1] {
		return fmt.Errorf("%w: databases %d and %d are not at the same version: run `compass migrate up` on both", pg.ErrSchema, a.id, b.id)
	}
	return nil
}
