package comms

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/rigelbuild/compass-operator/internal/event"
	"github.com/rigelbuild/compass-operator/internal/store"
	"github.com/rigelbuild/compass-operator/internal/telemetry"
)

// messages is what comms writes through.
type messages interface {
	AppendMessage(ctx context.Context, n store.NewMessage) (store.Message, bool, []store.Touched, error)
	AppendAsk(ctx context.Context, n store.NewMessage) (store.Message, bool, []store.Touched, error)
	AnswerAsk(ctx context.Context, n store.NewAnswer) (store.Message, bool, []store.Touched, error)
	EditMessage(ctx context.Context, e store.Edit) (store.Message, error)
	CommitFrame(ctx context.Context, f store.Frame) (store.Message, bool, []store.Touched, error)
}

// channels is what comms reads through.
type channels interface {
	ListMessages(ctx context.Context, page store.MessagePage) ([]store.Message, bool, error)
	ChannelsOf(ctx context.Context, account string) ([]store.ChannelHead, error)
	MessagesAfter(ctx context.Context, q store.Drain) ([]store.Message, error)
	// The same for all streams of this process at once.
	MessagesBurst(ctx context.Context, b store.Burst) (map[string]store.News, error)
	SeatsOf(ctx context.Context, accounts []string) (map[string][]store.ChannelHead, error)
}

// limits tells what a tenant may write.
type limits interface {
	TenantLimits(ctx context.Context) (store.TenantLimits, error)
}

// Store is what comms needs of *store.Store.
type Store interface {
	messages
	channels
	limits
}

// emitter tells facts after they were committed; see event.Emitter.
type emitter interface {
	Emit(ctx context.Context, f event.Fact)
}

// bus is where the facts of this process and, through the bridge, of every other one are heard; see event.Bus.
type bus interface {
	Subscribe(o event.SubscribeOptions) (*event.Subscription, error)
}

// ids makes the ids of messages; see naming.IDs.
type ids interface {
	Message() string
}

// Options are the parts of comms. Store, Emitter, Bus, IDs and Now are required. An emitter without a queue keeps every
// fact in the process, which only unit tests may do (REQ-014).
type Options struct {
	Store   Store
	Emitter emitter
	Bus     bus
	IDs     ids
	Now     func() time.Time
	// Known is told the limits that were read, so that a store opened with its Of follows them. Optional.
	Known  *store.KnownLimits
	Meters metric.MeterProvider // default: none
	Stream StreamOptions
}

// Comms serves the messages of every tenant; the tenant is in the context of each call. It is safe for concurrent use.
type Comms struct {
	store     Store
	emitter   emitter
	bus       bus
	ids       ids
	now       func() time.Time
	hops      telemetry.Hops
	admission *admission
	stream    StreamOptions
	shared    *shared
	seats     *seats
}

// NewComms returns a Comms; it starts nothing.
func NewComms(o Options) (*Comms, error) {
	if o.Store == nil || o.Emitter == nil || o.Bus == nil || o.IDs == nil || o.Now == nil {
		return nil, errors.New("comms: store, emitter, bus, ids and clock are required")
	}
	hops, err := telemetry.NewHops(o.Meters)
	if err != nil {
		return nil, fmt.Errorf("comms: %w", err)
	}
	stream := o.Stream.withDefaults()
	pages := newShared(o.Store, o.Now, stream.Page)
	return &Comms{
		store: o.Store, emitter: o.Emitter, bus: o.Bus, ids: o.IDs, now: o.Now, hops: hops,
		admission: newAdmission(o.Store, o.Known, o.Now), stream: stream,
		shared: pages, seats: newSeats(o.Store, o.Bus, pages, o.Now),
	}, nil
}

// Result is a message and whether it was there before the call.
type Result struct {
	Message   store.Message
	Duplicate bool
}

// PostMessage commits a message and tells it. Its ID is given here; the rest of n is the caller's, and Author is whoever
// the transport proved. Errors: those of store.AppendMessage, wire.ErrExhausted, store.ErrTooLarge.
func (c *Comms) PostMessage(ctx context.Context, n store.NewMessage) (Result, error) {
	return c.append(ctx, n, c.store.AppendMessage)
}

// AskQuestion commits a question, together with what its author said before it, and tells both. Errors as PostMessage.
func (c *Comms) AskQuestion(ctx context.Context, n store.NewMessage) (Result, error) {
	return c.append(ctx, n, c.store.AppendAsk)
}

type appender func(context.Context, store.NewMessage) (store.Message, bool, []store.Touched, error)

