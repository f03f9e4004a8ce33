package hub

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

const (
	// maxSteer bounds the text of a steer, in bytes.
	maxSteer = 64 << 10
	// maxListed bounds ListSessions where those that are over are asked for too.
	maxListed = 1000
)

// sessionService is what people do with sessions.
type sessionService struct{ *Hub }

var _ compassv1connect.SessionServiceHandler = sessionService{}

// SessionService returns the handler to mount behind the edge's authentication. Every procedure needs the tenant's admin
// role.
func (h *Hub) SessionService() compassv1connect.SessionServiceHandler { return sessionService{h} }

// admin returns the context of the caller's tenant, for admins alone.
func (s sessionService) admin(ctx context.Context) (context.Context, store.TenantID, error) {
	caller, err := s.caller(ctx)
	switch {
	case err != nil:
		return nil, "", err
	case !caller.Admin():
		return nil, "", fmt.Errorf("%w: sessions need the admin role", wire.ErrDenied)
	}
	return store.WithTenant(ctx, caller.Tenant), caller.Tenant, nil
}

func (s sessionService) StartSession(
	ctx context.Context, req *connect.Request[compassv1.StartSessionRequest],
) (*connect.Response[compassv1.StartSessionResponse], error) {
	ctx, tenant, err := s.admin(ctx)
	if err == nil {
		err = wire.ID(naming.AccountPrefix, req.Msg.GetAgentId())
	}
	if err != nil {
		return nil, s.refuse(ctx, req.Spec().Procedure, err)
	}
	b, err := s.Start(ctx, tenant, req.Msg.GetAgentId())
	if err != nil {
		return nil, s.refuse(ctx, req.Spec().Procedure, err)
	}
	return connect.NewResponse(&compassv1.StartSessionResponse{Session: sessionOnWire(b)}), nil
}

// Start starts a session of the tenant's agent and tells its Runner. Errors are those of store.StartSession.
func (h *Hub) Start(ctx context.Context, tenant store.TenantID, agent string) (store.Binding, error) {
	id, err := h.ids.Session(string(tenant))
	if err != nil {
		return store.Binding{}, fmt.Errorf("%w: %w", wire.ErrShape, err)
	}
	ctx = store.WithTenant(ctx, tenant)
	started, err := h.store.StartSession(ctx, store.NewSession{Session: id, Agent: agent})
	if err != nil {
		return store.Binding{}, err
	}
	b := started.Binding
	h.comms.Announce(ctx, started.Touched)
	h.bindingChanged(ctx, tenant, agent)
	h.hint(ctx, b, &compassv1.Command{Kind: &compassv1.Command_Start{
		Start: &compassv1.Start{SessionId: b.Session, Generation: b.Generation},
	}})
	return b, nil
}

func (s sessionService) StopSession(
	ctx context.Context, req *connect.Request[compassv1.StopSessionRequest],
) (*connect.Response[compassv1.StopSessionResponse], error) {
	ctx, tenant, err := s.admin(ctx)
	if err == nil {
		err = s.stop(ctx, tenant, req.Msg.GetSessionId())
	}
	if err != nil {
		return nil, s.refuse(ctx, req.Spec().Procedure, err)
	}
	return connect.NewResponse(&compassv1.StopSessionResponse{}), nil
}

func (h *Hub) stop(ctx context.Context, tenant store.TenantID, session string) error {
	ended, err := h.store.StopSession(ctx, session)
	if err != nil {
		return err
	}
	h.ended(ctx, tenant, ended)
	// Without a number: a stop is in no chain, its row is the binding, and a lost hint is said by the next heartbeat.
	h.hint(ctx, ended.Binding, &compassv1.Command{Kind: &compassv1.Command_Command{
		Command: &compassv1.SessionCommand{Kind: compassv1.SessionCommandKind_SESSION_COMMAND_KIND_STOP},
	}})
	return nil
}

func (s sessionService) Steer(
	ctx context.Context, req *connect.Request[compassv1.SteerRequest],
) (*connect.Response[compassv1.SteerResponse], error) {
	ctx, _, err := s.admin(ctx)
	if err == nil {
		err = validSteer(req.Msg.GetText())
	}
	if err != nil {
		return nil, s.refuse(ctx, req.Spec().Procedure, err)
	}
	command, b, err := s.store.Steer(ctx, req.Msg.GetSessionId(), req.Msg.GetText())
	if err != nil {
		return nil, s.refuse(ctx, req.Spec().Procedure, err)
	}
	s.hint(ctx, b, &compassv1.Command{Kind: &compassv1.Command_Command{Command: commandOf(command)}})
	return connect.NewResponse(&compassv1.SteerResponse{N: command.N}), nil
}

// validSteer refuses what could be no message either.
func validSteer(text string) error {
	if text == "" || len(text) > maxSteer {
		return fmt.Errorf("%w: a steer has 1 to %d bytes", wire.ErrShape, maxSteer)
	}
	_, err := wire.FromBlocks([]*compassv1.Block{{Content: &compassv1.Block_Text{Text: text}}})
	return err
}

func (s sessionService) ListSessions(
	ctx context.Context, req *connect.Request[compassv1.ListSessionsRequest],
) (*connect.Response[compassv1.ListSessionsResponse], error) {
	ctx, _, err := s.admin(ctx)
	if err != nil {
		return nil, s.refuse(ctx, req.Spec().Procedure, err)
	}
	var list []store.Binding
	if req.Msg.GetIncludeEnded() {
		list, err = s.store.ListSessions(ctx, maxListed)
	} else {
		list, err = s.store.LiveAgentSessions(ctx)
	}
	if err != nil {
		return nil, s.refuse(ctx, req.Spec().Procedure, err)
	}
	out := &compassv1.ListSessionsResponse{}
	for _, b := range list {
		out.Sessions = append(out.Sessions, sessionOnWire(b))
	}
	return connect.NewResponse(out), nil
}

func sessionOnWire(b store.Binding) *compassv1.Session {
	return &compassv1.Session{
		Id: b.Session, AgentId: b.Agent, RunnerId: b.Runner, Generation: b.Generation, Live: b.Live, Claimed: b.Claimed,
		OpenTurn: b.OpenTurn, BoundAtUnixMs: b.BoundAtUnixMs,
	}
}
