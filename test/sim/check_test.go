package sim_test

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rigelbuild/compass-operator/internal/naming"
	"github.com/rigelbuild/compass-operator/internal/store"
	"github.com/rigelbuild/compass-operator/internal/store/storetwin"
)

// checker judges a schedule by what is committed and what agents took.
type checker struct {
	*world
	storetwin.History
	lossy bool // a failover forgot something
	bad   []string
	byID  map[store.TenantID]map[string]storetwin.Placed
	bound map[string]time.Time
}

// check returns what is wrong; nothing is right.
func (w *world) check() []string {
	c := &checker{
		world: w, History: w.db.History(), lossy: w.had["failover"],
		byID: map[store.TenantID]map[string]storetwin.Placed{}, bound: map[string]time.Time{},
	}
	for _, m := range c.Messages {
		if c.byID[m.Tenant] == nil {
			c.byID[m.Tenant] = map[string]storetwin.Placed{}
		}
		c.byID[m.Tenant][m.ID] = m
	}
	for _, f := range c.Facts {
		if f.Kind == storetwin.FactBound {
			c.bound[f.Session] = f.At
		}
	}
	c.delivered()
	c.once()
	c.inOrder()
	c.rightly()
	c.settledRightly()
	c.steeredRightly()
	c.acknowledged()
	c.neverDone()
	c.bad = append(c.bad, w.storms.found...)
	for _, t := range w.tenants {
		if p := c.Placements[t.id]; p.Stream != t.wanted.Load() || p.Draining {
			c.fail("MOVE: tenant %s shall be with %v and is with %+v", t.id, t.wanted.Load(), p)
		}
	}
	if n := w.db.Deadlocks(); n > 0 {
		c.fail("%d deadlocks", n)
	}
	return c.bad
}

// neverDone: what the statements themselves must refuse.
func (c *checker) neverDone() {
	for _, f := range c.Facts {
		switch f.Kind { //nolint:exhaustive // the others may be
		case storetwin.FactStale:
			c.fail("WRITER: a write of a worker that was not the writer was committed for tenant %s", f.Tenant)
		case storetwin.FactAlive:
			c.fail("EXPIRED: Runner %s was expired while its lease lasted", f.By)
		}
	}
}

func (c *checker) fail(format string, args ...any) {
	c.bad = append(c.bad, fmt.Sprintf(format, args...))
}

// seat is a membership, in positions.
type seat struct{ joined, left int64 }

func (c *checker) seats(tenant store.TenantID, channel, agent string) (out []seat) {
	for _, f := range c.Facts {
		if f.Tenant != tenant || f.Channel != channel || f.Agent != agent {
			continue
		}
		switch f.Kind { //nolint:exhaustive // the others are no memberships
		case storetwin.FactJoined:
			out = append(out, seat{joined: f.Pos})
		case storetwin.FactLeft:
			if n := len(out); n > 0 {
				out[n-1].left = f.Pos
			}
		}
	}
	return out
}

// named reports whether a message is owed to an agent by name: mentioned, or the answer to what it asked.
func (c *checker) named(m storetwin.Placed, a store.Account) bool {
	return slices.Contains(store.Mentions(m.Blocks), a.Handle) || m.Ask != "" && c.byID[m.Tenant][m.Ask].Author == a.ID
}

