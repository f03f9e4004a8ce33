package edge

import (
	"context"
	"errors"
	"fmt"

	"connectrpc.com/connect"

	compassv1 "github.com/rigelbuild/compass-operator/api/proto/compass/v1"
	"github.com/rigelbuild/compass-operator/api/proto/compass/v1/compassv1connect"
	"github.com/rigelbuild/compass-operator/internal/event"
	"github.com/rigelbuild/compass-operator/internal/naming"
	"github.com/rigelbuild/compass-operator/internal/store"
	"github.com/rigelbuild/compass-operator/internal/wire"
)

// accounts serves AccountService.
type accounts struct{ *Edge }

var _ compassv1connect.AccountServiceHandler = accounts{}

func (s accounts) CreateAccount(
	ctx context.Context, req *connect.Request[compassv1.CreateAccountRequest],
) (*connect.Response[compassv1.CreateAccountResponse], error) {
	caller, err := Caller(ctx)
	if err != nil {
		return nil, err
	}
	a, err := newAccount(req.Msg)
	if err != nil {
		return nil, err
	}
	a.ID = s.IDs.Account()
	if a, err = s.Store.CreateAccount(ctx, a, caller.Account.ID); err != nil {
		return nil, err
	}
	return connect.NewResponse(&compassv1.CreateAccountResponse{Account: wire.Account(a)}), nil
}

func newAccount(m *compassv1.CreateAccountRequest) (store.Account, error) {
	a := store.Account{Handle: m.GetHandle(), DisplayName: m.GetDisplayName()}
	var kindErr, roleErr, wakeErr error
	a.Kind, kindErr = wire.FromAccountKind(m.GetKind())
	a.Role, roleErr = wire.FromRole(m.GetRole())
	a.Wake, wakeErr = wire.FromWake(m.GetWake())
	if a.Wake == store.WakeOnOwed && a.Kind == store.KindPerson {
		wakeErr = fmt.Errorf("%w: nothing wakes a person; leave wake out", wire.ErrShape)
	}
	return a, errors.Join(kindErr, roleErr, wakeErr, wire.Handle(a.Handle), wire.DisplayName(a.DisplayName))
}

func (s accounts) ListAccounts(
	ctx context.Context, req *connect.Request[compassv1.ListAccountsRequest],
) (*connect.Response[compassv1.ListAccountsResponse], error) {
	page, err := pageOf(req.Msg.GetPageSize(), req.Msg.GetPageToken(), maxPage)
	if err != nil {
		return nil, err
	}
	list, next, err := s.Store.ListAccounts(ctx, page)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&compassv1.ListAccountsResponse{Accounts: wire.Accounts(list), NextPageToken: next}), nil
}

func (s accounts) SetRole(
	ctx context.Context, req *connect.Request[compassv1.SetRoleRequest],
) (*connect.Response[compassv1.SetRoleResponse], error) {
	caller, err := Caller(ctx)
	if err != nil {
		return nil, err
	}
	role, err := wire.FromRole(req.Msg.GetRole())
	if req.Msg.GetRole() == compassv1.Role_ROLE_UNSPECIFIED { // a new account is a member then; here it would take a right away
		err = fmt.Errorf("%w: no role; say ROLE_MEMBER or ROLE_ADMIN", wire.ErrShape)
	}
	if err = errors.Join(err, valid(account(req.Msg.GetAccountId()))); err != nil {
		return nil, err
	}
	a, err := s.Store.SetRole(ctx, req.Msg.GetAccountId(), role, caller.Account.ID)
	if err != nil {
		return nil, err
	}
	s.accessChanged(ctx, a.ID)
	return connect.NewResponse(&compassv1.SetRoleResponse{Account: wire.Account(a)}), nil
}

func (s accounts) DeleteAccount(
	ctx context.Context, req *connect.Request[compassv1.DeleteAccountRequest],
) (*connect.Response[compassv1.DeleteAccountResponse], error) {
	caller, err := Caller(ctx)
	if err != nil {
		return nil, err
	}
	if err := valid(account(req.Msg.GetAccountId())); err != nil {
		return nil, err
	}
	touched, err := s.Store.DeleteAccount(ctx, req.Msg.GetAccountId(), caller.Account.ID)
	if err != nil {
		return nil, err
	}
	s.Comms.Announce(ctx, touched)
	s.numbered(ctx, func(clock int64) event.Fact {
		return event.BindingChanged(string(caller.Tenant), req.Msg.GetAccountId(), clock)
	})
	s.accessChanged(ctx, req.Msg.GetAccountId())
	return connect.NewResponse(&compassv1.DeleteAccountResponse{}), nil
}

func (s accounts) IssueToken(
	ctx context.Context, req *connect.Request[compassv1.IssueTokenRequest],
) (*connect.Response[compassv1.IssueTokenResponse], error) {
	caller, err := Caller(ctx)
	if err != nil {
		return nil, err
	}
	if err := valid(account(req.Msg.GetAccountId())); err != nil {
		return nil, err
	}
	token, err := s.IDs.Token(string(caller.Tenant))
	if err != nil {
		return nil, err
	}
	n := store.NewToken{
		ID: s.IDs.TokenID(), Account: req.Msg.GetAccountId(), Hash: naming.TokenHash(token), Actor: caller.Account.ID,
	}
	if err := s.Store.AddToken(ctx, n); err != nil {
		return nil, err
	}
	return connect.NewResponse(&compassv1.IssueTokenResponse{TokenId: n.ID, Token: token}), nil
}

func (s accounts) RevokeToken(
	ctx context.Context, req *connect.Request[compassv1.RevokeTokenRequest],
) (*connect.Response[compassv1.RevokeTokenResponse], error) {
	caller, err := Caller(ctx)
	if err != nil {
		return nil, err
	}
	if err := valid(id{naming.TokenPrefix, req.Msg.GetTokenId()}); err != nil {
		return nil, err
	}
	if err := s.Store.RevokeToken(ctx, req.Msg.GetTokenId(), caller.Account.ID); err != nil {
		return nil, err
	}
	account, err := s.Store.AccountOfToken(ctx, req.Msg.GetTokenId())
	if err != nil {
		return nil, err
	}
	s.accessChanged(ctx, account)
	return connect.NewResponse(&compassv1.RevokeTokenResponse{}), nil
}

func (s accounts) WhoAmI(
	ctx context.Context, _ *connect.Request[compassv1.WhoAmIRequest],
) (*connect.Response[compassv1.WhoAmIResponse], error) {
	caller, err := Caller(ctx)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&compassv1.WhoAmIResponse{
		TenantId: string(caller.Tenant), TenantSlug: caller.Slug, Account: wire.Account(caller.Account),
	}), nil
}
