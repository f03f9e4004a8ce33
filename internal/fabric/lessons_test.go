package fabric_test

import (
	"context"
	"errors"
	"flag"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/rigelbuild/compass-operator/internal/fabric"
	"github.com/rigelbuild/compass-operator/internal/fabric/fabrictest"
	"github.com/rigelbuild/compass-operator/internal/fault"
)

// What bit other delivery systems (docs/lessons.md), tried on a real broker. The sizes are small here and as reported in
// make chaos.
var floodSize = flag.Int("fabric.flood", 2000, "references published at full speed")

// Lessons B1, B32, U3. A dependency that is away charges nobody an attempt, however long it is away, and the same process
// goes on when it is back.
func TestADependencyThatIsAwayParksNothing(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	o := short()
	f := open(t, b.config(t, o))
	var r rows
	var away atomic.Bool
	away.Store(true)
	tries := &rows{}
	if _, err := f.SubscribeKind(t.Context(), fabric.KindMessagePosted, func(ctx context.Context, ref fabric.EventRef) error {
		_ = tries.take(ctx, ref)
		if away.Load() {
			return fault.RetryAfter(50*time.Millisecond, fabrictest.ErrBoom)
		}
		return r.take(ctx, ref)
	}); err != nil {
		t.Fatal(err)
	}
	const n = 100
	for i := range n {
		if err := publish(t, f, "m_"+strconv.Itoa(i)); err != nil {
			t.Fatal(err)
		}
	}
	fabrictest.Eventually(t, "all were tried more often than they may fail", func() bool {
		for i := range n {
			if tries.of("m_"+strconv.Itoa(i)) <= o.MaxDeliver {
				return false
			}
		}
		return true
	})
	away.Store(false)
	fabrictest.Eventually(t, "all are done", func() bool { return r.all(n) })
	if got := deadRows(t, f); len(got) != 0 {
		t.Errorf("parked %v, want none", got)
	}
}

// all reports whether m_0 to m_(n-1) were seen.
func (r *rows) all(n int) bool {
	for i := range n {
		if r.of("m_"+strconv.Itoa(i)) == 0 {
			return false
		}
	}
	return true
}

// most is how often the row that was seen most often was.
func (r *rows) most() (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, k := range r.seen {
		n = max(n, k)
	}
	return n
}

// Lessons B2, U21, U22, operator 22. One authority counts and delays: the broker has AckWait as it was asked for, no schedule that
// would overwrite it, and no limit after which it drops a reference out of sight.
func TestTheBrokerCountsNothing(t *testing.T) {
	t.Parallel()
	h := heals(t, func(c *fabric.Config) {
		c.Spec.AckWait, c.Backoff, c.MaxDeliver = 0, []time.Duration{time.Second, 5 * time.Second}, 2
	})
	c, err := h.js.Consumer(t.Context(), "CMP_main", "deliver")
	if err != nil {
		t.Fatal(err)
	}
	cfg := c.CachedInfo().Config
	if cfg.AckWait != fabric.DefaultAckWait || len(cfg.BackOff) != 0 || cfg.MaxDeliver != -1 || cfg.MaxAckPending != fabric.DefaultMaxAckPending {
		t.Errorf("the broker's consumer: AckWait %s, BackOff %v, MaxDeliver %d, MaxAckPending %d", cfg.AckWait, cfg.BackOff, cfg.MaxDeliver, cfg.MaxAckPending)
	}
}

// Lessons B3, B4, U19. What waits behind a slow callback must not pass its AckWait while it waits.
func TestSlowCallbacksAreNotOvertaken(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	o := short()
	o.AckWait = 2 * time.Second
	a, c := open(t, b.config(t, o)), open(t, b.config(t, o))
	const n = 90
	for i := range n {
		fabrictest.Eventually(t, "publish", func() bool { return publish(t, a, "m_"+strconv.Itoa(i)) == nil })
	}
	var r rows
	slow := func(ctx context.Context, ref fabric.EventRef) error {
		<-time.After(60 * time.Millisecond) // 90 of them, by two, take longer than AckWait
		return r.take(ctx, ref)
	}
	for _, f := range []*fabric.Fabric{a, c} {
		if _, err := f.SubscribeKind(t.Context(), fabric.KindMessagePosted, slow); err != nil {
			t.Fatal(err)
		}
	}
	fabrictest.Eventually(t, "all are done", func() bool { return r.all(n) })
	if r.most() != 1 {
		t.Errorf("a reference was delivered %d times, want once each", r.most())
	}
}

