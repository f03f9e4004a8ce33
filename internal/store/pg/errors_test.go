package pg_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/rigelbuild/compass-operator/internal/store/pg"
)

func TestInterpret(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		err    error
		want   error
		reason string
	}{
		"no rows":          {pgx.ErrNoRows, pg.ErrNotFound, "foreign and unknown rows look alike (REQ-090)"},
		"unique":           {code("23505"), pg.ErrConflict, ""},
		"foreign key":      {code("23503"), pg.ErrNotFound, "the parent of another tenant is not there"},
		"our functions":    {code("P0002"), pg.ErrNotFound, ""},
		"stale writer":     {code("CP001"), pg.ErrStaleWriter, "K3"},
		"frozen":           {code("CP002"), pg.ErrFrozen, "T4"},
		"settled":          {code("CP004"), pg.ErrPrecondition, "K1"},
		"timeout":          {code("57014"), pg.ErrTimeout, "a slow tenant is not a dead database"},
		"lock timeout":     {code("55P03"), pg.ErrTimeout, ""},
		"idle too long":    {code("25P03"), pg.ErrTimeout, "a process that stood still is not a dead database either"},
		"class 08":         {code("08P01"), pg.ErrUnavailable, "PgBouncer's own errors"},
		"class 53":         {code("53300"), pg.ErrUnavailable, ""},
		"shutdown":         {code("57P01"), pg.ErrUnavailable, "the code is not listed, its class is"},
		"deadlock":         {code("40P01"), pg.ErrUnavailable, ""},
		"missing table":    {code("42P01"), pg.ErrSchema, ""},
		"wrapped":          {fmt.Errorf("post message: %w", code("23505")), pg.ErrConflict, ""},
		"cut connection":   {fmt.Errorf("read: %w", io.ErrUnexpectedEOF), pg.ErrUnavailable, ""},
		"refused":          {&net.OpError{Op: "dial", Err: errors.New("refused")}, pg.ErrUnavailable, ""},
		"caller's dealine": {context.DeadlineExceeded, context.DeadlineExceeded, "not an outage"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := pg.Interpret(c.err)
			if !errors.Is(got, c.want) {
				t.Errorf("Interpret(%v) = %v, want %v (%s)", c.err, got, c.want, c.reason)
			}
			if again := pg.Interpret(got); !errors.Is(again, c.want) || again.Error() != got.Error() {
				t.Errorf("interpreted twice: %v, once: %v", again, got)
			}
		})
	}
}

func TestInterpretLeavesTheRest(t *testing.T) {
	t.Parallel()
	for _, err := range []error{nil, errors.New("anything"), code("42501"), code("23514"), code("CP003")} {
		if got := pg.Interpret(err); got != err { //nolint:errorlint // the very same error
			t.Errorf("Interpret(%v) = %v, want it unchanged", err, got)
		}
	}
	if got := pg.Interpret(context.Canceled); errors.Is(got, pg.ErrUnavailable) {
		t.Errorf("a cancelled caller reads as an outage: %v", got)
	}
}

func code(c string) error { return &pgconn.PgError{Code: c, Message: "said so"} }
