package store

import (
	"fmt"

	"github.com/rigelbuild/compass-operator/internal/store/pg"
)

// What a caller may test for with errors.Is; each is documented where it is declared.
var (
	ErrNotFound     = pg.ErrNotFound
	ErrConflict     = pg.ErrConflict
	ErrPrecondition = pg.ErrPrecondition
	ErrStale        = pg.ErrStale
	ErrFrozen       = pg.ErrFrozen
	ErrStaleWriter  = pg.ErrStaleWriter
	ErrNoTenant     = pg.ErrNoTenant
	ErrTimeout      = pg.ErrTimeout
	ErrUnavailable  = pg.ErrUnavailable
	ErrSchema       = pg.ErrSchema
)

// interpret is pg.Interpret: what a SQLSTATE means, said in one place. The doors have applied it to what they return; a
// method that works on a transaction applies it to what comes from there.
func interpret(err error) error { return pg.Interpret(err) }

// wrapf says what a method was doing when err came, and is nil for nil. The store's boundary wraps once; err passes
// through interpret first, because a method that works on a transaction has Postgres's own errors in hand.
func wrapf(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf(format+": %w", append(args, interpret(err))...)
}
