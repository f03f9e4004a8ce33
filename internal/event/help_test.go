package event

import (
	"context"
	"crypto/rand"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/rigelbuild/compass-operator/internal/naming"
)

const (
	acme  = "t_06f0e5k3vdrg0000000000000g"
	other = "t_06f0e5k3vdrg0000000000001g"
	chanA = "c_06f0e5k3vdrg0000000000000g"
	msgA  = "m_06f0e5k3vdrg0000000000000g"
	msgB  = "m_06f0e5k3vdrg0000000000001g"
	agent = "a_06f0e5k3vdrg0000000000000g"
)

// clock is a clock that moves when it is told to.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func newClock() *clock { return &clock{now: time.Date(2026, 9, 5, 0, 0, 0, 0, time.UTC)} }

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// hub is a broker that hands each broadcast to every bridge that hears the tenant, the producer's own included, as often
// as it is told to.
type hub struct {
	copies int
	down   error

	mu    sync.Mutex
	ears  []ear
	taken []Received
}

type ear struct {
	tenant string
	bridge *Bridge
}

func (h *hub) Broadcast(_ context.Context, tenant, event string, envelope []byte, _ map[string]string) error {
	if h.down != nil {
		return h.down
	}
	h.mu.Lock()
	r := Received{Tenant: tenant, Event: event, Envelope: envelope}
	h.taken = append(h.taken, r)
	ears := h.ears
	h.mu.Unlock()
	for range h.copies {
		for _, e := range ears {
			if e.tenant == tenant {
				_ = e.bridge.Receive(r) // a refusal is asserted through what was observed
			}
		}
	}
	return nil
}

// instance is one process of a small world: production emitter, factory, bridge and bus on a broker that is not.
type instance struct {
	*Emitter
	bridge *Bridge
	bus    *Bus

	mu   sync.Mutex
	seen map[Outcome]int
	lost []error
}

func (i *instance) outcomes(o Outcome) int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.seen[o]
}

func (i *instance) losses() []error {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.lost
}

// boot makes an instance that hears the tenants.
func boot(t *testing.T, h *hub, c *clock, tenants ...string) *instance {
	t.Helper()
	ids := &naming.IDs{Now: time.Now, Rand: rand.Reader}
	self, err := NewInstance(ids.Instance())
	if err != nil {
		t.Fatal(err)
	}
	in := &instance{seen: map[Outcome]int{}, bus: newBus(t, BusOptions{Epoch: self.ID()})}
	in.bridge, err = NewBridge(BridgeOptions{Instance: self, Bus: in.bus, Now: c.Now, Observe: func(_ string, o Outcome) {
		in.mu.Lock()
		defer in.mu.Unlock()
		in.seen[o]++
	}})
	if err != nil {
		t.Fatal(err)
	}
	in.Emitter, err = NewEmitter(EmitterOptions{Instance: self, Bus: in.bus, Broker: h, Lost: func(_ context.Context, _ Name, err error) {
		in.mu.Lock()
		defer in.mu.Unlock()
		in.lost = append(in.lost, err)
	}})
	if err != nil {
		t.Fatal(err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, tenant := range tenants {
		h.ears = append(h.ears, ear{tenant, in.bridge})
	}
	return in
}

func newBus(t *testing.T, o BusOptions) *Bus {
	t.Helper()
	b, err := NewBus(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}

func subscribe(t *testing.T, b *Bus, o SubscribeOptions) *Subscription {
	t.Helper()
	s, err := b.Subscribe(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// told returns the references that are there to read, without waiting for more.
func told(t *testing.T, s *Subscription) []Ref {
	t.Helper()
	var refs []Ref
	for {
		events, _, err := s.take(1 << 20)
		if err != nil {
			t.Fatal(err)
		}
		if len(events) == 0 {
			return refs
		}
		for _, e := range events {
			refs = append(refs, e.Ref)
		}
	}
}

func wantErr(t *testing.T, got, want error) {
	t.Helper()
	if !errors.Is(got, want) {
		t.Fatalf("err = %v, want %v", got, want)
	}
}
