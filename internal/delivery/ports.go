package delivery

import (
	"context"

	compassv1 "github.com/rigelbuild/compass-operator/api/proto/compass/v1"
	"github.com/rigelbuild/compass-operator/internal/fabric"
	"github.com/rigelbuild/compass-operator/internal/store"
)

// ChannelReads is what a drain of a channel reads, under the tenant of the context.
type ChannelReads interface {
	RowTargets(ctx context.Context, ids []string) ([]store.RowTarget, error)
	ChannelOwed(ctx context.Context, q store.ChannelQuery) (store.ChannelView, error)
	ChannelContent(ctx context.Context, q store.ContentQuery) (store.Content, error)
	Placement(ctx context.Context) (store.Placement, error)
}

// AgentReads is what is read for one agent, under the tenant of the context.
type AgentReads interface {
	AgentOwed(ctx context.Context, q store.AgentQuery) (store.AgentView, error)
	CommandsToPush(ctx context.Context, q store.CommandQuery) ([]store.SessionCommand, error)
	SessionOwes(ctx context.Context, agent string) ([]string, error)
	IsOwed(ctx context.Context, agent string) (bool, error)
}

// DeliveryReads is all that a worker reads of a tenant; *store.Store is one. It reads again at each look: nothing that was
// read is believed later, except to choose what to look at.
type DeliveryReads interface { //nolint:revive // the name of the source documents (REQ-051)
	ChannelReads
	AgentReads
}

// RowWrites is what a worker writes about single deliveries. Each is led by assert_writer: store.ErrStaleWriter where the
// fence is not the current one, store.ErrFrozen while the tenant is being moved.
type RowWrites interface {
	BeginAttempt(ctx context.Context, fence store.Fence, d store.Delivery) error
	SurvivedAttempt(ctx context.Context, fence store.Fence, d store.Delivery) error
	CountRejections(ctx context.Context, fence store.Fence, r store.Rejections) error
	ParkDelivery(ctx context.Context, fence store.Fence, d store.Delivery, reason string, atLeast int) (*store.Parked, error)
}

// Writes are all that a worker writes of a tenant; *store.Store is one.
type Writes interface {
	RowWrites
	AppendCommands(ctx context.Context, fence store.Fence, n store.NewCommands) ([]store.SessionCommand, error)
	RouteMissed(ctx context.Context, fence store.Fence, limit int) ([]string, error)
	ConfirmDrain(ctx context.Context, fence store.Fence, claim int64) error
}

// SessionResolver says who is live and owed, across tenants (REQ-058). It runs with the system role and therefore only
// chooses whom to look at (REQ-102); *store.Store is one.
type SessionResolver interface {
	SweepChannels(ctx context.Context, q store.SweepQuery) ([]store.OwingChannel, error)
	SweepAgents(ctx context.Context, q store.SweepQuery) ([]store.OwedAgent, error)
	SweepAsleep(ctx context.Context, q store.SweepQuery) ([]store.OwedAgent, error)
	SweepUnrouted(ctx context.Context, q store.SweepQuery) ([]store.TenantID, error)
	MovedTenants(ctx context.Context, database int, stream string, above int64) ([]store.StreamTenant, error)
}

// ControlDispatcher is the way to Runners and what they answer; *fabric.Fabric is one. SendCommand is one-way: what became
// of a command is in the Runner's next state.
type ControlDispatcher interface {
	SendCommand(ctx context.Context, to fabric.RunnerAddr, command *compassv1.SessionsResponse) error
	States(ctx context.Context, stream string, fn func(from fabric.RunnerAddr, state *compassv1.RunnerState)) (fabric.Unsubscribe, error)
}

// WorkerNotes hears what is news for this worker alone; *fabric.Fabric is one. Notes are lossy hints, as references are.
type WorkerNotes interface {
	HearWorker(ctx context.Context, stream string, fn func(ctx context.Context, note fabric.Note)) (fabric.Unsubscribe, error)
}

// DeadLetters announces what was set aside; *fabric.Fabric is one. The truth is the row, committed before.
type DeadLetters interface {
	Announce(ctx context.Context, stream string, letter fabric.DeadLetter) error
}

// Waker starts a session of an agent that is owed something and has none, under the tenant of the context: what
// StartSession does, and telling the Runner. It is called by a worker, but it is no fenced write: two starts at once end
// as one session, whoever asks. store.ErrConflict: the agent has a session by now. Any other error: try again later.
type Waker interface {
	Wake(ctx context.Context, agent string) error
}

// Leases are the rights to write, one per database.
type Leases interface {
	// Fence is what to prove in a database now; false where its lease is not held or its deadline has passed.
	Fence(database int) (store.Fence, bool)
	// Raise lifts the epoch above a claim, or above what a Runner was proved to have seen.
	Raise(ctx context.Context, database int, above int64) error
	// Careful says that the holder before this one did not say goodbye.
	Careful(database int) bool
	// Held lists the databases whose lease is held now.
	Held() []int
	// Regained tells of each database whose lease was acquired after the start.
	Regained() <-chan int
}
