package event_test

import (
	"context"
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

// Holds REQ-235: a Server listens to a tenant's broadcasts only while it holds one of its sockets.
func TestInterestHearsExactlyThoseThatAreSubscribed(t *testing.T) {
	t.Parallel()
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
	broker := &ears{hearing: map[string]func(event.Received){}, stopped: make(chan string, 4)}
	interest, err := event.NewInterest(event.InterestOptions{Bus: bus, Bridge: bridge, Hear: broker.hear})
	if err != nil {
		t.Fatal(err)
	}
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
