package event

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Holds REQ-155, REQ-147 and REQ-144: told on A it is told once on A and once on B, however often the broker repeats it,
// to listeners of that tenant; nobody else hears anything. The broker here is a stand-in: DELIVERY-6 is proved elsewhere.
func TestOncePerInstance(t *testing.T) {
	t.Parallel()
	h, c := &hub{copies: 3}, newClock()
	a, b := boot(t, h, c, acme), boot(t, h, c, acme, other)
	onA, onB := subscribe(t, a.bus, SubscribeOptions{Tenant: acme}), subscribe(t, b.bus, SubscribeOptions{Tenant: acme})
	uninvolved := subscribe(t, b.bus, SubscribeOptions{Tenant: other})

	fact := MessageVisible(acme, chanA, msgA, 1)
	a.Emit(t.Context(), fact)
	if diff := cmp.Diff([]Ref{fact.Ref()}, told(t, onA)); diff != "" {
		t.Errorf("the deciding instance: %s", diff)
	}
	if diff := cmp.Diff([]Ref{fact.Ref()}, told(t, onB)); diff != "" {
		t.Errorf("the other instance: %s", diff)
	}
	if got := told(t, uninvolved); len(got) != 0 {
		t.Errorf("another tenant's listener heard %v", got)
	}
	// The counts say only that the echo had arrived before the assertions above.
	if a.outcomes(OutcomeOwn) != 3 || b.outcomes(OutcomeDuplicate) != 2 {
		t.Errorf("the broker did not repeat: %v, %v", a.seen, b.seen)
	}
}

// Holds ruling B1: quick changes of one row are different facts, and so is the same change of another tenant's.
func TestQuickChangesAreAllTold(t *testing.T) {
	t.Parallel()
	h, c := &hub{copies: 2}, newClock()
	a, b := boot(t, h, c, acme, other), boot(t, h, c, acme, other)
	all := subscribe(t, b.bus, SubscribeOptions{Tenant: AllTenants})
	var want []Ref
	for _, f := range []Fact{
		PresenceChanged(acme, agent, 1), PresenceChanged(acme, agent, 2), PresenceChanged(acme, agent, 3),
		MessageUpdated(acme, chanA, msgA, 4), MessageUpdated(acme, chanA, msgA, 5), MessageUpdated(other, chanA, msgA, 5),
	} {
		a.Emit(t.Context(), f)
		want = append(want, f.Ref())
	}
	if diff := cmp.Diff(want, told(t, all)); diff != "" {
		t.Error(diff)
	}
}

// A forged producer can at most make one instance miss a broadcast, which costs latency; it claims nobody else's place.
func TestForgedProducer(t *testing.T) {
	t.Parallel()
	h, c := &hub{copies: 1}, newClock()
	a, b := boot(t, h, c, acme), boot(t, h, c, acme)
	onA, onB := subscribe(t, a.bus, SubscribeOptions{Tenant: acme}), subscribe(t, b.bus, SubscribeOptions{Tenant: acme})
	fact := BindingChanged(acme, agent, 1)
	forged := received(t, b.instance, fact)
	if err := errors.Join(a.bridge.Receive(forged), b.bridge.Receive(forged)); err != nil {
		t.Fatal(err)
	}
	b.Emit(t.Context(), fact)
	if diff := cmp.Diff([]Ref{fact.Ref()}, told(t, onA)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]Ref{fact.Ref()}, told(t, onB)); diff != "" {
		t.Error(diff)
	}
}

// line is a queue that remembers what it took.
type line struct {
	full error

	mu   sync.Mutex
	refs []Ref
}

