package delivery

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/rigelbuild/compass-operator/internal/store"
)

// Recovery. Nothing here decides what is owed: a sweep chooses whom to look at, with the system role, and everything after
// that happens under the tenant.
//
// Why no message is lost (REQ-060): a committed message with a position is past the cursor of every agent that it is owed
// to, until that agent acknowledges it. References, notes and answers only make a look come sooner. If every one of them is
// lost, the tick finds each live (agent, channel) whose head is past its cursor and each live agent with something pending,
// whether or not anything moved lately (TickAll); and a start does so before it takes the first reference. So the worst
// latency of a message whose reference was never published is one floor tick (REQ-061).

// triggers of a sweep.
const (
	bySchedule  = "tick"
	byReconnect = "reconnect"
	byStart     = "start"
	byLease     = "lease"
	byClaim     = "claim"
)

// drainStarts is the start-time scan (REQ-055): it returns when everything that is owed is marked, or ctx has ended.
func (c *Consumer) drainStarts(ctx context.Context) {
	for n := 0; ctx.Err() == nil; n++ {
		err := c.sweepOnce(ctx, byStart)
		if err == nil {
			return
		}
		c.log.WarnContext(ctx, "Could not sweep at the start", "error", err)
		c.pause(ctx, retryAfter(n))
	}
}

