package hub

import (
	"context"
	"errors"
	"fmt"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	compassv1 "github.com/rigelbuild/compass-operator/api/proto/compass/v1"
	"github.com/rigelbuild/compass-operator/api/proto/compass/v1/compassv1connect"
	"github.com/rigelbuild/compass-operator/internal/fabric"
	"github.com/rigelbuild/compass-operator/internal/naming"
	"github.com/rigelbuild/compass-operator/internal/store"
	"github.com/rigelbuild/compass-operator/internal/wire"
)

// handler is one procedure, for a Runner that was proved, whatever the transport.
type handler[Q, A any] func(ctx context.Context, who store.Runner, q *Q) (*A, error)

// refuse turns an error into what the Runner reads, the same on both transports (REQ-119).
func (h *Hub) refuse(ctx context.Context, procedure string, err error) error {
	if err == nil {
		return nil
	}
	out := wire.Error(err)
	if errors.Is(err, store.ErrStale) {
		out.Meta().Set(naming.MetaSession, naming.SessionOver)
	}
	if out.Code() == connect.CodeInternal {
		h.log.ErrorContext(ctx, "Request of a Runner failed", "procedure", procedure, "error", err)
	}
	return out
}

// serve answers one procedure over Connect: the Runner is whoever signed.
func serve[Q, A any](ctx context.Context, h *Hub, req *connect.Request[Q], fn handler[Q, A]) (*connect.Response[A], error) {
	procedure := req.Spec().Procedure
	who, err := h.prove(ctx, req.Header(), procedure)
	if err != nil {
		return nil, h.refuse(ctx, procedure, err)
	}
	answer, err := fn(ctx, who, req.Msg)
	if err != nil {
		return nil, h.refuse(ctx, procedure, err)
	}
	return connect.NewResponse(answer), nil
}

// message is a pointer to a generated message.
type message[T any] interface {
	*T
	proto.Message
}

// overNATS makes one procedure answer a serialized request.
func overNATS[Q any, PQ message[Q], A any, PA message[A]](fn handler[Q, A]) func(context.Context, store.Runner, []byte) ([]byte, error) {
	return func(ctx context.Context, who store.Runner, body []byte) ([]byte, error) {
		q := new(Q)
		if err := proto.Unmarshal(body, PQ(q)); err != nil {
			return nil, fmt.Errorf("%w: the request cannot be decoded", wire.ErrShape)
		}
		answer, err := fn(ctx, who, q)
		if err != nil {
			return nil, err
		}
		return proto.Marshal(PA(answer))
	}
}

// procedures are those that a Runner may call over NATS: all that know who it is.
func (h *Hub) procedures() map[string]func(context.Context, store.Runner, []byte) ([]byte, error) {
	return map[string]func(context.Context, store.Runner, []byte) ([]byte, error){
		compassv1connect.RunnerServiceHelloProcedure:                   overNATS(h.hello),
		compassv1connect.RunnerServiceHeartbeatProcedure:               overNATS(h.heartbeat),
		compassv1connect.RunnerServiceClaimStartProcedure:              overNATS(h.claimStart),
		compassv1connect.RunnerServiceFetchCommandsProcedure:           overNATS(h.fetchCommands),
		compassv1connect.RunnerServiceSendEventProcedure:               overNATS(h.sendEvent),
		compassv1connect.RunnerServiceRelayCommsCallProcedure:          overNATS(h.relay),
		compassv1connect.RunnerServiceCommitConversationFrameProcedure: overNATS(h.frame),
	}
}

// Listen answers events and calls of Runners over the fabric, beside the other Servers, until the returned function is
// called; that waits for what is being answered.
func (h *Hub) Listen(ctx context.Context) (stop func(), err error) {
	if h.fabric == nil {
		return func() {}, nil
	}
	stopEvents, err := h.fabric.Events(ctx, h.onEvent)
	if err != nil {
		return nil, fmt.Errorf("listen for events of Runners: %w", err)
	}
	procedures := h.procedures()
	stopCalls, err := h.fabric.Calls(ctx, func(ctx context.Context, call fabric.RunnerCall) ([]byte, error) {
		body, err := h.onCall(ctx, procedures[call.Procedure], call)
		return body, h.refuse(ctx, call.Procedure, err)
	})
	if err != nil {
		stopEvents()
		return nil, fmt.Errorf("listen for calls of Runners: %w", err)
	}
	return func() { stopEvents(); stopCalls() }, nil
}

func (h *Hub) onCall(
	ctx context.Context, procedure func(context.Context, store.Runner, []byte) ([]byte, error), call fabric.RunnerCall,
) ([]byte, error) {
	if procedure == nil {
		return nil, connect.NewError(connect.CodeUnimplemented, errors.New("no such procedure"))
	}
	who, err := h.vouched(ctx, call.From)
	if err != nil {
		return nil, err
	}
	return procedure(ctx, who, call.Body)
}

func (h *Hub) onEvent(ctx context.Context, e fabric.RunnerEvent) error {
	who, err := h.vouched(ctx, e.From)
	if err == nil {
		err = h.event(ctx, who, e.Event)
	}
	return h.refuse(ctx, "event", err)
}

// runnerService is the hub over Connect.
type runnerService struct{ *Hub }

var _ compassv1connect.RunnerServiceHandler = runnerService{}

// RunnerService returns the handler to mount. It proves each caller itself, by the Runner's signature.
func (h *Hub) RunnerService() compassv1connect.RunnerServiceHandler { return runnerService{h} }

func (s runnerService) Enroll(ctx context.Context, req *connect.Request[compassv1.EnrollRequest]) (*connect.Response[compassv1.EnrollResponse], error) {
	answer, err := s.enroll(ctx, req.Msg)
	if err != nil {
		return nil, s.refuse(ctx, req.Spec().Procedure, err)
	}
	return connect.NewResponse(answer), nil
}

func (s runnerService) Hello(ctx context.Context, req *connect.Request[compassv1.HelloRequest]) (*connect.Response[compassv1.HelloResponse], error) {
	return serve(ctx, s.Hub, req, s.hello)
}

func (s runnerService) Heartbeat(
	ctx context.Context, req *connect.Request[compassv1.HeartbeatRequest],
) (*connect.Response[compassv1.HeartbeatResponse], error) {
	return serve(ctx, s.Hub, req, s.heartbeat)
}

func (s runnerService) ClaimStart(
	ctx context.Context, req *connect.Request[compassv1.ClaimStartRequest],
) (*connect.Response[compassv1.ClaimStartResponse], error) {
	return serve(ctx, s.Hub, req, s.claimStart)
}

func (s runnerService) FetchCommands(
	ctx context.Context, req *connect.Request[compassv1.FetchCommandsRequest],
) (*connect.Response[compassv1.FetchCommandsResponse], error) {
	return serve(ctx, s.Hub, req, s.fetchCommands)
}

func (s runnerService) SendEvent(
	ctx context.Context, req *connect.Request[compassv1.SendEventRequest],
) (*connect.Response[compassv1.SendEventResponse], error) {
	return serve(ctx, s.Hub, req, s.sendEvent)
}

func (s runnerService) RelayCommsCall(
	ctx context.Context, req *connect.Request[compassv1.RelayCommsCallRequest],
) (*connect.Response[compassv1.RelayCommsCallResponse], error) {
	return serve(ctx, s.Hub, req, s.relay)
}

func (s runnerService) CommitConversationFrame(
	ctx context.Context, req *connect.Request[compassv1.CommitConversationFrameRequest],
) (*connect.Response[compassv1.CommitConversationFrameResponse], error) {
	return serve(ctx, s.Hub, req, s.frame)
}