func (l *line) Enqueue(ctx context.Context, ref Ref) error {
	if _, ok := ctx.Deadline(); !ok {
		return errors.New("no deadline")
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refs = append(l.refs, ref)
	return l.full
}

// Holds REQ-141 and X4: the catalogue alone decides where a fact goes. The table is written by hand, so that a changed
// flag must be said twice.
func TestCatalogueDecidesTheWay(t *testing.T) {
	t.Parallel()
	type way struct{ bus, broadcast, queue bool }
	want := map[Name]way{
		NameMessagePosted: {queue: true}, NameHeartbeat: {broadcast: true}, NameClientLagged: {bus: true},
	}
	for _, f := range facts() {
		name := f.Ref().Kind
		if _, special := want[name]; !special {
			want[name] = way{bus: true, broadcast: true}
		}
		h, l, bus := &hub{}, &line{}, newBus(t, BusOptions{Epoch: "e"})
		e, err := NewEmitter(EmitterOptions{Instance: newInstance(t), Bus: bus, Broker: h, Queue: l,
			Lost: func(_ context.Context, _ Name, err error) { t.Error(err) }})
		if err != nil {
			t.Fatal(err)
		}
		s := subscribe(t, bus, SubscribeOptions{Tenant: acme})
		e.Emit(t.Context(), f)
		got := way{
			bus: slices.Contains(told(t, s), f.Ref()), broadcast: len(h.taken) == 1,
			queue: len(l.refs) == 1 && l.refs[0] == f.Ref(),
		}
		if got != want[name] {
			t.Errorf("%s went %+v, want %+v", name, got, want[name])
		}
	}
}

// Holds REQ-148 and REQ-011: a broker or queue that fails is no matter of the decider, keeps nothing from the bus and is
// told to Lost; a request that was cancelled after its commit is told all the same.
func TestLostIsObserved(t *testing.T) {
	t.Parallel()
	down := errors.New("down")
	h := &hub{down: down}
	in := boot(t, h, newClock(), acme)
	l := &line{}
	in.queue = l
	s := subscribe(t, in.bus, SubscribeOptions{Tenant: acme})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()

	fact := ChannelChanged(acme, chanA, 1)
	in.Emit(ctx, fact)
	if diff := cmp.Diff([]Ref{fact.Ref()}, told(t, s)); diff != "" {
		t.Error(diff)
	}
	if in.Emit(ctx, MessagePosted(acme, chanA, msgA, 2)); len(l.refs) != 1 {
		t.Error("a cancelled request kept a reference from the queue")
	}
	l.full = errors.New("full")
	in.Emit(ctx, MessagePosted(acme, chanA, msgA, 3))
	if got := in.losses(); len(got) != 2 || !errors.Is(got[0], down) || !errors.Is(got[1], l.full) {
		t.Errorf("lost: %v", got)
	}
	in.bus.Close()
	in.Emit(ctx, ClientLagged(acme, msgA, 1))
	if got := in.losses(); len(got) != 3 || !errors.Is(got[2], ErrClosed) {
		t.Errorf("lost: %v", got)
	}
}

// A fact that is none goes nowhere.
func TestEmitRefuses(t *testing.T) {
	t.Parallel()
	for name, f := range map[string]Fact{
		"zero":              {},
		"tenant":            MessageVisible("*", chanA, msgA, 1),
		"row":               MessageVisible(acme, chanA, "a.b", 1),
		"no row":            MessageVisible(acme, chanA, "", 1),
		"no scope":          MessageVisible(acme, "", msgA, 1),
		"scope":             MessageVisible(acme, "a b", msgA, 1),
		"no version":        MessageVisible(acme, chanA, msgA, 0),
		"negative version":  MessageVisible(acme, chanA, msgA, -1),
		"queue, no version": MessagePosted(acme, chanA, msgA, 0),
	} {
		h := &hub{}
		in := boot(t, h, newClock(), acme)
		s := subscribe(t, in.bus, SubscribeOptions{Tenant: AllTenants})
		in.Emit(t.Context(), f)
		if got := in.losses(); len(got) != 1 || !errors.Is(got[0], ErrFact) {
			t.Errorf("%s: lost %v", name, got)
		}
		if len(told(t, s)) != 0 || len(h.taken) != 0 {
			t.Errorf("%s: told all the same", name)
		}
	}
}

// A nil broker or queue keeps facts in the process (REQ-014: for unit tests).
func TestEmitterWithoutBroker(t *testing.T) {
	t.Parallel()
	bus := newBus(t, BusOptions{Epoch: "e"})
	e, err := NewEmitter(EmitterOptions{Instance: newInstance(t), Bus: bus})
	if err != nil {
		t.Fatal(err)
	}
	s := subscribe(t, bus, SubscribeOptions{Tenant: acme})
	e.Emit(t.Context(), MessagePosted(acme, chanA, msgA, 1))
	e.Emit(t.Context(), MessageVisible(acme, chanA, msgA, 1))
	e.Emit(t.Context(), Fact{})
	if got := told(t, s); len(got) != 1 {
		t.Errorf("told %v", got)
	}
	for _, o := range []EmitterOptions{{Bus: bus}, {Instance: newInstance(t)}} {
		if _, err := NewEmitter(o); err == nil {
			t.Errorf("taken: %+v", o)
		}
	}
}