// delivered: what has a position was taken by everybody who is entitled to it, or is set aside.
func (c *checker) delivered() {
	got := map[string]bool{}
	for _, t := range c.taken {
		got[fmt.Sprint(t.tenant, t.agent, t.message, t.pos)] = true
	}
	aside := map[string]bool{}
	for _, d := range c.Dead {
		aside[fmt.Sprint(d.Tenant, d.Recipient, d.Message)] = true
		if !c.poison[d.Message] {
			c.fail("innocent message %s is set aside for %s: %s", short(d.Message), short(d.Recipient), d.Reason)
		}
	}
	pos := map[string]string{}
	for _, m := range c.Messages {
		if m.Held() && c.leftOpen[m.Session] {
			continue
		}
		if m.Held() {
			c.fail("message %s of turn %s is held for ever", short(m.ID), m.Turn)
			continue
		}
		at := fmt.Sprint(m.Tenant, m.Channel, m.Pos)
		if pos[at] != "" {
			c.fail("messages %s and %s have the same position", pos[at], m.ID)
		}
		pos[at] = m.ID
		for _, a := range c.Agents[m.Tenant] {
			if a.ID == m.Author || !c.owes(m, a) || c.lossy && c.poison[m.ID] {
				continue // a dead letter that a failover forgot may have been passed (accepted: model, finding 23)
			}
			if !got[fmt.Sprint(m.Tenant, a.ID, m.ID, m.Pos)] && !aside[fmt.Sprint(m.Tenant, a.ID, m.ID)] {
				c.fail("LOST: message %s at %d of channel %s never came to %s; cursor %d", short(m.ID), m.Pos, short(m.Channel), a.Handle,
					c.Cursors[storetwin.Seat{Tenant: m.Tenant, Channel: m.Channel, Agent: a.ID}])
			}
		}
	}
}

// owes reports whether an agent must have got a message: a member at its position and ever since, or named, unless it left.
func (c *checker) owes(m storetwin.Placed, a store.Account) bool {
	since, member := c.Members[storetwin.Seat{Tenant: m.Tenant, Channel: m.Channel, Agent: a.ID}]
	if member && since < m.Pos {
		return true
	}
	for _, s := range c.seats(m.Tenant, m.Channel, a.ID) {
		if s.left > 0 {
			return false // who leaves gives up what is owed by name too
		}
	}
	return c.named(m, a)
}

// once: one consequence per message and session generation; in a later one only if the ack was not committed.
func (c *checker) once() {
	seen := map[string]taken{}
	for _, t := range c.taken {
		key := fmt.Sprint(t.session, t.message, t.pos)
		if before, ok := seen[key]; ok {
			c.fail("TWICE: message %s at %d in session %s, steer %v then %v", short(t.message), t.pos, short(t.session), before.steer, t.steer)
		}
		seen[key] = t
		if t.steer {
			continue
		}
		for _, f := range c.Facts {
			if f.Kind == storetwin.FactAcked && f.Tenant == t.tenant && f.Agent == t.agent && f.Channel == t.channel &&
				f.Pos >= t.pos && f.At.Before(c.bound[t.session]) {
				c.fail("AGAIN: message %s at %d in session %s, acknowledged up to %d before it was bound", short(t.message), t.pos, short(t.session), f.Pos)
				break
			}
		}
	}
}

// inOrder: per session and channel in the order of positions.
func (c *checker) inOrder() {
	last := map[string]int64{}
	for _, t := range c.taken {
		if t.steer {
			continue
		}
		key := t.session + t.channel
		if t.pos <= last[key] {
			c.fail("ORDER: message %s at %d after %d in session %s", short(t.message), t.pos, last[key], short(t.session))
		}
		last[key] = t.pos
	}
}

// rightly: whole, as it is for good, and by nobody who is not entitled.
func (c *checker) rightly() {
	for _, t := range c.taken {
		if t.stale {
			c.fail("STALE: %s took message %s of a worker that was no longer the writer", short(t.agent), short(t.message))
		}
		m, ok := c.byID[t.tenant][t.message]
		switch {
		case !ok || m.Pos != t.pos:
			if !c.lossy {
				c.fail("FOREIGN: %s of tenant %s took message %s at %d, which is not there (now at %d)", short(t.agent), t.tenant, short(t.message), t.pos, m.Pos)
			}
			continue
		case t.text != textOfStored(m.Blocks):
			c.fail("HALF: message %s was taken as %q and is %q", short(t.message), t.text, textOfStored(m.Blocks))
		}
		if c.lossy || c.mayHave(m, t) {
			continue
		}
		c.fail("NOBODY'S: %s took message %s at %d of channel %s", short(t.agent), short(t.message), t.pos, short(t.channel))
	}
}

