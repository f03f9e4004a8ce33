package hub

import (
	"context"
	"fmt"

	compassv1 "github.com/rigelbuild/compass-operator/api/proto/compass/v1"
	"github.com/rigelbuild/compass-operator/internal/comms"
	"github.com/rigelbuild/compass-operator/internal/naming"
	"github.com/rigelbuild/compass-operator/internal/store"
	"github.com/rigelbuild/compass-operator/internal/wire"
)

// origin is what both relayed calls say of where they come from.
type origin interface {
	GetRunnerId() string
	GetSessionId() string
	GetGeneration() int64
	GetN() int64
	GetTurnId() string
}

// from reads it for the Runner that was proved. The author is whoever the session is bound to; the store finds out, in the
// transaction that writes.
func from(ctx context.Context, who store.Runner, o origin) (context.Context, *store.InTurn, error) {
	if err := named(who, o.GetRunnerId()); err != nil {
		return nil, nil, err
	}
	if o.GetTurnId() != "" {
		if err := validTurn(o.GetTurnId()); err != nil {
			return nil, nil, err
		}
	}
	ctx, err := sessionOf(ctx, o.GetSessionId())
	if err != nil {
		return nil, nil, err
	}
	return ctx, &store.InTurn{
		Event: store.Event{Session: o.GetSessionId(), Generation: o.GetGeneration(), Runner: who.ID, N: o.GetN()},
		Turn:  o.GetTurnId(),
	}, nil
}

// relay makes a call of CommsService for the session's agent: the same code, the same refusals.
func (h *Hub) relay(ctx context.Context, who store.Runner, q *compassv1.RelayCommsCallRequest) (*compassv1.RelayCommsCallResponse, error) {
	ctx, in, err := from(ctx, who, q)
	if err != nil {
		return nil, err
	}
	var result comms.Result
	switch call := q.GetCall().(type) {
	case *compassv1.RelayCommsCallRequest_Post:
		result, err = made(ctx, call.Post, in, h.comms.PostMessage)
	case *compassv1.RelayCommsCallRequest_Ask:
		result, err = made(ctx, call.Ask, in, h.comms.AskQuestion)
	case *compassv1.RelayCommsCallRequest_Update:
		result.Message, err = h.updated(ctx, call.Update, in)
	case *compassv1.RelayCommsCallRequest_Respond:
		result, err = h.responded(ctx, call.Respond, in)
	default:
		err = fmt.Errorf("%w: a call of no known kind", wire.ErrShape)
	}
	if err != nil {
		return nil, err
	}
	return &compassv1.RelayCommsCallResponse{Message: wire.Message(result.Message), Duplicate: result.Duplicate}, nil
}

// draft is a message that is to be made in a channel.
type draft interface {
	GetChannelId() string
	GetClientId() string
	GetBlocks() []*compassv1.Block
}

func made(
	ctx context.Context, d draft, in *store.InTurn, by func(context.Context, store.NewMessage) (comms.Result, error),
) (comms.Result, error) {
	n, err := newMessage(d, in)
	if err != nil {
		return comms.Result{}, err
	}
	return by(ctx, n)
}

func newMessage(d draft, in *store.InTurn) (store.NewMessage, error) {
	if err := wire.ID(naming.ChannelPrefix, d.GetChannelId()); err != nil {
		return store.NewMessage{}, err
	}
	if err := wire.ClientID(d.GetClientId()); err != nil {
		return store.NewMessage{}, err
	}
	blocks, err := wire.FromBlocks(d.GetBlocks())
	return store.NewMessage{Channel: d.GetChannelId(), ClientID: d.GetClientId(), Blocks: blocks, In: in}, err
}

func (h *Hub) updated(ctx context.Context, u *compassv1.RelayUpdate, in *store.InTurn) (store.Message, error) {
	if err := wire.ID(naming.MessagePrefix, u.GetMessageId()); err != nil {
		return store.Message{}, err
	}
	blocks, err := wire.FromBlocks(u.GetBlocks())
	if err != nil {
		return store.Message{}, err
	}
	return h.comms.UpdateMessage(ctx, store.Edit{Message: u.GetMessageId(), Blocks: blocks, Append: u.GetAppend(), In: in})
}

func (h *Hub) responded(ctx context.Context, r *compassv1.RelayRespond, in *store.InTurn) (comms.Result, error) {
	if err := wire.ID(naming.MessagePrefix, r.GetAskId()); err != nil {
		return comms.Result{}, err
	}
	if err := wire.ClientID(r.GetClientId()); err != nil {
		return comms.Result{}, err
	}
	blocks, err := wire.FromBlocks(r.GetBlocks())
	if err != nil {
		return comms.Result{}, err
	}
	return h.comms.RespondToAsk(ctx, store.NewAnswer{Ask: r.GetAskId(), ClientID: r.GetClientId(), Blocks: blocks, In: in})
}

// frame writes a piece of an open turn's message.
func (h *Hub) frame(
	ctx context.Context, who store.Runner, q *compassv1.CommitConversationFrameRequest,
) (*compassv1.CommitConversationFrameResponse, error) {
	ctx, in, err := from(ctx, who, q)
	if err != nil {
		return nil, err
	}
	n, err := newMessage(q, in)
	if err != nil {
		return nil, err
	}
	result, err := h.comms.CommitFrame(ctx, store.Frame{NewMessage: n, Append: q.GetAppend()})
	if err != nil {
		return nil, err
	}
	return &compassv1.CommitConversationFrameResponse{Message: wire.Message(result.Message)}, nil
}
