package fault_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/rigelbuild/compass-operator/internal/fault"
)

var errDown = errors.New("connection refused")

// Holds REQ-213 (the reason travels with the error) and the classes of REQ-026 as amended.
func TestClassAndReason(t *testing.T) {
	t.Parallel()
	waiting := fault.Waiting("WaitingForServer", "CompassServer main is not Ready")
	terminal := fault.Terminal("InvalidSlug", errors.New("slug is taken"))
	poison := fault.Poison("Undecodable", errors.New("bad json"))
	retry := fault.RetryAfter(3*time.Second, errDown)
	named := fault.Transient("DatabaseUnreachable", errDown)

	tests := map[string]struct {
		err    error
		class  fault.Class
		reason string
	}{
		"nil":                                   {nil, fault.None, ""},
		"plain":                                 {errDown, fault.ClassTransient, ""},
		"cancelled":                             {context.Canceled, fault.ClassTransient, ""},
		"waiting":                               {waiting, fault.ClassWaiting, "WaitingForServer"},
		"terminal":                              {terminal, fault.ClassTerminal, "InvalidSlug"},
		"poison":                                {poison, fault.ClassPoison, "Undecodable"},
		"retry":                                 {retry, fault.ClassTransient, ""},
		"named transient":                       {named, fault.ClassTransient, "DatabaseUnreachable"},
		"wrapped waiting":                       {fmt.Errorf("resolve server: %w", waiting), fault.ClassWaiting, "WaitingForServer"},
		"wrapped twice":                         {fmt.Errorf("a: %w", fmt.Errorf("b: %w", terminal)), fault.ClassTerminal, "InvalidSlug"},
		"outermost decides":                     {fault.Waiting("WaitingForX", "x"), fault.ClassWaiting, "WaitingForX"},
		"terminal around waiting":               {fault.Terminal("Invalid", waiting), fault.ClassTerminal, "Invalid"},
		"transient around terminal":             {fault.Transient("Unreachable", terminal), fault.ClassTransient, "Unreachable"},
		"retry keeps the inner reason":          {fault.RetryAfter(time.Second, named), fault.ClassTransient, "DatabaseUnreachable"},
		"join waiting, plain":                   {errors.Join(waiting, errDown), fault.ClassTransient, ""},
		"join waiting, terminal":                {errors.Join(waiting, terminal), fault.ClassTerminal, "InvalidSlug"},
		"join terminal, waiting":                {errors.Join(terminal, waiting), fault.ClassTerminal, "InvalidSlug"},
		"join transient, terminal":              {errors.Join(errDown, terminal), fault.ClassTerminal, "InvalidSlug"},
		"join terminal, poison":                 {errors.Join(terminal, poison), fault.ClassPoison, "Undecodable"},
		"join plain, named":                     {errors.Join(errDown, named), fault.ClassTransient, "DatabaseUnreachable"},
		"join of two waits":                     {errors.Join(waiting, fault.Waiting("WaitingForY", "y")), fault.ClassWaiting, "WaitingForServer"},
		"wrapped join":                          {fmt.Errorf("steps: %w", errors.Join(waiting, terminal)), fault.ClassTerminal, "InvalidSlug"},
		"join in a join":                        {errors.Join(errDown, errors.Join(waiting, terminal)), fault.ClassTerminal, "InvalidSlug"},
		"a sentinel beside a fault is a branch": {fmt.Errorf("%w: %w", errDown, waiting), fault.ClassTransient, ""},
		"a join is judged inside a fault too":   {fault.Waiting("WaitingForZ", "z"), fault.ClassWaiting, "WaitingForZ"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := fault.ClassOf(tt.err); got != tt.class {
				t.Errorf("ClassOf = %v, want %v", got, tt.class)
			}
			if got := fault.ReasonOf(tt.err); got != tt.reason {
				t.Errorf("ReasonOf = %q, want %q", got, tt.reason)
			}
			is := map[fault.Class]bool{
				fault.ClassWaiting: fault.IsWaiting(tt.err), fault.ClassTransient: fault.IsTransient(tt.err),
				fault.ClassTerminal: fault.IsTerminal(tt.err), fault.ClassPoison: fault.IsPoison(tt.err),
			}
			for class, yes := range is {
				if yes != (class == tt.class) {
					t.Errorf("Is %v = %v for an error of class %v", class, yes, tt.class)
				}
			}
		})
	}
}

