package fabrictest

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/rigelbuild/compass-operator/internal/fabric"
)

// Options are what a suite needs to say about one instance. Zero values mean the fabric's defaults.
type Options struct {
	Stream     string
	StreamOf   func(tenant string) (string, bool)
	MaxDeliver int
	Backoff    []time.Duration
	AckWait    time.Duration
	Commands   fabric.Signer
}

// Instance is one process on a ground.
type Instance interface { //nolint:interfacebloat // all ports of one process, for one suite
	fabric.EventFabric
	fabric.DeadLetterBox
	fabric.Broadcaster
	fabric.Notifier
	fabric.RunnerFabric
	Close(ctx context.Context) error
}

// Ground is one broker.
type Ground interface {
	// Open starts an instance that makes and repairs the streams it needs, and closes it when the test ends.
	Open(t *testing.T, o Options) Instance
	// Runner connects the Runner of that id, of the shared fleet, and closes it when the test ends.
	Runner(t *testing.T, id string, keys *fabric.CommandKeys) fabric.RunnerConn
	// Outage makes the broker unreachable, for everybody, until the returned function is called. What is stored stays.
	Outage(t *testing.T) (restore func())
	// Raw stores a message in a queue stream as it is, past every check of Publish.
	Raw(t *testing.T, subject string, header map[string]string, body []byte)
}

// Ids for tests; the last characters tell them apart.
const (
	TenantA = "t_0000000000000000000000000a"
	TenantB = "t_0000000000000000000000000b"
	Runner1 = "r-00000000000000000000000001"
	Runner2 = "r-00000000000000000000000002"
	Client1 = "n_00000000000000000000000001"
	Client2 = "n_00000000000000000000000002"
	Stream  = "main"
)

// Ref is a valid reference to row n of the tenant.
func Ref(tenant, row string) fabric.EventRef {
	return fabric.EventRef{Tenant: tenant, Kind: fabric.KindMessagePosted, RowID: row, Version: 1}
}

// patience bounds every wait for something that must come; quiet is how long nothing must come.
const (
	patience = 30 * time.Second
	quiet    = 300 * time.Millisecond
)

// ErrBoom is what failing callbacks of the suites return.
var ErrBoom = errors.New("boom")

// Eventually polls until ok, or fails the test.
func Eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	EventuallyWithin(t, patience, what, ok)
}

// EventuallyWithin is Eventually with another patience.
func EventuallyWithin(t *testing.T, patience time.Duration, what string, ok func() bool) {
	t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-deadline.C:
			t.Fatalf("did not happen within %s: %s", patience, what)
		case <-tick.C:
		}
	}
}

// never fails the test if bad becomes true while nothing should happen.
func never(t *testing.T, what string, bad func() bool) {
	t.Helper()
	deadline := time.NewTimer(quiet)
	defer deadline.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		if bad() {
			t.Fatalf("must not happen: %s", what)
		}
		select {
		case <-deadline.C:
			return
		case <-tick.C:
		}
	}
}

// log records what callbacks saw, in order.
type log struct {
	mu   sync.Mutex
	refs []fabric.EventRef
	at   []time.Time
}

func (l *log) add(ref fabric.EventRef) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refs = append(l.refs, ref)
	l.at = append(l.at, time.Now())
	return len(l.refs)
}

func (l *log) len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.refs)
}

func (l *log) of(row string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for _, r := range l.refs {
		if r.RowID == row {
			n++
		}
	}
	return n
}

func (l *log) first() fabric.EventRef {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.refs[0]
}

func (l *log) times() []time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]time.Time(nil), l.at...)
}

func publish(t *testing.T, f fabric.EventFabric, ref fabric.EventRef) {
	t.Helper()
	if err := tryPublish(t, f, ref); err != nil {
		t.Fatalf("publish %+v: %v", ref, err)
	}
}

func tryPublish(t *testing.T, f fabric.EventFabric, ref fabric.EventRef) error {
	t.Helper()
	subject, err := fabric.CommsSubject(ref.Tenant, ref.Kind)
	if err != nil {
		t.Fatal(err)
	}
	return f.Publish(t.Context(), subject, ref)
}

func subscribe(t *testing.T, f fabric.EventFabric, fn fabric.Handler) fabric.Unsubscribe {
	t.Helper()
	end, err := f.SubscribeKind(t.Context(), fabric.KindMessagePosted, fn)
	if err != nil {
		t.Fatalf("SubscribeKind: %v", err)
	}
	return end
}

func letters(t *testing.T, b fabric.DeadLetterBox, tenant string) []fabric.DeadLetter {
	t.Helper()
	var all []fabric.DeadLetter
	if err := b.List(t.Context(), Stream, tenant, func(d fabric.DeadLetter) bool { all = append(all, d); return true }); err != nil {
		t.Fatalf("list dead letters: %v", err)
	}
	return all
}

func waitLetters(t *testing.T, b fabric.DeadLetterBox, n int) []fabric.DeadLetter {
	t.Helper()
	var all []fabric.DeadLetter
	Eventually(t, "the dead letters are there", func() bool { all = letters(t, b, ""); return len(all) >= n })
	if len(all) != n {
		t.Fatalf("dead letters: got %d, want %d: %+v", len(all), n, all)
	}
	return all
}

// short are options with delays that suit a test.
func short() Options {
	return Options{Stream: Stream, MaxDeliver: 3, Backoff: []time.Duration{20 * time.Millisecond}, AckWait: 10 * time.Second}
}
