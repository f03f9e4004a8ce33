package delivery

import (
	"slices"
	"strings"
	"sync"
	"time"
)

// gates are the chains of all sessions, by channel. A channel's chains belong to whoever works its item; what is heard of
// them meanwhile waits here.
type gates struct {
	mu       sync.Mutex
	channels map[item]*gate
	sessions map[string]map[item]bool // where a session has a chain
}

// gate is one channel: a chain for each session that is behind its head.
type gate struct {
	chains map[string]*chain
	heard  []answer // under gates.mu
	flight int      // as it was counted last
	count  int
}

// open hands a channel to its worker, with the answers that came since.
func (g *gates) open(it item) (*gate, []answer) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.channels == nil {
		g.channels, g.sessions = map[item]*gate{}, map[string]map[item]bool{}
	}
	ch := g.channels[it]
	if ch == nil {
		ch = &gate{chains: map[string]*chain{}}
		g.channels[it] = ch
	}
	heard := ch.heard
	ch.heard = nil
	return ch, heard
}

// close takes it back, and forgets a channel that has no chain left. It returns how many links and chains there are more
// than before.
func (g *gates) close(it item, ch *gate) (flight, chains int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := 0
	for _, c := range ch.chains {
		now += len(c.flight)
	}
	flight, chains = now-ch.flight, len(ch.chains)-ch.count
	ch.flight, ch.count = now, len(ch.chains)
	if len(ch.chains) == 0 {
		delete(g.channels, it)
	}
	return flight, chains
}

// begin gives a session a chain in a channel; its worker calls it, before anything is sent.
func (g *gates) begin(it item, ch *gate, c *chain) {
	ch.chains[c.live.Session] = c
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.sessions[c.live.Session] == nil {
		g.sessions[c.live.Session] = map[item]bool{}
	}
	g.sessions[c.live.Session][it] = true
}

// end forgets a session's chain in a channel; its worker calls it.
func (g *gates) end(it item, ch *gate, session string) {
	delete(ch.chains, session)
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.sessions[session], it)
	if len(g.sessions[session]) == 0 {
		delete(g.sessions, session)
	}
}

// heard queues an answer for a channel; false where it has no chains: nothing was sent that it could answer.
func (g *gates) heard(it item, a answer) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	ch := g.channels[it]
	if ch == nil {
		return false
	}
	if n := len(ch.heard); n > 0 && ch.heard[n-1].supersededBy(a) {
		ch.heard[n-1] = a
		return true
	}
	ch.heard = append(ch.heard, a)
	return true
}

// has reports whether anything is on its way in a channel.
func (g *gates) has(it item) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.channels[it] != nil
}

// supersededBy reports whether a later answer says all that an earlier one did, so that a Runner that talks much costs no
// memory.
func (a answer) supersededBy(b answer) bool {
	same := a.session == b.session && a.generation == b.generation && a.runner == b.runner && len(a.rejected) == 0
	return same && (!a.refused && !a.dropped && b.held >= a.held || a.refused == b.refused && a.dropped == b.dropped && a.held == b.held)
}

// of lists the channels in which a session has a chain.
func (g *gates) of(session string) []item {
	g.mu.Lock()
	defer g.mu.Unlock()
	out := make([]item, 0, len(g.sessions[session]))
	for it := range g.sessions[session] {
		out = append(out, it)
	}
	slices.SortFunc(out, func(a, b item) int { return strings.Compare(a.id, b.id) }) // of one tenant; so that a simulation can be replayed
	return out
}

// wake is when the channel must be looked at again although nobody says so; zero: never.
func (ch *gate) wake(now time.Time, o Options) time.Time {
	var at time.Time
	for _, c := range ch.chains {
		at = earliest(at, c.wake(now, o.Window, o.AckWait))
	}
	return at
}
