package fabric_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
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
)

func short() fabrictest.Options {
	return fabrictest.Options{
		Stream: fabrictest.Stream, MaxDeliver: 3, Backoff: []time.Duration{20 * time.Millisecond}, AckWait: 10 * time.Second,
	}
}

// rows collects what a subscription saw.
type rows struct {
	mu   sync.Mutex
	seen map[string]int
}

func (r *rows) take(_ context.Context, ref fabric.EventRef) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.seen == nil {
		r.seen = map[string]int{}
	}
	r.seen[ref.RowID]++
	return nil
}

func (r *rows) of(row string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.seen[row]
}

func publish(t *testing.T, f fabric.EventFabric, row string) error {
	t.Helper()
	subject, err := fabric.CommsSubject(fabrictest.TenantA, fabric.KindMessagePosted)
	if err != nil {
		t.Fatal(err)
	}
	return f.Publish(t.Context(), subject, fabrictest.Ref(fabrictest.TenantA, row))
}

// arrives publishes until it works, then waits for the callback.
func arrives(t *testing.T, f fabric.EventFabric, r *rows, row string) {
	t.Helper()
	fabrictest.Eventually(t, "publish "+row, func() bool { return publish(t, f, row) == nil })
	fabrictest.Eventually(t, row+" arrives", func() bool { return r.of(row) > 0 })
}

type healing struct {
	b      *broker
	f      *fabric.Fabric
	js     jetstream.JetStream
	rows   *rows
	sweeps *atomic.Int64
}

// heals subscribes on a fabric that manages its stream and has delivered one reference.
func heals(t *testing.T, mod func(*fabric.Config)) healing {
	t.Helper()
	b := newBroker(t)
	cfg := b.config(t, short())
	if mod != nil {
		mod(&cfg)
	}
	h := healing{b: b, f: open(t, cfg), rows: &rows{}, sweeps: &atomic.Int64{}}
	if _, err := h.f.OnReconnect(func() { h.sweeps.Add(1) }); err != nil {
		t.Fatal(err)
	}
	if _, err := h.f.SubscribeKind(t.Context(), fabric.KindMessagePosted, h.rows.take); err != nil {
		t.Fatal(err)
	}
	js, err := jetstream.New(b.client(t))
	if err != nil {
		t.Fatal(err)
	}
	h.js = js
	arrives(t, h.f, h.rows, "before")
	return h
}

// once waits until the hook has fired n times, and not once more.
func (h healing) swept(t *testing.T, n int64) {
	t.Helper()
	fabrictest.Eventually(t, "the sweep hook fires", func() bool { return h.sweeps.Load() >= n })
	arrives(t, h.f, h.rows, "later"+strconv.FormatInt(n, 10))
	if got := h.sweeps.Load(); got != n {
		t.Errorf("the hook fired %d times, want %d", got, n)
	}
}

// Lessons B19: consumer, then stream, then the whole volume.
func TestConsumerAndStreamDeletedHeal(t *testing.T) {
	t.Parallel()
	h := heals(t, nil)
	if err := h.js.DeleteConsumer(t.Context(), "CMP_main", "deliver"); err != nil {
		t.Fatal(err)
	}
	arrives(t, h.f, h.rows, "after-consumer")
	h.swept(t, 1)
	if err := h.js.DeleteStream(t.Context(), "CMP_main"); err != nil {
		t.Fatal(err)
	}
	arrives(t, h.f, h.rows, "after-stream")
	h.swept(t, 2)
}

func TestVolumeLostHeals(t *testing.T) {
	t.Parallel()
	h := heals(t, nil)
	h.b.stop()
	if err := os.RemoveAll(filepath.Join(h.b.dir, "js")); err != nil {
		t.Fatal(err)
	}
	h.b.start(t)
	arrives(t, h.f, h.rows, "after")
	fabrictest.Eventually(t, "the sweep hook fires", func() bool { return h.sweeps.Load() >= 1 })
}

