package runner

import (
	"context"
	"time"

	compassv1 "github.com/rigelbuild/compass-operator/api/proto/compass/v1"
	"github.com/rigelbuild/compass-operator/internal/fabric"
)

// Link is the Runner's side of the broker; see fabric.RunnerConn.
type Link interface {
	// Commands calls fn, serially, for every command of this Runner with a valid signature; signed is the proof of its fence.
	Commands(ctx context.Context, fn func(ctx context.Context, cmd *compassv1.Command, signed *compassv1.SessionsResponse)) (fabric.Unsubscribe, error)
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

func (wallClock) Now() time.Time                         { return time.Now() }
func (wallClock) After(d time.Duration) <-chan time.Time { return time.After(d) }
