package wire

import (
	"context"
	"errors"
	"strconv"
	"time"

	"connectrpc.com/connect"

	"github.com/rigelbuild/compass-operator/internal/fault"
	"github.com/rigelbuild/compass-operator/internal/store"
)

// What a service may say beside the sentinels of the store and ErrShape.
var (
	// ErrUnauthenticated: no token, or none that speaks for anybody.
	ErrUnauthenticated = errors.New("unauthenticated")
	// ErrDenied: the caller is known and lacks the role.
	ErrDenied = errors.New("permission denied")
	// ErrExhausted: a limit of the tenant's is reached. Put fault.RetryAfter around it to say for how long.
	ErrExhausted = errors.New("limit reached")
	// ErrReplaced: another stream of the same client took this one's place.
	ErrReplaced = errors.New("replaced by another stream")
)

// RetryAfter is the metadata that says, in whole seconds, when to try again.
const RetryAfter = "Retry-After"

// retrySoon is when to come again where nobody said so: a failover or a move takes about that long.
const retrySoon = time.Second

// codes says what each sentinel is on the wire. Foreign and unknown things are NotFound alike, and so is a session that
// is over: nobody is told which it was (REQ-090, REQ-116).
var codes = []struct {
	is   error
	code connect.Code
}{
	{ErrShape, connect.CodeInvalidArgument},
	{store.ErrTooLarge, connect.CodeInvalidArgument},
	{ErrUnauthenticated, connect.CodeUnauthenticated},
	{ErrDenied, connect.CodePermissionDenied},
	{ErrExhausted, connect.CodeResourceExhausted},
	{ErrReplaced, connect.CodeAborted},
	{store.ErrNoRunner, connect.CodeUnavailable},
	{store.ErrFrozen, connect.CodeUnavailable},
	{store.ErrUnavailable, connect.CodeUnavailable},
	{store.ErrTimeout, connect.CodeDeadlineExceeded},
	{store.ErrNotFound, connect.CodeNotFound},
	{store.ErrStale, connect.CodeNotFound},
	{store.ErrNoTenant, connect.CodeNotFound},
	{store.ErrConflict, connect.CodeAlreadyExists},
	{store.ErrPrecondition, connect.CodeFailedPrecondition},
	{store.ErrBeyondHead, connect.CodeFailedPrecondition},
	{context.Canceled, connect.CodeCanceled},
	{context.DeadlineExceeded, connect.CodeDeadlineExceeded},
}

// Error is the one place that says what an error is on the wire, on every transport: nil for nil, a *connect.Error as it
// is, else one with the code of its sentinel, or Internal. What a caller reads never quotes Postgres and never tells a
// foreign row from none.
func Error(err error) *connect.Error {
	if err == nil {
		return nil
	}
	if known, ok := errors.AsType[*connect.Error](err); ok {
		return known
	}
	code, sentinel := judge(err)
	out := connect.NewError(code, errors.New(text(code, sentinel, err)))
	if after := retryAfter(code, err); after > 0 {
		out.Meta().Set(RetryAfter, strconv.Itoa(int((after+time.Second-1)/time.Second)))
	}
	return out
}

// Code is the code that Error gives, 0 for nil.
func Code(err error) connect.Code {
	if e := Error(err); e != nil {
		return e.Code()
	}
	return 0
}

func judge(err error) (connect.Code, error) {
	for _, c := range codes {
		if errors.Is(err, c.is) {
			return c.code, c.is
		}
	}
	return connect.CodeInternal, nil
}

// text is what the caller reads: the error itself where it was made for him, the sentinel's own words where Postgres or a
// row's id stands behind it.
func text(code connect.Code, sentinel, err error) string {
	var postgres interface{ SQLState() string }
	switch {
	case sentinel == nil:
		return "internal error"
	case code == connect.CodeNotFound:
		return store.ErrNotFound.Error()
	case code == connect.CodeUnavailable, code == connect.CodeDeadlineExceeded, errors.As(err, &postgres):
		return sentinel.Error()
	}
	return err.Error()
}

func retryAfter(code connect.Code, err error) time.Duration {
	if code != connect.CodeResourceExhausted && code != connect.CodeUnavailable {
		return 0
	}
	if after, ok := fault.DelayOf(err); ok {
		return max(after, time.Millisecond)
	}
	return retrySoon
}