// sweepOnce visits everything that is owed, in every database whose lease is held.
func (c *Consumer) sweepOnce(ctx context.Context, trigger string) error {
	var errs []error
	for _, db := range c.leases.Held() {
		errs = append(errs, c.lookForMoves(ctx, db), c.sweepDatabase(ctx, db, trigger))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	c.in.lastTick.Store(c.clock.Now().UnixNano())
	return nil
}

func (c *Consumer) sweepDatabase(ctx context.Context, db int, trigger string) error {
	for part := range c.o.Parts {
		if err := c.sweepPart(ctx, store.SweepQuery{Database: db, Stream: c.o.Stream, Part: part, Parts: c.o.Parts}, trigger); err != nil {
			return err
		}
	}
	return nil
}

// sweepPart is the pair of every recovery (REQ-053, REQ-054) for one part of the tenants.
func (c *Consumer) sweepPart(ctx context.Context, q store.SweepQuery, trigger string) error {
	begun := c.clock.Now()
	err := errors.Join(c.sweepAllLive(ctx, q), c.scanMissedMentions(ctx, q))
	c.in.sweep.Record(ctx, c.clock.Now().Sub(begun).Seconds(), metric.WithAttributes(attribute.String("trigger", trigger)))
	return err
}

// sweepAllLive marks every channel that owes a live agent, every live agent with something pending, and wakes who sleeps.
// It is what recovers plain messages (REQ-056): scanMissedMentions routes, and sends nothing.
func (c *Consumer) sweepAllLive(ctx context.Context, q store.SweepQuery) error {
	var channels []store.OwingChannel
	var agents, asleep []store.OwedAgent
	err := c.step(ctx, func(ctx context.Context) (err error) {
		channels, err = c.sessions.SweepChannels(ctx, q)
		return err
	})
	err = errors.Join(err, c.step(ctx, func(ctx context.Context) (err error) {
		agents, err = c.sessions.SweepAgents(ctx, q)
		return err
	}))
	if c.o.Waker != nil {
		err = errors.Join(err, c.step(ctx, func(ctx context.Context) (err error) {
			asleep, err = c.sessions.SweepAsleep(ctx, q)
			return err
		}))
	}
	var found []item
	for _, o := range channels {
		found = append(found, item{tenant: o.Tenant, kind: itemChannel, id: o.Channel})
	}
	for _, a := range append(agents, asleep...) {
		found = append(found, item{tenant: a.Tenant, kind: itemAgent, id: a.Agent})
	}
	for _, a := range asleep {
		found = append(found, item{tenant: a.Tenant, kind: itemSession, id: a.Agent})
	}
	for _, it := range found {
		c.mine(it.tenant, q.Database)
	}
	// All at once: care for a tenant ends when nothing of it waits (ranDry), so a channel that is through before an agent was
	// marked would end it for that agent, whose row may be the one that kills.
	c.dirty.addAll(found, whyRead|whySweep)
	count(ctx, c.in.swept, len(channels), "kind", "channel")
	count(ctx, c.in.swept, len(agents), "kind", "agent")
	count(ctx, c.in.swept, len(asleep), "kind", "asleep")
	return err
}

// scanMissedMentions is the net below routing, which happens in the transaction that gives the position (RouteInTx): it
// should find nothing. Finding and stamping is one statement that asks for a position, so a message that is held can never
// be stamped with half its mentions (REQ-048).
func (c *Consumer) scanMissedMentions(ctx context.Context, q store.SweepQuery) error {
	var missed []store.TenantID
	err := c.step(ctx, func(ctx context.Context) (err error) {
		missed, err = c.sessions.SweepUnrouted(ctx, q)
		return err
	})
	for _, id := range missed {
		err = errors.Join(err, c.routeMissed(ctx, c.mine(id, q.Database)))
	}
	return err
}

func (c *Consumer) routeMissed(ctx context.Context, t *tenant) error {
	ctx = store.WithTenant(ctx, t.id)
	for {
		fence, err := c.fence(t)
		if err != nil {
			return err
		}
		var routed []string
		err = c.step(ctx, func(ctx context.Context) (err error) {
			routed, err = c.writes.RouteMissed(ctx, fence, rowPage)
			return err
		})
		if err != nil {
			return err
		}
		if len(routed) > 0 {
			c.in.missed.Add(ctx, int64(len(routed)))
			c.log.ErrorContext(ctx, "Routed mentions that no transaction had routed", "tenant", t.id, "messages", len(routed))
		}
		for _, id := range routed {
			c.markRow(t.id, id)
		}
		if len(routed) < rowPage {
			return nil
		}
	}
}

// sweepSession marks everything that one agent owes an answer for: its session was claimed, it joined a channel, or it
// sleeps. Start registers the binding and then reads what is owed, so a message that is posted meanwhile is in one or the
// other, and positions say in which order (D12).
func (c *Consumer) sweepSession(ctx context.Context, t *tenant, agent string) error {
	var channels []string
	err := c.step(ctx, func(ctx context.Context) (err error) {
		channels, err = c.reads.SessionOwes(ctx, agent)
		return err
	})
	if err != nil {
		return err
	}
	c.dirty.add(item{tenant: t.id, kind: itemAgent, id: agent}, whyRead)
	for _, channel := range channels {
		c.dirty.add(item{tenant: t.id, kind: itemChannel, id: channel}, whyRead)
	}
	return nil
}

// recover runs the recovery of a worker that lives: the tick, spread over its period by tenant; everything after an outage;
// a database whose lease came back; tenants that came or are leaving.
func (c *Consumer) recover(ctx context.Context) {
	tick := c.o.FloorTick / time.Duration(c.o.Parts)
	nextTick, nextMoves := c.clock.Now().Add(tick), c.clock.Now().Add(c.o.Placements)
	part := 0
	for {
		timer := c.clock.NewTimer(max(earliest(nextTick, nextMoves).Sub(c.clock.Now()), 0))
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-c.sweepNow:
			c.report(ctx, byReconnect, c.sweepOnce(ctx, byReconnect))
		case db := <-c.leases.Regained():
			c.tenants.care(db)
			c.report(ctx, byLease, errors.Join(c.lookForMoves(ctx, db), c.sweepDatabase(ctx, db, byLease)))
		case <-c.movesNow:
			nextMoves = c.clock.Now()
		case <-timer.C():
		}
		timer.Stop()
		now := c.clock.Now()
		if !now.Before(nextMoves) {
			nextMoves = now.Add(c.o.Placements)
			for _, db := range c.leases.Held() {
				c.report(ctx, "moves", c.lookForMoves(ctx, db))
			}
		}
		if !now.Before(nextTick) {
			nextTick = latest(nextTick.Add(tick), now) // after an outage the circle goes on, it does not catch up
			c.tickPart(ctx, part)
			part = (part + 1) % c.o.Parts
		}
	}
}

