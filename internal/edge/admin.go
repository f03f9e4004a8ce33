package edge

import (
	"context"
	"fmt"

	"connectrpc.com/connect"

	compassv1 "github.com/rigelbuild/compass-operator/api/proto/compass/v1"
	"github.com/rigelbuild/compass-operator/api/proto/compass/v1/compassv1connect"
	"github.com/rigelbuild/compass-operator/internal/naming"
	"github.com/rigelbuild/compass-operator/internal/store"
	"github.com/rigelbuild/compass-operator/internal/wire"
)

// admin serves AdminService.
type admin struct{ *Edge }

var _ compassv1connect.AdminServiceHandler = admin{}

// firstAdmin is the handle of a new tenant's admin where none is asked for.
const firstAdmin = "admin"

// on scopes a call to the tenant that it names, which is the caller's own unless he is a platform admin. Naming any other
// is answered as an unknown one is, and a platform admin's call is in that tenant's audit log before anything is read.
func (s admin) on(ctx context.Context, procedure, named string) (context.Context, store.Caller, error) {
	caller, err := Caller(ctx)
	switch {
	case err != nil:
		return nil, store.Caller{}, err
	case named == "" || named == caller.Slug || named == string(caller.Tenant):
		return ctx, caller, nil
	case !caller.Platform(), naming.ValidTenant(named) != nil && naming.ValidSlug(named) != nil:
		return nil, store.Caller{}, store.ErrNotFound
	}
	tenant, err := s.Store.FindTenant(ctx, named)
	if err != nil {
		return nil, store.Caller{}, err
	}
	ctx = store.WithTenant(ctx, tenant.ID)
	actor := map[string]string{"tenant": string(caller.Tenant), "handle": caller.Account.Handle}
	return ctx, caller, s.Store.Audit(ctx, caller.Account.ID, procedure, actor)
}

func (s admin) CreateTenant(
	ctx context.Context, req *connect.Request[compassv1.CreateTenantRequest],
) (*connect.Response[compassv1.CreateTenantResponse], error) {
	caller, err := Caller(ctx)
	if err != nil {
		return nil, err
	}
	n, err := s.newTenant(req.Msg)
	if err != nil {
		return nil, err
	}
	token, err := s.IDs.Token(string(n.ID))
	if err != nil {
		return nil, err
	}
	n.Token = store.NewToken{ID: s.IDs.TokenID(), Account: n.Admin.ID, Hash: naming.TokenHash(token)}
	n.Actor = caller.Account.ID
	if err := s.Store.CreateTenant(ctx, n); err != nil {
		return nil, err
	}
	return connect.NewResponse(&compassv1.CreateTenantResponse{
		TenantId: string(n.ID), Admin: wire.Account(n.Admin), Token: token,
	}), nil
}

func (s admin) newTenant(m *compassv1.CreateTenantRequest) (store.NewTenant, error) {
	handle := m.GetAdminHandle()
	if handle == "" {
		handle = firstAdmin
	}
	n := store.NewTenant{
		ID: store.TenantID(s.IDs.Tenant()), Slug: m.GetSlug(), DisplayName: m.GetDisplayName(), Stream: s.Stream,
		Admin: store.Account{
			ID: s.IDs.Account(), Kind: store.KindPerson, Role: store.RoleAdmin, Handle: handle, Wake: store.WakeManual,
		},
	}
	if err := naming.ValidSlug(n.Slug); err != nil {
		return n, fmt.Errorf("%w: %w", wire.ErrShape, err)
	}
	if err := wire.Handle(handle); err != nil {
		return n, err
	}
	return n, wire.DisplayName(n.DisplayName)
}

func (s admin) IssueRunnerToken(
	ctx context.Context, req *connect.Request[compassv1.IssueRunnerTokenRequest],
) (*connect.Response[compassv1.IssueRunnerTokenResponse], error) {
	caller, err := Caller(ctx)
	if err != nil {
		return nil, err
	}
	fleet := req.Msg.GetFleet()
	if fleet == "" {
		fleet = naming.SharedFleet
	}
	token, err := s.IDs.RunnerToken(fleet)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", wire.ErrShape, err)
	}
	if fleet != naming.SharedFleet {
		if _, err := s.Store.FindTenant(ctx, fleet); err != nil {
			return nil, err
		}
	}
	err = s.Store.Audit(ctx, caller.Account.ID, "runner.token", map[string]string{"fleet": fleet})
	if err != nil {
		return nil, err
	}
	if err := s.Store.IssueRunnerToken(ctx, naming.TokenHash(token), fleet); err != nil {
		return nil, err
	}
	return connect.NewResponse(&compassv1.IssueRunnerTokenResponse{Token: token}), nil
}

