package delivery

import (
	"context"

	"github.com/rigelbuild/compass-operator/internal/store"
)

// resolveRows finds where references lead: the channel of each row, and the agents that are owed it beside the chain. Many
// references of one channel end as one look at it.
func (c *Consumer) resolveRows(ctx context.Context, t *tenant) error {
	ids, more := c.rows.take(t.id)
	if len(ids) == 0 {
		return nil
	}
	var targets []store.RowTarget
	err := c.step(ctx, func(ctx context.Context) (err error) {
		targets, err = c.reads.RowTargets(ctx, ids)
		return err
	})
	if err != nil {
		for _, id := range ids {
			c.rows.add(t.id, id)
		}
		return err
	}
	// A failover forgot the row, or the reference lied about its tenant (REQ-049, REQ-104). Nothing is parked: what the
	// channel owes does not depend on a reference, and its sweep covers whoever comes back.
	count(ctx, c.in.missing, len(ids)-len(targets), "of", "reference")
	for _, target := range targets {
		c.onMessagePosted(t, target)
	}
	if more {
		c.dirty.add(item{tenant: t.id, kind: itemRows}, whyRead)
	} else if c.rows.lost(t.id) {
		c.onReconnect()
	}
	return nil
}

// onMessagePosted sorts one row (REQ-036 to REQ-039). Whether it is deliverable is its position, in Postgres, and no
// registry here: whoever the author is and whether it lives makes no difference.
func (c *Consumer) onMessagePosted(t *tenant, target store.RowTarget) {
	if target.Held {
		// The turn is open, so the row is not deliverable by any path. Its settle gives it a position and publishes it
		// again, with another version; if that reference is lost, the tick finds the head past the cursors.
		return
	}
	c.fireHeld(t, target)
}

// fireHeld marks what has become deliverable: posted outside a turn, or settled.
func (c *Consumer) fireHeld(t *tenant, target store.RowTarget) {
	c.dirty.add(item{tenant: t.id, kind: itemChannel, id: target.Channel}, whyRead)
	for _, agent := range target.Agents {
		c.dirty.add(item{tenant: t.id, kind: itemAgent, id: agent}, whyRead)
	}
}
