package sim_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	compassv1 "github.com/rigelbuild/compass-operator/api/proto/compass/v1"
	"github.com/rigelbuild/compass-operator/api/proto/compass/v1/compassv1connect"
	"github.com/rigelbuild/compass-operator/internal/fabric"
	"github.com/rigelbuild/compass-operator/internal/fabric/fabrictest"
	"github.com/rigelbuild/compass-operator/internal/fault"
)

var errGone = errors.New("the process is gone")

// node is a process's way to NATS: the twin behind the scheduler, which loses, doubles and delays what goes through.
type node struct {
	*fabrictest.Twin
	w *world
	p *process
}

func (w *world) node(p *process, stream string) *node {
	return &node{w: w, p: p, Twin: w.broker.Connect(fabrictest.Options{
		Stream: stream, StreamOf: w.streamOf, MaxDeliver: 5, AckWait: 2 * time.Second, Backoff: []time.Duration{200 * time.Millisecond},
	})}
}

// fly lets something arrive when the scheduler says so, however long its sender lives.
func (w *world) fly(what string, arrive func()) {
	w.air.ends.Go(func() {
		if w.s.park(w.air.ctx, w.air, what, flight) != dead {
			arrive()
		}
	})
}

// oneWay sends what nobody answers. The error is the sender's, told at once.
func (n *node) oneWay(ctx context.Context, what string, arrive func() error) error {
	switch n.w.s.park(ctx, n.p, what, oneWay) {
	case dead:
		return errGone
	case lost:
		return n.reachable()
	case doubled:
		n.w.fly(what+" again", func() { _ = arrive() })
	case fine, silent:
	}
	if err := n.reachable(); err != nil {
		return err
	}
	n.w.fly(what, func() { _ = arrive() })
	return nil
}

func (n *node) reachable() error {
	if n.w.natsAway.Load() {
		return fabric.ErrUnavailable
	}
	return nil
}

// Publish implements fabric.EventFabric: lost, stored, or stored and not answered.
func (n *node) Publish(ctx context.Context, subject string, ref fabric.EventRef) error {
	switch n.w.s.park(ctx, n.p, "publish "+short(ref.RowID), request) {
	case dead:
		return errGone
	case lost:
		return fabric.ErrUnavailable
	case silent:
		_ = n.Twin.Publish(ctx, subject, ref)
		return fabric.ErrUnavailable
	case doubled:
		again := ref
		n.w.fly("ref again", func() {
			again.Version++ // past the duplicate window
			_ = n.w.wire.Publish(context.WithoutCancel(ctx), subject, again)
		})
	case fine:
	}
	if n.w.loseRefs() {
		return nil
	}
	return n.Twin.Publish(ctx, subject, ref)
}

// SubscribeKind implements fabric.EventFabric.
func (n *node) SubscribeKind(ctx context.Context, kind fabric.EventKind, fn fabric.Handler) (fabric.Unsubscribe, error) {
	return n.Twin.SubscribeKind(ctx, kind, func(ctx context.Context, ref fabric.EventRef) error {
		switch n.w.s.park(ctx, n.p, "hear ref "+short(ref.RowID), oneWay) {
		case dead:
			return fault.RetryAfter(time.Second, errGone)
		case lost:
			return nil // the hint is dropped
		case doubled:
			_ = fn(ctx, ref)
		case fine, silent:
		}
		return fn(ctx, ref)
	})
}

// SendCommand implements fabric.RunnerFabric.
func (n *node) SendCommand(ctx context.Context, to fabric.RunnerAddr, cmd *compassv1.SessionsResponse) error {
	for _, in := range n.w.pods {
		if n.p == in.worker {
			n.w.s.succeeded(n.p)
		}
	}
	if !n.w.listens(to.ID) {
		return fabric.ErrRunnerGone
	}
	signed := &compassv1.SessionsResponse{Body: cmd.GetBody(), KeyId: "k", Signature: []byte{1}}
	var c compassv1.Command
	if err := proto.Unmarshal(cmd.GetBody(), &c); err != nil {
		return err
	}
	err := n.oneWay(ctx, describe(&c), func() error {
		return n.w.wire.SendCommand(context.Background(), to, signed)
	})
	if err == nil {
		n.w.notePush(n.p, &c)
	}
	return err
}

