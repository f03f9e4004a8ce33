package hub

import (
	"context"
	"time"

	compassv1 "github.com/rigelbuild/compass-operator/api/proto/compass/v1"
	"github.com/rigelbuild/compass-operator/internal/comms"
	"github.com/rigelbuild/compass-operator/internal/event"
	"github.com/rigelbuild/compass-operator/internal/fabric"
	"github.com/rigelbuild/compass-operator/internal/store"
)

// Store is what the hub needs of *store.Store. Each method's contract is there.
type Store interface {
	runners
	sessions
	edges
	commands
	Expiry
}

type runners interface {
	EnrollRunner(ctx context.Context, e store.Enrolment) (store.Runner, error)
	FindRunner(ctx context.Context, id string) (store.Runner, error)
	HelloRunner(ctx context.Context, id string, lease time.Duration) (incarnation int64, err error)
	Heartbeat(ctx context.Context, h store.Heartbeat) (store.HeartbeatAnswer, error)
	ClaimStart(ctx context.Context, c store.Claim) (store.Claimed, error)
}

type sessions interface {
	StartSession(ctx context.Context, n store.NewSession) (store.Started, error)
	StopSession(ctx context.Context, session string) (store.Ended, error)
	LiveAgentSessions(ctx context.Context) ([]store.Binding, error)
	ListSessions(ctx context.Context, limit int) ([]store.Binding, error)
}

type edges interface {
	SettleTurn(ctx context.Context, e store.Event, turn string) ([]store.Touched, error)
	EndSession(ctx context.Context, e store.Event) (store.Ended, error)
	Ack(ctx context.Context, ref store.SessionRef, acks []store.ChannelAck) (store.Acked, error)
	AckCommands(ctx context.Context, ref store.SessionRef, acks []store.CommandAck) (agent string, done int, err error)
}

type commands interface {
	Steer(ctx context.Context, session, text string) (store.SessionCommand, store.Binding, error)
	FetchCommands(ctx context.Context, f store.Fetch) ([]store.SessionCommand, error)
}

// Expiry is what the expirer needs, for every database of the process.
type Expiry interface {
	leases
	turns
}

type leases interface {
	DatabaseIDs() []int
	PingDatabase(ctx context.Context, database int) (time.Time, error)
	OverdueRunners(ctx context.Context, database int) ([]string, error)
	ExpireRunner(ctx context.Context, e store.Expiry) (bool, error)
}

type turns interface {
	StaleSessions(ctx context.Context, database int, runner string) ([]store.TenantSession, error)
	EndStaleSession(ctx context.Context, session string) (store.Ended, error)
	OverlongTurns(ctx context.Context, database int, age time.Duration) ([]store.TenantSession, error)
	SettleOverlongTurn(ctx context.Context, session, turn string, age time.Duration) ([]store.Touched, error)
}

// calls are the calls of a person's client that an agent makes too; see comms.Comms.
type calls interface {
	PostMessage(ctx context.Context, n store.NewMessage) (comms.Result, error)
	UpdateMessage(ctx context.Context, e store.Edit) (store.Message, error)
	AskQuestion(ctx context.Context, n store.NewMessage) (comms.Result, error)
	RespondToAsk(ctx context.Context, n store.NewAnswer) (comms.Result, error)
	CommitFrame(ctx context.Context, f store.Frame) (comms.Result, error)
}

// announcer tells what a transaction made deliverable, for the tenant of the context; see comms.Comms.
type announcer interface {
	Announce(ctx context.Context, touched []store.Touched)
}

// Comms is what the hub needs of *comms.Comms.
type Comms interface {
	calls
	announcer
}

// emitter tells facts after they were committed; see event.Emitter.
type emitter interface {
	Emit(ctx context.Context, f event.Fact)
}

// runnerFabric is the platform's side of the conversation with Runners; see fabric.RunnerFabric.
type runnerFabric interface {
	SendCommand(ctx context.Context, to fabric.RunnerAddr, command *compassv1.SessionsResponse) error
	Events(ctx context.Context, fn func(ctx context.Context, event fabric.RunnerEvent) error) (fabric.Unsubscribe, error)
	Calls(ctx context.Context, fn func(ctx context.Context, call fabric.RunnerCall) ([]byte, error)) (fabric.Unsubscribe, error)
}

// Access is what a Runner of a fleet connects to the broker with. All empty: the fleet has no NATS.
type Access struct {
	JWT         string
	URLs        []string
	CA          string            // PEM; empty: the system's
	CommandKeys map[string][]byte // public Ed25519 keys that sign commands, by id
}

// access makes the broker access of an enrolled Runner; it signs a user for the Runner's own key.
type access interface {
	RunnerAccess(ctx context.Context, r store.Runner) (Access, error)
}
