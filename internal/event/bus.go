package event

import (
	"errors"
	"fmt"
	"sync"
)

// Sentinels of the bus.
var (
	// ErrLagged says that events between the subscriber's position and now are gone, or may be: it fell behind the ring,
	// or its position is another epoch's. It must read afresh from Postgres; the subscription goes on from now.
	ErrLagged = errors.New("subscriber lagged behind the bus")
	// ErrClosed says that the bus or the subscription is closed.
	ErrClosed = errors.New("bus is closed")
)

// AllTenants subscribes to the facts of every tenant.
const AllTenants = ""

// Defaults of a bus: how many events of a tenant are kept for replay, and for how many tenants without a subscriber.
const (
	DefaultRing   = 512
	DefaultTopics = 512
)

// Event is what a listener sees: the fact, and its place in the order of this bus. How it got here does not show.
type Event struct {
	Ref
	Seq uint64 // rises by the whole bus, so one tenant's have gaps
}

// Position is a place in the order of one bus. The zero Position is "from now". Epoch names the life of the bus: a
// position of another one cannot be resumed.
type Position struct {
	Epoch string
	Seq   uint64
}

// BusOptions configure a bus.
type BusOptions struct {
	Epoch  string // required; the instance's id does
	Ring   int    // 0: DefaultRing
	Topics int    // 0: DefaultTopics
}

// Bus tells facts to the subscribers in this process, in one order (REQ-016). It has no goroutine and never waits for a
// subscriber: each reads a ring at its own pace, and one that is too slow is told so. Safe for concurrent use.
type Bus struct {
	epoch  string
	ring   int
	limit  int
	closed chan struct{}

	mu     sync.RWMutex
	seq    uint64
	gone   uint64 // nothing up to here is kept of a tenant that has no topic
	over   bool
	topics map[string]*topic
}

// topic keeps the last events of one tenant, or of all. Its fields are guarded by the bus's lock.
type topic struct {
	events []Event // a ring once it is full, then first is the oldest
	first  int
	floor  uint64 // sequence of the newest event that is no longer kept
	last   uint64
	subs   int
	wake   chan struct{} // closed by the next event
}

// NewBus returns a bus. Close it to end its subscriptions.
func NewBus(o BusOptions) (*Bus, error) {
	if o.Epoch == "" || o.Ring < 0 || o.Topics < 0 {
		return nil, fmt.Errorf("event bus: an epoch is required, and no negative ring (%d) or topics (%d)", o.Ring, o.Topics)
	}
	if o.Ring == 0 {
		o.Ring = DefaultRing
	}
	if o.Topics == 0 {
		o.Topics = DefaultTopics
	}
	return &Bus{
		epoch: o.Epoch, ring: o.Ring, limit: o.Topics, closed: make(chan struct{}), topics: map[string]*topic{},
	}, nil
}

// Position returns the place of the newest event: a subscription from it sees what comes after.
func (b *Bus) Position() Position {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return Position{Epoch: b.epoch, Seq: b.seq}
}

// Close ends every subscription at once; what they had not read is theirs to find in Postgres. It may be called twice.
func (b *Bus) Close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.over {
		b.over = true
		close(b.closed)
	}
}

// emit gives the fact its place and tells it. Only Emitter and Bridge call it: a fact that is told here has been declared.
func (b *Bus) emit(ref Ref) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.over {
		return ErrClosed
	}
	b.seq++
	e := Event{Ref: ref, Seq: b.seq}
	b.topic(ref.Tenant).append(e, b.ring)
	if all, wanted := b.topics[AllTenants]; wanted {
		all.append(e, b.ring)
	}
	return nil
}

// topic returns the tenant's topic, and makes it if there is none. The caller holds the lock.
func (b *Bus) topic(tenant string) *topic {
	if t, ok := b.topics[tenant]; ok {
		return t
	}
	if len(b.topics) >= b.limit {
		b.forget()
	}
	// What this topic once held, if it was forgotten before, is at most b.gone. The copy of all tenants' events is made when
	// somebody first asks for it: nothing of before is in it.
	t := &topic{floor: b.gone, wake: make(chan struct{})}
	if tenant == AllTenants {
		t.floor = b.seq
	}
	b.topics[tenant] = t
	return t
}

// forget drops the tenant's topic that nobody subscribes to and that has been silent for longest, if there is one.
func (b *Bus) forget() {
	var oldest string
	var found *topic
	for tenant, t := range b.topics {
		if tenant != AllTenants && t.subs == 0 && (found == nil || t.last < found.last) {
			oldest, found = tenant, t
		}
	}
	if found != nil {
		delete(b.topics, oldest)
		b.gone = max(b.gone, found.last)
	}
}

func (t *topic) append(e Event, ring int) {
	if len(t.events) < ring {
		t.events = append(t.events, e)
	} else {
		t.floor = t.events[t.first].Seq
		t.events[t.first] = e
		t.first = (t.first + 1) % ring
	}
	t.last = e.Seq
	close(t.wake)
	t.wake = make(chan struct{})
}

// at returns the i-th kept event, oldest first.
func (t *topic) at(i int) Event { return t.events[(t.first+i)%len(t.events)] }
