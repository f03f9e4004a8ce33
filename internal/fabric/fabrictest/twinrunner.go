package fabrictest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	compassv1 "github.com/rigelbuild/compass-operator/api/proto/compass/v1"
	"github.com/rigelbuild/compass-operator/internal/fabric"
	"github.com/rigelbuild/compass-operator/internal/naming"
)

// SendCommand implements fabric.RunnerFabric.
func (f *Twin) SendCommand(_ context.Context, to fabric.RunnerAddr, command *compassv1.SessionsResponse) error {
	subject, err := naming.RunnerSubject(naming.RunnerAddress{Fleet: to.Fleet, ID: to.ID, Leg: naming.RunnerCmd})
	if err != nil {
		return fmt.Errorf("%w: %w", fabric.ErrBadRef, err)
	}
	command = proto.Clone(command).(*compassv1.SessionsResponse) //nolint:forcetypeassert // a clone
	if len(command.GetSignature()) == 0 {
		var inner compassv1.Command
		if err := proto.Unmarshal(command.GetBody(), &inner); err != nil {
			return fmt.Errorf("%w: %w", fabric.ErrBadRef, err)
		}
		if command, err = f.o.Commands.Sign(&inner); err != nil {
			return err
		}
	}
	n, err := f.b.cast(subject, command)
	if err == nil && n == 0 {
		err = fabric.ErrRunnerGone
	}
	return err
}

// request is one event or call on its way to a Server.
type request struct {
	from   fabric.RunnerAddr
	call   string // procedure; empty for an event
	body   []byte
	answer chan<- answer
}

type answer struct {
	body []byte
	err  error
}

// Events implements fabric.RunnerFabric.
func (f *Twin) Events(ctx context.Context, fn func(ctx context.Context, event fabric.RunnerEvent) error) (fabric.Unsubscribe, error) {
	return f.serve(ctx, naming.RunnerEvents, func(ctx context.Context, r request) answer {
		var e compassv1.RunnerEvent
		err := proto.Unmarshal(r.body, &e)
		switch {
		case err != nil:
			err = connect.NewError(connect.CodeInvalidArgument, errors.New("event cannot be decoded"))
		case e.GetRunnerId() != "" && e.GetRunnerId() != r.from.ID:
			err = connect.NewError(connect.CodePermissionDenied, errors.New("the event names another Runner"))
		default:
			e.RunnerId = r.from.ID
			err = fn(ctx, fabric.RunnerEvent{From: r.from, Event: &e})
		}
		return answer{err: err}
	})
}

// Calls implements fabric.RunnerFabric.
func (f *Twin) Calls(ctx context.Context, fn func(ctx context.Context, call fabric.RunnerCall) ([]byte, error)) (fabric.Unsubscribe, error) {
	return f.serve(ctx, naming.RunnerCall, func(ctx context.Context, r request) answer {
		body, err := fn(ctx, fabric.RunnerCall{From: r.from, Procedure: r.call, Body: r.body})
		if err != nil {
			body = nil
		}
		return answer{body, err}
	})
}

// serve answers requests side by side; ending it waits for those that run.
func (f *Twin) serve(ctx context.Context, leg naming.RunnerLeg, fn func(context.Context, request) answer) (fabric.Unsubscribe, error) {
	if err := f.check(); err != nil {
		return nil, err
	}
	base := context.WithoutCancel(ctx)
	var running sync.WaitGroup
	end := f.b.hear(string(leg), func(m any) {
		r := m.(request) //nolint:forcetypeassert // its own subject
		running.Go(func() {
			defer func() { _ = recover() }() // no answer, and nobody else goes down
			r.answer <- fn(base, r)
		})
	})
	return f.until(ctx, func() { end(); running.Wait() }), nil
}

// States implements fabric.RunnerFabric.
func (f *Twin) States(ctx context.Context, stream string, fn func(from fabric.RunnerAddr, state *compassv1.RunnerState)) (fabric.Unsubscribe, error) {
	subject, err := naming.RunnerStateFilter(stream)
	return f.listen(ctx, subject, err, func(m any) {
		s := m.(told) //nolint:forcetypeassert // its own subject
		if s.state.GetRunnerId() == "" {
			s.state.RunnerId = s.from.ID
		}
		if s.state.GetRunnerId() == s.from.ID {
			fn(s.from, s.state)
		}
	})
}

