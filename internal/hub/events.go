package hub

import (
	"context"
	"errors"
	"fmt"

	compassv1 "github.com/rigelbuild/compass-operator/api/proto/compass/v1"
	"github.com/rigelbuild/compass-operator/internal/event"
	"github.com/rigelbuild/compass-operator/internal/naming"
	"github.com/rigelbuild/compass-operator/internal/store"
	"github.com/rigelbuild/compass-operator/internal/telemetry"
	"github.com/rigelbuild/compass-operator/internal/wire"
)

// maxAcks bounds one ack event; a Runner sends the rest with the next.
const maxAcks = 1000

// sendEvent is the Connect twin of the NATS events subject: the refusal of an event is an answer, not an error of the
// call, as it is there.
func (h *Hub) sendEvent(ctx context.Context, who store.Runner, q *compassv1.SendEventRequest) (*compassv1.SendEventResponse, error) {
	answer := &compassv1.RunnerEventAnswer{}
	if err := h.refuse(ctx, "event", h.event(ctx, who, q.GetEvent())); err != nil {
		refusal := wire.Error(err)
		answer.Code, answer.Detail = refusal.Code().String(), refusal.Message()
	}
	return &compassv1.SendEventResponse{Answer: answer}, nil
}

// event applies one event of a session and returns after its effect is committed.
func (h *Hub) event(ctx context.Context, who store.Runner, e *compassv1.RunnerEvent) error {
	if err := named(who, e.GetRunnerId()); err != nil {
		return err
	}
	ctx, err := sessionOf(ctx, e.GetSessionId())
	if err != nil {
		return err
	}
	number := store.Event{Session: e.GetSessionId(), Generation: e.GetGeneration(), Runner: who.ID, N: e.GetN()}
	switch edge := e.GetEvent().(type) {
	case *compassv1.RunnerEvent_TurnSettled_:
		return h.turnSettled(ctx, number, edge.TurnSettled.GetTurnId())
	case *compassv1.RunnerEvent_SessionEnded_:
		ended, err := h.store.EndSession(ctx, number)
		if err == nil {
			tenant, _ := store.TenantFromContext(ctx)
			h.ended(ctx, tenant, ended)
		}
		return err
	case *compassv1.RunnerEvent_Ack:
		return h.acked(ctx, number.Ref(), edge.Ack)
	}
	return fmt.Errorf("%w: an event of no known kind", wire.ErrShape)
}

func (h *Hub) turnSettled(ctx context.Context, number store.Event, turn string) error {
	if err := validTurn(turn); err != nil {
		return err
	}
	touched, err := h.store.SettleTurn(ctx, number, turn)
	if err != nil {
		return err
	}
	h.comms.Announce(ctx, touched)
	return nil
}

// acked moves cursors and forgets commands. A position that is refused keeps nothing else of the event from counting, and
// is refused for good: the Runner must not send it again.
func (h *Hub) acked(ctx context.Context, ref store.SessionRef, ack *compassv1.Ack) error {
	if len(ack.GetChannels())+len(ack.GetCommands()) > maxAcks {
		return fmt.Errorf("%w: more than %d acks in one event", wire.ErrShape, maxAcks)
	}
	return errors.Join(h.ackChannels(ctx, ref, ack.GetChannels()), h.ackCommands(ctx, ref, ack.GetCommands()))
}

func (h *Hub) ackChannels(ctx context.Context, ref store.SessionRef, acks []*compassv1.ChannelAck) error {
	if len(acks) == 0 {
		return nil
	}
	list := make([]store.ChannelAck, len(acks))
	pos := make(map[string]int64, len(acks))
	for i, a := range acks {
		list[i] = store.ChannelAck{Channel: a.GetChannelId(), Pos: a.GetPos()}
		pos[a.GetChannelId()] = max(pos[a.GetChannelId()], a.GetPos())
	}
	done, err := h.store.Ack(ctx, ref, list)
	if errors.Is(err, store.ErrBeyondHead) {
		h.metrics.acksRefused.Add(ctx, int64(len(done.Refused)))
		h.log.WarnContext(ctx, "Runner acknowledged what its channel never gave out", "runner", ref.Runner, "session", ref.Session,
			"channels", done.Refused)
	}
	tenant, _ := store.TenantFromContext(ctx)
	for _, age := range done.Ages {
		h.metrics.hops.Took(ctx, telemetry.HopAck, age)
	}
	for _, channel := range done.Moved {
		h.emitter.Emit(ctx, event.CursorMoved(string(tenant), channel, done.Agent, pos[channel]))
	}
	return err
}

func (h *Hub) ackCommands(ctx context.Context, ref store.SessionRef, acks []*compassv1.CommandAck) error {
	if len(acks) == 0 {
		return nil
	}
	list := make([]store.CommandAck, len(acks))
	for i, a := range acks {
		list[i] = store.CommandAck{N: a.GetN(), MessageID: a.GetMessageId(), Pos: a.GetPos()}
	}
	_, _, err := h.store.AckCommands(ctx, ref, list)
	return err
}

func validTurn(turn string) error {
	if err := naming.ValidTurn(turn); err != nil {
		return fmt.Errorf("%w: %w", wire.ErrShape, err)
	}
	return nil
}
