package storetwin

import (
	"cmp"
	"slices"

	"github.com/rigelbuild/compass-operator/internal/store"
)

// History is what is committed, read past every client, for whoever checks a run afterwards.
type History struct {
	Facts    []Fact
	Messages []Placed
	Members  map[Seat]int64 // since which position
	Cursors  map[Seat]int64
	Agents   map[store.TenantID][]store.Account
	Dead     []Dead
	Open     []string // turns that are open: session and turn
	Owed     []Owed   // what is owed beside the chain and not done
	Heads    map[Seat]int64
	Live     []store.Binding

	Placements map[store.TenantID]store.Placement
}

// Placed is a message with its tenant.
type Placed struct {
	Tenant store.TenantID
	store.Message
}

// Seat is an agent (or nobody) in a channel.
type Seat struct {
	Tenant         store.TenantID
	Channel, Agent string
}

// Dead is a dead letter with its tenant.
type Dead struct {
	Tenant store.TenantID
	store.DeadLetter
}

// Owed is what is owed to an agent beside the chain.
type Owed struct {
	Tenant         store.TenantID
	Agent, Message string
	Done           bool
}

// History reads everything.
func (db *DB) History() History {
	db.mu.Lock()
	defer db.mu.Unlock()
	h := History{
		Facts: slices.Clone(db.facts), Members: map[Seat]int64{}, Cursors: map[Seat]int64{}, Heads: map[Seat]int64{},
		Agents: map[store.TenantID][]store.Account{}, Placements: map[store.TenantID]store.Placement{},
	}
	t := &tx{DB: db, system: true}
	db.placements.all(t, func(tenant string, p store.Placement) bool {
		h.Placements[store.TenantID(tenant)] = p
		return true
	})
	db.messages.all(t, func(k key, m messageRow) bool {
		as := *t
		as.tenant = k.tenant
		h.Messages = append(h.Messages, Placed{store.TenantID(k.tenant), as.content(m)})
		return true
	})
	slices.SortFunc(h.Messages, func(a, b Placed) int { return cmp.Compare(a.Seq, b.Seq) })
	db.members.all(t, func(k pair, m memberRow) bool {
		h.Members[Seat{store.TenantID(k.tenant), k.a, k.b}] = m.joinedAt
		return true
	})
	db.cursors.all(t, func(k pair, c cursorRow) bool {
		h.Cursors[Seat{store.TenantID(k.tenant), k.b, k.a}] = c.acked
		return true
	})
	db.heads.all(t, func(k key, r headRow) bool {
		h.Heads[Seat{store.TenantID(k.tenant), k.id, ""}] = r.lastPos
		return true
	})
	db.accounts.all(t, func(k key, a store.Account) bool {
		if a.Kind == store.KindAgent {
			h.Agents[store.TenantID(k.tenant)] = append(h.Agents[store.TenantID(k.tenant)], a)
		}
		return true
	})
	db.dead.all(t, func(k pair, d store.DeadLetter) bool {
		h.Dead = append(h.Dead, Dead{store.TenantID(k.tenant), d})
		return true
	})
	db.owed.all(t, func(k pair, o owedRow) bool {
		h.Owed = append(h.Owed, Owed{store.TenantID(k.tenant), k.a, k.b, o.done})
		return true
	})
	db.turns.all(t, func(k pair, row turnRow) bool {
		if row.settledBy == "" {
			h.Open = append(h.Open, k.a+" "+k.b)
		}
		return true
	})
	db.bindings.all(t, func(_ key, b bindingRow) bool {
		if b.Live {
			h.Live = append(h.Live, b.Binding)
		}
		return true
	})
	return h
}
