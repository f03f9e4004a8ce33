package store

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

const LoopMine SystemLoop = "mine" // want `declare system loops in system.go`

const (
	sqlSet      = `SET compass.tenant_id = 'x'`                            // want `SET outlives the transaction`
	sqlSession  = `set session statement_timeout to 0`                     // want `SET outlives the transaction`
	sqlLater    = `select 1; set lock_timeout = 0`                         // want `SET outlives the transaction`
	sqlRole     = `set role compass_system`                                // want `SET ROLE outlives`
	sqlSession2 = `set session authorization x`                            // want `SET ROLE outlives`
	sqlReset    = `reset role`                                             // want `only the migration runner`
	sqlAsOwner  = `set local role compass_owner`                           // want `only the migration runner`
	sqlFalse    = `select set_config('compass.tenant_id', $1, false)`      // want `set_config must end`
	sqlParam    = `select set_config('compass.tenant_id', lower($1), $2)`  // want `set_config must end`
	sqlJoined   = `select set_config('compass.tenant_id', ` + `$1, false)` // want `set_config must end`
	sqlLocked   = `select pg_advisory_lock(1)`                             // want `session's lock`
	sqlTry      = `select pg_try_advisory_lock(1)`                         // want `session's lock`
	sqlListen   = `listen compass`                                         // want `belongs to a session`
	sqlTemp     = `create temp table x (id int)`                           // want `belongs to a session`
	sqlPrepare  = `prepare x as select 1`                                  // want `belongs to a session`

	//compass:hot the sweep
	sqlCoalesce = `select 1 from a join b on b.pos > coalesce(a.acked, 0)` // want `coalesce.* is not leakproof`
	//compass:hot
	sqlDeep = `with a as (select 1 from t where lower(y) = $1) select 1 from a` // want `"lower.*is not leakproof`
	//compass:hot
	sqlJSON = `select 1 from a where blocks @> $1` // want `"@>" is not leakproof`
	//compass:hot
	sqlLike = `select 1 from a where handle ilike $1` // want `"ilike" is not leakproof`
)

func (s *Store) bad(ctx context.Context, id string) error {
	p, err := pgxpool.New(ctx, id) // want `pgxpool.Pool is not for this file`
	if err != nil {
		return err
	}
	_, _ = p.Exec(ctx, sqlRead)                       // want `pgxpool.Pool is not for this file`
	_ = s.databases[0].app.open                       // want `a pool is not for this file` `pgxpool.Pool is not for this file`
	_ = s.exec(ctx, "select '"+id+"'")                // want `SQL must be a constant`
	_ = s.exec(ctx, fmt.Sprintf("select '%s'", id))   // want `SQL must be a constant`
	_ = s.do(ctx, func(b *pgx.Batch) { b.Queue(id) }) // want `SQL must be a constant`
	_ = SystemLoop(id)                                // want `a system loop is one of the constants`
	return s.inTenantTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		_ = run(ctx, tx, "select "+id)                      // want `SQL must be a constant`
		_, err := tx.CopyFrom(ctx, "compass.messages", nil) // want `COPY FROM does not work`
		_, _ = tx.Conn().Exec(ctx, sqlRead)                 // want `pgx.Conn is not for this file`
		return err
	})
}

// Each type that leads to a connection, however it was come by.
func (s *Store) handles(c pgxpool.Conn, tx pgxpool.Tx, pools *pgxpool.Config, one pgx.ConnConfig, raw *pgconn.PgConn) {
	_ = c     // want `pgxpool.Conn is not for this file`
	_ = tx    // want `pgxpool.Tx is not for this file`
	_ = pools // want `pgxpool.Config is not for this file`
	_ = one   // want `pgx.ConnConfig is not for this file`
	_ = raw   // want `pgconn.PgConn is not for this file`
	for _, db := range s.databases {
		_ = db // want `a database is not for this file`
	}
	sc := s.enter() // want `a scope is not for this file`
	_ = sc          // want `a scope is not for this file`
}

func (s *Store) Exported(ctx context.Context, sql string) error {
	return s.exec(ctx, sql) // want `SQL must be a constant`
}

func renamed(ctx context.Context, tx pgx.Tx, lock string) error {
	_, err := tx.Exec(ctx, lock) // want `SQL must be a constant`
	return err
}
