package runner

import (
	"context"
	"time"

	compassv1 "github.com/rigelbuild/compass-operator/api/proto/compass/v1"
)

// Link is the Runner's side of the broker.
type Link interface {
	// Commands calls fn, serially, for every command with a valid signature, until stop is called.
	Commands(ctx context.Context, fn func(raw *compassv1.SessionsResponse, cmd *compassv1.Command)) (stop func(), err error)
	// State tells the worker of a stream what is held. It may be lost.
	State(ctx context.Context, stream string, state *compassv1.RunnerState) error
	// Event is answered after its effect is committed.
	Event(ctx context.Context, event *compassv1.RunnerEvent) (*compassv1.RunnerEventAnswer, error)
}

// Clock is the passage of time; tests bring their own.
type Clock interface {
	Now() time.Time
	// After behaves like time.After.
	After(d time.Duration) <-chan time.Time
}

type wallClock struct{}

func (wallClock) Now() time.Time                         { return time.Now() } //nolint:forbidigo // the one place where a Runner reads the clock
func (wallClock) After(d time.Duration) <-chan time.Time { return time.After(d) }
