package store

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	// A Runner without sessions has nothing that could expire: when it comes back it goes on with its incarnation.
	sqlOverdueRunners = `
select l.runner_id from compass.runner_leases l
 where l.expires_at <= clock_timestamp()
   and exists (select from compass.session_bindings b where b.runner_id = l.runner_id and b.incarnation = l.incarnation and b.live)
 order by l.expires_at limit $1`

	sqlExpireRunner = `select compass.runner_expire($1, $2, $3)`

	// Sessions of a process that is gone: the Runner said hello again, or its lease was expired (IncMismatch).
	sqlStaleSessions = `
select b.tenant_id, b.session_id from compass.session_bindings b
  left join compass.runner_leases l on l.runner_id = b.runner_id
 where b.live and l.incarnation is distinct from b.incarnation and ($1 = '' or b.runner_id = $1)
 order by b.tenant_id, b.session_id limit $2`

	sqlStillCurrent = `select from compass.runner_leases l where l.runner_id = $1 and l.incarnation = $2`

	sqlOverlongTurns = `
select t.tenant_id, t.session_id, t.id from compass.turns t
 where t.settled_by is null and t.opened_at_unix_ms < compass.unix_ms() - $1
 order by t.opened_at_unix_ms limit $2`

	sqlIsOverlong = `
select from compass.turns t
 where t.session_id = $1 and t.id = $2 and t.settled_by is null and t.opened_at_unix_ms < compass.unix_ms() - $3`
)

// expiryPage bounds one look; the next one goes on where this one ended what it found.
const expiryPage = 500

// TenantSession names a session of some tenant. Turn is set where the turn is meant.
type TenantSession struct {
	Tenant  TenantID
	Session string
	Turn    string
}

// OverdueRunners lists the Runners of a database whose lease is over and that have live sessions there. It only finds
// whom; ExpireRunner judges.
func (s *Store) OverdueRunners(ctx context.Context, database int) ([]string, error) {
	ids, err := systemQuery(ctx, s, LoopExpiry, database, pgx.RowTo[string], sqlOverdueRunners, expiryPage)
	return ids, wrapf(err, "list overdue Runners of database %d", database)
}

// Expiry asks to end a Runner's incarnation in one database.
type Expiry struct {
	Database int
	Runner   string
	// Probe is the database's own time when Postgres and NATS were last seen well, and Fresh how old that may be: whoever
	// was frozen since its verdict expires nothing (HealthDB, ExpireRecheck).
	Probe time.Time
	Fresh time.Duration
}

// ExpireRunner judges again under the Runner's row lock: the lease is over and the caller's look at a healthy world is
// fresh. Then it raises the incarnation, so that whatever the old process still sends is refused, and returns true; its
// sessions are stale from then on. The caller has seen one whole lease of health (D6).
func (s *Store) ExpireRunner(ctx context.Context, e Expiry) (bool, error) {
	expired, err := only(systemQuery(ctx, s, LoopExpiry, e.Database, pgx.RowTo[bool], sqlExpireRunner, e.Runner, e.Probe, e.Fresh))
	return expired, wrapf(err, "expire Runner %s", e.Runner)
}

// StaleSessions lists live sessions of a database whose Runner process is gone: of one Runner, or of all where it is "".
// It only finds whom; EndStaleSession judges.
func (s *Store) StaleSessions(ctx context.Context, database int, runner string) ([]TenantSession, error) {
	found, err := systemQuery(ctx, s, LoopExpiry, database, func(row pgx.CollectableRow) (t TenantSession, err error) {
		err = row.Scan(&t.Tenant, &t.Session)
		return t, err
	}, sqlStaleSessions, runner, expiryPage)
	return found, wrapf(err, "list stale sessions of database %d", database)
}

// EndStaleSession ends a session of the context's tenant whose Runner process is gone, judged again under the binding's
// lock. Its open turn settles as it stands: positions are given as in any settle, and a double does nothing.
func (s *Store) EndStaleSession(ctx context.Context, session string) (Ended, error) {
	return s.end(ctx, session, SettledByExpiry, func(ctx context.Context, tx pgx.Tx, b Binding) (bool, error) {
		current, err := exists(ctx, tx, sqlStillCurrent, b.Runner, b.Incarnation)
		return !current, err
	})
}

// OverlongTurns lists turns of a database that have been open for longer than age.
func (s *Store) OverlongTurns(ctx context.Context, database int, age time.Duration) ([]TenantSession, error) {
	found, err := systemQuery(ctx, s, LoopExpiry, database, func(row pgx.CollectableRow) (t TenantSession, err error) {
		err = row.Scan(&t.Tenant, &t.Session, &t.Turn)
		return t, err
	}, sqlOverlongTurns, age.Milliseconds(), expiryPage)
	return found, wrapf(err, "list overlong turns of database %d", database)
}

// SettleOverlongTurn settles a turn of the context's tenant that has been open for longer than age; its session goes on.
func (s *Store) SettleOverlongTurn(ctx context.Context, session, turn string, age time.Duration) ([]Touched, error) {
	var touched []Touched
	err := s.inTenantTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := lockBinding(ctx, tx, session); err != nil {
			return err
		}
		overlong, err := exists(ctx, tx, sqlIsOverlong, session, turn, age.Milliseconds())
		if err != nil || !overlong {
			return err
		}
		touched, err = settleTurn(ctx, tx, session, turn, SettledByMaxAge)
		return err
	})
	if err != nil {
		return nil, wrapf(err, "settle overlong turn %s", turn)
	}
	return touched, nil
}

// exists runs a statement that selects no column and reports whether it found a row.
func exists(ctx context.Context, tx pgx.Tx, sql string, args ...any) (bool, error) {
	rows, err := tx.Query(ctx, sql, args...)
	if err != nil {
		return false, interpret(err)
	}
	found := rows.Next()
	rows.Close()
	return found, interpret(rows.Err())
}
