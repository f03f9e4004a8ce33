package pg

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// What a caller of the store may test for with errors.Is. The store re-exports them.
var (
	// ErrNotFound: no such row, or none that this tenant may see; the two are not told apart (REQ-090).
	ErrNotFound = errors.New("not found")
	// ErrConflict: the row is there already, under another identity.
	ErrConflict = errors.New("already exists")
	// ErrPrecondition: the object is in a state that does not allow the change, such as a settled turn (CP004).
	ErrPrecondition = errors.New("precondition not met")
	// ErrStale: the session, generation or incarnation that speaks is no longer current.
	ErrStale = errors.New("no longer current")
	// ErrFrozen: the tenant is being moved to another database; try again in a moment (CP002).
	ErrFrozen = errors.New("tenant is being moved")
	// ErrStaleWriter: this worker does not hold the lease of the stream, or the tenant is not this stream's (CP001).
	ErrStaleWriter = errors.New("stale writer")
	// ErrNoTenant: the context names no tenant; nothing was sent.
	ErrNoTenant = errors.New("no tenant in context")
	// ErrTimeout: a statement ran into its own limit or waited too long for a lock. The database is well.
	ErrTimeout = errors.New("statement ran out of time")
	// ErrUnavailable: the database cannot be reached or asked to come again (restart, failover, deadlock, too many
	// connections). The same call may succeed later.
	ErrUnavailable = errors.New("database unavailable")
	// ErrSchema: the schema is not one that this binary serves.
	ErrSchema = errors.New("schema does not fit this binary")
)

var sentinels = []error{
	ErrNotFound, ErrConflict, ErrPrecondition, ErrStale, ErrFrozen, ErrStaleWriter,
	ErrNoTenant, ErrTimeout, ErrUnavailable, ErrSchema,
}

// byCode says what a SQLSTATE means; a class (its first two characters) is asked where the code itself is not listed.
// CP is the class of our own functions in migrations/.
var byCode = map[string]error{
	"CP001": ErrStaleWriter,
	"CP002": ErrFrozen,
	"CP004": ErrPrecondition,
	"P0002": ErrNotFound, // no_data_found, raised by our functions

	"23503": ErrNotFound, // a foreign key: what the row points at is not there, or not this tenant's
	"23505": ErrConflict,
	"23P01": ErrConflict,

	"57014": ErrTimeout, // statement_timeout
	"55P03": ErrTimeout, // lock_timeout
	"25P03": ErrTimeout, // idle_in_transaction_session_timeout: a door sets it to the tenant's own limit

	"3F000": ErrSchema, // schema, table, column, function missing
	"42P01": ErrSchema,
	"42703": ErrSchema,
	"42883": ErrSchema,

	"0A000": ErrUnavailable, // a cached plan outlived a migration; pgx forgets it and the next call is right
	"25006": ErrUnavailable, // read only: we still talk to a server that was demoted
	"3D000": ErrUnavailable, // the database is not there (yet)
	"40001": ErrUnavailable,
	"40P01": ErrUnavailable,
	"08":    ErrUnavailable, // connection exception, and what PgBouncer says of its own
	"28":    ErrUnavailable, // refused login: a password that is being rotated
	"53":    ErrUnavailable, // insufficient resources
	"57":    ErrUnavailable, // operator intervention: shutdown, starting up
	"58":    ErrUnavailable, // system error
}

// Interpret is the one place that says what an error of Postgres means: nil for nil, the error itself where it was
// interpreted before or means nothing in particular, else an error that is both one of the sentinels and the cause.
// A context that ended stays what it is, so that a caller's own deadline is never mistaken for an outage.
func Interpret(err error) error {
	if err == nil || interpreted(err) {
		return err
	}
	if errors.Is(err, pgx.ErrNoRows) {
		return ErrNotFound
	}
	if kind := kindOf(err); kind != nil {
		return fmt.Errorf("%w: %w", kind, err)
	}
	return err
}

func interpreted(err error) bool {
	for _, s := range sentinels {
		if errors.Is(err, s) {
			return true
		}
	}
	return false
}

func kindOf(err error) error {
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok {
		if kind, ok := byCode[pgErr.Code]; ok {
			return kind
		}
		if len(pgErr.Code) == 5 {
			return byCode[pgErr.Code[:2]]
		}
		return nil
	}
	// A connection that could not be made is an outage also where the pool's own dial timeout ended it.
	if _, ok := errors.AsType[*pgconn.ConnectError](err); ok {
		return ErrUnavailable
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return nil
	}
	if _, ok := errors.AsType[net.Error](err); ok || errors.Is(err, io.EOF) ||
		errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) || pgconn.SafeToRetry(err) {
		return ErrUnavailable
	}
	return nil
}

// Code returns the SQLSTATE of err, or "" where it has none.
func Code(err error) string {
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok {
		return pgErr.Code
	}
	return ""
}

// NoConnect reports whether a login was right and its role may not connect to the database.
func NoConnect(err error) bool {
	_, connecting := errors.AsType[*pgconn.ConnectError](err)
	return connecting && Code(err) == "42501"
}