func (c *Comms) append(ctx context.Context, n store.NewMessage, to appender) (Result, error) {
	began := c.now()
	if _, err := c.admission.admit(ctx, n.Blocks); err != nil {
		return Result{}, err
	}
	n.ID = c.ids.Message()
	m, inserted, touched, err := to(ctx, n)
	if err != nil {
		return Result{}, err
	}
	c.committed(ctx, began)
	if inserted && m.Held() {
		c.tellHeld(ctx, m)
	}
	c.Announce(ctx, touched)
	return Result{Message: m, Duplicate: !inserted}, nil
}

// RespondToAsk commits the answer of a question, in one transaction with what it changes, and tells it (REQ-003). Errors:
// those of store.AnswerAsk, wire.ErrExhausted, store.ErrTooLarge.
func (c *Comms) RespondToAsk(ctx context.Context, n store.NewAnswer) (Result, error) {
	began := c.now()
	if _, err := c.admission.admit(ctx, n.Blocks); err != nil {
		return Result{}, err
	}
	n.ID = c.ids.Message()
	m, inserted, touched, err := c.store.AnswerAsk(ctx, n)
	if err != nil {
		return Result{}, err
	}
	c.committed(ctx, began)
	c.Announce(ctx, touched)
	return Result{Message: m, Duplicate: !inserted}, nil
}

// UpdateMessage changes a message whose turn is open and tells those who show it; nothing is handed over, because nothing
// became deliverable. Errors: those of store.EditMessage, wire.ErrExhausted.
func (c *Comms) UpdateMessage(ctx context.Context, e store.Edit) (store.Message, error) {
	most, err := c.admission.admit(ctx, e.Blocks)
	if err != nil {
		return store.Message{}, err
	}
	e.MaxBytes = most
	m, err := c.store.EditMessage(ctx, e)
	if err != nil {
		return store.Message{}, err
	}
	c.tellHeld(ctx, m)
	return m, nil
}

// CommitFrame writes a piece of an open turn's message. Errors: those of store.CommitFrame, wire.ErrExhausted.
func (c *Comms) CommitFrame(ctx context.Context, f store.Frame) (Result, error) {
	most, err := c.admission.admit(ctx, f.Blocks)
	if err != nil {
		return Result{}, err
	}
	f.ID, f.MaxBytes = c.ids.Message(), most
	m, created, touched, err := c.store.CommitFrame(ctx, f)
	if err != nil {
		return Result{}, err
	}
	if m.Held() { // the repeat of a frame whose turn has settled since tells nothing
		c.tellHeld(ctx, m)
	}
	c.Announce(ctx, touched)
	return Result{Message: m, Duplicate: !created}, nil
}

// ListMessages reads a page of a channel for one of its members.
func (c *Comms) ListMessages(ctx context.Context, page store.MessagePage) ([]store.Message, bool, error) {
	return c.store.ListMessages(ctx, page)
}

// committed records how long a message took from the entry of its call to its commit.
func (c *Comms) committed(ctx context.Context, began time.Time) {
	c.hops.Took(ctx, telemetry.HopCommit, c.now().Sub(began))
}

// tellHeld tells those who show open turns. A first frame and a later one are told alike: whoever streams a channel reads
// what changed by rev.
func (c *Comms) tellHeld(ctx context.Context, m store.Message) {
	tenant, _ := store.TenantFromContext(ctx)
	fact := event.MessageUpdated
	if m.Rev == m.Seq {
		fact = event.MessageVisible
	}
	c.emitter.Emit(ctx, fact(string(tenant), m.Channel, m.ID, m.Rev))
}

// Announce tells what a transaction made deliverable, after its commit: those who show the channel first, then the queue
// (REQ-004). One fact per channel and lane, naming its newest message: readers go by rev and the drain by position, so the
// newest stands for all (K2). The hub calls it for what a settle or the end of a session touched.
func (c *Comms) Announce(ctx context.Context, touched []store.Touched) {
	tenant, _ := store.TenantFromContext(ctx)
	for _, t := range touched {
		last := t.Last()
		c.emitter.Emit(ctx, event.MessageVisible(string(tenant), t.Channel, last.ID, last.Pos))
		c.emitter.Emit(ctx, event.MessagePosted(string(tenant), t.Channel, last.ID, last.Pos))
	}
}

// AnnounceReplay hands over what a replay made owed again: every message, because each is owed by itself, under a version
// of now, so that no duplicate window takes it for the post of long ago.
func (c *Comms) AnnounceReplay(ctx context.Context, touched []store.Touched) {
	tenant, _ := store.TenantFromContext(ctx)
	for _, t := range touched {
		for _, m := range t.Messages {
			c.emitter.Emit(ctx, event.MessagePosted(string(tenant), t.Channel, m.ID, c.now().UnixMicro()))
		}
	}
}
