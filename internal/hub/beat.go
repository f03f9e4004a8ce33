package hub

import (
	"context"
	"fmt"

	"connectrpc.com/connect"

	compassv1 "github.com/rigelbuild/compass-operator/api/proto/compass/v1"
	"github.com/rigelbuild/compass-operator/internal/store"
	"github.com/rigelbuild/compass-operator/internal/wire"
)

// maxBeat bounds the sessions of one heartbeat, and so the tenants that it makes us look at.
const maxBeat = 10_000

// heartbeat renews the lease, heals what the Runner's state contradicts, and answers with what it should do.
func (h *Hub) heartbeat(ctx context.Context, who store.Runner, q *compassv1.HeartbeatRequest) (*compassv1.HeartbeatResponse, error) {
	if err := named(who, q.GetRunnerId()); err != nil {
		return nil, err
	}
	if len(q.GetSessions()) > maxBeat {
		return nil, fmt.Errorf("%w: more than %d sessions in one heartbeat", wire.ErrShape, maxBeat)
	}
	beat := store.Heartbeat{Runner: who.ID, Incarnation: q.GetIncarnation(), Counter: q.GetCounter(), Lease: h.lease}
	for _, s := range q.GetSessions() {
		beat.Sessions = append(beat.Sessions, store.SessionState{
			Session: s.GetSessionId(), Generation: s.GetGeneration(), N: s.GetN(), OpenTurn: s.GetOpenTurn(), Over: s.GetOver(),
		})
	}
	answer, err := h.store.Heartbeat(ctx, beat)
	if err != nil {
		return nil, err
	}
	for tenant, err := range answer.Skipped {
		h.log.WarnContext(ctx, "Heartbeat could not serve a tenant", "runner", who.ID, "tenant", tenant, "error", err)
	}
	h.metrics.healed.Add(ctx, int64(len(answer.Healed)))
	for _, healed := range answer.Healed {
		h.ended(ctx, healed.Tenant, healed.Ended)
	}
	for _, back := range answer.Back {
		h.bindingChanged(ctx, back.Tenant, back.Agent)
	}
	out := &compassv1.HeartbeatResponse{Expired: answer.Expired}
	for _, o := range answer.Orders {
		out.Sessions = append(out.Sessions, ordersOf(o))
	}
	return out, nil
}

func ordersOf(o store.SessionOrders) *compassv1.HeartbeatResponse_SessionOrders {
	out := &compassv1.HeartbeatResponse_SessionOrders{SessionId: o.Session, NewestCommand: o.NewestCommand, Stop: o.Stop}
	if o.Start {
		out.Start = &compassv1.Start{SessionId: o.Session, Generation: o.Generation}
	}
	for _, c := range o.Unacked {
		out.Unacked = append(out.Unacked, commandOf(c))
	}
	return out
}

// claimStart takes a start. A start that is not this Runner's to take is FailedPrecondition, so that it can tell it from a
// Server that never heard of the procedure.
func (h *Hub) claimStart(ctx context.Context, who store.Runner, q *compassv1.ClaimStartRequest) (*compassv1.ClaimStartResponse, error) {
	if err := named(who, q.GetRunnerId()); err != nil {
		return nil, err
	}
	ctx, err := sessionOf(ctx, q.GetSessionId())
	if err != nil {
		return nil, notYours(err)
	}
	claimed, err := h.store.ClaimStart(ctx, store.Claim{
		SessionRef:  store.SessionRef{Session: q.GetSessionId(), Generation: q.GetGeneration(), Runner: who.ID},
		Incarnation: q.GetIncarnation(), Counter: q.GetCounter(),
	})
	if err != nil {
		return nil, notYours(err)
	}
	tenant, _ := store.TenantFromContext(ctx)
	h.bindingChanged(ctx, tenant, claimed.Binding.Agent)
	return &compassv1.ClaimStartResponse{
		TenantId: string(tenant), AgentId: claimed.Binding.Agent, AgentHandle: claimed.Handle, Pins: wire.Messages(claimed.Pins),
	}, nil
}

// notYours is the refusal of a claim; other errors stay.
func notYours(err error) error {
	if wire.Code(err) != connect.CodeNotFound {
		return err
	}
	return fmt.Errorf("%w: the start is over or not for this Runner", store.ErrPrecondition)
}

// fetchCommands lists what a gap in the hints hid.
func (h *Hub) fetchCommands(ctx context.Context, who store.Runner, q *compassv1.FetchCommandsRequest) (*compassv1.FetchCommandsResponse, error) {
	if err := named(who, q.GetRunnerId()); err != nil {
		return nil, err
	}
	ctx, err := sessionOf(ctx, q.GetSessionId())
	if err != nil {
		return nil, err
	}
	list, err := h.store.FetchCommands(ctx, store.Fetch{Session: q.GetSessionId(), Runner: who.ID, After: q.GetAfter()})
	if err != nil {
		return nil, err
	}
	out := &compassv1.FetchCommandsResponse{}
	for _, c := range list {
		out.Commands = append(out.Commands, commandOf(c))
	}
	return out, nil
}

var commandKinds = map[store.CommandKind]compassv1.SessionCommandKind{
	store.CommandSteer:   compassv1.SessionCommandKind_SESSION_COMMAND_KIND_STEER,
	store.CommandMention: compassv1.SessionCommandKind_SESSION_COMMAND_KIND_MENTION,
	store.CommandAnswer:  compassv1.SessionCommandKind_SESSION_COMMAND_KIND_ANSWER,
	store.CommandReplay:  compassv1.SessionCommandKind_SESSION_COMMAND_KIND_REPLAY,
}

// commandOf is a command on the wire; without content it still names its message, which is what an ack repeats.
func commandOf(c store.SessionCommand) *compassv1.SessionCommand {
	out := &compassv1.SessionCommand{N: c.N, Prev: c.Prev, Kind: commandKinds[c.Kind], Text: c.Text}
	switch {
	case c.Message != nil:
		out.Message = wire.Message(*c.Message)
	case c.MessageID != "":
		out.Message = &compassv1.Message{Id: c.MessageID, Pos: c.Pos}
	}
	return out
}
