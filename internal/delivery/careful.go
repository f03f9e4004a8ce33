package delivery

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/rigelbuild/compass-operator/internal/fabric"
	"github.com/rigelbuild/compass-operator/internal/store"
)

// Care after an unclean exit (D8). The worker before this one may have died on a row; whoever reads that row next dies too,
// and Kubernetes starts the next. So each row's attempt is written down and committed before the row is read, and taken
// back when it was survived: a row that kills collects attempts until it is set aside, and an innocent one never does. It is
// per tenant, one row at a time, tenants side by side, until each channel's first look has come to its end.

// startCareful begins the care for a tenant of a database whose lease was not given back.
func (c *Consumer) startCareful(t *tenant) {
	if !c.leases.Careful(t.inDatabase()) {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.careful == nil && !t.swept {
		t.careful = &careful{unswept: map[item]bool{}, swept: map[item]bool{}}
	}
}

// mustBeCareful reports whether an item's rows are to be tried one by one.
func (c *Consumer) mustBeCareful(t *tenant, it item) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.careful == nil || t.careful.swept[it] {
		return false
	}
	t.careful.unswept[it] = true
	return true
}

// swept ends the care for one item: its rows were read, and the worker lives.
func (c *Consumer) swept(t *tenant, it item) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.careful != nil {
		delete(t.careful.unswept, it)
		t.careful.swept[it] = true
	}
}

// leftOver notes that an item of a careful tenant was not looked at to its end.
func (t *tenant) leftOver(it item) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.careful != nil {
		t.careful.unswept[it] = true
	}
}

// ranDry ends the care for a tenant, when nothing of it waits and nothing was left half looked at.
func (c *Consumer) ranDry(id store.TenantID) {
	t := c.tenants.find(id)
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.careful != nil && len(t.careful.unswept) == 0 {
		t.careful, t.swept = nil, true
	}
}

// sideBySide is how many items of a tenant may be worked at once: one while the care lasts, so that a death is charged to
// one row.
func (c *Consumer) sideBySide(id store.TenantID) int {
	if t := c.tenants.find(id); t != nil {
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.careful != nil {
			return 1
		}
	}
	return c.o.Workers
}

// pauseAfter is what is left of the pause after the last of n failed attempts. While the care lasts a suspect row also waits
// that long from the start of this worker, so that everybody else is served before it is tried again.
func (c *Consumer) pauseAfter(t *tenant, n int, idleMs int64) time.Duration {
	pause := c.o.backoff(n)
	left := pause - time.Duration(idleMs)*time.Millisecond
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.careful != nil {
		left = max(left, pause-c.clock.Now().Sub(c.started))
	}
	return left
}

// carefully sends what is owed row by row.
func (d *drain) carefully(ctx context.Context) error {
	read := func(ctx context.Context, what store.Delivery, session string) (content store.Content, err error) {
		err = d.attempt(ctx, d.tenant, what, d.suspect, func(ctx context.Context) error {
			content, err = d.reads.ChannelContent(ctx, store.ContentQuery{
				Channel: what.Channel, Messages: []string{what.MessageID}, Sessions: []string{session}})
			return err
		})
		return content, err
	}
	for _, p := range d.plans {
		reached, err := d.sendAgain(ctx, p, read)
		for reached && err == nil {
			var now pace
			var ok bool
			if now, ok, err = d.next(ctx, p, 0); err != nil || !ok {
				break
			}
			reached, err = d.take(ctx, p, now, read)
		}
		if err != nil || !reached {
			p.pause(d.now)
		}
		if p.end(d.head); err != nil {
			return err
		}
	}
	return nil
}

// attempt writes an attempt down, reads the row, and takes the attempt back: whatever the read returned, it did not kill.
// An attempt that could not be taken back, because the database went away, is not written a second time by this process: a
// life of a worker counts once at most.
//
// A suspect, which has an attempt on record, is tried while no other suspect is, whichever tenant's: their pauses end
// together in every life, so the innocent one of two would be charged with each death by the other.
func (c *Consumer) attempt(ctx context.Context, t *tenant, d store.Delivery, suspect bool, read func(ctx context.Context) error) error {
	if suspect {
		if err := c.suspects.enter(ctx, c); err != nil {
			return err
		}
		defer c.suspects.leave()
	}
	fenced := func(write func(context.Context, store.Fence, store.Delivery) error) error {
		fence, err := c.fence(t)
		if err != nil {
			return err
		}
		return c.step(ctx, func(ctx context.Context) error { return write(ctx, fence, d) })
	}
	if c.charged.add(t.id, d) {
		if err := fenced(c.writes.BeginAttempt); err != nil {
			return err
		}
	}
	err := c.step(ctx, read)
	if back := fenced(c.writes.SurvivedAttempt); back != nil {
		return errors.Join(err, back)
	}
	c.charged.drop(t.id, d)
	return err
}

// suspects lets one in at a time.
type suspects chan struct{}

