package storetwin

import (
	"context"

	"github.com/rigelbuild/compass-operator/internal/store"
)

// DrainTenant is store.DrainTenant.
func (c *Client) DrainTenant(ctx context.Context, id store.TenantID, stream string) error {
	return c.asLoop(ctx, "drain tenant", func(t *tx) error {
		return t.stmt("ask to drain", func() error {
			if p, ok := t.placements.get(t, string(id)); ok && p.Stream == stream && !p.Draining {
				p.Draining = true
				t.placements.put(t, string(id), p)
			}
			return nil
		}, placement(id))
	})
}

// PlaceTenant is store.PlaceTenant.
func (c *Client) PlaceTenant(ctx context.Context, id store.TenantID, from, to string) error {
	return c.asLoop(ctx, "place tenant", func(t *tx) error {
		return t.stmt("give a claim", func() error {
			p, ok := t.placements.get(t, string(id))
			if !ok || p.Stream != from {
				return store.ErrConflict
			}
			p.Stream, p.Claim, p.Draining = to, max(p.Claim+1, t.number()), false
			t.placements.put(t, string(id), p)
			return nil
		}, placement(id))
	})
}

func placement(id store.TenantID) want {
	return want{lockKey{"placement", string(id), "", ""}, true}
}

// ReadLease is store.ReadLease; here there is one database.
func (c *Client) ReadLease(ctx context.Context, stream string, _ int) (seen store.LeaseSeen, err error) {
	err = c.asLoop(ctx, "read lease", func(t *tx) error {
		return t.stmt("select lease", func() error {
			w, ok := t.writers.get(t, stream)
			if !ok {
				return nil
			}
			seen = store.LeaseSeen{Held: !w.clean && w.expires.After(t.clock()), Holder: w.holder, Epoch: w.epoch, Drained: map[store.TenantID]int64{}}
			for tenant, claim := range w.drained {
				seen.Drained[store.TenantID(tenant)] = claim
			}
			return nil
		})
	})
	return seen, err
}