func describe(c *compassv1.Command) string {
	switch k := c.GetKind().(type) {
	case *compassv1.Command_Deliver:
		return fmt.Sprint("deliver ", short(k.Deliver.GetMessage().GetId()), " ", k.Deliver.GetPrev(), "->", k.Deliver.GetPos())
	case *compassv1.Command_Command:
		return "command " + short(k.Command.GetMessage().GetId())
	}
	return "start"
}

// NotifyWorker implements fabric.Notifier.
func (n *node) NotifyWorker(ctx context.Context, stream string, note fabric.Note) error {
	return n.oneWay(ctx, "note", func() error { return n.w.wire.NotifyWorker(context.Background(), stream, note) })
}

// Announce implements fabric.DeadLetterBox.
func (n *node) Announce(ctx context.Context, stream string, letter fabric.DeadLetter) error {
	switch n.w.s.park(ctx, n.p, "announce", request) {
	case dead, lost:
		return fabric.ErrUnavailable
	case fine, silent, doubled:
	}
	return n.Twin.Announce(ctx, stream, letter)
}

// keys are no keys: what a simulation signs with costs nothing.
type keys struct{}

func (keys) Open(signed *compassv1.SessionsResponse) (*compassv1.Command, error) {
	if len(signed.GetSignature()) == 0 {
		return nil, fabric.ErrSignature
	}
	var c compassv1.Command
	return &c, proto.Unmarshal(signed.GetBody(), &c)
}

// link is a Runner's way to NATS, and to any Server.
type link struct {
	compassv1connect.RunnerServiceClient
	*fabrictest.TwinRunner
	w *world
	p *process
}

// Commands implements runner.Link. What a lower fence carried than one heard before is marked: an agent that takes it has
// been moved by a worker that was no longer the writer.
func (l *link) Commands(
	ctx context.Context, fn func(ctx context.Context, cmd *compassv1.Command, signed *compassv1.SessionsResponse),
) (fabric.Unsubscribe, error) {
	highest := map[string]*compassv1.Fence{}
	return l.TwinRunner.Commands(ctx, func(ctx context.Context, cmd *compassv1.Command, signed *compassv1.SessionsResponse) {
		if f := cmd.GetFence(); f != nil {
			before := highest[cmd.GetTenantId()]
			if cmp.Or(cmp.Compare(f.GetClaim(), before.GetClaim()), cmp.Compare(f.GetLease(), before.GetLease())) < 0 {
				l.w.markStale(cmd.GetDeliver().GetMessage(), cmd.GetCommand().GetMessage())
			} else {
				highest[cmd.GetTenantId()] = f
			}
		}
		l.w.controls.blind(cmd)
		fn(ctx, cmd, signed)
	})
}

// State implements runner.Link.
func (l *link) State(ctx context.Context, stream string, state *compassv1.RunnerState) error {
	state = proto.Clone(state).(*compassv1.RunnerState) //nolint:forcetypeassert // a clone
	arrive := func() { _ = l.TwinRunner.State(context.WithoutCancel(ctx), stream, state) }
	what := "state " + short(state.GetSessionId())
	if state.GetRefused() {
		l.w.noteRefused(state.GetSessionId())
		what += " refused"
	}
	for _, c := range state.GetChannels() {
		what += fmt.Sprint(" ", short(c.GetChannelId()), " holds ", c.GetHeld(), " acked ", c.GetAcked())
	}
	switch l.w.s.park(ctx, l.p, what, oneWay) {
	case dead, lost:
		return nil
	case doubled:
		l.w.fly(what+" again", arrive)
	case fine, silent:
	}
	l.w.fly(what, arrive)
	return nil
}

// ask sends a request; where nobody answers, the caller waits until it gives up.
func ask[A any](ctx context.Context, l *link, what string, send func(ctx context.Context) (A, error)) (answer A, err error) {
	again := func() {
		l.w.air.ends.Go(func() {
			if l.w.s.park(l.w.air.ctx, l.w.air, what+" again", flight) != dead {
				ctx, cancel := context.WithTimeout(l.w.air.ctx, 5*time.Second)
				defer cancel()
				_, _ = send(ctx)
			}
		})
	}
	switch l.w.s.park(ctx, l.p, what, request) {
	case dead:
		return answer, fabric.ErrUnavailable
	case lost:
		<-ctx.Done()
		return answer, fabric.ErrUnavailable
	case doubled:
		again()
	case silent:
		_, _ = send(ctx)
		<-ctx.Done()
		return answer, fabric.ErrUnavailable
	case fine:
	}
	answer, err = send(ctx)
	if !l.p.alive() {
		return answer, fabric.ErrUnavailable
	}
	return answer, err
}