// enter waits for its turn, and shows the watchdog meanwhile that it only waits.
func (s suspects) enter(ctx context.Context, c *Consumer) error {
	for {
		timer := c.clock.NewTimer(time.Second)
		select {
		case s <- struct{}{}:
			timer.Stop()
			return nil
		case <-timer.C():
			c.watch.moved(ctx, c.clock.Now())
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
	}
}

func (s suspects) leave() { <-s }

// charged are the attempts that this process wrote down and has not taken back.
type charged struct {
	mu   sync.Mutex
	open map[chargedKey]bool
}

type chargedKey struct {
	tenant             store.TenantID
	message, recipient string
}

// add reports whether the attempt is still to be written.
func (c *charged) add(t store.TenantID, d store.Delivery) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := chargedKey{t, d.MessageID, d.Recipient}
	if c.open[key] {
		return false
	}
	if c.open == nil {
		c.open = map[chargedKey]bool{}
	}
	c.open[key] = true
	return true
}

func (c *charged) drop(t store.TenantID, d store.Delivery) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.open, chargedKey{t, d.MessageID, d.Recipient})
}

// chainRejection is a rejection and the chain that it came over.
type chainRejection struct {
	ch *chain
	rejection
}

// rejects remember how often each session said that it rejected a message, longer than a chain lives: a session says it
// again with every state until it has taken the message or something after it.
type rejects struct {
	mu       sync.Mutex
	sessions map[string]*rejecting
}

type rejecting struct {
	counts map[string]int
	last   time.Time
}

func (r *rejects) known(session, message string) (n int, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := r.sessions[session]; s != nil {
		n, ok = s.counts[message]
	}
	return n, ok
}

func (r *rejects) heard(session, message string, n int, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.sessions[session]
	if s == nil {
		s = &rejecting{counts: map[string]int{}}
		if r.sessions == nil {
			r.sessions = map[string]*rejecting{}
		}
		r.sessions[session] = s
	}
	s.counts[message], s.last = n, now
}

// prune forgets sessions that rejected nothing since before.
func (r *rejects) prune(before time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for session, s := range r.sessions {
		if s.last.Before(before) {
			delete(r.sessions, session)
		}
	}
}

// countRejections writes down what was rejected by name, each new one once, and holds the chain until its pause is over:
// besides a death of the worker the only failure that counts.
func (c *Consumer) countRejections(ctx context.Context, t *tenant, channel string, rejected []chainRejection) error {
	for _, r := range rejected {
		known, ok := c.rejects.known(r.ch.live.Session, r.id)
		if ok && r.count <= known {
			continue
		}
		fence, err := c.fence(t)
		if err != nil {
			return err
		}
		if !ok && r.ch.live.Generation < fence.Epoch {
			known = -1 // it may have been counted before this worker
		}
		err = c.step(ctx, func(ctx context.Context) error {
			return c.writes.CountRejections(ctx, fence, store.Rejections{Delivery: store.Delivery{
				MessageID: r.id, Recipient: r.ch.live.Agent, Channel: channel, Pos: r.pos}, Count: r.count, Known: known})
		})
		if err != nil {
			return err
		}
		c.rejects.heard(r.ch.live.Session, r.id, r.count, c.clock.Now())
		r.ch.more = true
		c.in.rejected.Add(ctx, 1)
		c.log.InfoContext(ctx, "A Runner rejected a message", "tenant", t.id, "message", r.id, "agent", r.ch.live.Agent,
			"count", r.count, "reason", r.reason)
	}
	return nil
}

// park sets a delivery aside whose attempts are used up. The row is the truth and commits before anything after it is sent;
// the announcement follows.
func (d *drain) park(ctx context.Context, p *plan, row store.OwedRow) error {
	reason := store.ReasonWorkerDied
	if n, _ := d.rejects.known(p.ch.live.Session, row.ID); n > 0 || !d.leases.Careful(d.tenant.inDatabase()) {
		reason = store.ReasonRejected
	}
	return d.setAside(ctx, d.tenant, d.delivery(p, row), reason)
}

func (c *Consumer) setAside(ctx context.Context, t *tenant, what store.Delivery, reason string) error {
	fence, err := c.fence(t)
	if err != nil {
		return err
	}
	var parked *store.Parked
	err = c.step(ctx, func(ctx context.Context) error {
		parked, err = c.writes.ParkDelivery(ctx, fence, what, reason, c.o.MaxDeliver)
		return err
	})
	if err != nil || parked == nil {
		return err
	}
	count(ctx, c.in.deadLetters, 1, "reason", reason)
	c.log.ErrorContext(ctx, "Set a message aside", "tenant", t.id, "message", what.MessageID, "agent", what.Recipient,
		"attempts", parked.Attempts, "reason", reason)
	gaveUp := c.letters.add(fabric.DeadLetter{
		Ref:       fabric.EventRef{Tenant: string(t.id), Kind: fabric.KindMessagePosted, RowID: what.MessageID, Version: what.Pos},
		Recipient: what.Recipient, Replay: parked.Replayed, Attempts: parked.Attempts, Reason: reason,
		FirstSeen: time.UnixMilli(parked.FirstUnixMs), LastSeen: time.UnixMilli(parked.LastUnixMs),
	})
	if gaveUp {
		c.in.unannounced.Add(ctx, 1)
	}
	return nil
}
