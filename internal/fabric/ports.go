package fabric

import (
	"context"
	"time"

	"github.com/rigelbuild/compass-operator/internal/fabric/internal/counting"
)

// EventKind is the last token of a queue subject: what happened to the row. Lowercase letters, digits and underscores.
type EventKind string

// KindMessagePosted says that a message became deliverable, or may have. It is the only kind of the queue lane (REQ-015).
const KindMessagePosted EventKind = "message_posted"

// EventRef names a row that changed. It never carries the row (REQ-005): whoever gets it reads Postgres, under the
// tenant, and finds nothing if the reference lies (REQ-104).
type EventRef struct {
	Tenant string    `json:"tenant"`
	Kind   EventKind `json:"kind"`
	RowID  string    `json:"row_id"`
	// Version tells two changes of one row apart. It travels in a header and in the message id, not in the body, so the
	// body stays the three fields that the source documents fix.
	Version int64 `json:"-"`
}

// Unsubscribe ends a subscription. It stops fetching, waits until a callback that is running has returned, and may be
// called more than once. Calling it from inside the callback that it ends deadlocks.
type Unsubscribe func()

// Why a reference is parked, beside the reasons of fault.Poison.
const (
	ReasonUndecodable = counting.ReasonUndecodable // not a reference, or not the one its subject promises
	ReasonUnknownKind = counting.ReasonUnknownKind // nobody here handles the kind
	ReasonExhausted   = counting.ReasonExhausted   // failed MaxDeliver times
	ReasonUnanswered  = counting.ReasonUnanswered  // delivered more than MaxDeliver times, and nobody lived to answer
	ReasonPoison      = counting.ReasonPoison      // the callback said so, without a reason of its own
)

// Handler is told of one reference. What it returns decides what becomes of it (protocol.md, "The fabric's own
// counting"):
//
//	nil                  acked: done, or remembered elsewhere
//	fault.RetryAfter     redelivered after that delay, never parked for it, however often
//	fault.Poison         parked at once
//	any other, a panic   redelivered by Backoff; parked at the MaxDeliver-th attempt
//
// The context ends AckWait after the delivery: what comes later is delivered again meanwhile. It is not cancelled when the
// subscription ends, so that started work can finish.
type Handler func(ctx context.Context, ref EventRef) error

// EventFabric is the queue lane: references that one consumer must see.
//
// Callbacks of one subscription are serial: no two of them overlap, and nothing is fetched while one runs (REQ-025). An
// implementation may deliver a reference more than once and in any order; a reference may be lost when the transport's
// state is, and OnReconnect then says so.
type EventFabric interface {
	// Publish stores the reference under the logical subject that CommsSubject gives. Nil means that a server has stored
	// it, or that it had stored the same change (tenant, kind, row, version) within the duplicate window (REQ-010,
	// REQ-013). An error means that this call stored nothing that it knows of; publishing again is always safe. ErrNoStream:
	// no stream carries the tenant, which is no failure. ErrFull: the tenant's or the stream's limit refuses it.
	Publish(ctx context.Context, subject string, ref EventRef) error

	// Subscribe consumes one tenant's kind. It is refused with ErrOverlap where a SubscribeKind of that kind exists on the
	// broker, and the other way round: a work queue hands each reference to one consumer only (REQ-031).
	Subscribe(ctx context.Context, subject string, fn Handler) (Unsubscribe, error)

	// SubscribeKind consumes one kind of every tenant of the stream through one durable consumer. Several processes may
	// share it; each reference is claimed by one of them (REQ-021, REQ-024: with the same Config). It returns before the
	// stream exists or the broker is reachable and begins when they are.
	SubscribeKind(ctx context.Context, kind EventKind, fn Handler) (Unsubscribe, error)

	// OnReconnect calls fn after each outage, when references may have been lost: the connection was gone, or the stream or
	// consumer was made anew. Once per outage, after the connection has held for a moment, after the outage was logged,
	// never on the connection's own goroutine, never two at a time. It displaces no other handler (REQ-022).
	OnReconnect(fn func()) (Unsubscribe, error)
}

// BroadcastMsg is one event as a listener gets it. Tenant and Event come from the subject.
type BroadcastMsg struct {
	Tenant   string
	Event    string
	Envelope []byte
	Header   map[string]string
}

// Broadcaster is the broadcast lane: what every interested Server must notice, at most once. A publisher that also listens
// hears itself; dropping the echo is the bridge's part (DELIVERY-3), not the transport's.
type Broadcaster interface {
	// Broadcast hands the envelope to the broker. Nil says that the connection took it, not that anybody heard it.
	Broadcast(ctx context.Context, tenant, event string, envelope []byte, header map[string]string) error
	// Listen calls fn for each broadcast of the tenant, serially. A listener that is too slow loses the newest ones, which
	// is counted and logged once per burst.
	Listen(ctx context.Context, tenant string, fn func(ctx context.Context, msg BroadcastMsg)) (Unsubscribe, error)
}

// Note is one addressed, lossy message: to the worker of a stream or to one client connection.
type Note struct {
	Event    string
	Envelope []byte
	Header   map[string]string
}

// Notifier carries notes: news for a worker alone (`compass.worker.<stream>`), and what is for one connection alone
// (`client.<connection>`: resync, revoked, directed answers; never a queue group, REQ-113). A note that nobody listens for
// is lost, silently and by design.
type Notifier interface {
	NotifyWorker(ctx context.Context, stream string, note Note) error
	HearWorker(ctx context.Context, stream string, fn func(ctx context.Context, note Note)) (Unsubscribe, error)
	NotifyClient(ctx context.Context, connection string, note Note) error
	HearClient(ctx context.Context, connection string, fn func(ctx context.Context, note Note)) (Unsubscribe, error)
}

// DeadLetter is one reference that was set aside, as the dead-letter stream keeps it. Fields that a reference could not
// tell are empty.
type DeadLetter struct {
	Ref             EventRef
	Recipient       string // the agent a row was parked for; empty where a reference itself was
	Replay          int    // how often it had been replayed before
	OriginalSubject string // the concrete queue subject (REQ-029)
	Body            []byte
	Attempts        int
	Reason          string // a short constant
	Error           string // the last error's text; never a secret
	FirstSeen       time.Time
	LastSeen        time.Time
	Sequence        uint64 // where the dead-letter stream keeps it; set when listed
}

// DeadLetterBox announces and reads dead letters. The truth about a message that was not delivered is the row in
// dead_letters; what is here is its announcement, and the only record of references that nobody could decode.
type DeadLetterBox interface {
	// Announce stores the dead letter unless it is there already, which counts as success only if the stored one names the
	// same row and recipient (ErrMismatch otherwise).
	Announce(ctx context.Context, stream string, letter DeadLetter) error
	// List calls fn for each dead letter of the stream, oldest first, until fn returns false. An empty tenant means all.
	List(ctx context.Context, stream, tenant string, fn func(DeadLetter) bool) error
	// Replay publishes the reference of a listed dead letter again, as replay number Replay+1, and removes the dead letter
	// only when that is stored. An answer "duplicate" is ErrDuplicate, not success: it would mean that nothing was stored.
	Replay(ctx context.Context, stream string, letter DeadLetter) error
	// Remove deletes one dead letter; removing an absent one is success.
	Remove(ctx context.Context, stream string, letter DeadLetter) error
}