type told struct {
	from  fabric.RunnerAddr
	state *compassv1.RunnerState
}

// opener opens what is signed; fabric.CommandKeys is one. A simulation brings one that costs nothing.
type opener interface {
	Open(signed *compassv1.SessionsResponse) (*compassv1.Command, error)
}

// TwinRunner is a Runner of the shared fleet on a Broker.
type TwinRunner struct {
	b    *Broker
	addr fabric.RunnerAddr
	keys opener
}

var _ fabric.RunnerConn = (*TwinRunner)(nil)

// Runner implements Ground.
func (b *Broker) Runner(_ *testing.T, id string, keys *fabric.CommandKeys) fabric.RunnerConn {
	return b.ConnectRunner(id, keys)
}

// ConnectRunner is Runner without a test around it.
func (b *Broker) ConnectRunner(id string, keys opener) *TwinRunner {
	return &TwinRunner{b: b, addr: fabric.RunnerAddr{Fleet: naming.SharedFleet, ID: id}, keys: keys}
}

// Commands implements fabric.RunnerConn.
func (r *TwinRunner) Commands(
	ctx context.Context, fn func(ctx context.Context, command *compassv1.Command, signed *compassv1.SessionsResponse),
) (fabric.Unsubscribe, error) {
	subject, err := naming.RunnerSubject(naming.RunnerAddress{Fleet: r.addr.Fleet, ID: r.addr.ID, Leg: naming.RunnerCmd})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", fabric.ErrBadRef, err)
	}
	base := context.WithoutCancel(ctx)
	end := r.b.hear(subject, func(m any) {
		signed := m.(*compassv1.SessionsResponse) //nolint:forcetypeassert // its own subject
		if c, err := r.keys.Open(signed); err == nil && c.GetRunnerId() == r.addr.ID {
			fn(base, c, signed)
		}
	})
	stop := once(end)
	detach := context.AfterFunc(ctx, stop)
	return func() { detach(); stop() }, nil
}

// Event implements fabric.RunnerConn.
func (r *TwinRunner) Event(ctx context.Context, event *compassv1.RunnerEvent) (*compassv1.RunnerEventAnswer, error) {
	body, err := proto.Marshal(event)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", fabric.ErrBadRef, err)
	}
	a, err := r.ask(ctx, naming.RunnerEvents, request{from: r.addr, body: body})
	if err != nil {
		return nil, err
	}
	return fabric.AnswerOf(a.err), nil
}

// Call implements fabric.RunnerConn.
func (r *TwinRunner) Call(ctx context.Context, procedure string, body []byte) ([]byte, error) {
	a, err := r.ask(ctx, naming.RunnerCall, request{from: r.addr, call: procedure, body: slices.Clone(body)})
	if err != nil {
		return nil, err
	}
	return a.body, fabric.SeenByCaller(a.err)
}

// ask gives the request to one of the Servers, in turn.
func (r *TwinRunner) ask(ctx context.Context, leg naming.RunnerLeg, q request) (answer, error) {
	got := make(chan answer, 1)
	q.answer = got
	r.b.mu.Lock()
	err := r.b.reachable()
	servers := r.b.hearers[string(leg)]
	if err == nil && len(servers) == 0 {
		err = fabric.ErrUnavailable
	}
	if err == nil {
		r.b.turn++
		servers[r.b.turn%len(servers)].push(q)
	}
	r.b.mu.Unlock()
	if err != nil {
		return answer{}, err
	}
	select {
	case a := <-got:
		return a, nil
	case <-ctx.Done():
		return answer{}, fmt.Errorf("%w: %w", fabric.ErrUnavailable, ctx.Err())
	}
}

// State implements fabric.RunnerConn.
func (r *TwinRunner) State(_ context.Context, stream string, state *compassv1.RunnerState) error {
	subject, err := naming.RunnerStateFilter(stream)
	if err != nil {
		return fmt.Errorf("%w: %w", fabric.ErrBadRef, err)
	}
	_, err = r.b.cast(subject, told{r.addr, proto.Clone(state).(*compassv1.RunnerState)}) //nolint:forcetypeassert // a clone
	return err
}