// Lessons B5, U9: see the conformance suite. Lessons B6. The broker forgets ids of what was acked when it restarts, so the
// same change may come once more. It is a hint: whoever gets it reads what is owed, and that is nothing.
func TestTheSameChangeAfterARestartIsAHintAtMost(t *testing.T) {
	t.Parallel()
	h := heals(t, nil)
	h.b.stop()
	h.b.start(t)
	arrives(t, h.f, h.rows, "between")
	if err := publish(t, h.f, "before"); err != nil {
		t.Fatal(err)
	}
	arrives(t, h.f, h.rows, "after")
	if n := h.rows.of("before"); n > 2 {
		t.Errorf("delivered %d times, want at most once more", n)
	}
	if got := deadRows(t, h.f); len(got) != 0 {
		t.Errorf("parked %v", got)
	}
}

// Lessons B8. A publish that was stored and not answered is published again, and stored once.
func TestAnUnansweredPublishIsStoredOnce(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	cfg := b.config(t, short())
	cfg.PublishTimeout, cfg.Link.PingInterval = 300*time.Millisecond, 100*time.Millisecond
	poster := open(t, cfg)
	b.freeze() // the poster hears nothing more on this connection; what it sends still arrives
	worker := open(t, b.config(t, short()))
	var r rows
	if _, err := worker.SubscribeKind(t.Context(), fabric.KindMessagePosted, r.take); err != nil {
		t.Fatal(err)
	}
	if err := publish(t, poster, "m_0"); err == nil {
		t.Fatal("an answer came through")
	}
	fabrictest.Eventually(t, "it was stored all the same", func() bool { return r.of("m_0") == 1 })
	fabrictest.Eventually(t, "publishing again works", func() bool { return publish(t, poster, "m_0") == nil })
	arrives(t, poster, &r, "m_1")
	if n := r.of("m_0"); n != 1 {
		t.Errorf("delivered %d times, want once", n)
	}
}

// Lessons B10. Nobody notices an exhausted reference while no process is there; it is still counted as waiting then, and
// parked by whoever comes next, unworked.
func TestExhaustedWhileNobodyIsThere(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	o := short()
	o.AckWait, o.MaxDeliver = 100*time.Millisecond, 2
	f := open(t, b.config(t, o))
	js, err := jetstream.New(b.client(t))
	if err != nil {
		t.Fatal(err)
	}
	spec := fabric.StreamSpec{Name: fabrictest.Stream, AckWait: o.AckWait}
	if _, _, err := f.EnsureConsumer(t.Context(), spec, true); err != nil {
		t.Fatal(err)
	}
	if err := publish(t, f, "killer"); err != nil {
		t.Fatal(err)
	}
	c, err := js.Consumer(t.Context(), "CMP_main", "deliver")
	if err != nil {
		t.Fatal(err)
	}
	for range o.MaxDeliver { // processes that take it and die
		msg, err := c.Next(jetstream.FetchMaxWait(10 * time.Second))
		if err != nil {
			t.Fatal(err)
		}
		if m, err := msg.Metadata(); err != nil || m.NumDelivered > uint64(o.MaxDeliver) { //nolint:gosec // a small number
			t.Fatalf("%+v, %v", m, err)
		}
	}
	queue, dead, _, err := f.ObserveStream(t.Context(), spec)
	if err != nil || queue.Messages != 1 || dead.Messages != 0 {
		t.Errorf("while nobody is there: %d waiting, %d parked, %v; want 1 and 0", queue.Messages, dead.Messages, err)
	}
	var r rows
	if _, err := f.SubscribeKind(t.Context(), fabric.KindMessagePosted, r.take); err != nil {
		t.Fatal(err)
	}
	fabrictest.Eventually(t, "it is parked", func() bool { return len(deadRows(t, f)) == 1 })
	if r.of("killer") != 0 {
		t.Error("it was worked once more")
	}
}

