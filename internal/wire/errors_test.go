package wire

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/rigelbuild/compass-operator/internal/fault"
	"github.com/rigelbuild/compass-operator/internal/store"
)

// pgError stands for what Postgres says: it may name constraints, values and rows of others.
type pgError struct{}

func (pgError) Error() string    { return `duplicate key value violates "accounts_handle": (acme, ada)` }
func (pgError) SQLState() string { return "23505" }

func TestEveryErrorHasItsCode(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err  error
		code connect.Code
		text string
	}{
		{fmt.Errorf("read m_1: %w", store.ErrNotFound), connect.CodeNotFound, "not found"},
		{fmt.Errorf("session ses_1: %w", store.ErrStale), connect.CodeNotFound, "not found"},
		{store.ErrNoTenant, connect.CodeNotFound, "not found"},
		{fmt.Errorf("%w: the turn is settled", store.ErrPrecondition), connect.CodeFailedPrecondition, "turn is settled"},
		{fmt.Errorf("%w: %w", store.ErrConflict, pgError{}), connect.CodeAlreadyExists, "already exists"},
		{&store.LiveSessionError{Session: "ses_1"}, connect.CodeAlreadyExists, "ses_1"},
		{store.ErrFrozen, connect.CodeUnavailable, "being moved"},
		{fmt.Errorf("dial 10.0.0.7: %w", store.ErrUnavailable), connect.CodeUnavailable, "database unavailable"},
		{store.ErrTimeout, connect.CodeDeadlineExceeded, "out of time"},
		{fmt.Errorf("%w: x", ErrShape), connect.CodeInvalidArgument, "x"},
		{store.ErrTooLarge, connect.CodeInvalidArgument, "too large"},
		{ErrUnauthenticated, connect.CodeUnauthenticated, "unauthenticated"},
		{ErrDenied, connect.CodePermissionDenied, "denied"},
		{fault.RetryAfter(1500*time.Millisecond, ErrExhausted), connect.CodeResourceExhausted, "limit"},
		{context.Canceled, connect.CodeCanceled, "canceled"},
		{context.DeadlineExceeded, connect.CodeDeadlineExceeded, "deadline"},
		{store.ErrSchema, connect.CodeInternal, "internal error"},
		{errors.New("password is hunter2"), connect.CodeInternal, "internal error"},
		{connect.NewError(connect.CodeAborted, errors.New("as it was")), connect.CodeAborted, "as it was"},
	} {
		got := Error(c.err)
		if got.Code() != c.code || !strings.Contains(got.Message(), c.text) {
			t.Errorf("%v: %s %q, want %s with %q", c.err, got.Code(), got.Message(), c.code, c.text)
		}
		for _, secret := range []string{"hunter2", "accounts_handle", "10.0.0.7", "m_1"} {
			if strings.Contains(got.Message(), secret) {
				t.Errorf("%q reaches the caller", secret)
			}
		}
	}
	if Error(nil) != nil || Code(nil) != 0 {
		t.Error("no error is an error")
	}
}

func TestRetryAfterIsSaidInWholeSeconds(t *testing.T) {
	t.Parallel()
	for want, err := range map[string]error{
		"2": fault.RetryAfter(1500*time.Millisecond, ErrExhausted),
		"1": store.ErrUnavailable,
		"":  store.ErrNotFound,
	} {
		if got := Error(err).Meta().Get(RetryAfter); got != want {
			t.Errorf("%v: retry after %q, want %q", err, got, want)
		}
	}
}
