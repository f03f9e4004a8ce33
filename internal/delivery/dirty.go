package delivery

import (
	"sync"
	"time"

	"github.com/rigelbuild/compass-operator/internal/store"
)

// itemKind says what has to be looked at.
type itemKind uint8

const (
	itemRows    itemKind = iota // references whose rows are not resolved yet
	itemChannel                 // one channel: what its chains owe
	itemAgent                   // one agent: what is owed beside the chain
	itemSession                 // one agent that has just started: everything it owes
	itemTenant                  // placement: confirm a drain, let go of what is no longer ours
)

// String names the kind as metrics and logs do.
func (k itemKind) String() string {
	switch k {
	case itemRows:
		return "rows"
	case itemChannel:
		return "channel"
	case itemAgent:
		return "agent"
	case itemSession:
		return "session"
	case itemTenant:
		return "tenant"
	}
	return "unknown"
}

// item is one entry of the dirty set. A reference, a settle, a start, a reconnect and the tick all end as the same items
// (K2), and an item that is in the set is not added again.
type item struct {
	tenant store.TenantID
	kind   itemKind
	id     string
}

// why says what a look at an item is for, so that an answer of a Runner costs no read of Postgres.
type why uint8

const (
	whyRead  why = 1 << iota // read what is owed
	whySweep                 // read it without what memory knows to be passed: this is the floor
	whyTimer                 // something may be overdue
	whyNews                  // a cursor moved
)

// dirty is the coalesced set of what must be looked at, served fairly: one item of each tenant in turn, in the order that
// the tenant's items came. An item is worked by one worker at a time; marked again meanwhile, it comes once more. A tenant
// never holds the last free worker, so that a slow one delays the others by one item and not by its backlog.
type dirty struct {
	mu      sync.Mutex
	ready   *sync.Cond
	now     func() time.Time
	limit   func(store.TenantID) int // how many of a tenant's items may be worked at once
	lanes   map[store.TenantID]*lane
	ring    []*lane // lanes that have something waiting, each once; the first is next
	workers int
	size    int
	closed  bool
}

// lane is what one tenant has in the set.
type lane struct {
	tenant  store.TenantID
	waiting []item
	why     map[item]why // every item that waits, or is marked while it runs
	since   map[item]time.Time
	active  map[item]bool
	inRing  bool
}

func newDirty(workers int, now func() time.Time) *dirty {
	d := &dirty{lanes: map[store.TenantID]*lane{}, workers: workers, now: now}
	d.limit = func(store.TenantID) int { return workers }
	d.ready = sync.NewCond(&d.mu)
	return d
}

// addAll marks items before any of them can be taken.
func (d *dirty) addAll(items []item, w why) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, it := range items {
		d.mark(it, w)
	}
}

// add marks an item. The reasons of several marks are joined.
func (d *dirty) add(it item, w why) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mark(it, w)
}

func (d *dirty) mark(it item, w why) {
	l := d.lanes[it.tenant]
	if l == nil {
		l = &lane{tenant: it.tenant, why: map[item]why{}, since: map[item]time.Time{}, active: map[item]bool{}}
		d.lanes[it.tenant] = l
	}
	before := l.why[it]
	l.why[it] |= w
	if before == 0 {
		l.since[it] = d.now()
	}
	if before != 0 || l.active[it] {
		return // it waits already, or done() will put it back
	}
	d.push(l, it)
}

func (d *dirty) push(l *lane, it item) {
	l.waiting = append(l.waiting, it)
	d.size++
	if !l.inRing {
		l.inRing = true
		d.ring = append(d.ring, l)
	}
	d.ready.Signal()
}

// work is an item that was taken to be worked.
type work struct {
	item
	why   why
	since time.Time // when it was marked
}

// take waits for an item that may be worked now; ok is false once the set is closed.
func (d *dirty) take() (w work, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for {
		if d.closed {
			return work{}, false
		}
		if w, ok = d.next(); ok {
			return w, true
		}
		d.ready.Wait()
	}
}

// next takes from the first lane of the ring that may have another worker, and moves that lane to the end.
func (d *dirty) next() (work, bool) {
	for i, l := range d.ring {
		if !d.mayRun(l) {
			continue
		}
		it := l.waiting[0]
		l.waiting = l.waiting[1:]
		d.size--
		w := work{item: it, why: l.why[it], since: l.since[it]}
		delete(l.why, it)
		delete(l.since, it)
		l.active[it] = true
		d.ring = append(d.ring[:i:i], d.ring[i+1:]...)
		if len(l.waiting) > 0 {
			d.ring = append(d.ring, l)
		} else {
			l.inRing = false
		}
		return w, true
	}
	return work{}, false
}

func (d *dirty) mayRun(l *lane) bool {
	return len(l.active) < max(min(d.limit(l.tenant), d.workers-1), 1)
}

// done ends the work on an item, and reports whether its tenant has nothing more in the set.
func (d *dirty) done(it item) (dry bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	l := d.lanes[it.tenant]
	delete(l.active, it)
	if l.why[it] != 0 {
		d.push(l, it)
	}
	if dry = len(l.active) == 0 && len(l.waiting) == 0; dry {
		delete(d.lanes, it.tenant)
	}
	d.ready.Broadcast() // the lane may run again
	return dry
}

// close lets every take return; what waits is forgotten, because the next start sweeps everything that is owed.
func (d *dirty) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	d.ready.Broadcast()
}

// depth is how many items wait.
func (d *dirty) depth() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.size
}