// Lessons B11, U17. What was parked can be read after a restart: each letter once, and nothing else.
func TestDeadLettersSurviveARestart(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	f := open(t, b.config(t, short()))
	var r rows
	if _, err := f.SubscribeKind(t.Context(), fabric.KindMessagePosted, func(ctx context.Context, ref fabric.EventRef) error {
		_ = r.take(ctx, ref)
		if strings.HasSuffix(ref.RowID, "7") {
			return poison()
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	const n = 200
	for i := range n {
		if err := publish(t, f, "m_"+strconv.Itoa(i)); err != nil {
			t.Fatal(err)
		}
	}
	fabrictest.Eventually(t, "all are taken and answered", func() bool {
		queue, _, _, err := f.ObserveStream(t.Context(), fabric.StreamSpec{Name: fabrictest.Stream})
		return err == nil && queue.Messages == 0 && r.all(n)
	})
	b.stop()
	b.start(t)
	var got []string
	fabrictest.Eventually(t, "the broker is back", func() bool { got = deadRows(t, f); return f.Connected() && len(got) > 0 })
	seen := map[string]bool{}
	for _, row := range got {
		if !strings.HasSuffix(row, "7") || seen[row] {
			t.Errorf("%s is among the dead letters, or twice", row)
		}
		seen[row] = true
	}
	if len(got) != n/10 {
		t.Errorf("%d dead letters, want %d", len(got), n/10)
	}
}

// Lessons B14. A reference that is put off keeps its place among the unanswered, so the others flow while there is one left.
// (The worker puts none off: what it returns is nil or poison, ADR-0008.)
func TestReferencesPutOffLeaveRoom(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	cfg := b.config(t, short())
	cfg.Spec.MaxAckPending = 4
	f := open(t, cfg)
	var r rows
	if _, err := f.SubscribeKind(t.Context(), fabric.KindMessagePosted, func(ctx context.Context, ref fabric.EventRef) error {
		_ = r.take(ctx, ref)
		if strings.HasPrefix(ref.RowID, "late") {
			return fault.RetryAfter(time.Minute, fabrictest.ErrBoom)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	for i := range cfg.Spec.MaxAckPending - 1 {
		arrives(t, f, &r, "late"+strconv.Itoa(i))
	}
	for i := range 20 {
		arrives(t, f, &r, "m_"+strconv.Itoa(i))
	}
}

// Lessons B17. The broker goes away between the callback's return and the ack: the reference comes again and is acked then,
// and nobody counts that against it.
func TestALostAckIsARepeat(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	o := short()
	o.AckWait, o.MaxDeliver = time.Second, 2
	f := open(t, b.config(t, o))
	var r rows
	if _, err := f.SubscribeKind(t.Context(), fabric.KindMessagePosted, func(ctx context.Context, ref fabric.EventRef) error {
		_ = r.take(ctx, ref)
		if r.of(ref.RowID) == 1 {
			b.stop()
			for f.Connected() {
				<-time.After(time.Millisecond)
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if err := publish(t, f, "m_0"); err != nil {
		t.Fatal(err)
	}
	fabrictest.Eventually(t, "the ack is lost", func() bool { return r.of("m_0") == 1 && !f.Connected() })
	b.start(t)
	fabrictest.Eventually(t, "it comes again, and is acked", func() bool {
		queue, _, _, err := f.ObserveStream(t.Context(), fabric.StreamSpec{Name: fabrictest.Stream})
		return err == nil && queue.Exists && queue.Messages == 0 && r.of("m_0") == 2
	})
	if got := deadRows(t, f); len(got) != 0 {
		t.Errorf("parked %v", got)
	}
}

// Lessons B24. Somebody who listens on the subject hides that no stream does: the publish still ends, as a failure.
func TestAListenerDoesNotHideThatNobodyStores(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	cfg := b.config(t, short())
	cfg.Manage, cfg.PublishTimeout = false, 300*time.Millisecond
	f := open(t, cfg)
	if err := publish(t, f, "m_0"); !errors.Is(err, fabric.ErrUnavailable) {
		t.Errorf("nobody at all: got %v, want ErrUnavailable", err)
	}
	nc := b.client(t)
	if _, err := nc.Subscribe("compass.q.>", func(*nats.Msg) {}); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := publish(t, f, "m_1"); !errors.Is(err, fabric.ErrUnavailable) {
		t.Errorf("a listener alone: got %v, want ErrUnavailable", err)
	}
}

// Lessons B30. At full speed nothing is dropped and nothing comes twice.
func TestFlood(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	cfg := b.config(t, short())
	cfg.Spec.MaxPerTenant, cfg.Spec.AckWait = int64(*floodSize), time.Minute
	f := open(t, cfg)
	var r rows
	var done atomic.Int64
	if _, err := f.SubscribeKind(t.Context(), fabric.KindMessagePosted, func(ctx context.Context, ref fabric.EventRef) error {
		done.Add(1)
		return r.take(ctx, ref)
	}); err != nil {
		t.Fatal(err)
	}
	p, err := fabric.NewPublisher(fabric.PublisherConfig{Fabric: f, Logger: quietLog(), Queue: *floodSize, Budget: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	for i := range *floodSize {
		if err := p.Enqueue(t.Context(), fabrictest.Ref(fabrictest.TenantA, "m_"+strconv.Itoa(i))); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	fabrictest.EventuallyWithin(t, 2*time.Minute, "all arrive", func() bool { return done.Load() >= int64(*floodSize) })
	if !r.all(*floodSize) || r.most() != 1 {
		t.Errorf("%d deliveries of %d references, one of them %d times", done.Load(), *floodSize, r.most())
	}
}

// Holds REQ-126. Lessons U16. Dead letters have a stream of their own that keeps them for thirty days and drops the oldest when it is full.
func TestDeadLetterStreamIsAsDocumented(t *testing.T) {
	t.Parallel()
	h := heals(t, nil)
	s, err := h.js.Stream(t.Context(), "CMP_main_DLQ")
	if err != nil {
		t.Fatal(err)
	}
	cfg := s.CachedInfo().Config
	if cfg.Retention != jetstream.LimitsPolicy || cfg.MaxAge != 30*24*time.Hour || cfg.Discard != jetstream.DiscardOld ||
		cfg.Storage != jetstream.FileStorage || cfg.MaxBytes <= 0 {
		t.Errorf("%+v", cfg)
	}
}

// Lessons U18, U20. A process that ends hands back what it had fetched: the next one has it long before AckWait.
func TestAnOrderlyEndHoldsNothingBack(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	o := short()
	o.AckWait = 10 * time.Minute
	cfg := b.config(t, o)
	cfg.Prefetch = 8
	first := open(t, cfg)
	const n = 40
	var r rows
	var once sync.Once
	began := make(chan struct{})
	end, err := first.SubscribeKind(t.Context(), fabric.KindMessagePosted, func(ctx context.Context, ref fabric.EventRef) error {
		once.Do(func() { close(began) })
		<-time.After(5 * time.Millisecond)
		return r.take(ctx, ref)
	})
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		if err := publish(t, first, "m_"+strconv.Itoa(i)); err != nil {
			t.Fatal(err)
		}
	}
	<-began
	end()
	next := open(t, cfg)
	if _, err := next.SubscribeKind(t.Context(), fabric.KindMessagePosted, r.take); err != nil {
		t.Fatal(err)
	}
	fabrictest.Eventually(t, "all are done", func() bool { return r.all(n) })
	if r.most() != 1 {
		t.Errorf("one was delivered %d times", r.most())
	}
}
