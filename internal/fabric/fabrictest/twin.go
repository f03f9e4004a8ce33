package fabrictest

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rigelbuild/compass-operator/internal/fabric"
)

// Broker is the twin of a NATS broker, in memory, for tests of what stands on the fabric. It passes the suites that the
// real one passes. It uses package time, so a synctest bubble gives it a virtual clock. The zero value is not usable.
type Broker struct {
	mu      sync.Mutex
	changed chan struct{} // closed and made anew when something was stored, answered or came back
	away    bool
	queues  map[string]*queue
	hearers map[string][]*hearer // core subscriptions by subject or filter
	hooks   map[*Twin][]*hook
	refuse  []error // what the next publishes fail with
	turn    int     // round robin among Servers
}

// NewBroker makes a broker that is up and empty.
func NewBroker() *Broker {
	return &Broker{
		changed: make(chan struct{}), queues: map[string]*queue{}, hearers: map[string][]*hearer{}, hooks: map[*Twin][]*hook{},
	}
}

// Twin is one process's fabric on a Broker.
type Twin struct {
	b  *Broker
	o  Options
	id string

	mu     sync.Mutex
	ends   []func()
	lane   bool
	closed bool
}

var (
	_ Instance            = (*Twin)(nil)
	_ Ground              = (*Broker)(nil)
	_ fabric.EventFabric  = (*Twin)(nil)
	_ fabric.RunnerFabric = (*Twin)(nil)
)

// Connect opens a fabric without a test around it.
func (b *Broker) Connect(o Options) *Twin {
	if o.MaxDeliver == 0 {
		o.MaxDeliver = fabric.DefaultMaxDeliver
	}
	if o.AckWait == 0 {
		o.AckWait = fabric.DefaultAckWait
	}
	if len(o.Backoff) == 0 {
		o.Backoff = []time.Duration{time.Second, 5 * time.Second, 30 * time.Second}
	}
	if o.StreamOf == nil {
		stream := o.Stream
		o.StreamOf = func(string) (string, bool) { return stream, stream != "" }
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	t := &Twin{b: b, o: o, id: "i_twin"}
	if o.Stream != "" && b.queues[o.Stream] == nil {
		b.queues[o.Stream] = newQueue()
	}
	return t
}

// Open implements Ground.
func (b *Broker) Open(t *testing.T, o Options) Instance {
	t.Helper()
	f := b.Connect(o)
	t.Cleanup(func() { _ = f.Close(context.WithoutCancel(t.Context())) })
	return f
}

// Outage implements Ground: nothing is published, delivered or heard until restore is called, which then tells every
// OnReconnect hook.
func (b *Broker) Outage(t *testing.T) (restore func()) {
	t.Helper()
	return b.GoAway()
}

// GoAway is Outage without a test around it.
func (b *Broker) GoAway() (restore func()) {
	b.mu.Lock()
	b.away = true
	b.mu.Unlock()
	return func() {
		b.mu.Lock()
		b.away = false
		b.bump()
		var due []*hook
		for _, hooks := range b.hooks {
			due = append(due, hooks...)
		}
		b.mu.Unlock()
		for _, h := range due {
			go h.fire()
		}
	}
}

// FailPublishes makes the next publishes fail, one error each.
func (b *Broker) FailPublishes(errs ...error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refuse = append(b.refuse, errs...)
}

// Lose drops every reference that the stream holds and tells every OnReconnect hook, as a lost volume does. Dead letters
// go too.
func (b *Broker) Lose(stream string) {
	restore := b.GoAway()
	b.mu.Lock()
	b.queues[stream] = newQueue()
	b.mu.Unlock()
	restore()
}

// Raw implements Ground.
func (b *Broker) Raw(t *testing.T, subject string, header map[string]string, body []byte) {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	w := fabric.Wire{Subject: subject, Header: map[string][]string{}, Body: body}
	for k, v := range header {
		w.Header[k] = []string{v}
	}
	b.queues[Stream].store(w, time.Now())
	b.bump()
}

// Pending is how many references a stream holds, answered ones not counted.
func (b *Broker) Pending(stream string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	if q := b.queues[stream]; q != nil {
		return len(q.items)
	}
	return 0
}

// bump wakes whoever waits. Called under mu.
func (b *Broker) bump() {
	close(b.changed)
	b.changed = make(chan struct{})
}

// Close implements Instance.
func (f *Twin) Close(context.Context) error {
	f.mu.Lock()
	if f.closed {
		f.mu.Unlock()
		return nil
	}
	f.closed = true
	ends := f.ends
	f.mu.Unlock()
	for _, end := range ends {
		end()
	}
	f.b.mu.Lock()
	delete(f.b.hooks, f)
	f.b.mu.Unlock()
	return nil
}

func (f *Twin) check() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return fabric.ErrClosed
	}
	return nil
}

// until makes an Unsubscribe that also runs when ctx ends and at Close.
func (f *Twin) until(ctx context.Context, end func()) fabric.Unsubscribe {
	stop := once(end)
	f.mu.Lock()
	f.ends = append(f.ends, stop)
	f.mu.Unlock()
	detach := context.AfterFunc(ctx, stop)
	return func() { detach(); stop() }
}

// once is sync.OnceFunc that a synctest bubble sees through: who waits for the first call lets the bubble's clock go on.
func once(fn func()) func() {
	var first atomic.Bool
	done := make(chan struct{})
	return func() {
		if first.CompareAndSwap(false, true) {
			fn()
			close(done)
		}
		<-done
	}
}

// hook is one OnReconnect function.
type hook struct {
	serial slot
	fn     func()
	ended  bool
}

func (h *hook) fire() {
	h.serial.lock()
	defer h.serial.unlock()
	if !h.ended {
		h.fn()
	}
}

// OnReconnect implements fabric.EventFabric.
func (f *Twin) OnReconnect(fn func()) (fabric.Unsubscribe, error) {
	if fn == nil {
		return nil, fmt.Errorf("%w: OnReconnect needs a function", fabric.ErrConfig)
	}
	if err := f.check(); err != nil {
		return nil, err
	}
	h := &hook{fn: fn, serial: newSlot()}
	f.b.mu.Lock()
	f.b.hooks[f] = append(f.b.hooks[f], h)
	f.b.mu.Unlock()
	return func() {
		h.serial.lock()
		h.ended = true
		h.serial.unlock()
	}, nil
}

// Log discards; for whatever needs a logger beside a twin.
func Log() *slog.Logger { return slog.New(slog.DiscardHandler) }
