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

type heard struct {
	subscribers int
	stop        func()
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
	i.mu.Lock()
	defer i.mu.Unlock()
	t := i.tenants[o.Tenant]
	if t == nil {
		stop, err := i.hear(context.Background(), o.Tenant, func(r Received) { //nolint:forbidigo // it outlives the request that is first
			if err := i.bridge.Receive(r); errors.Is(err, ErrEnvelope) {
				i.refuse(o.Tenant, err)
			}
		})
		if err != nil {
			return nil, fmt.Errorf("hear tenant %s: %w", o.Tenant, err)
		}
		t = &heard{stop: stop}
		i.tenants[o.Tenant] = t
	}
	t.subscribers++
	s, err := i.bus.Subscribe(o)
	if err != nil {
		i.drop(o.Tenant)
		return nil, err
	}
	s.closed = func() { i.leave(o.Tenant) }
	return s, nil
}

func (i *Interest) leave(tenant string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.drop(tenant)
}

// drop forgets one subscriber. The caller holds the lock.
func (i *Interest) drop(tenant string) {
	t := i.tenants[tenant]
	if t.subscribers--; t.subscribers == 0 {
		delete(i.tenants, tenant)
		go t.stop() // it waits for a callback that may be about to ask for our lock
	}
}
