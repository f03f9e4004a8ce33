package edge

import (
	"context"
	"errors"
	"fmt"

	"connectrpc.com/connect"

	compassv1 "github.com/rigelbuild/compass-operator/api/proto/compass/v1"
	"github.com/rigelbuild/compass-operator/api/proto/compass/v1/compassv1connect"
	"github.com/rigelbuild/compass-operator/internal/comms"
	"github.com/rigelbuild/compass-operator/internal/naming"
	"github.com/rigelbuild/compass-operator/internal/store"
	"github.com/rigelbuild/compass-operator/internal/wire"
)

// messages serves CommsService for people, and for agents that call with a token of their own, outside a session.
type messages struct{ *Edge }

var _ compassv1connect.CommsServiceHandler = messages{}

// draft is what a new message names, whatever its kind.
type draft interface {
	GetClientId() string
	GetBlocks() []*compassv1.Block
}

// read checks a draft and where it is meant to go, and says who writes.
func (s messages) read(ctx context.Context, d draft, target id) (store.Caller, []store.Block, error) {
	caller, err := Caller(ctx)
	if err != nil {
		return store.Caller{}, nil, err
	}
	blocks, err := wire.FromBlocks(d.GetBlocks())
	return caller, blocks, errors.Join(err, valid(target), wire.ClientID(d.GetClientId()))
}

func (s messages) PostMessage(
	ctx context.Context, req *connect.Request[compassv1.PostMessageRequest],
) (*connect.Response[compassv1.PostMessageResponse], error) {
	r, err := s.append(ctx, req.Msg, req.Msg.GetChannelId(), s.Comms.PostMessage)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&compassv1.PostMessageResponse{Message: wire.Message(r.Message), Duplicate: r.Duplicate}), nil
}

func (s messages) AskQuestion(
	ctx context.Context, req *connect.Request[compassv1.AskQuestionRequest],
) (*connect.Response[compassv1.AskQuestionResponse], error) {
	r, err := s.append(ctx, req.Msg, req.Msg.GetChannelId(), s.Comms.AskQuestion)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&compassv1.AskQuestionResponse{Message: wire.Message(r.Message), Duplicate: r.Duplicate}), nil
}

func (s messages) append(
	ctx context.Context, d draft, to string, by func(context.Context, store.NewMessage) (comms.Result, error),
) (comms.Result, error) {
	caller, blocks, err := s.read(ctx, d, channel(to))
	if err != nil {
		return comms.Result{}, err
	}
	return by(ctx, store.NewMessage{Channel: to, Author: caller.Account.ID, ClientID: d.GetClientId(), Blocks: blocks})
}

func (s messages) UpdateMessage(
	ctx context.Context, req *connect.Request[compassv1.UpdateMessageRequest],
) (*connect.Response[compassv1.UpdateMessageResponse], error) {
	caller, err := Caller(ctx)
	if err != nil {
		return nil, err
	}
	blocks, err := wire.FromBlocks(req.Msg.GetBlocks())
	if err = errors.Join(err, valid(message(req.Msg.GetMessageId()))); err != nil {
		return nil, err
	}
	m, err := s.Comms.UpdateMessage(ctx, store.Edit{
		Message: req.Msg.GetMessageId(), Author: caller.Account.ID, Blocks: blocks, Append: req.Msg.GetAppend(),
	})
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&compassv1.UpdateMessageResponse{Message: wire.Message(m)}), nil
}

func (s messages) RespondToAsk(
	ctx context.Context, req *connect.Request[compassv1.RespondToAskRequest],
) (*connect.Response[compassv1.RespondToAskResponse], error) {
	caller, blocks, err := s.read(ctx, req.Msg, message(req.Msg.GetAskId()))
	if err != nil {
		return nil, err
	}
	r, err := s.Comms.RespondToAsk(ctx, store.NewAnswer{
		Ask: req.Msg.GetAskId(), Author: caller.Account.ID, ClientID: req.Msg.GetClientId(), Blocks: blocks,
	})
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&compassv1.RespondToAskResponse{Message: wire.Message(r.Message), Duplicate: r.Duplicate}), nil
}

func (s messages) ListMessages(
	ctx context.Context, req *connect.Request[compassv1.ListMessagesRequest],
) (*connect.Response[compassv1.ListMessagesResponse], error) {
	caller, err := Caller(ctx)
	if err != nil {
		return nil, err
	}
	page, err := pageOf(req.Msg.GetPageSize(), "", defaultPage)
	if err = errors.Join(err, valid(channel(req.Msg.GetChannelId()))); err != nil {
		return nil, err
	}
	list, more, err := s.Comms.ListMessages(ctx, store.MessagePage{
		Channel: req.Msg.GetChannelId(), Reader: caller.Account.ID, AfterRev: req.Msg.GetAfterRev(), Limit: page.Limit,
	})
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&compassv1.ListMessagesResponse{Messages: wire.Messages(list), More: more}), nil
}

// maxResume bounds how many channels one stream may be resumed in.
const maxResume = 10_000

// SubscribeComms holds a live stream. The token is asked for again at every poll, so one that was revoked ends its streams.
func (s messages) SubscribeComms(
	ctx context.Context, req *connect.Request[compassv1.SubscribeCommsRequest], stream *connect.ServerStream[compassv1.SubscribeCommsResponse],
) error {
	caller, err := Caller(ctx)
	if err != nil {
		return err
	}
	resume := req.Msg.GetResume()
	if len(resume) > maxResume {
		return fmt.Errorf("%w: at most %d channels are resumed", wire.ErrShape, maxResume)
	}
	for c := range resume {
		if err := valid(id{naming.ChannelPrefix, c}); err != nil {
			return err
		}
	}
	token := bearer(req.Header())
	ctx, release, err := s.hold(ctx, caller, req.Header(), stream.ResponseHeader())
	if err != nil {
		return err
	}
	defer release()
	err = s.Comms.SubscribeComms(ctx, comms.Subscriber{
		Account: caller.Account.ID,
		Resume:  resume,
		Send:    func(u comms.Update) error { return stream.Send(s.update(u)) },
		Check: func(ctx context.Context) error {
			_, err := s.speaksFor(ctx, token)
			return err
		},
	})
	if cause := context.Cause(ctx); errors.Is(cause, wire.ErrReplaced) {
		return cause
	}
	return err
}

func (s messages) update(u comms.Update) *compassv1.SubscribeCommsResponse {
	switch {
	case u.Message != nil:
		return s.changed(u.Message, u.PrevRev)
	case u.Resync != "":
		return &compassv1.SubscribeCommsResponse{Event: &compassv1.SubscribeCommsResponse_Resync_{
			Resync: &compassv1.SubscribeCommsResponse_Resync{ChannelId: u.Resync},
		}}
	case u.Channel != "":
		return &compassv1.SubscribeCommsResponse{Event: &compassv1.SubscribeCommsResponse_Channel{
			Channel: &compassv1.SubscribeCommsResponse_ChannelChanged{ChannelId: u.Channel},
		}}
	}
	return &compassv1.SubscribeCommsResponse{Event: &compassv1.SubscribeCommsResponse_Heartbeat_{
		Heartbeat: &compassv1.SubscribeCommsResponse_Heartbeat{},
	}}
}
