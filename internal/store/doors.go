package store

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// The tenant and its time limit lead every scoped transaction, in one statement so that they cost one result. set_config
// with true is SET LOCAL that takes parameters and warns nobody; it ends with the transaction, also an implicit one.
const (
	sqlScope         = `select set_config('compass.tenant_id', $1, true), set_config('statement_timeout', $2, true)`
	sqlScopeReadOnly = sqlScope + `, set_config('transaction_read_only', 'on', true)`
	// A client that freezes between two statements of a transaction would keep its locks. Of a batch it is the connection
	// that must break halfway, which the roles' keepalive notices.
	sqlScopeTx = sqlScope + `, set_config('idle_in_transaction_session_timeout', $2, true)`

	sqlAssertWriter = `select compass.assert_writer($1, $2, $3, $4)`
)

// errFenced: the process is a delivery worker, whose writes all go through writerDo.
var errFenced = errors.New("this store is opened for a delivery worker: writes go through writerDo")

// errNested: a door was used with the context of an open transaction. It would take a second connection, and wait for a
// place that its own transaction holds.
var errNested = errors.New("inside a transaction use the transaction")

// scope is one tenant's way into one database for the length of a call.
type scope struct {
	db     *database
	tenant TenantID
	limits Limits
	leave  func()
}

// enter finds the tenant of the context, its database and its turn. The caller must call leave.
func (s *Store) enter(ctx context.Context) (scope, error) {
	tenant := s.ResolveTenant(ctx)
	if err := validTenant(tenant); err != nil {
		return scope{}, err
	}
	if ctx.Value(txKey{}) != nil {
		return scope{}, errNested
	}
	db, err := s.route(ctx, tenant)
	if err != nil {
		return scope{}, err
	}
	limits := s.config.Limits(tenant).orDefault()
	limits.Transactions = min(limits.Transactions, s.config.share())
	leave, err := s.turns.enter(ctx, tenant, limits.Transactions)
	if err != nil {
		return scope{}, err
	}
	return scope{db: db, tenant: tenant, limits: limits, leave: leave}, nil
}

func (sc scope) timeout() string {
	return strconv.FormatInt(sc.limits.StatementTimeout.Milliseconds(), 10)
}

// query runs one statement for the tenant of the context and returns its rows: one round trip. The rows exist only once
// the implicit transaction has committed, so they are returned whole or not at all. No row is an empty slice.
func query[T any](ctx context.Context, s *Store, scan pgx.RowToFunc[T], sql string, args ...any) ([]T, error) {
	sc, err := s.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer sc.leave()
	lead := sqlScope
	if s.config.Fenced {
		lead = sqlScopeReadOnly
	}
	b := &pgx.Batch{}
	b.Queue(lead, sc.tenant, sc.timeout())
	rows, err := collect(ctx, sc.db.app, b, scan, sql, args)
	return rows, s.heard(sc.tenant, err)
}

// queryOne is query for a statement that finds one row: ErrNotFound where there is none. A second row is an error of the
// statement and said as such.
func queryOne[T any](ctx context.Context, s *Store, scan pgx.RowToFunc[T], sql string, args ...any) (T, error) {
	rows, err := query(ctx, s, scan, sql, args...)
	return only(rows, err)
}

func only[T any](rows []T, err error) (T, error) {
	var zero T
	switch {
	case err != nil:
		return zero, err
	case len(rows) == 0:
		return zero, ErrNotFound
	case len(rows) > 1:
		return zero, fmt.Errorf("%d rows where one was asked for", len(rows))
	}
	return rows[0], nil
}

// exec runs one statement for the tenant of the context: one round trip.
func (s *Store) exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	var tag pgconn.CommandTag
	err := s.do(ctx, func(b *pgx.Batch) {
		b.Queue(sql, args...).Exec(func(t pgconn.CommandTag) error { tag = t; return nil })
	})
	return tag, err
}

// do runs statements that do not need each other's results as one implicit transaction: one round trip, all or none.
//
// What callbacks receive is provisional: it counts only if do returns nil, because a deferred constraint may still fail.
// An error that a callback returns is reported but undoes nothing, the server has committed by then: a condition that
// must stop the batch belongs into its SQL. No statement of the batch may end the transaction or set a savepoint.
func (s *Store) do(ctx context.Context, fill func(b *pgx.Batch)) error {
	if s.config.Fenced {
		return errFenced
	}
	sc, err := s.enter(ctx)
	if err != nil {
		return err
	}
	defer sc.leave()
	b := &pgx.Batch{}
	b.Queue(sqlScope, sc.tenant, sc.timeout())
	fill(b)
	return s.heard(sc.tenant, sc.db.app.run(ctx, b))
}

// writerDo is do for the delivery worker: the batch is led by assert_writer, so nothing of it happens unless this worker
// holds the stream's lease in the tenant's database and the tenant is this stream's (K3). ErrStaleWriter and ErrFrozen
// are its refusals. The same promises as do's hold.
func (s *Store) writerDo(ctx context.Context, fence Fence, fill func(b *pgx.Batch)) error {
	sc, err := s.enter(ctx)
	if err != nil {
		return err
	}
	defer sc.leave()
	writing := s.writing.of(sc.db.id, fence.Stream)
	writing.RLock()
	defer writing.RUnlock()
	b := &pgx.Batch{}
	b.Queue(sqlScope, sc.tenant, sc.timeout())
	b.Queue(sqlAssertWriter, fence.Stream, fence.Epoch, fence.Nonce, sc.tenant)
	fill(b)
	return s.heard(sc.tenant, sc.db.app.run(ctx, b))
}

// collect sends b with one more statement, whose rows it returns once the batch has closed without an error.
func collect[T any](ctx context.Context, p *pool, b *pgx.Batch, scan pgx.RowToFunc[T], sql string, args []any) ([]T, error) {
	var out []T
	b.Queue(sql, args...).Query(func(rows pgx.Rows) (err error) {
		out, err = pgx.CollectRows(rows, scan)
		return err
	})
	if err := p.run(ctx, b); err != nil {
		return nil, err
	}
	return out, nil
}
