package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgxpool"
)

// A database other than 0 may be a tenant's own, and whoever administers it can make it answer anything, or nothing, or
// without end. So what is read from it is bounded in rows, in bytes and in time, whatever its own limits say; a call that
// meets a bound fails as if the database were away, and its tenants alone feel it (REQ-239).
const (
	foreignRows    = 100_000
	foreignBytes   = 256 << 20 // of one answer
	foreignMessage = 64 << 20  // of one row; its length is judged before it is read
	foreignTime    = 30 * time.Second
)

var errTooMuch = fmt.Errorf("%w: it answered with more than can have been asked for", ErrUnavailable)

// distrust makes the connections of a pool refuse a message that would take too much memory.
func (p *pool) distrust(config *pgxpool.Config) {
	p.foreign, p.patience = true, foreignTime
	config.ConnConfig.BuildFrontend = func(r io.Reader, w io.Writer) *pgproto3.Frontend {
		f := pgproto3.NewFrontend(r, w)
		f.SetMaxBodyLen(foreignMessage)
		return f
	}
}

// bounded is ctx with the time that a foreign database has for one call.
func (p *pool) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if !p.foreign {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, p.patience)
}

// judged says what an error of a foreign database means.
func (p *pool) judged(err error) error {
	if _, ok := errors.AsType[*pgproto3.ExceededMaxBodyLenErr](err); ok {
		return fmt.Errorf("%w: %w", errTooMuch, err)
	}
	return interpret(err)
}

// gather collects rows, no more of them than a foreign database may send.
func gather[T any](p *pool, rows pgx.Rows, scan pgx.RowToFunc[T]) ([]T, error) {
	if !p.foreign {
		return pgx.CollectRows(rows, scan)
	}
	n, size := 0, 0
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (T, error) {
		n++
		for _, v := range row.RawValues() {
			size += len(v)
		}
		if n > foreignRows || size > foreignBytes {
			var zero T
			return zero, errTooMuch
		}
		return scan(row)
	})
}
