package storetwin

import (
	"cmp"
	"context"
	"hash/fnv"
	"slices"

	"github.com/rigelbuild/compass-operator/internal/store"
)

// sweeps reports whether a tenant is one that the query asks for. Called in a statement. The hash is not Postgres's: which
// part a tenant falls on is nobody's business.
func (t *tx) sweeps(q store.SweepQuery, tenant string) bool {
	p, ok := t.placements.get(t, tenant)
	h := fnv.New32a()
	_, _ = h.Write([]byte(tenant))
	return ok && p.Stream == q.Stream && !p.Draining && p.Database == q.Database &&
		int(h.Sum32()&1023)%max(q.Parts, 1) == q.Part && (q.Tenant == "" || string(q.Tenant) == tenant)
}

// SweepChannels is store.SweepChannels: every live (agent, channel) that owes, those that moved first.
func (c *Client) SweepChannels(ctx context.Context, q store.SweepQuery) (out []store.OwingChannel, err error) {
	err = c.asLoop(ctx, "sweep channels", func(t *tx) error {
		return t.stmt("select channels", func() error {
			heads := map[store.OwingChannel]int64{}
			t.cursors.all(t, func(k pair, cur cursorRow) bool {
				head, _ := t.heads.get(t, key{k.tenant, k.b})
				o := store.OwingChannel{Tenant: store.TenantID(k.tenant), Channel: k.b}
				if head.lastPos > cur.acked && t.sweeps(q, k.tenant) && t.claimedBy(k.tenant, k.a) && !t.sweptBefore(k, head.lastPos) {
					heads[o] = head.lastPos
				}
				return true
			})
			for o := range heads {
				out = append(out, o)
			}
			slices.SortFunc(out, func(a, b store.OwingChannel) int {
				return cmp.Or(cmp.Compare(heads[b], heads[a]), cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Channel, b.Channel))
			})
			return nil
		})
	})
	return out, err
}

// sweptBefore is Rules.TickMoved: a head that was listed once is not listed again.
func (t *tx) sweptBefore(k pair, head int64) bool {
	if !t.rules.TickMoved {
		return false
	}
	before := t.swept[k] >= head
	t.swept[k] = head
	return before
}

// claimedBy reports whether an agent has a session that a Runner has taken. Called in a statement.
func (t *tx) claimedBy(tenant, agent string) (found bool) {
	t.bindings.all(t, func(k key, b bindingRow) bool {
		found = k.tenant == tenant && b.Agent == agent && b.Live && b.Claimed
		return !found
	})
	return found
}

// SweepAgents is store.SweepAgents.
func (c *Client) SweepAgents(ctx context.Context, q store.SweepQuery) ([]store.OwedAgent, error) {
	return c.sweepAgents(ctx, q, func(t *tx, tenant, agent string) bool {
		return t.claimedBy(tenant, agent) && t.pending(tenant, agent) > 0
	})
}

// pending is the newest position that is owed to an agent beside the chain; 0 for none. Called in a statement.
func (t *tx) pending(tenant, agent string) (newest int64) {
	t.owed.all(t, func(k pair, o owedRow) bool {
		if k.tenant == tenant && k.a == agent && !o.done {
			newest = max(newest, o.pos)
		}
		return true
	})
	return newest
}

// SweepAsleep is store.SweepAsleep.
func (c *Client) SweepAsleep(ctx context.Context, q store.SweepQuery) ([]store.OwedAgent, error) {
	return c.sweepAgents(ctx, q, func(t *tx, tenant, agent string) bool {
		as := *t
		as.tenant = tenant
		if a, _ := t.accounts.get(t, key{tenant, agent}); a.Wake != store.WakeOnOwed || a.DeletedAtUnixMs != 0 {
			return false
		}
		if _, live := as.liveOf(agent); live {
			return false
		}
		return t.pending(tenant, agent) > 0 || len(as.behind(agent)) > 0
	})
}

func (c *Client) sweepAgents(ctx context.Context, q store.SweepQuery, want func(t *tx, tenant, agent string) bool) (out []store.OwedAgent, err error) {
	err = c.asLoop(ctx, "sweep agents", func(t *tx) error {
		return t.stmt("select agents", func() error {
			newest := map[store.OwedAgent]int64{}
			t.accounts.all(t, func(k key, a store.Account) bool {
				if o := (store.OwedAgent{Tenant: store.TenantID(k.tenant), Agent: a.ID}); t.sweeps(q, k.tenant) && want(t, k.tenant, a.ID) {
					newest[o] = t.pending(k.tenant, a.ID)
					out = append(out, o)
				}
				return true
			})
			slices.SortStableFunc(out, func(a, b store.OwedAgent) int { return cmp.Compare(newest[b], newest[a]) })
			return nil
		})
	})
	return out, err
}

// SweepUnrouted is store.SweepUnrouted.
func (c *Client) SweepUnrouted(ctx context.Context, q store.SweepQuery) (out []store.TenantID, err error) {
	err = c.asLoop(ctx, "sweep unrouted", func(t *tx) error {
		return t.stmt("select tenants", func() error {
			t.messages.all(t, func(k key, m messageRow) bool {
				id := store.TenantID(k.tenant)
				if !m.Held() && !m.routed && t.sweeps(q, k.tenant) && !slices.Contains(out, id) {
					out = append(out, id)
				}
				return true
			})
			return nil
		})
	})
	return out, err
}

// MovedTenants is store.MovedTenants.
func (c *Client) MovedTenants(ctx context.Context, database int, stream string, above int64) (out []store.StreamTenant, err error) {
	err = c.asLoop(ctx, "look for moved tenants", func(t *tx) error {
		return t.stmt("select placements", func() error {
			t.placements.all(t, func(tenant string, p store.Placement) bool {
				if p.Stream == stream && p.Database == database && (p.Claim > above || p.Draining) {
					out = append(out, store.StreamTenant{Tenant: store.TenantID(tenant), Claim: p.Claim, Draining: p.Draining})
				}
				return true
			})
			return nil
		})
	})
	slices.SortFunc(out, func(a, b store.StreamTenant) int { return int(a.Claim - b.Claim) })
	return out, err
}