// Event implements runner.Link.
func (l *link) Event(ctx context.Context, event *compassv1.RunnerEvent) (*compassv1.RunnerEventAnswer, error) {
	l.w.noteAcks(event.GetSessionId(), event.GetAck().GetCommands())
	return ask(ctx, l, fmt.Sprintf("event %s %d", short(event.GetSessionId()), event.GetN()), func(ctx context.Context) (*compassv1.RunnerEventAnswer, error) {
		return l.TwinRunner.Event(ctx, event)
	})
}

// rpc makes one call of the API over the broker.
func rpc[Q, A any, PQ interface {
	*Q
	proto.Message
}, PA interface {
	*A
	proto.Message
}](ctx context.Context, l *link, procedure, what string, req *connect.Request[Q]) (*connect.Response[A], error) {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
	}
	if of, ok := any(req.Msg).(interface{ GetSessionId() string }); ok {
		what += " " + short(of.GetSessionId())
	}
	body, err := proto.Marshal(PQ(req.Msg))
	if err != nil {
		return nil, err
	}
	answer, err := ask(ctx, l, what, func(ctx context.Context) ([]byte, error) { return l.Call(ctx, procedure, body) })
	if err != nil {
		if _, ok := errors.AsType[*connect.Error](err); ok {
			return nil, err
		}
		return nil, connect.NewError(connect.CodeUnavailable, err)
	}
	out := new(A)
	return connect.NewResponse(out), proto.Unmarshal(answer, PA(out))
}

func (l *link) Hello(ctx context.Context, req *connect.Request[compassv1.HelloRequest]) (*connect.Response[compassv1.HelloResponse], error) {
	return rpc[compassv1.HelloRequest, compassv1.HelloResponse](ctx, l, compassv1connect.RunnerServiceHelloProcedure, "hello", req)
}

func (l *link) Heartbeat(ctx context.Context, req *connect.Request[compassv1.HeartbeatRequest]) (*connect.Response[compassv1.HeartbeatResponse], error) {
	return rpc[compassv1.HeartbeatRequest, compassv1.HeartbeatResponse](ctx, l, compassv1connect.RunnerServiceHeartbeatProcedure, "heartbeat", req)
}

func (l *link) ClaimStart(ctx context.Context, req *connect.Request[compassv1.ClaimStartRequest]) (*connect.Response[compassv1.ClaimStartResponse], error) {
	return rpc[compassv1.ClaimStartRequest, compassv1.ClaimStartResponse](ctx, l, compassv1connect.RunnerServiceClaimStartProcedure, "claim", req)
}

func (l *link) FetchCommands(ctx context.Context, req *connect.Request[compassv1.FetchCommandsRequest]) (*connect.Response[compassv1.FetchCommandsResponse], error) {
	return rpc[compassv1.FetchCommandsRequest, compassv1.FetchCommandsResponse](ctx, l, compassv1connect.RunnerServiceFetchCommandsProcedure, "fetch", req)
}

func (l *link) SendEvent(ctx context.Context, req *connect.Request[compassv1.SendEventRequest]) (*connect.Response[compassv1.SendEventResponse], error) {
	return rpc[compassv1.SendEventRequest, compassv1.SendEventResponse](ctx, l, compassv1connect.RunnerServiceSendEventProcedure, "event too", req)
}

func (l *link) RelayCommsCall(ctx context.Context, req *connect.Request[compassv1.RelayCommsCallRequest]) (*connect.Response[compassv1.RelayCommsCallResponse], error) {
	return rpc[compassv1.RelayCommsCallRequest, compassv1.RelayCommsCallResponse](ctx, l, compassv1connect.RunnerServiceRelayCommsCallProcedure, "relay", req)
}

func short(id string) string { return id[max(0, len(id)-6):] }
