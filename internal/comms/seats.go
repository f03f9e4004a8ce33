package comms

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/rigelbuild/compass-operator/internal/event"
	"github.com/rigelbuild/compass-operator/internal/store"
)

// seats lets the streams of a process look at heads and membership together: one statement answers for every account that
// has a stream here, and another one follows only for who asks about something that happened after it began.
type seats struct {
	store  channels
	bus    bus
	shared *shared
	now    func() time.Time

	mu      sync.Mutex
	tenants map[store.TenantID]*hall
}

// hall is one tenant that is streamed here.
type hall struct {
	first    *event.Subscription // the herald's
	accounts map[string]int      // → live streams
	seq      uint64              // of the newest fact that an asker had heard of when a round began
	last     *round              // the newest that has ended well
	running  *round
	next     *round // begins when running has ended
}

// round is one read.
type round struct {
	seq   uint64 // it sees what the facts up to here are about
	began time.Time
	asked map[string]bool
	done  chan struct{}
	heads map[string][]store.ChannelHead
	err   error
}

// since says which read is new enough: one that began after a fact of the bus was told, or one that began at a time at the
// earliest. The zero since is satisfied by any.
type since struct {
	seq  uint64
	time time.Time
}

func newSeats(s channels, b bus, pages *shared, now func() time.Time) *seats {
	return &seats{store: s, bus: b, shared: pages, now: now, tenants: map[store.TenantID]*hall{}}
}

// enter counts a stream in, which from then on hears what happens from the tenant's herald. Errors: those of the bus.
func (s *seats) enter(ctx context.Context, tenant store.TenantID, account string, sub *event.Subscription) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.tenants[tenant]
	if h == nil {
		first, err := s.bus.Subscribe(event.SubscribeOptions{Tenant: string(tenant), Names: streamed(), Leads: true})
		if err != nil {
			return err
		}
		h = &hall{first: first, accounts: map[string]int{}}
		s.tenants[tenant] = h
		go s.herald(context.WithoutCancel(ctx), tenant, first)
	}
	h.accounts[account]++
	sub.Behind(h.first)
	return nil
}

func (s *seats) exit(tenant store.TenantID, account string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.tenants[tenant]
	if h.accounts[account]--; h.accounts[account] == 0 {
		delete(h.accounts, account)
	}
	if len(h.accounts) == 0 {
		delete(s.tenants, tenant)
		h.first.Close()
	}
}

// of returns the channels of an account that has entered, as a read saw them that is new enough. Errors: ctx's, and those
// of the read.
func (s *seats) of(ctx context.Context, tenant store.TenantID, account string, from since) (look, error) {
	r := s.round(ctx, tenant, account, from)
	select {
	case <-r.done:
		return look{r.heads[account], r.began}, r.err
	case <-ctx.Done():
		return look{}, ctx.Err()
	}
}

// look is what a read saw of one account, and when it began.
type look struct {
	heads []store.ChannelHead
	began time.Time
}

// round returns one that answers, and begins it if need be.
func (s *seats) round(ctx context.Context, tenant store.TenantID, account string, from since) *round {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.tenants[tenant]
	for _, r := range []*round{h.last, h.running} {
		if r != nil && r.asked[account] && r.seq >= from.seq && !r.began.Before(from.time) {
			return r
		}
	}
	if h.next == nil {
		h.next = &round{done: make(chan struct{})}
	}
	r := h.next
	r.seq = max(r.seq, from.seq)
	if h.running == nil {
		s.begin(ctx, tenant, h)
	}
	return r
}

// begin starts the next round. The caller holds the lock.
func (s *seats) begin(ctx context.Context, tenant store.TenantID, h *hall) {
	r := h.next
	h.running, h.next = r, nil
	h.seq = max(h.seq, r.seq)
	r.seq = h.seq
	r.began, r.asked = s.now(), asked(h.accounts)
	go s.run(context.WithoutCancel(ctx), tenant, h, r)
}

// run reads, and goes on with the next round if somebody waits for one.
func (s *seats) run(ctx context.Context, tenant store.TenantID, h *hall, r *round) {
	r.heads, r.err = s.read(ctx, r.asked)
	s.mu.Lock()
	defer s.mu.Unlock()
	h.running = nil
	if r.err == nil {
		h.last = r
	}
	close(r.done)
	if h.next != nil {
		s.begin(ctx, tenant, h)
	}
}

// read is of no stream, so nobody above it survives a panic.
func (s *seats) read(ctx context.Context, asked map[string]bool) (heads map[string][]store.ChannelHead, err error) {
	ctx, cancel := context.WithTimeout(ctx, readTime)
	defer cancel()
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: %v", errPanicked, p)
		}
	}()
	return s.store.SeatsOf(ctx, slices.Sorted(maps.Keys(asked)))
}
