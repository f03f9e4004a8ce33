package event

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// Hear listens to the broadcasts of one tenant until stop is called.
type Hear func(ctx context.Context, tenant string, fn func(Received)) (stop func(), err error)

// Interest subscribes to the bus and hears a tenant's broadcasts exactly while somebody of this process subscribes to that
// tenant: a Server reads nothing for tenants that have no socket there (ruling B3, REQ-235). It is safe for concurrent use.
type Interest struct {
	bus    *Bus
	bridge *Bridge
	hear   Hear
	refuse func(tenant string, err error)

	mu      sync.Mutex
	tenants map[string]*heard
}

// heard is one tenant's listening. Whoever is first asks the broker, without the lock: other tenants do not wait for that.
type heard struct {
	subscribers int
	asked       chan struct{} // closed when the broker has answered: stop and err are known
	stop        func()
	err         error
}

// InterestOptions are the parts of an interest. Bus, Bridge and Hear are required.
type InterestOptions struct {
	Bus    *Bus
	Bridge *Bridge
	Hear   Hear
	// Refused hears of what the bridge refused, for the log. Optional.
	Refused func(tenant string, err error)
}

// NewInterest returns an interest; it hears nothing yet.
func NewInterest(o InterestOptions) (*Interest, error) {
	if o.Bus == nil || o.Bridge == nil || o.Hear == nil {
		return nil, errors.New("event interest: bus, bridge and hear are required")
	}
	if o.Refused == nil {
		o.Refused = func(string, error) {}
	}
	return &Interest{bus: o.Bus, bridge: o.Bridge, hear: o.Hear, refuse: o.Refused, tenants: map[string]*heard{}}, nil
}

// Subscribe begins a subscription to one tenant and, with the first, begins to hear its broadcasts; the last that closes
// ends that. Errors: ErrClosed, and hear's.
func (i *Interest) Subscribe(o SubscribeOptions) (*Subscription, error) {
	if o.Tenant == AllTenants {
		return nil, errors.New("event interest: name one tenant; every tenant is the bus's")
	}
	t, first := i.join(o.Tenant)
	if first {
		i.listen(o.Tenant, t)
	}
	<-t.asked
	if t.err != nil {
		return nil, fmt.Errorf("hear tenant %s: %w", o.Tenant, t.err)
	}
	s, err := i.bus.Subscribe(o)
	if err != nil {
		i.leave(o.Tenant, t)
		return nil, err
	}
	s.closed = func() { i.leave(o.Tenant, t) }
	return s, nil
}

func (i *Interest) join(tenant string) (t *heard, first bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	t = i.tenants[tenant]
	if first = t == nil; first {
		t = &heard{asked: make(chan struct{})}
		i.tenants[tenant] = t
	}
	t.subscribers++
	return t, first
}

// listen asks the broker. Where it refuses, all who joined are told, and the next one asks again.
func (i *Interest) listen(tenant string, t *heard) {
	defer close(t.asked)
	t.stop, t.err = i.hear(context.Background(), tenant, func(r Received) { //nolint:forbidigo // it outlives the request that is first
		if err := i.bridge.Receive(r); errors.Is(err, ErrEnvelope) {
			i.refuse(tenant, err)
		}
	})
	if t.err != nil {
		i.mu.Lock()
		delete(i.tenants, tenant)
		i.mu.Unlock()
	}
}

func (i *Interest) leave(tenant string, t *heard) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if t.subscribers--; t.subscribers == 0 {
		delete(i.tenants, tenant)
		go t.stop() // it waits for a callback that may be about to ask for our lock
	}
}