// Holds REQ-002. Lessons B18: the stream comes back older than its consumer, which then waits for sequences that are gone.
func TestConsumerAheadOfStreamHeals(t *testing.T) {
	t.Parallel()
	h := heals(t, nil)
	h.b.stop()
	msgs := findDir(t, h.b.dir, "CMP_main/msgs")
	old := t.TempDir()
	if err := os.CopyFS(old, os.DirFS(msgs)); err != nil {
		t.Fatal(err)
	}
	h.b.start(t)
	for i := range 30 {
		arrives(t, h.f, h.rows, "m"+strconv.Itoa(i))
	}
	h.b.stop()
	if err := os.RemoveAll(msgs); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(msgs, os.DirFS(old)); err != nil {
		t.Fatal(err)
	}
	h.b.start(t)
	for i := range 5 { // below what the consumer had delivered
		arrives(t, h.f, h.rows, "after"+strconv.Itoa(i))
	}
}

func findDir(t *testing.T, root, suffix string) string {
	t.Helper()
	found := ""
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && strings.HasSuffix(path, suffix) {
			found = path
		}
		return err
	})
	if err != nil || found == "" {
		t.Fatalf("no %s below %s (%v)", suffix, root, err)
	}
	return found
}

// Where the operator alone makes streams, the worker waits for it and makes nothing.
func TestWithoutManageTheFabricWaits(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	cfg := b.config(t, short())
	cfg.Manage = false
	f := open(t, cfg)
	var r rows
	var sweeps atomic.Int64
	if _, err := f.OnReconnect(func() { sweeps.Add(1) }); err != nil {
		t.Fatal(err)
	}
	if _, err := f.SubscribeKind(t.Context(), fabric.KindMessagePosted, r.take); err != nil {
		t.Fatalf("a stream that is not there yet is no error: %v", err)
	}
	operator := open(t, fabric.Config{Name: "operator", InProcess: b, Credentials: b.standalone(t), Logger: quietLog()})
	spec := fabric.StreamSpec{Name: fabrictest.Stream, AckWait: 10 * time.Second}
	build := func() {
		t.Helper()
		for _, ensure := range []func() error{
			func() error { _, _, err := operator.EnsureStream(t.Context(), spec, false); return err },
			func() error { _, _, err := operator.EnsureDeadLetters(t.Context(), spec, false); return err },
			func() error { _, _, err := operator.EnsureConsumer(t.Context(), spec, false); return err },
		} {
			if err := ensure(); err != nil {
				t.Fatal(err)
			}
		}
	}
	queue, _, _, err := operator.ObserveStream(t.Context(), spec)
	if err != nil || queue.Exists {
		t.Fatalf("the worker made a stream: %+v, %v", queue, err)
	}
	build()
	arrives(t, f, &r, "first")
	if err := operator.RemoveStream(t.Context(), fabrictest.Stream); err != nil {
		t.Fatal(err)
	}
	fabrictest.Eventually(t, "publishing fails", func() bool { return publish(t, f, "lost") != nil })
	build()
	arrives(t, f, &r, "second")
	fabrictest.Eventually(t, "it is told that references may have been lost", func() bool { return sweeps.Load() == 1 })
}