func (s admin) ListDeadLetters(
	ctx context.Context, req *connect.Request[compassv1.ListDeadLettersRequest],
) (*connect.Response[compassv1.ListDeadLettersResponse], error) {
	ctx, _, err := s.on(ctx, req.Spec().Procedure, req.Msg.GetTenant())
	if err != nil {
		return nil, err
	}
	page, err := pageOf(req.Msg.GetPageSize(), req.Msg.GetPageToken(), defaultPage)
	if err != nil {
		return nil, err
	}
	list, next, err := s.Store.ListDeadLetters(ctx, page)
	if err != nil {
		return nil, err
	}
	out := &compassv1.ListDeadLettersResponse{NextPageToken: next}
	for _, d := range list {
		out.DeadLetters = append(out.DeadLetters, wire.DeadLetter(d))
	}
	return connect.NewResponse(out), nil
}

func (s admin) ReplayDeadLetters(
	ctx context.Context, req *connect.Request[compassv1.ReplayDeadLettersRequest],
) (*connect.Response[compassv1.ReplayDeadLettersResponse], error) {
	ctx, caller, err := s.on(ctx, req.Spec().Procedure, req.Msg.GetTenant())
	if err != nil {
		return nil, err
	}
	filter, err := wire.FromDeadLetterFilter(req.Msg.GetFilter())
	if err != nil {
		return nil, err
	}
	r, err := s.Store.ReplayDeadLetters(ctx, filter, caller.Account.ID, req.Msg.GetDryRun())
	if err != nil {
		return nil, err
	}
	s.Comms.AnnounceReplay(ctx, r.Touched)
	return connect.NewResponse(&compassv1.ReplayDeadLettersResponse{Count: r.Count}), nil
}

func (s admin) PurgeDeadLetters(
	ctx context.Context, req *connect.Request[compassv1.PurgeDeadLettersRequest],
) (*connect.Response[compassv1.PurgeDeadLettersResponse], error) {
	ctx, caller, err := s.on(ctx, req.Spec().Procedure, req.Msg.GetTenant())
	if err != nil {
		return nil, err
	}
	filter, err := wire.FromDeadLetterFilter(req.Msg.GetFilter())
	if err != nil {
		return nil, err
	}
	n, err := s.Store.PurgeDeadLetters(ctx, filter, caller.Account.ID, req.Msg.GetDryRun())
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&compassv1.PurgeDeadLettersResponse{Count: n}), nil
}

func (s admin) ListOwed(
	ctx context.Context, req *connect.Request[compassv1.ListOwedRequest],
) (*connect.Response[compassv1.ListOwedResponse], error) {
	ctx, _, err := s.on(ctx, req.Spec().Procedure, req.Msg.GetTenant())
	if err != nil {
		return nil, err
	}
	page, err := pageOf(req.Msg.GetPageSize(), "", maxPage)
	if err != nil {
		return nil, err
	}
	list, err := s.Store.ListOwed(ctx, page.Limit)
	if err != nil {
		return nil, err
	}
	out := &compassv1.ListOwedResponse{}
	for _, o := range list {
		out.Owed = append(out.Owed, wire.Owed(o))
	}
	return connect.NewResponse(out), nil
}

func (s admin) ListHeld(
	ctx context.Context, req *connect.Request[compassv1.ListHeldRequest],
) (*connect.Response[compassv1.ListHeldResponse], error) {
	ctx, _, err := s.on(ctx, req.Spec().Procedure, req.Msg.GetTenant())
	if err != nil {
		return nil, err
	}
	page, err := pageOf(req.Msg.GetPageSize(), "", defaultPage)
	if err != nil {
		return nil, err
	}
	list, err := s.Store.ListHeld(ctx, page.Limit)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&compassv1.ListHeldResponse{Held: wire.Messages(list)}), nil
}

func (s admin) GetStatus(
	ctx context.Context, req *connect.Request[compassv1.GetStatusRequest],
) (*connect.Response[compassv1.GetStatusResponse], error) {
	ctx, _, err := s.on(ctx, req.Spec().Procedure, req.Msg.GetTenant())
	if err != nil {
		return nil, err
	}
	status, err := s.Store.TenantStatus(ctx)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(wire.Status(status)), nil
}
