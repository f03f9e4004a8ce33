package event

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sort"
	"sync"
	"time"
)

// SubscribeOptions say what a subscription sees.
type SubscribeOptions struct {
	Tenant string   // AllTenants for all
	Names  []Name   // none: every event
	From   Position // zero: from now
	Leads  bool     // others may stay behind it
}

// Subscription reads one tenant's events, or all, in order. Next and Batch are for one goroutine at a time; Close is for any.
type Subscription struct {
	bus   *Bus
	topic *topic
	names []Name

	cursor uint64
	lagged bool
	events []Event // of the last Batch
	pace   *pace   // of one that leads
	ahead  *pace   // of the one that this stays behind

	once   sync.Once
	done   chan struct{}
	closed func() // called once the subscription is over; nil for none
}

// Subscribe begins a subscription. A From that cannot be resumed is told by ErrLagged at the first read. The only error
// is ErrClosed.
func (b *Bus) Subscribe(o SubscribeOptions) (*Subscription, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.over {
		return nil, ErrClosed
	}
	s := &Subscription{bus: b, topic: b.topic(o.Tenant), names: slices.Clone(o.Names), cursor: b.seq, done: make(chan struct{})}
	if o.Leads {
		s.pace = &pace{seq: b.seq, moved: make(chan struct{})}
	}
	s.topic.subs++
	switch {
	case o.From == Position{}:
	case o.From.Epoch != b.epoch || o.From.Seq > b.seq:
		s.lagged = true
	default:
		s.cursor = o.From.Seq
	}
	return s, nil
}

// Next returns the next event, and waits for it. Errors: ErrLagged, after which the subscription goes on; ErrClosed; the
// context's.
func (s *Subscription) Next(ctx context.Context) (Event, error) {
	events, err := s.Batch(ctx, 1, nil)
	if err != nil {
		return Event{}, err
	}
	return events[0], nil
}

// Batch waits for an event and returns it with those that are there too, at most limit of them, so that a burst is handled
// as one; none when until fires first, which may be nil. They are the caller's until the next call. Errors as of Next.
func (s *Subscription) Batch(ctx context.Context, limit int, until <-chan time.Time) ([]Event, error) {
	if limit < 1 {
		return nil, fmt.Errorf("read from bus: limit %d, at least 1 is needed", limit)
	}
	for {
		s.pace.move(s.cursor)
		events, wake, err := s.take(limit)
		if err != nil || len(events) > 0 {
			return events, err
		}
		select {
		case <-wake:
		case <-until:
			return nil, nil
		case <-s.done:
			return nil, ErrClosed
		case <-s.bus.closed:
			return nil, ErrClosed
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// Position returns the place of the last event that was read or passed over: a later Subscribe from it misses none. It
// belongs to the goroutine that reads.
func (s *Subscription) Position() Position { return Position{Epoch: s.bus.epoch, Seq: s.cursor} }

// Close ends the subscription and wakes its reader. It may be called twice.
func (s *Subscription) Close() {
	s.once.Do(func() {
		close(s.done)
		s.pace.move(math.MaxUint64)
		s.bus.mu.Lock()
		s.topic.subs--
		s.bus.mu.Unlock()
		if s.closed != nil {
			s.closed()
		}
	})
}

// take returns what is there, or the channel that the next event closes.
func (s *Subscription) take(limit int) ([]Event, <-chan struct{}, error) {
	s.bus.mu.RLock()
	defer s.bus.mu.RUnlock()
	select {
	case <-s.done:
		return nil, nil, ErrClosed
	default:
	}
	if s.bus.over {
		return nil, nil, ErrClosed
	}
	t := s.topic
	if s.lagged || s.cursor < t.floor {
		// From now, not from the oldest that is kept: who reads Postgres afresh after this sees all that came before.
		s.lagged, s.cursor = false, s.bus.seq
		return nil, nil, ErrLagged
	}
	bound, wake := s.ahead.at(t)
	events := s.events[:0]
	i := sort.Search(len(t.events), func(i int) bool { return t.at(i).Seq > s.cursor })
	for ; i < len(t.events) && len(events) < limit; i++ {
		e := t.at(i)
		if e.Seq > bound {
			break
		}
		s.cursor = e.Seq
		if len(s.names) == 0 || slices.Contains(s.names, e.Kind) {
			events = append(events, e)
		}
	}
	s.events = events
	if i == len(t.events) { // all is read, so a later resume need not begin at an old event of a silent tenant
		s.cursor = s.bus.seq
	}
	return events, wake, nil
}
