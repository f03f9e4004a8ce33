package event_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/rigelbuild/compass-operator/internal/event"
)

// ears is a broker that remembers who listens.
type ears struct {
	mu      sync.Mutex
	hearing map[string]func(event.Received)
	stopped chan string
}

func (e *ears) hear(_ context.Context, tenant string, fn func(event.Received)) (func(), error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.hearing[tenant] = fn
	return func() {
		e.mu.Lock()
		delete(e.hearing, tenant)
		e.mu.Unlock()
		e.stopped <- tenant
	}, nil
}

func (e *ears) count() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.hearing)
}

func newInterest(t *testing.T, hear event.Hear) *event.Interest {
	t.Helper()
	instance, err := event.NewInstance("i_0000000000000000000000000a")
	if err != nil {
		t.Fatal(err)
	}
	bus, err := event.NewBus(event.BusOptions{Epoch: "e"})
	if err != nil {
		t.Fatal(err)
	}
	bridge, err := event.NewBridge(event.BridgeOptions{Instance: instance, Bus: bus, Now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	interest, err := event.NewInterest(event.InterestOptions{Bus: bus, Bridge: bridge, Hear: hear})
	if err != nil {
		t.Fatal(err)
	}
	return interest
}

// A broker that takes its time over one tenant keeps no other tenant waiting, and what it refuses is asked again.
func TestInterestKeepsNoOtherTenantWaiting(t *testing.T) {
	t.Parallel()
	broker := &ears{hearing: map[string]func(event.Received){}, stopped: make(chan string, 4)}
	asked, answer := make(chan struct{}), make(chan error)
	interest := newInterest(t, func(ctx context.Context, tenant string, fn func(event.Received)) (func(), error) {
		if tenant == "t_slow" {
			asked <- struct{}{}
			if err := <-answer; err != nil {
				return nil, err
			}
		}
		return broker.hear(ctx, tenant, fn)
	})
	results := make(chan error)
	subscribe := func(tenant string) {
		s, err := interest.Subscribe(event.SubscribeOptions{Tenant: tenant})
		if s != nil {
			defer s.Close()
		}
		results <- err
	}
	go subscribe("t_slow")
	<-asked
	go subscribe("t_quick")
	select {
	case err := <-results:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(patience):
		t.Fatal("one tenant waits for the broker's answer about another")
	}
	refused := errors.New("no")
	answer <- refused
	if err := <-results; !errors.Is(err, refused) {
		t.Fatalf("got %v, want what the broker said", err)
	}
	go subscribe("t_slow")
	<-asked
	answer <- nil
	if err := <-results; err != nil {
		t.Fatalf("asked again: %v", err)
	}
}

// Holds REQ-235: a Server listens to a tenant's broadcasts only while it holds one of its sockets.
func TestInterestHearsExactlyThoseThatAreSubscribed(t *testing.T) {
	t.Parallel()
	broker := &ears{hearing: map[string]func(event.Received){}, stopped: make(chan string, 4)}
	interest := newInterest(t, broker.hear)
	if broker.count() != 0 {
		t.Fatal("it listened before anybody asked")
	}
	subscribe := func(tenant string) *event.Subscription {
		s, err := interest.Subscribe(event.SubscribeOptions{Tenant: tenant})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	first, second, other := subscribe("t_a"), subscribe("t_a"), subscribe("t_b")
	first.Close()
	first.Close()
	if broker.count() != 2 {
		t.Fatalf("listens for %d tenants after one of two sockets of a tenant closed: want 2", broker.count())
	}
	second.Close()
	select {
	case got := <-broker.stopped:
		if got != "t_a" || broker.count() != 1 {
			t.Fatalf("stopped %s, listens for %d: want t_a to stop with its last socket", got, broker.count())
		}
	case <-time.After(patience):
		t.Fatal("a tenant whose last socket closed is still heard")
	}
	again := subscribe("t_a")
	if broker.count() != 2 {
		t.Fatal("a tenant that came back is not heard")
	}
	again.Close()
	other.Close()
	if _, err := interest.Subscribe(event.SubscribeOptions{Tenant: event.AllTenants}); err == nil {
		t.Error("somebody could listen for every tenant")
	}
}
