package fabric

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"connectrpc.com/connect"
	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"

	compassv1 "github.com/rigelbuild/compass-operator/api/proto/compass/v1"
	"github.com/rigelbuild/compass-operator/internal/naming"
)

const (
	// queueServers is the group of Servers: each request of a Runner is answered by one of them.
	queueServers = "servers"
	// answerTime bounds one answer; a Runner asks again.
	answerTime = 30 * time.Second
	// sideBySide bounds the requests that one process answers at a time; more wait in the connection.
	sideBySide = 256
)

// SendCommand see RunnerFabric.
func (f *Fabric) SendCommand(ctx context.Context, to RunnerAddr, command *compassv1.SessionsResponse) error {
	subject, err := naming.RunnerSubject(naming.RunnerAddress{Fleet: to.Fleet, ID: to.ID, Leg: naming.RunnerCmd})
	if err != nil {
		return fmt.Errorf("%w: %w", ErrBadRef, err)
	}
	if len(command.GetSignature()) == 0 {
		command = &compassv1.SessionsResponse{Body: command.GetBody()}
		if err := f.cfg.Commands.seal(command); err != nil {
			return err
		}
	}
	body, err := proto.Marshal(command)
	if err != nil {
		return fmt.Errorf("%w: command: %w", ErrBadRef, err)
	}
	if err := f.link.deliver(ctx, &nats.Msg{Subject: subject, Data: body}); err != nil {
		return fmt.Errorf("send command to Runner %s: %w", to.ID, err)
	}
	return nil
}

// Events see RunnerFabric.
func (f *Fabric) Events(ctx context.Context, fn func(ctx context.Context, event RunnerEvent) error) (Unsubscribe, error) {
	return f.answer(ctx, naming.RunnerEvents, func(ctx context.Context, from RunnerAddr, msg *nats.Msg) *nats.Msg {
		body, err := proto.Marshal(AnswerOf(f.event(ctx, from, msg, fn)))
		if err != nil { // two strings
			return nil
		}
		return &nats.Msg{Data: body}
	})
}

func (f *Fabric) event(
	ctx context.Context, from RunnerAddr, msg *nats.Msg, fn func(ctx context.Context, event RunnerEvent) error,
) error {
	var e compassv1.RunnerEvent
	if err := proto.Unmarshal(msg.Data, &e); err != nil {
		return connect.NewError(connect.CodeInvalidArgument, errors.New("event cannot be decoded"))
	}
	if e.GetRunnerId() == "" {
		e.RunnerId = from.ID
	}
	if e.GetRunnerId() != from.ID {
		f.metrics.reject("event of another Runner")
		return connect.NewError(connect.CodePermissionDenied, errors.New("the event names another Runner"))
	}
	return fn(ctx, RunnerEvent{From: from, Event: &e})
}

// Calls see RunnerFabric.
func (f *Fabric) Calls(ctx context.Context, fn func(ctx context.Context, call RunnerCall) ([]byte, error)) (Unsubscribe, error) {
	return f.answer(ctx, naming.RunnerCall, func(ctx context.Context, from RunnerAddr, msg *nats.Msg) *nats.Msg {
		body, err := fn(ctx, RunnerCall{From: from, Procedure: msg.Header.Get(headerProcedure), Body: msg.Data})
		if err != nil {
			body = nil
		}
		return &nats.Msg{Header: encodeStatus(err), Data: body}
	})
}

// answer serves one leg as a member of the Servers' group. Requests run side by side; when it ends, those that run are
// waited for, and those still in the connection are lost: their Runners ask again.
func (f *Fabric) answer(
	ctx context.Context, leg naming.RunnerLeg, fn func(context.Context, RunnerAddr, *nats.Msg) *nats.Msg,
) (Unsubscribe, error) {
	filter, err := naming.RunnerFilter(leg)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrBadRef, err)
	}
	base := context.WithoutCancel(ctx)
	var running sync.WaitGroup
	slots := make(chan struct{}, sideBySide)
	stop, err := f.link.subscribe(ctx, filter, queueServers, func(msg *nats.Msg) {
		from, ok := f.sender(msg)
		if !ok {
			return
		}
		slots <- struct{}{}
		running.Go(func() {
			defer func() { <-slots }()
			f.respond(base, from, msg, fn)
		})
	})
	if err != nil {
		return nil, err
	}
	return f.registerWith(ctx, func() { stop(); running.Wait() })
}

func (f *Fabric) respond(base context.Context, from RunnerAddr, msg *nats.Msg, fn func(context.Context, RunnerAddr, *nats.Msg) *nats.Msg) {
	ctx, cancel := context.WithTimeout(base, answerTime)
	defer cancel()
	defer func() {
		if p := recover(); p != nil { // no answer: the Runner asks again, and one request takes nobody else down
			f.cfg.Logger.ErrorContext(ctx, "Request of a Runner panicked", "runner", from, "panic", p)
		}
	}()
	answer := fn(ctx, from, msg)
	if answer == nil || msg.Reply == "" {
		return
	}
	if err := msg.RespondMsg(answer); err != nil {
		f.cfg.Logger.WarnContext(ctx, "Answer to a Runner could not be sent", "runner", from, "error", err)
	}
}

// sender is who the broker says sent a message.
func (f *Fabric) sender(msg *nats.Msg) (RunnerAddr, bool) {
	a, err := naming.ParseRunnerSubject(msg.Subject)
	if err != nil {
		f.metrics.reject("malformed Runner subject")
		f.cfg.Logger.Warn("Message on a malformed Runner subject", "subject", msg.Subject)
		return RunnerAddr{}, false
	}
	return RunnerAddr{Fleet: a.Fleet, ID: a.ID}, true
}

// States see RunnerFabric.
func (f *Fabric) States(ctx context.Context, stream string, fn func(from RunnerAddr, state *compassv1.RunnerState)) (Unsubscribe, error) {
	filter, err := naming.RunnerStateFilter(stream)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrBadRef, err)
	}
	return f.hear(ctx, filter, func(_ context.Context, msg *nats.Msg) {
		from, ok := f.sender(msg)
		if !ok {
			return
		}
		var s compassv1.RunnerState
		if err := proto.Unmarshal(msg.Data, &s); err != nil {
			f.metrics.reject("undecodable state")
			return
		}
		if s.GetRunnerId() == "" {
			s.RunnerId = from.ID
		}
		if s.GetRunnerId() != from.ID {
			f.metrics.reject("state of another Runner")
			f.cfg.Logger.Warn("State that names another Runner", "runner", from)
			return
		}
		fn(from, &s)
	})
}
