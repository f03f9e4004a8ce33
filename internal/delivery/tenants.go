package delivery

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/rigelbuild/compass-operator/internal/store"
)

// tenants is what the worker remembers of tenants. Losing it costs reads and nothing else.
type tenants struct {
	mu    sync.Mutex
	known map[store.TenantID]*tenant
}

// tenant is one tenant, as far as this process has looked.
type tenant struct {
	id store.TenantID

	// sending is held shared while a drain reads and sends, and alone while the drain of the tenant is confirmed: after the
	// word is given, nothing that was read before it is sent any more. It is tried and never waited for: whoever has it waits
	// for Postgres.
	sending sync.RWMutex

	mu       sync.Mutex
	stream   string // of its placement, when it was looked at; "" for none
	found    bool
	database int
	until    time.Time // what is above is believed until then
	seen     seen
	aside    map[string]time.Time // Runners that nothing is sent to before that time
	careful  *careful
	swept    bool // the care of this tenant is over
}

// seen is the highest fence that a Runner was proved to have seen for the tenant.
type seen struct{ claim, lease int64 }

// careful is what is left of the care after an unclean exit: nil when the tenant's first sweep is through.
type careful struct {
	unswept map[item]bool // looked at, and not through
	swept   map[item]bool
}

func (ts *tenants) get(id store.TenantID) *tenant {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if ts.known == nil {
		ts.known = map[store.TenantID]*tenant{}
	}
	t := ts.known[id]
	if t == nil {
		t = &tenant{id: id, aside: map[string]time.Time{}}
		ts.known[id] = t
	}
	return t
}

func (ts *tenants) find(id store.TenantID) *tenant {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	return ts.known[id]
}

// forget drops what is known of tenants that are not ours; called now and then, because ids come from outside.
func (ts *tenants) forget(now time.Time, stream string) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	for id, t := range ts.known {
		t.mu.Lock()
		gone := t.stream != stream && now.After(t.until)
		t.mu.Unlock()
		if gone && t.sending.TryLock() {
			delete(ts.known, id)
			t.sending.Unlock()
		}
	}
}

// whose is what the placement of a tenant says.
type whose int

const (
	ours    whose = iota
	foreign       // another stream's, or no stream's
	unknown       // no such tenant anywhere
)

// whose looks at the tenant's placement, remembered where it was seen lately. Where Postgres cannot say, the tenant is
// taken for ours: the drain reads the placement again, and a reference is never kept for an absent dependency [T6].
func (c *Consumer) whose(ctx context.Context, id store.TenantID) whose {
	t := c.tenants.get(id)
	now := c.clock.Now()
	t.mu.Lock()
	known, found, stream := now.Before(t.until), t.found, t.stream
	t.mu.Unlock()
	if !known {
		ctx, cancel := context.WithTimeout(store.WithTenant(ctx, id), c.o.StepTimeout)
		defer cancel()
		p, err := c.reads.Placement(ctx)
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			return ours
		}
		found, stream = err == nil, p.Stream
		c.place(t, found, p)
	}
	switch {
	case !found:
		return unknown
	case stream != c.o.Stream:
		return foreign
	}
	return ours
}

// place remembers where a tenant was seen to be. Ours is believed until a drain says otherwise.
func (c *Consumer) place(t *tenant, found bool, p store.Placement) {
	now := c.clock.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.found, t.stream, t.database = found, p.Stream, p.Database
	t.until = now.Add(foreignTTL)
	if p.Stream == c.o.Stream {
		t.until = now.Add(c.o.FloorTick)
	}
}

// mine remembers that the tenant is this stream's, as a sweep of that database has just seen.
func (c *Consumer) mine(id store.TenantID, database int) *tenant {
	t := c.tenants.get(id)
	c.place(t, true, store.Placement{Stream: c.o.Stream, Database: database})
	c.startCareful(t)
	return t
}

// lost remembers that a drain found the tenant to be another stream's: the next reference looks again.
func (c *Consumer) lost(t *tenant) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.until = time.Time{}
	t.careful = nil
}

func (t *tenant) inDatabase() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.database
}

// saw records a proved fence. It reports whether it is news.
func (t *tenant) saw(s seen) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s.claim < t.seen.claim || s.claim == t.seen.claim && s.lease <= t.seen.lease {
		return false
	}
	t.seen = s
	return true
}

// above is what the epoch must exceed before anything is sent for the tenant under that claim: the claim, because an epoch
// from before the tenant came would be lower than the one that its last stream used, and what a Runner has seen under it
// (RaiseEpoch). behind says that a Runner has seen a higher claim than Postgres has.
func (t *tenant) above(claim int64) (above int64, behind bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.seen.claim == claim {
		return max(claim, t.seen.lease), false
	}
	return claim, t.seen.claim > claim
}

func (t *tenant) setAside(runner string, until time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.aside[runner] = until
}

// asideUntil is when a Runner may be sent to again; zero: now.
func (t *tenant) asideUntil(runner string, now time.Time) time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	until, ok := t.aside[runner]
	if ok && !now.Before(until) {
		delete(t.aside, runner)
		return time.Time{}
	}
	return until
}
