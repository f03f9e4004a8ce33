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
	sqlSet      = `SET compass.tenant_id = 'x'`                                                   // want `SET outlives the transaction`
	sqlSession  = `set session statement_timeout to 0`                                            // want `SET outlives the transaction`
	sqlLater    = `select 1; set lock_timeout = 0`                                                // want `SET outlives the transaction`
	sqlRole     = `set role compass_system`                                                       // want `SET ROLE outlives`
	sqlSession2 = `set session authorization x`                                                   // want `SET ROLE outlives`
	sqlReset    = `reset role`                                                                    // want `only the migration runner`
	sqlAsOwner  = `set local role compass_owner`                                                  // want `only the migration runner`
	sqlFalse    = `select set_config('compass.tenant_id', $1, false)`                             // want `set by the doors alone` `set_config must end`
	sqlParam    = `select set_config('compass.tenant_id', lower($1), $2)`                         // want `set by the doors alone` `set_config must end`
	sqlJoined   = `select set_config('compass.tenant_id', ` + `$1, false)`                        // want `set by the doors alone` `set_config must end`
	sqlLocked   = `select pg_advisory_lock(1)`                                                    // want `session's lock`
	sqlTry      = `select pg_try_advisory_lock(1)`                                                // want `session's lock`
	sqlListen   = `listen compass`                                                                // want `belongs to a session`
	sqlTemp     = `create temp table x (id int)`                                                  // want `belongs to a session`
	sqlPrepare  = `prepare x as select 1`                                                         // want `belongs to a session`
	sqlSettings = `update pg_settings set setting = $1`                                           // want `pg_settings outlives`
	sqlComment  = "-- why\nset role x"                                                            // want `SET ROLE outlives`
	sqlQuoted   = `set "compass.tenant_id" = 'x'`                                                 // want `SET outlives the transaction`
	sqlLocked2  = `select "pg_advisory_lock"(1)`                                                  // want `session's lock`
	sqlNotTrue  = `select set_config('compass.tenant_id', $1, not true)`                          // want `set by the doors alone` `set_config must end`
	sqlCast     = `select set_config('compass.tenant_id', (select lower(trim($1))), false::bool)` // want `set by the doors alone` `set_config must end`
	sqlNamed    = `select set_config(setting_name => 'x', new_value => $1, is_local => false)`    // want `set_config must end`
	sqlAsRole   = `select set_config('role', 'x', true)`                                          // want `set_config must end`

	//compass:hot the sweep
	sqlCoalesce = `select 1 from a join b on b.pos > coalesce(a.acked, 0)` // want `coalesce.* is not leakproof`
	//compass:hot
	sqlDeep = `with a as (select 1 from t where lower(y) = $1) select 1 from a` // want `"lower.*is not leakproof`
	//compass:hot
	sqlJSON = `select 1 from a where blocks @> $1` // want `"@>" is not leakproof`
	//compass:hot
	sqlHash = `select 1 from a where md5(handle) = $1` // want `"md5.*is not leakproof`
	//compass:hot
	sqlPrefix = `select 1 from a where handle ^@ $1` // want `is not leakproof`
	//compass:hot
	sqlNotLike = `select 1 from a where not (handle !~ $1)` // want `"!~" is not leakproof`
	//compass:hot
	sqlPath = `select 1 from a where blocks #>> '{a}' = 'x'` // want `"#>>" is not leakproof`
	//compass:hot
	sqlLike = `select 1 from a where handle ilike $1` // want `"ilike" is not leakproof`
)

func (s *Store) bad(ctx context.Context, id string) error {
	p, err := pgxpool.New(ctx, id) // want `pgxpool.Pool is not for this file`
	if err != nil {
		return err
	}
	_, _ = p.Exec(ctx, sqlRead)                       // want `pgxpool.Pool is not for this file`
	_ = s.databases[0].app.open                       // want `a database is` `a database is` `a pool is not for this file` `pgxpool.Pool is not for this file`
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
func (s *Store) handles(
	c pgxpool.Conn, // want `pgxpool.Conn is not for this file`
	tx pgxpool.Tx, // want `pgxpool.Tx is not for this file`
	pools *pgxpool.Config, // want `pgxpool.Config is not for this file`
	one pgx.ConnConfig, // want `pgx.ConnConfig is not for this file`
	raw *pgconn.PgConn, // want `pgconn.PgConn is not for this file`
) {
	_ = c                            // want `pgxpool.Conn is not for this file`
	_ = tx                           // want `pgxpool.Tx is not for this file`
	_ = pools                        // want `pgxpool.Config is not for this file`
	_ = one                          // want `pgx.ConnConfig is not for this file`
	_ = raw                          // want `pgconn.PgConn is not for this file`
	for _, db := range s.databases { // want `a database is not for this file`
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

// holder hides a connection; alias gives it another name.
type holder struct {
	*pgx.Conn // want `pgx.Conn is not for this file`
}

type alias = pgx.Conn

func aliased(ctx context.Context, c *alias) { // want `pgx.Conn is not for this file`
	_, _ = c.Exec(ctx, sqlRead) // want `pgx.Conn is not for this file`
}

func reassigned(ctx context.Context, s *Store, sql, id string) error {
	sql += " where id = '" + id + "'"
	return s.exec(ctx, sql) // want `SQL must be a constant`
}

func unnamed(ctx context.Context, tx interface {
	Exec(context.Context, string, ...any) (int, error)
}, id string) {
	_, _ = tx.Exec(ctx, "select "+id) // want `SQL must be a constant`
	f := tx.Exec
	_, _ = f(ctx, "select "+id) // want `SQL must be a constant`
}

func past(ctx context.Context, tx pgx.Tx, b *pgx.Batch, id string) {
	b.QueuedQueries = append(b.QueuedQueries, &pgx.QueuedQuery{SQL: id}) // want `comes into a batch by Queue` `comes into a batch by Queue` `comes into a batch by Queue`
	_, _ = tx.Exec(ctx, sqlRead, rewriter(id))                           // want `this rewrites it`
}

type rewriter string

func (r rewriter) RewriteQuery(context.Context, *pgx.Conn, string, []any) (string, []any, error) { // want `pgx.Conn is not for this file`
	return string(r), nil, nil
}

// What is handed over is one statement of four kinds.
func others(ctx context.Context, tx pgx.Tx) {
	_, _ = tx.Exec(ctx, `do $$ begin null; end $$`)                              // want `selects, inserts, updates or deletes`
	_, _ = tx.Exec(ctx, `select set_config('compass.tenant_id', $1, true)`, "x") // want `set by the doors alone`
	_, _ = tx.Exec(ctx, `commit`)                                                // want `selects, inserts, updates or deletes`
	_, _ = tx.Exec(ctx, `alter role current_user set lock_timeout = 0`)          // want `selects, inserts, updates or deletes`
	_, _ = tx.Exec(ctx, `select 1; select 2`)                                    // want `selects, inserts, updates or deletes`
	_, _ = tx.Exec(ctx, `select 1 into y`)                                       // want `SELECT INTO makes a table`
}