// Lessons B34, U24: what the broker enforces is what was asked for, also after somebody changed it.
func TestDriftOfConsumerAndStreamIsRepaired(t *testing.T) {
	t.Parallel()
	h := heals(t, nil)
	c, err := h.js.Consumer(t.Context(), "CMP_main", "deliver")
	if err != nil {
		t.Fatal(err)
	}
	cfg := c.CachedInfo().Config
	cfg.AckWait, cfg.MaxDeliver, cfg.MaxAckPending = time.Minute, 2, 1
	if _, err := h.js.UpdateConsumer(t.Context(), "CMP_main", cfg); err != nil {
		t.Fatal(err)
	}
	s, err := h.js.Stream(t.Context(), "CMP_main")
	if err != nil {
		t.Fatal(err)
	}
	scfg := s.CachedInfo().Config
	scfg.AllowRollup, scfg.MaxBytes = true, 1<<20
	if _, err := h.js.UpdateStream(t.Context(), scfg); err != nil {
		t.Fatal(err)
	}
	fabrictest.Eventually(t, "both are as they were", func() bool {
		info, err := c.Info(t.Context())
		sinfo, err2 := s.Info(t.Context())
		return err == nil && err2 == nil && info.Config.AckWait == 10*time.Second && info.Config.MaxDeliver == -1 &&
			info.Config.MaxAckPending == fabric.DefaultMaxAckPending && !sinfo.Config.AllowRollup && sinfo.Config.MaxBytes == 1<<30
	})
	arrives(t, h.f, h.rows, "after")
}