func (c *checker) mayHave(m storetwin.Placed, t taken) bool {
	for _, a := range c.Agents[t.tenant] {
		if a.ID == t.agent && c.named(m, a) {
			return true
		}
	}
	for _, s := range c.seats(t.tenant, t.channel, t.agent) {
		if s.joined < m.Pos && (s.left == 0 || s.left >= m.Pos) {
			return m.Author != t.agent
		}
	}
	return false
}

// settledRightly: no turn was settled in the name of a Runner that lived, and none is open now.
func (c *checker) settledRightly() {
	for _, turn := range c.Open {
		if session, _, _ := strings.Cut(turn, " "); c.leftOpen[session] {
			continue
		}
		c.fail("turn %s is open for ever", turn)
	}
	c.healedRightly()
	for _, cause := range []string{"failover", "kill runner", "cut runner", "kill server", "pause server", "lossy network"} {
		if c.had[cause] {
			return // a lease may have been over
		}
	}
	for _, f := range c.Facts {
		if f.Kind == storetwin.FactSettled && f.By == store.SettledByExpiry {
			tenant, _, _ := naming.ParseSession(f.Session)
			c.fail("EXPIRED: a turn of %s in %s was settled by expiry, and its Runner lived", short(f.Session), tenant)
		}
	}
}

// healedRightly: no heartbeat settled a turn that its agent was writing.
func (c *checker) healedRightly() {
	ended := map[string]bool{}
	for _, f := range c.Facts {
		if f.Kind == storetwin.FactEnded {
			ended[f.Session] = true
		}
	}
	for _, f := range c.Facts {
		if f.Kind == storetwin.FactSettled && f.By == store.SettledByHeartbeat && !ended[f.Session] && !c.lossy {
			c.fail("HEARTBEAT: a turn of %s was settled under its agent's pen", short(f.Session))
		}
	}
}

// steeredRightly: what people said to a session that still runs was applied, unless a failover came after it.
func (c *checker) steeredRightly() {
	for at, applied := range c.steered {
		session, text, _ := strings.Cut(at, " ")
		running := slices.ContainsFunc(c.Live, func(b store.Binding) bool { return b.Session == session })
		if running && !applied && c.told[at].After(c.forgot) {
			c.fail("STEER: %q was never applied by session %s", text, short(session))
		}
	}
}

// acknowledged: what a session that still runs has consumed is acknowledged, also where a failover forgot that it was. Who
// consumed what is forgotten itself, and is beyond the head, is refused until the channel's next message.
func (c *checker) acknowledged() {
	runs := map[string]bool{}
	for _, b := range c.Live {
		runs[b.Session] = true
	}
	pending := map[string]bool{}
	for _, o := range c.Owed {
		if !o.Done {
			pending[fmt.Sprint(o.Tenant, o.Agent, o.Message)] = true
		}
	}
	beyond := map[string]bool{}
	for _, t := range c.taken {
		if t.pos > c.Heads[storetwin.Seat{Tenant: t.tenant, Channel: t.channel}] {
			beyond[t.session+t.channel] = true
		}
	}
	for _, t := range c.taken {
		at := storetwin.Seat{Tenant: t.tenant, Channel: t.channel, Agent: t.agent}
		if _, member := c.Members[at]; !runs[t.session] || !member || beyond[t.session+t.channel] || c.byID[t.tenant][t.message].Pos != t.pos {
			continue
		}
		if !t.steer && c.Cursors[at] < t.pos || t.steer && pending[fmt.Sprint(t.tenant, t.agent, t.message)] {
			c.fail("UNACKED: message %s at %d was consumed by session %s; cursor %d", short(t.message), t.pos, short(t.session), c.Cursors[at])
		}
	}
}
