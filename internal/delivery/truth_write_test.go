package delivery

import (
	"context"
	"slices"
	"time"

	"github.com/rigelbuild/compass-operator/internal/store"
)

// Writes, each behind the fence.

func (tr *truth) write(ctx context.Context, fence store.Fence, what string, fn func(t store.TenantID)) error {
	tr.mu.Lock()
	hook := tr.onWrite
	tr.mu.Unlock()
	if hook != nil {
		hook(ctx, what)
	}
	tr.mu.Lock()
	defer tr.mu.Unlock()
	t, err := tr.note(ctx, what)
	if err != nil {
		return err
	}
	if p := tr.places[t]; fence != tr.fence || p == nil || p.Stream != fence.Stream {
		return store.ErrStaleWriter
	}
	fn(t)
	return nil
}

func (tr *truth) BeginAttempt(ctx context.Context, fence store.Fence, d store.Delivery) error {
	return tr.write(ctx, fence, "attempt", func(store.TenantID) {
		tr.attempts[d]++
		tr.tried[d] = time.Now()
	})
}

func (tr *truth) SurvivedAttempt(ctx context.Context, fence store.Fence, d store.Delivery) error {
	return tr.write(ctx, fence, "survived", func(store.TenantID) { delete(tr.attempts, d) })
}

func (tr *truth) CountRejections(ctx context.Context, fence store.Fence, r store.Rejections) error {
	return tr.write(ctx, fence, "rejected", func(store.TenantID) {
		tr.tried[r.Delivery] = time.Now()
		if r.Known < 0 {
			tr.attempts[r.Delivery] = max(tr.attempts[r.Delivery], r.Count)
			return
		}
		tr.attempts[r.Delivery] += r.Count - r.Known
	})
}

func (tr *truth) ParkDelivery(ctx context.Context, fence store.Fence, d store.Delivery, reason string, atLeast int) (*store.Parked, error) {
	var parked *store.Parked
	err := tr.write(ctx, fence, "park", func(store.TenantID) {
		if tr.attempts[d] < atLeast {
			return
		}
		parked = &store.Parked{Delivery: d, Attempts: tr.attempts[d], Reason: reason}
		tr.dead[d] = parked
		delete(tr.attempts, d)
	})
	return parked, err
}

func (tr *truth) AppendCommands(ctx context.Context, fence store.Fence, n store.NewCommands) ([]store.SessionCommand, error) {
	var out []store.SessionCommand
	err := tr.write(ctx, fence, "number", func(store.TenantID) {
		s := tr.ready(n.Agent)
		if s == nil || s.Session != n.Session {
			return
		}
		for _, id := range n.Messages {
			o := tr.owed[n.Agent][id]
			has := slices.ContainsFunc(tr.commands[n.Session], func(c store.SessionCommand) bool { return c.MessageID == id })
			if o == nil || o.done || has {
				continue
			}
			c := store.SessionCommand{N: tr.number(), Kind: o.Kind, MessageID: id, Pos: o.Pos}
			if all := tr.commands[n.Session]; len(all) > 0 {
				c.Prev = all[len(all)-1].N
			}
			tr.commands[n.Session] = append(tr.commands[n.Session], c)
		}
		if !n.Blind {
			out, _ = tr.toPush(store.CommandQuery{Session: n.Session})
		}
	})
	return out, err
}

func (tr *truth) RouteMissed(ctx context.Context, fence store.Fence, _ int) ([]string, error) {
	var out []string
	err := tr.write(ctx, fence, "route", func(t store.TenantID) { out, tr.unrouted[t] = tr.unrouted[t], nil })
	return out, err
}

func (tr *truth) ConfirmDrain(ctx context.Context, fence store.Fence, claim int64) error {
	return tr.write(ctx, fence, "confirm", func(t store.TenantID) { tr.drained[t] = claim })
}

// Sweeps. A part is a tenant, counted from the first.

func (tr *truth) inPart(t store.TenantID, q store.SweepQuery) bool {
	p := tr.places[t]
	return p != nil && p.Stream == q.Stream && !p.Draining && p.Database == q.Database &&
		(q.Tenant == "" || q.Tenant == t) && int(t[len(t)-1])%max(q.Parts, 1) == q.Part
}

func (tr *truth) sweep(what string, q store.SweepQuery) error {
	tr.log = append(tr.log, what)
	return tr.down[q.Database]
}

func (tr *truth) SweepChannels(_ context.Context, q store.SweepQuery) ([]store.OwingChannel, error) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	err := tr.sweep("sweep channels", q)
	var out []store.OwingChannel
	for id, c := range tr.channels {
		owes := false
		for a := range c.members {
			owes = owes || tr.ready(a) != nil && c.acked[a] < c.lastPos
		}
		if owes && err == nil && tr.inPart(c.tenant, q) {
			out = append(out, store.OwingChannel{Tenant: c.tenant, Channel: id})
		}
	}
	return out, err
}

func (tr *truth) SweepAgents(_ context.Context, q store.SweepQuery) ([]store.OwedAgent, error) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	err := tr.sweep("sweep agents", q)
	var out []store.OwedAgent
	for a, rows := range tr.owed {
		for _, o := range rows {
			if !o.done && tr.ready(a) != nil && err == nil && tr.inPart(o.tenant, q) {
				out = append(out, store.OwedAgent{Tenant: o.tenant, Agent: a})
				break
			}
		}
	}
	return out, err
}

func (tr *truth) SweepAsleep(_ context.Context, q store.SweepQuery) ([]store.OwedAgent, error) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	err := tr.sweep("sweep asleep", q)
	var out []store.OwedAgent
	for a := range tr.wakers {
		for _, c := range tr.channels {
			if _, member := c.members[a]; member && tr.ready(a) == nil && c.acked[a] < c.lastPos && err == nil && tr.inPart(c.tenant, q) {
				out = append(out, store.OwedAgent{Tenant: c.tenant, Agent: a})
				break
			}
		}
	}
	return out, err
}

func (tr *truth) SweepUnrouted(_ context.Context, q store.SweepQuery) ([]store.TenantID, error) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	err := tr.sweep("sweep unrouted", q)
	var out []store.TenantID
	for t, ids := range tr.unrouted {
		if len(ids) > 0 && err == nil && tr.inPart(t, q) {
			out = append(out, t)
		}
	}
	return out, err
}

func (tr *truth) MovedTenants(_ context.Context, database int, stream string, above int64) ([]store.StreamTenant, error) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	err := tr.sweep("moves", store.SweepQuery{Database: database})
	var out []store.StreamTenant
	for t, p := range tr.places {
		if err == nil && p.Stream == stream && p.Database == database && (p.Claim > above || p.Draining) {
			out = append(out, store.StreamTenant{Tenant: t, Claim: p.Claim, Draining: p.Draining})
		}
	}
	slices.SortFunc(out, func(a, b store.StreamTenant) int { return int(a.Claim - b.Claim) })
	return out, err
}
