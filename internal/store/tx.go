package store

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// txKey marks the context of an open transaction.
type txKey struct{}

// beginTenantTx begins a transaction for the tenant of the context, for statements that depend on each other. It sends
// nothing: BEGIN and the scope travel with the first statement, so k statements cost k + 1 round trips and none cost none.
// The caller commits or rolls back; Rollback after Commit is harmless, so defer it. Prefer inTenantTx, which does both.
//
// Its errors are Postgres's own: pass them to interpret. Every call must bear the tenant that it was begun for.
func (s *Store) beginTenantTx(ctx context.Context) (pgx.Tx, error) {
	if s.config.Fenced {
		return nil, errFenced
	}
	sc, err := s.enter(ctx)
	if err != nil {
		return nil, err
	}
	return &tenantTx{store: s, scope: sc}, nil
}

// inTenantTx runs fn in a transaction for the tenant of the context and commits where fn returns nil. fn must use the
// context that it is given: doors that are called with it refuse, instead of waiting for a second connection.
func (s *Store) inTenantTx(ctx context.Context, fn func(ctx context.Context, tx pgx.Tx) error) error {
	tx, err := s.beginTenantTx(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := tx.(*tenantTx).scope.db.app.bounded(ctx) //nolint:forcetypeassert // beginTenantTx makes no other
	defer cancel()
	// What ended the work may have ended ctx too; the rollback has its own bound in the connection's close.
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	if err := fn(context.WithValue(ctx, txKey{}, true), tx); err != nil {
		return s.heard(s.ResolveTenant(ctx), interpret(err))
	}
	return s.heard(s.ResolveTenant(ctx), interpret(tx.Commit(ctx)))
}

// tenantTx is a pgx.Tx that begins with its first statement. It is not safe for concurrent use, as no transaction is.
type tenantTx struct {
	store *Store
	scope scope
	inner pgx.Tx // nil until the first statement
	ended bool
}

var errOtherTenant = errors.New("the transaction was begun for another tenant")

// check refuses a call for another tenant: RELEASE SAVEPOINT would keep an inner scope, so scopes do not nest.
func (tx *tenantTx) check(ctx context.Context) error {
	if tx.ended {
		return pgx.ErrTxClosed
	}
	if t := tx.store.ResolveTenant(ctx); t != tx.scope.tenant {
		return errOtherTenant
	}
	return nil
}

// start sends BEGIN, the scope and the first statement together, and has read the answers to the first two.
func (tx *tenantTx) start(ctx context.Context, sql string, args []any) (pgx.BatchResults, error) {
	b := &pgx.Batch{}
	b.BeginTx(pgx.TxOptions{})
	b.Queue(sqlScopeTx, tx.scope.tenant, tx.scope.timeout())
	b.Queue(sql, args...)
	results := tx.scope.db.app.send(ctx, b)
	tx.inner = results.Tx()
	for range 2 {
		if _, err := results.Exec(); err != nil {
			return nil, errors.Join(err, ignoreRepeat(err, results.Close()))
		}
	}
	return results, nil
}

// ignoreRepeat drops second where it only repeats first, as the Close of a failed batch does.
func ignoreRepeat(first, second error) error {
	if errors.Is(first, second) {
		return nil
	}
	return second
}

func (tx *tenantTx) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	if err := tx.check(ctx); err != nil {
		return pgconn.CommandTag{}, err
	}
	if tx.inner != nil {
		return tx.inner.Exec(ctx, sql, args...)
	}
	results, err := tx.start(ctx, sql, args)
	if err != nil {
		return pgconn.CommandTag{}, err
	}
	tag, err := results.Exec()
	return tag, errors.Join(err, ignoreRepeat(err, results.Close()))
}

func (tx *tenantTx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if err := tx.check(ctx); err != nil {
		return failedRows{err: err}, err
	}
	if tx.inner != nil {
		return tx.inner.Query(ctx, sql, args...)
	}
	results, err := tx.start(ctx, sql, args)
	if err != nil {
		return failedRows{err: err}, err
	}
	rows, err := results.Query()
	return &firstRows{Rows: rows, results: results}, err
}

func (tx *tenantTx) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	rows, _ := tx.Query(ctx, sql, args...)
	return singleRow{rows: rows}
}

// SendBatch sends independent statements inside the transaction: one round trip, also as the first thing.
func (tx *tenantTx) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	if err := tx.check(ctx); err != nil {
		return pgx.FailedBatchResults(b, err)
	}
	if tx.inner == nil { // a batch cannot be prefixed once it is filled, so BEGIN and scope go ahead of it
		if err := tx.open(ctx); err != nil {
			return pgx.FailedBatchResults(b, err)
		}
	}
	return tx.inner.SendBatch(ctx, b)
}

// open begins without a statement.
func (tx *tenantTx) open(ctx context.Context) error {
	_, err := tx.Exec(ctx, "select")
	return err
}

// Begin sets a savepoint.
func (tx *tenantTx) Begin(ctx context.Context) (pgx.Tx, error) {
	if err := tx.check(ctx); err != nil {
		return nil, err
	}
	if tx.inner == nil {
		if err := tx.open(ctx); err != nil {
			return nil, err
		}
	}
	return tx.inner.Begin(ctx)
}

func (tx *tenantTx) Commit(ctx context.Context) error {
	return tx.end(func() error { return tx.inner.Commit(ctx) })
}

func (tx *tenantTx) Rollback(ctx context.Context) error {
	return tx.end(func() error { return tx.inner.Rollback(ctx) })
}

func (tx *tenantTx) end(how func() error) error {
	if tx.ended {
		return pgx.ErrTxClosed
	}
	tx.ended = true
	defer tx.scope.leave()
	if tx.inner == nil {
		return nil
	}
	return how()
}

// The rest of pgx.Tx would lead around the scope or cannot work under row-level security, so it is refused.

func (tx *tenantTx) CopyFrom(context.Context, pgx.Identifier, []string, pgx.CopyFromSource) (int64, error) {
	return 0, errors.New("COPY FROM does not work under row-level security: use INSERT … SELECT unnest(…)")
}

func (tx *tenantTx) Prepare(context.Context, string, string) (*pgconn.StatementDescription, error) {
	return nil, errors.New("a prepared name does not survive a pooler: statements are prepared for you")
}

func (tx *tenantTx) LargeObjects() pgx.LargeObjects {
	panic(fmt.Sprintf("large objects have no row-level security (tenant %s)", tx.scope.tenant))
}

// Conn returns nil: there is no way to the connection.
func (tx *tenantTx) Conn() *pgx.Conn { return nil }
