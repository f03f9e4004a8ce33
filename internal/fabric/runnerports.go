package fabric

import (
	"context"
	"log/slog"

	compassv1 "github.com/rigelbuild/compass-operator/api/proto/compass/v1"
)

// RunnerAddr says which Runner: its fleet ("shared" or a tenant id) and its id.
type RunnerAddr struct {
	Fleet string
	ID    string
}

// LogValue groups both parts.
func (a RunnerAddr) LogValue() slog.Value {
	return slog.GroupValue(slog.String("fleet", a.Fleet), slog.String("id", a.ID))
}

// RunnerEvent is one event of a Runner. From is what the broker vouches for; an Event that names another Runner never gets
// here.
type RunnerEvent struct {
	From  RunnerAddr
	Event *compassv1.RunnerEvent
}

// RunnerCall is one request of a Runner. Procedure is that of the Connect service, such as
// /compass.v1.RunnerService/Heartbeat, and Body its request message, serialized.
type RunnerCall struct {
	From      RunnerAddr
	Procedure string
	Body      []byte
}

// RunnerFabric is the platform's side of the conversation with Runners.
type RunnerFabric interface {
	// SendCommand sends one command, one-way, signed here unless it carries a signature. Nil means that the broker had a
	// subscriber, not that the Runner took it: its state says that. ErrRunnerGone: nobody listens. Nothing is kept for a
	// broker that is away: ErrUnavailable.
	SendCommand(ctx context.Context, to RunnerAddr, command *compassv1.SessionsResponse) error

	// Events calls fn for each event of any Runner, in one of the processes that listen. fn returns after the effect is
	// committed; its error becomes the answer's Connect code. Events of one Runner may run side by side: whoever needs an
	// order sends the next after the answer to the last. The same event may come again.
	Events(ctx context.Context, fn func(ctx context.Context, event RunnerEvent) error) (Unsubscribe, error)

	// Calls does the same for requests; what fn returns is the response message, serialized, or an error whose Connect
	// code, message, metadata and details reach the caller unchanged (REQ-119).
	Calls(ctx context.Context, fn func(ctx context.Context, call RunnerCall) ([]byte, error)) (Unsubscribe, error)

	// States calls fn, serially, for each state that a Runner tells the worker of the stream. It is lossy: any later state
	// heals a lost one.
	States(ctx context.Context, stream string, fn func(from RunnerAddr, state *compassv1.RunnerState)) (Unsubscribe, error)
}

// RunnerConn is the Runner's side. It sees the source's names, compass.runner.<id>.…; its fleet is added by the account.
type RunnerConn interface {
	// Commands calls fn, serially, for each command whose signature is valid and that names this Runner; others are
	// dropped, counted and logged. signed is the command as it came, the proof of the fence that it carries.
	Commands(ctx context.Context, fn func(ctx context.Context, command *compassv1.Command, signed *compassv1.SessionsResponse)) (Unsubscribe, error)

	// Event sends one event and waits for its answer, until ctx ends. An error says that nobody answered: send it again,
	// it is applied once.
	Event(ctx context.Context, event *compassv1.RunnerEvent) (*compassv1.RunnerEventAnswer, error)

	// Call sends one request. An answer that is an error is a *connect.Error; any other error says that nobody answered.
	Call(ctx context.Context, procedure string, body []byte) ([]byte, error)

	// State tells the worker of the stream what is held. Nil says that it was sent.
	State(ctx context.Context, stream string, state *compassv1.RunnerState) error
}
