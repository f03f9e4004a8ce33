package delivery

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	compassv1 "github.com/rigelbuild/compass-operator/api/proto/compass/v1"
	"github.com/rigelbuild/compass-operator/internal/fabric"
	"github.com/rigelbuild/compass-operator/internal/store"
	"github.com/rigelbuild/compass-operator/internal/telemetry"
	"github.com/rigelbuild/compass-operator/internal/wire"
)

// deliver sends one link of a chain. reached is false where the Runner has no subscriber or NATS is away: nothing was
// sent, and that is nobody's failure. The error says that this process may not send (any more).
func (d *drain) deliver(ctx context.Context, ch *chain, l link, m store.Message) (reached bool, err error) {
	cmd := d.command(d.tenant, ch.live, ch.claim)
	cmd.Kind = &compassv1.Command_Deliver{Deliver: &compassv1.Deliver{Prev: l.prev, Pos: l.pos, Message: wire.Message(m)}}
	reached, err = d.send(ctx, d.tenant, ch.live, cmd)
	if reached {
		now := d.clock.Now()
		d.in.hops.Took(ctx, telemetry.HopDispatch, now.Sub(d.read))
		d.in.age.Record(ctx, max(now.Sub(time.UnixMilli(m.CreatedAtUnixMs)), 0).Seconds())
	}
	return reached, err
}

// command is a command for a session, with the claim half of its fence.
func (c *Consumer) command(t *tenant, to store.LiveSession, claim int64) *compassv1.Command {
	return &compassv1.Command{
		RunnerId: to.Runner, TenantId: string(t.id), SessionId: to.Session, Generation: to.Generation,
		Stream: c.o.Stream, Fence: &compassv1.Fence{Claim: claim},
	}
}

// send looks at the deadline, fences the command with the epoch of now, and publishes it. The process may freeze between
// the look and the publish; then the Runner is the fence: it refuses a lower one than it has heard, and takes a stale
// command only where it fits the chain, that is, the right message in the right order.
func (c *Consumer) send(ctx context.Context, t *tenant, to store.LiveSession, cmd *compassv1.Command) (reached bool, err error) {
	fence, err := c.fence(t)
	if err != nil {
		return false, err
	}
	cmd.Fence.Lease = fence.Epoch
	body, err := proto.Marshal(cmd)
	if err != nil {
		return false, fmt.Errorf("pack command for session %s: %w", to.Session, err)
	}
	err = c.step(ctx, func(ctx context.Context) error {
		return c.dispatch.SendCommand(ctx, fabric.RunnerAddr{Fleet: to.Fleet, ID: to.Runner}, &compassv1.SessionsResponse{Body: body})
	})
	c.outages.note(natsIsAway, err, c.clock.Now())
	if err != nil {
		c.in.unreached.Add(ctx, 1)
		c.log.DebugContext(ctx, "Command reached nobody", "session", to.Session, "runner", to.Runner, "error", err)
		return false, nil
	}
	return true, nil
}

// raise lifts the epoch above the tenant's claim and above what Runners were proved to have seen, before anything is sent
// for the tenant (RaiseEpoch). again: everything that was read is read again under the new epoch.
func (c *Consumer) raise(ctx context.Context, t *tenant, claim int64) (again bool, err error) {
	fence, err := c.fence(t)
	if err != nil {
		return false, err
	}
	above, behind := t.above(claim)
	if behind { // the operator claims again; until then that Runner refuses and the others are served
		count(ctx, c.in.refused, 1, "proof", "higher_claim")
		c.log.ErrorContext(ctx, "A Runner has seen a higher claim than the placement has: the tenant must be claimed again",
			"tenant", t.id, "claim", claim)
	}
	if above < fence.Epoch {
		return false, nil
	}
	err = c.step(ctx, func(ctx context.Context) error { return c.leases.Raise(ctx, t.inDatabase(), above) })
	if err != nil {
		return false, fmt.Errorf("raise the epoch above %d: %w", above, err)
	}
	c.log.InfoContext(ctx, "Raised the epoch", "tenant", t.id, "above", above)
	return true, nil
}