func TestIsTold(t *testing.T) {
	t.Parallel()
	told, waiting := fault.Told("NoStream", "make one"), fault.Waiting("WaitingForX", "x")
	for name, c := range map[string]struct {
		err  error
		want bool
	}{
		"nil": {nil, false}, "told": {told, true}, "wrapped": {fmt.Errorf("judge: %w", told), true}, "waiting": {waiting, false},
		"both told": {errors.Join(told, told), true}, "one is not": {errors.Join(told, waiting), false}, "one failed": {errors.Join(told, errDown), false},
	} {
		if got := fault.IsTold(c.err); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
	if !fault.IsWaiting(told) || fault.ReasonOf(told) != "NoStream" {
		t.Errorf("%v is %v", told, fault.ClassOf(told))
	}
}

func TestDelayOf(t *testing.T) {
	t.Parallel()
	three, five := fault.RetryAfter(3*time.Second, errDown), fault.RetryAfter(5*time.Second, errDown)
	tests := map[string]struct {
		err  error
		want time.Duration
		ok   bool
	}{
		"nil":                      {nil, 0, false},
		"plain":                    {errDown, 0, false},
		"retry":                    {three, 3 * time.Second, true},
		"negative":                 {fault.RetryAfter(-1, errDown), 0, true},
		"wrapped":                  {fmt.Errorf("read placement: %w", three), 3 * time.Second, true},
		"reason around a delay":    {fault.Transient("DatabaseUnreachable", three), 3 * time.Second, true},
		"outer delay wins":         {fault.RetryAfter(time.Second, five), time.Second, true},
		"longest of a join":        {errors.Join(three, errDown, five), 5 * time.Second, true},
		"longest, told first":      {errors.Join(five, three), 5 * time.Second, true},
		"terminal beats the delay": {errors.Join(three, fault.Terminal("Invalid", errDown)), 0, false},
		"delay hidden by poison":   {fault.Poison("Undecodable", three), 0, false},
		"delay beside a wait":      {errors.Join(fault.Waiting("WaitingForX", "x"), three), 3 * time.Second, true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, ok := fault.DelayOf(tt.err)
			if got != tt.want || ok != tt.ok {
				t.Errorf("DelayOf = %v, %v, want %v, %v", got, ok, tt.want, tt.ok)
			}
		})
	}
}

func TestCauseStaysVisible(t *testing.T) {
	t.Parallel()
	for _, err := range []error{
		fault.Terminal("R", errDown), fault.Transient("R", errDown), fault.Poison("R", errDown),
		fault.RetryAfter(time.Second, errDown), fmt.Errorf("x: %w", fault.Terminal("R", fmt.Errorf("y: %w", errDown))),
	} {
		if !errors.Is(err, errDown) {
			t.Errorf("errors.Is lost the cause of %v", err)
		}
	}
	if got := fault.Terminal("R", errDown).Error(); got != errDown.Error() {
		t.Errorf("text = %q, want the cause's", got)
	}
}

func TestTextWithoutCause(t *testing.T) {
	t.Parallel()
	for want, err := range map[string]error{
		"CompassServer main is not Ready": fault.Waiting("WaitingForServer", "CompassServer main is not Ready"),
		"WaitingForServer":                fault.Waiting("WaitingForServer", ""),
		"InvalidSlug":                     fault.Terminal("InvalidSlug", nil),
		"poison":                          fault.Poison("", nil),
		"retry after 2s":                  fault.RetryAfter(2*time.Second, nil),
	} {
		if err.Error() != want {
			t.Errorf("text = %q, want %q", err.Error(), want)
		}
	}
}