// Lessons B29: no dead letter, no ack; the callback is not asked twice for it.
func TestDeadLetterStreamGoneIsNoLoss(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	f := open(t, b.config(t, short()))
	var asked atomic.Int64
	if _, err := f.SubscribeKind(t.Context(), fabric.KindMessagePosted, func(context.Context, fabric.EventRef) error {
		asked.Add(1)
		return poison()
	}); err != nil {
		t.Fatal(err)
	}
	js, err := jetstream.New(b.client(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := js.DeleteStream(t.Context(), "CMP_main_DLQ"); err != nil {
		t.Fatal(err)
	}
	if err := publish(t, f, "bad"); err != nil {
		t.Fatal(err)
	}
	fabrictest.Eventually(t, "it is parked after all", func() bool { return len(deadRows(t, f)) == 1 })
	if asked.Load() != 1 {
		t.Errorf("the callback was asked %d times, want once: it had spoken", asked.Load())
	}
}

// Ruling S2: "already there" is success only for the same row and recipient; anything else must stay in the queue.
func TestTakenPlaceIsNotSuccess(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	f := open(t, b.config(t, short()))
	letter := fabric.DeadLetter{Ref: fabrictest.Ref(fabrictest.TenantA, "m_1"), Recipient: "a_0000000000000000000000000a"}
	subject := "compass.dlq.main." + fabrictest.TenantA + ".message_posted.m_1." + letter.Recipient + ".1.0"
	b.Raw(t, subject, map[string]string{"Compass-Row": "m_2", "Compass-Recipient": letter.Recipient}, nil)
	if err := f.Announce(t.Context(), fabrictest.Stream, letter); !errors.Is(err, fabric.ErrMismatch) {
		t.Errorf("got %v, want ErrMismatch", err)
	}
}

// Lessons B13: more poison than MaxAckPending blocks nobody.
func TestPoisonDoesNotFillTheQueue(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	cfg := b.config(t, short())
	cfg.Spec.MaxAckPending = 4
	f := open(t, cfg)
	var r rows
	if _, err := f.SubscribeKind(t.Context(), fabric.KindMessagePosted, func(ctx context.Context, ref fabric.EventRef) error {
		if strings.HasPrefix(ref.RowID, "bad") {
			return poison()
		}
		return r.take(ctx, ref)
	}); err != nil {
		t.Fatal(err)
	}
	const n = 50
	for i := range n {
		if err := publish(t, f, "bad"+strconv.Itoa(i)); err != nil {
			t.Fatal(err)
		}
	}
	arrives(t, f, &r, "good")
	got := deadRows(t, f)
	slices.Sort(got)
	if len(slices.Compact(got)) != n {
		t.Errorf("%d dead letters, want %d different ones", len(got), n)
	}
}

// Holds REQ-022, REQ-030. Lessons B22: however often the connection flaps, the sweep is asked for once, after the last time.
func TestFlapsAreOneOutage(t *testing.T) {
	t.Parallel()
	h := heals(t, func(c *fabric.Config) { c.Link.Settle = 500 * time.Millisecond })
	for range 20 {
		h.b.cut()
		fabrictest.Eventually(t, "it reconnects", func() bool { return h.f.Connected() })
	}
	last := time.Now()
	fabrictest.Eventually(t, "the hook fires", func() bool { return h.sweeps.Load() > 0 })
	if since := time.Since(last); since < 300*time.Millisecond {
		t.Errorf("it fired %s after the last flap, before the connection had settled", since)
	}
	h.swept(t, h.sweeps.Load())
	if n := h.sweeps.Load(); n > 2 {
		t.Errorf("20 flaps asked for %d sweeps, want at most 2", n)
	}
}

// A server that stands still is left, and the way back is found without help.
func TestFrozenServerIsLeft(t *testing.T) {
	t.Parallel()
	h := heals(t, func(c *fabric.Config) { c.Link.PingInterval = 100 * time.Millisecond; c.PublishTimeout = time.Second })
	h.b.freeze()
	arrives(t, h.f, h.rows, "after")
	fabrictest.Eventually(t, "the hook fires", func() bool { return h.sweeps.Load() == 1 })
}

// logOf keeps the messages of a log, in order.
type logOf struct {
	mu    sync.Mutex
	lines []string
}

func (l *logOf) add(line string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, line)
}

func (l *logOf) Enabled(context.Context, slog.Level) bool { return true }
func (l *logOf) WithAttrs([]slog.Attr) slog.Handler       { return l }
func (l *logOf) WithGroup(string) slog.Handler            { return l }
func (l *logOf) Handle(_ context.Context, r slog.Record) error {
	l.add(r.Message)
	return nil
}

func (l *logOf) after(first, then string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	i, j := slices.Index(l.lines, first), slices.Index(l.lines, then)
	if i < 0 || j < i {
		return fmt.Errorf("%q then %q is not in %q", first, then, l.lines)
	}
	return nil
}

// Holds REQ-022, REQ-023, REQ-082: the caller's handlers, the outage log and the sweep hook all stand.
func TestCallersOptionsDisplaceNothing(t *testing.T) {
	t.Parallel()
	lines := &logOf{}
	var theirs atomic.Int64
	h := heals(t, func(c *fabric.Config) {
		c.Logger = slog.New(lines)
		c.Options = []nats.Option{
			nats.ReconnectHandler(func(*nats.Conn) { theirs.Add(1) }),
			nats.DisconnectErrHandler(func(*nats.Conn, error) { theirs.Add(10) }),
			nats.MaxReconnects(0), nats.NoReconnect(), nats.ReconnectBufSize(1 << 20),
		}
	})
	if _, err := h.f.OnReconnect(func() { lines.add("swept") }); err != nil {
		t.Fatal(err)
	}
	h.b.cut()
	h.swept(t, 1)
	if theirs.Load() != 11 {
		t.Errorf("the caller's handlers: got %d, want both once (11)", theirs.Load())
	}
	for _, pair := range [][2]string{
		{"NATS connection lost", "NATS connection restored"}, {"NATS connection restored", "swept"},
	} {
		fabrictest.Eventually(t, pair[1], func() bool { return lines.after(pair[0], pair[1]) == nil })
	}
}

// A lane that could not begin while the broker was away begins when it is back, however long it had meant to wait.
func TestLaneBeginsWithTheConnection(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	cfg := b.config(t, short())
	cfg.Link.ReconnectWait = time.Hour // which is the lane's first pause too
	cfg.Options = append(cfg.Options, nats.CustomReconnectDelay(func(int) time.Duration { return 10 * time.Millisecond }))
	f := open(t, cfg)
	b.stop()
	fabrictest.Eventually(t, "it is noticed", func() bool { return !f.Connected() })
	var r rows
	if _, err := f.SubscribeKind(t.Context(), fabric.KindMessagePosted, r.take); err != nil {
		t.Fatal(err)
	}
	b.start(t)
	arrives(t, f, &r, "after")
}
