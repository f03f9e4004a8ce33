package edge

import (
	"context"

	"connectrpc.com/connect"

	compassv1 "github.com/rigelbuild/compass-operator/api/proto/compass/v1"
	"github.com/rigelbuild/compass-operator/api/proto/compass/v1/compassv1connect"
	"github.com/rigelbuild/compass-operator/internal/store"
	"github.com/rigelbuild/compass-operator/internal/wire"
)

// channels serves ChannelService. Whoever is no member of a channel is told that there is none.
type channels struct{ *Edge }

var _ compassv1connect.ChannelServiceHandler = channels{}

func (s channels) CreateChannel(
	ctx context.Context, req *connect.Request[compassv1.CreateChannelRequest],
) (*connect.Response[compassv1.CreateChannelResponse], error) {
	caller, err := Caller(ctx)
	if err != nil {
		return nil, err
	}
	if err := wire.ChannelName(req.Msg.GetName()); err != nil {
		return nil, err
	}
	c, err := s.Store.CreateChannel(ctx, store.Channel{ID: s.IDs.Channel(), Name: req.Msg.GetName(), CreatedBy: caller.Account.ID})
	if err != nil {
		return nil, err
	}
	s.channelChanged(ctx, c.ID)
	return connect.NewResponse(&compassv1.CreateChannelResponse{Channel: wire.Channel(c)}), nil
}

func (s channels) ListChannels(
	ctx context.Context, req *connect.Request[compassv1.ListChannelsRequest],
) (*connect.Response[compassv1.ListChannelsResponse], error) {
	caller, err := Caller(ctx)
	if err != nil {
		return nil, err
	}
	page, err := pageOf(req.Msg.GetPageSize(), req.Msg.GetPageToken(), defaultPage)
	if err != nil {
		return nil, err
	}
	list, next, err := s.Store.ListChannels(ctx, caller.Account.ID, page)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&compassv1.ListChannelsResponse{Channels: wire.Channels(list), NextPageToken: next}), nil
}

func (s channels) ArchiveChannel(
	ctx context.Context, req *connect.Request[compassv1.ArchiveChannelRequest],
) (*connect.Response[compassv1.ArchiveChannelResponse], error) {
	caller, err := Caller(ctx)
	if err != nil {
		return nil, err
	}
	if err := valid(channel(req.Msg.GetChannelId())); err != nil {
		return nil, err
	}
	c, err := s.Store.ArchiveChannel(ctx, req.Msg.GetChannelId(), caller.Account.ID)
	if err != nil {
		return nil, err
	}
	s.channelChanged(ctx, c.ID)
	return connect.NewResponse(&compassv1.ArchiveChannelResponse{Channel: wire.Channel(c)}), nil
}

func (s channels) AddMember(
	ctx context.Context, req *connect.Request[compassv1.AddMemberRequest],
) (*connect.Response[compassv1.AddMemberResponse], error) {
	if err := s.changeMember(ctx, req.Msg, s.Store.AddMember); err != nil {
		return nil, err
	}
	return connect.NewResponse(&compassv1.AddMemberResponse{}), nil
}

func (s channels) RemoveMember(
	ctx context.Context, req *connect.Request[compassv1.RemoveMemberRequest],
) (*connect.Response[compassv1.RemoveMemberResponse], error) {
	if err := s.changeMember(ctx, req.Msg, s.Store.RemoveMember); err != nil {
		return nil, err
	}
	return connect.NewResponse(&compassv1.RemoveMemberResponse{}), nil
}

// membership is what both changes of members name.
type membership interface {
	GetChannelId() string
	GetAccountId() string
}

func (s channels) changeMember(ctx context.Context, m membership, change func(context.Context, store.Member) error) error {
	caller, err := Caller(ctx)
	if err != nil {
		return err
	}
	if err := valid(channel(m.GetChannelId()), account(m.GetAccountId())); err != nil {
		return err
	}
	err = change(ctx, store.Member{Channel: m.GetChannelId(), Account: m.GetAccountId(), Actor: caller.Account.ID})
	if err != nil {
		return err
	}
	s.channelChanged(ctx, m.GetChannelId())
	return nil
}

func (s channels) ListMembers(
	ctx context.Context, req *connect.Request[compassv1.ListMembersRequest],
) (*connect.Response[compassv1.ListMembersResponse], error) {
	caller, err := Caller(ctx)
	if err != nil {
		return nil, err
	}
	if err := valid(channel(req.Msg.GetChannelId())); err != nil {
		return nil, err
	}
	list, err := s.Store.ListMembers(ctx, req.Msg.GetChannelId(), caller.Account.ID)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&compassv1.ListMembersResponse{Members: wire.Accounts(list)}), nil
}

func (s channels) PinMessage(
	ctx context.Context, req *connect.Request[compassv1.PinMessageRequest],
) (*connect.Response[compassv1.PinMessageResponse], error) {
	if err := s.changePin(ctx, req.Msg, s.Store.PinMessage); err != nil {
		return nil, err
	}
	return connect.NewResponse(&compassv1.PinMessageResponse{}), nil
}

func (s channels) UnpinMessage(
	ctx context.Context, req *connect.Request[compassv1.UnpinMessageRequest],
) (*connect.Response[compassv1.UnpinMessageResponse], error) {
	if err := s.changePin(ctx, req.Msg, s.Store.UnpinMessage); err != nil {
		return nil, err
	}
	return connect.NewResponse(&compassv1.UnpinMessageResponse{}), nil
}

// pinning is what both changes of pins name.
type pinning interface {
	GetChannelId() string
	GetMessageId() string
}

func (s channels) changePin(ctx context.Context, p pinning, change func(context.Context, store.Pin) error) error {
	caller, err := Caller(ctx)
	if err != nil {
		return err
	}
	if err := valid(channel(p.GetChannelId()), message(p.GetMessageId())); err != nil {
		return err
	}
	err = change(ctx, store.Pin{Channel: p.GetChannelId(), Message: p.GetMessageId(), Actor: caller.Account.ID})
	if err != nil {
		return err
	}
	s.channelChanged(ctx, p.GetChannelId())
	return nil
}