// tickPart visits one part of the tenants. The whole circle is the floor tick.
func (c *Consumer) tickPart(ctx context.Context, part int) {
	ok := true
	for _, db := range c.leases.Held() {
		q := store.SweepQuery{Database: db, Stream: c.o.Stream, Part: part, Parts: c.o.Parts}
		ok = c.report(ctx, bySchedule, c.sweepPart(ctx, q, bySchedule)) && ok
		c.report(ctx, "backlog", c.countBacklog(ctx, q))
	}
	if part == c.o.Parts-1 && ok {
		c.in.lastTick.Store(c.clock.Now().UnixNano())
		c.tenants.forget(c.clock.Now(), c.o.Stream)
		c.wakes.prune(c.clock.Now())
		c.rejects.prune(c.clock.Now().Add(-rejectsKept))
	}
}

func (c *Consumer) report(ctx context.Context, trigger string, err error) bool {
	if err != nil && ctx.Err() == nil {
		count(ctx, c.in.failures, 1, "kind", "sweep")
		c.log.WarnContext(ctx, "Could not sweep", "trigger", trigger, "error", err)
	}
	return err == nil
}

// pause waits, or until ctx ends.
func (c *Consumer) pause(ctx context.Context, d time.Duration) {
	timer := c.clock.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C():
	}
}

// care asks for care again in a database whose lease was held by somebody else meanwhile.
func (ts *tenants) care(database int) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	for _, t := range ts.known {
		t.mu.Lock()
		if t.database == database {
			t.swept = false
		}
		t.mu.Unlock()
	}
}

// claims are the highest claims of the stream that were looked at, per database.
type claims struct {
	mu   sync.Mutex
	seen map[int]int64
}

func (cs *claims) get(db int) (above int64, known bool) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	above, known = cs.seen[db]
	if !known {
		above = -1
	}
	return above, known
}

func (cs *claims) set(db int, above int64) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if cs.seen == nil {
		cs.seen = map[int]int64{}
	}
	cs.seen[db] = above
}

// lookForMoves sweeps the tenants that came to the stream since the last look, and confirms the drain of those that are
// about to leave it. The first look of a process is part of a sweep of everything, so it sweeps none by itself.
func (c *Consumer) lookForMoves(ctx context.Context, db int) error {
	above, known := c.claims.get(db)
	var moved []store.StreamTenant
	err := c.step(ctx, func(ctx context.Context) (err error) {
		moved, err = c.sessions.MovedTenants(ctx, db, c.o.Stream, above)
		return err
	})
	newest := above
	for _, m := range moved {
		t := c.mine(m.Tenant, db)
		newest = max(newest, m.Claim)
		switch {
		case m.Draining:
			c.dirty.add(item{tenant: t.id, kind: itemTenant}, whyRead)
		case known && m.Claim > above:
			q := store.SweepQuery{Database: db, Stream: c.o.Stream, Parts: 1, Tenant: m.Tenant}
			err = errors.Join(err, c.sweepPart(ctx, q, byClaim))
		}
	}
	if err == nil {
		c.claims.set(db, newest)
	}
	return err
}

// confirmDrain gives the word that nothing more is sent for a tenant that is about to leave the stream. While a drain of the
// tenant runs it comes again a little later; what begins after the word reads the placement again and finds it draining.
func (c *Consumer) confirmDrain(ctx context.Context, t *tenant) error {
	var p store.Placement
	err := c.step(ctx, func(ctx context.Context) (err error) {
		p, err = c.reads.Placement(ctx)
		return err
	})
	if errors.Is(err, store.ErrNotFound) || err == nil && p.Stream != c.o.Stream {
		c.lost(t)
		return nil
	}
	if err != nil {
		return err
	}
	c.place(t, true, p)
	if !p.Draining {
		return nil
	}
	if !t.sending.TryLock() {
		c.later.at(item{tenant: t.id, kind: itemTenant}, whyRead, c.clock.Now().Add(retryFirst))
		return nil
	}
	defer t.sending.Unlock()
	fence, err := c.fence(t)
	if err != nil {
		return err
	}
	return c.step(ctx, func(ctx context.Context) error { return c.writes.ConfirmDrain(ctx, fence, p.Claim) })
}
