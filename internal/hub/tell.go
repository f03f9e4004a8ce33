package hub

import (
	"context"
	"errors"

	"google.golang.org/protobuf/proto"

	compassv1 "github.com/rigelbuild/compass-operator/api/proto/compass/v1"
	"github.com/rigelbuild/compass-operator/internal/event"
	"github.com/rigelbuild/compass-operator/internal/fabric"
	"github.com/rigelbuild/compass-operator/internal/store"
)

// bindingChanged tells, after the commit, that an agent's session began, was claimed or ended, and so that the agent came
// or went.
func (h *Hub) bindingChanged(ctx context.Context, tenant store.TenantID, agent string) {
	h.emitter.Emit(ctx, event.BindingChanged(string(tenant), agent, h.now().UnixMicro()))
	h.presence.AgentChanged(ctx, tenant, agent)
}

// ended tells, after the commit, what the end of a session, or the settling of its turn, made deliverable.
func (h *Hub) ended(ctx context.Context, tenant store.TenantID, e store.Ended) {
	h.comms.Announce(store.WithTenant(ctx, tenant), e.Touched)
	if e.Was {
		h.bindingChanged(ctx, tenant, e.Binding.Agent)
	}
}

// hint tells the session's Runner at once what it would otherwise learn from its next heartbeat. Nobody waits for it for
// long, and nobody is told where it is lost.
func (h *Hub) hint(ctx context.Context, b store.Binding, c *compassv1.Command) {
	if h.fabric == nil || b.Fleet == "" {
		return
	}
	tenant, _ := store.TenantFromContext(ctx)
	c.RunnerId, c.TenantId, c.SessionId, c.Generation = b.Runner, string(tenant), b.Session, b.Generation
	body, err := proto.Marshal(c)
	if err != nil {
		h.log.ErrorContext(ctx, "Hint cannot be encoded", "session", b.Session, "error", err)
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), hintTime)
	defer cancel()
	err = h.fabric.SendCommand(ctx, fabric.RunnerAddr{Fleet: b.Fleet, ID: b.Runner}, &compassv1.SessionsResponse{Body: body})
	switch {
	case err == nil:
		count(ctx, h.metrics.hints, "sent")
	case errors.Is(err, fabric.ErrRunnerGone):
		count(ctx, h.metrics.hints, "gone")
	default:
		count(ctx, h.metrics.hints, "failed")
		h.log.WarnContext(ctx, "Hint to a Runner was not sent; its next heartbeat tells it", "runner", b.Runner, "session", b.Session, "error", err)
	}
}

// Expired is what the expirer tells of: give it to ExpirerOptions.Ended.
func (h *Hub) Expired(ctx context.Context, tenant store.TenantID, e store.Ended) {
	h.ended(ctx, tenant, e)
}
