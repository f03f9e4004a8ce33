package event

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// sink is a bus that can fail, and that looks at the bridge while it is told.
type sink struct {
	fail func() error

	mu   sync.Mutex
	refs []Ref
}

func (s *sink) emit(ref Ref) error {
	if s.fail != nil {
		if err := s.fail(); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refs = append(s.refs, ref)
	return nil
}

func bridgeTo(t *testing.T, s *sink, c *clock, o BridgeOptions) *Bridge {
	t.Helper()
	o.Bus, o.Now = newBus(t, BusOptions{Epoch: "e"}), c.Now
	if o.Instance.id == "" {
		o.Instance = newInstance(t)
	}
	b, err := NewBridge(o)
	if err != nil {
		t.Fatal(err)
	}
	b.local = s
	return b
}

func received(t *testing.T, by Instance, f Fact) Received {
	t.Helper()
	ref := f.Ref()
	return Received{Tenant: ref.Tenant, Event: string(ref.Kind), Envelope: encoded(t, seal(by, ref))}
}

func receive(t *testing.T, b *Bridge, r Received) {
	t.Helper()
	if err := b.Receive(r); err != nil {
		t.Fatal(err)
	}
}

// Holds REQ-142: an instance's own envelope is dropped, whatever its event, its heartbeat before that is looked at.
func TestBridgeDropsItsOwnEcho(t *testing.T) {
	t.Parallel()
	self, s := newInstance(t), &sink{}
	var outcomes []Outcome
	b := bridgeTo(t, s, newClock(), BridgeOptions{Instance: self, Observe: func(_ string, o Outcome) { outcomes = append(outcomes, o) }})
	receive(t, b, received(t, self, MessageVisible(acme, chanA, msgA, 1)))
	receive(t, b, received(t, self, Heartbeat(acme)))
	receive(t, b, received(t, newInstance(t), Heartbeat(acme)))
	if len(s.refs) != 0 {
		t.Errorf("told %v of what this instance decided", s.refs)
	}
	if diff := cmp.Diff([]Outcome{OutcomeOwn, OutcomeOwn, OutcomeHeartbeat}, outcomes); diff != "" {
		t.Error(diff)
	}
}

// Holds REQ-143 and REQ-147: of many copies, side by side and later, one is told.
func TestBridgeTellsCopiesOnce(t *testing.T) {
	t.Parallel()
	s := &sink{}
	b := bridgeTo(t, s, newClock(), BridgeOptions{})
	fact := MessageVisible(acme, chanA, msgA, 1)
	r := received(t, newInstance(t), fact)
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() { receive(t, b, r) })
	}
	wg.Wait()
	receive(t, b, received(t, newInstance(t), fact)) // by another producer, and still the same fact
	if diff := cmp.Diff([]Ref{fact.Ref()}, s.refs); diff != "" {
		t.Error(diff)
	}
}

// Holds REQ-143: the claim stands before the emit. A copy that arrives in the middle of the first one's emit is a copy.
func TestClaimPrecedesEmit(t *testing.T) {
	t.Parallel()
	s := &sink{}
	b := bridgeTo(t, s, newClock(), BridgeOptions{})
	r := received(t, newInstance(t), MessageVisible(acme, chanA, msgA, 1))
	depth := 0
	s.fail = func() error {
		if depth++; depth == 1 {
			return b.Receive(r)
		}
		return nil
	}
	receive(t, b, r)
	if len(s.refs) != 1 || depth != 1 {
		t.Errorf("told %d times, %d emits begun", len(s.refs), depth)
	}
}

// Holds REQ-143 and X5: a claim whose emit failed, or panicked, is given back, so that the next copy is no duplicate.
func TestClaimIsReleasedWhenEmitFails(t *testing.T) {
	t.Parallel()
	s, down := &sink{}, errors.New("down")
	var outcomes []Outcome
	b := bridgeTo(t, s, newClock(), BridgeOptions{Observe: func(_ string, o Outcome) { outcomes = append(outcomes, o) }})
	fact := MessageVisible(acme, chanA, msgA, 1)
	r := received(t, newInstance(t), fact)

	s.fail = func() error { return down }
	wantErr(t, b.Receive(r), down)
	s.fail = func() error { panic("boom") }
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic was swallowed")
			}
		}()
		_ = b.Receive(r)
	}()
	s.fail = nil
	receive(t, b, r)
	receive(t, b, r)
	if diff := cmp.Diff([]Ref{fact.Ref()}, s.refs); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]Outcome{OutcomeFailed, OutcomeFailed, OutcomeEmitted, OutcomeDuplicate}, outcomes); diff != "" {
		t.Error(diff)
	}
}

// Claims end after their time and give way at their count, oldest first; ruling B1 bounds the time.
func TestClaimsAreBounded(t *testing.T) {
	t.Parallel()
	s, c := &sink{}, newClock()
	b := bridgeTo(t, s, c, BridgeOptions{Claims: 3})
	by := newInstance(t)
	told := func(rev int64) bool {
		t.Helper()
		before := len(s.refs)
		receive(t, b, received(t, by, MessageUpdated(acme, chanA, msgA, rev)))
		return len(s.refs) > before
	}
	for rev := int64(1); rev <= 3; rev++ {
		if !told(rev) || told(rev) {
			t.Fatalf("rev %d: want told once", rev)
		}
	}
	if !told(4) || told(3) || told(2) || !told(1) {
		t.Error("the fourth claim must make the first, and only the first, be forgotten")
	}
	c.advance(MaxClaimTTL - time.Nanosecond)
	if told(4) {
		t.Error("a claim ended before its time")
	}
	c.advance(time.Nanosecond)
	if !told(4) || len(b.claims.byKey) != 1 || b.claims.order.Len() != 1 {
		t.Errorf("%d claims outlived their time", len(b.claims.byKey)-1)
	}
}

func TestBridgeRefuses(t *testing.T) {
	t.Parallel()
	by := newInstance(t)
	good := received(t, by, MessageVisible(acme, chanA, msgA, 1))
	for name, r := range map[string]Received{
		"garbage":                   {Tenant: acme, Event: good.Event, Envelope: []byte("x")},
		"another tenant's subject":  {Tenant: other, Event: good.Event, Envelope: good.Envelope},
		"another event's subject":   {Tenant: acme, Event: "message_updated", Envelope: good.Envelope},
		"an event of another lane":  received(t, by, MessagePosted(acme, chanA, msgA, 1)),
		"an event of this process":  received(t, by, ClientLagged(acme, msgA, 1)),
		"no subject's words at all": {Envelope: good.Envelope},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := &sink{}
			var got []Outcome
			b := bridgeTo(t, s, newClock(), BridgeOptions{Observe: func(_ string, o Outcome) { got = append(got, o) }})
			wantErr(t, b.Receive(r), ErrEnvelope)
			if len(s.refs) != 0 || len(got) != 1 || got[0] != OutcomeRefused {
				t.Errorf("told %v, observed %v", s.refs, got)
			}
			if receive(t, b, good); len(s.refs) != 1 {
				t.Error("what was refused claimed the place of a good one")
			}
		})
	}
}

func TestBridgeOptions(t *testing.T) {
	t.Parallel()
	whole := BridgeOptions{Instance: newInstance(t), Bus: newBus(t, BusOptions{Epoch: "e"}), Now: time.Now}
	for name, spoil := range map[string]func(*BridgeOptions){
		"instance":   func(o *BridgeOptions) { o.Instance = Instance{} },
		"bus":        func(o *BridgeOptions) { o.Bus = nil },
		"clock":      func(o *BridgeOptions) { o.Now = nil },
		"long ttl":   func(o *BridgeOptions) { o.ClaimTTL = MaxClaimTTL + 1 },
		"negative":   func(o *BridgeOptions) { o.ClaimTTL = -1 },
		"less count": func(o *BridgeOptions) { o.Claims = -1 },
	} {
		o := whole
		spoil(&o)
		if _, err := NewBridge(o); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
	if _, err := NewBridge(whole); err != nil {
		t.Error(err)
	}
}
