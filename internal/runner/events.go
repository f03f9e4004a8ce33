package runner

import (
	"context"
	"errors"
	"time"

	"connectrpc.com/connect"

	compassv1 "github.com/rigelbuild/compass-operator/api/proto/compass/v1"
	"github.com/rigelbuild/compass-operator/internal/naming"
)

const (
	// eventTimeout bounds one try of one request.
	eventTimeout = 5 * time.Second
	// eventRetry is the pause between tries; the number stays the same, so a repeat is answered and not applied.
	eventRetry = 200 * time.Millisecond
	// ackDelay coalesces acks: without it they, and not the messages, are the write load [D10].
	ackDelay = 50 * time.Millisecond
	// ackMost ends the coalescing: who consumes quickly would wait for room in its window, and not for its messages.
	ackMost = 8
)

// numbered sends the session's next event and waits for its answer, retrying with the same number until there is one. An
// answer may be a refusal; then the number counts as answered too. turn is what the session's open turn is afterwards. The
// caller's cancellation does not end it: an event that may have been applied must not leave its number to another one.
func (s *Session) numbered(ctx context.Context, turn string, send func(ctx context.Context, n int64) error) error {
	s.event.Lock()
	defer s.event.Unlock()
	s.mu.Lock()
	n := s.answered.n + 1
	s.mu.Unlock()
	err := s.untilAnswered(context.WithoutCancel(ctx), func(ctx context.Context) error { return send(ctx, n) })
	if errors.Is(err, ErrOver) {
		return err
	}
	s.mu.Lock()
	s.answered.n = n
	if err == nil {
		s.answered.turn = turn
	}
	s.mu.Unlock()
	if stale(err) {
		s.end()
		return ErrOver
	}
	return err
}

// untilAnswered repeats a request while nobody answers it and the session lasts.
func (s *Session) untilAnswered(ctx context.Context, send func(context.Context) error) error {
	for {
		try, cancel := context.WithTimeout(ctx, eventTimeout)
		err := send(try)
		cancel()
		if err == nil || answered(err) {
			return err
		}
		select {
		case <-s.runner.clock.After(eventRetry):
		case <-s.over:
			return ErrOver
		case <-s.runner.life.Done():
			return ErrOver
		}
	}
}

// answered tells a Server's verdict from silence. Only what a handler decides is a verdict.
func answered(err error) bool {
	switch connect.CodeOf(err) { //nolint:exhaustive // every other code is silence: nobody judged the request
	case connect.CodeInvalidArgument, connect.CodeNotFound, connect.CodeAlreadyExists, connect.CodePermissionDenied,
		connect.CodeFailedPrecondition, connect.CodeAborted, connect.CodeOutOfRange, connect.CodeUnimplemented, connect.CodeUnauthenticated:
		return true
	}
	return false
}

// stale says that the session is not, or no longer, this Runner's.
func stale(err error) bool {
	refusal, ok := errors.AsType[*connect.Error](err)
	return ok && refusal.Meta().Get(naming.MetaSession) == naming.SessionOver
}

// send hands an edge to a Server, over the broker, and over Connect where the broker gives no answer.
func (s *Session) send(ctx context.Context, event *compassv1.RunnerEvent) error {
	event.RunnerId, event.SessionId, event.Generation = s.runner.id, s.ID, s.generation
	event.Incarnation = s.runner.incarnation()
	answer, err := s.runner.link.Event(ctx, event)
	if err != nil {
		var response *connect.Response[compassv1.SendEventResponse]
		response, err = s.runner.server.SendEvent(ctx, request(&compassv1.SendEventRequest{Event: event}))
		if err != nil {
			return err
		}
		answer = response.Msg.GetAnswer()
	}
	return verdict(answer)
}

// verdict turns an answer's code back into the error that Connect would have given.
func verdict(answer *compassv1.RunnerEventAnswer) error {
	if answer.GetCode() == "" {
		return nil
	}
	var code connect.Code
	if err := code.UnmarshalText([]byte(answer.GetCode())); err != nil {
		code = connect.CodeUnknown
	}
	err := connect.NewError(code, errors.New(answer.GetDetail()))
	if code == connect.CodeNotFound { // an event is about nothing but its session
		err.Meta().Set(naming.MetaSession, naming.SessionOver)
	}
	return err
}

// ackLoop sends what was consumed until the session is over. Acks carry no number: they only go up.
func (s *Session) ackLoop(ctx context.Context) {
	for {
		changed, owes := s.owesAck()
		if !owes {
			select {
			case <-changed:
				continue
			case <-s.over:
				return
			case <-ctx.Done():
				return
			}
		}
		if s.gather(ctx); ctx.Err() != nil {
			return
		}
		err := s.untilAnswered(ctx, s.sendAck(s.takeAck()))
		switch {
		case err == nil:
		case stale(err):
			s.end()
			return
		case answered(err):
			s.runner.log.WarnContext(ctx, "Ack was refused", "session", s.ID, "error", err)
		default:
			return
		}
	}
}

// gather waits for what else is consumed soon, and no longer once it is much.
func (s *Session) gather(ctx context.Context) {
	soon := s.runner.clock.After(ackDelay)
	for {
		changed, much := s.muchToAck()
		if much {
			return
		}
		select {
		case <-changed:
		case <-soon:
			return
		case <-ctx.Done():
			return
		}
	}
}

func (s *Session) muchToAck() (<-chan struct{}, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.chains {
		if c.unsaid >= ackMost {
			return nil, true
		}
	}
	return s.changed, false
}

func (s *Session) sendAck(ack *compassv1.Ack) func(context.Context) error {
	return func(ctx context.Context) error {
		err := s.send(ctx, &compassv1.RunnerEvent{Event: &compassv1.RunnerEvent_Ack{Ack: ack}})
		if err == nil {
			s.acked(ack)
		}
		return err
	}
}

// goodbye tells a Server that the agent is gone: first what it consumed, or a later generation would see it again, then the
// end. Each is tried once; the next heartbeat says the rest.
func (s *Session) goodbye(ctx context.Context) {
	defer s.end()
	if ctx.Err() != nil {
		return
	}
	try, cancel := context.WithTimeout(ctx, eventTimeout)
	defer cancel()
	if err := s.sendAck(s.takeAck())(try); err != nil {
		return
	}
	s.event.Lock()
	defer s.event.Unlock()
	s.mu.Lock()
	s.answered.n++
	n := s.answered.n
	s.mu.Unlock()
	_ = s.send(try, &compassv1.RunnerEvent{N: n, Event: &compassv1.RunnerEvent_SessionEnded_{
		SessionEnded: &compassv1.RunnerEvent_SessionEnded{Reason: "agent returned"},
	}})
}

func (s *Session) owesAck() (<-chan struct{}, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.commands.acks) > 0 {
		return nil, true
	}
	for _, c := range s.chains {
		if c.owesAck() {
			return nil, true
		}
	}
	return s.changed, false
}

func (s *Session) takeAck() *compassv1.Ack {
	s.mu.Lock()
	defer s.mu.Unlock()
	ack := &compassv1.Ack{Commands: s.commands.acks}
	s.commands.acks = nil
	for channel, c := range s.chains {
		if c.owesAck() {
			c.reack, c.unsaid = false, 0
			ack.Channels = append(ack.Channels, &compassv1.ChannelAck{ChannelId: channel, Pos: c.consumed})
		}
	}
	return ack
}

func (s *Session) acked(ack *compassv1.Ack) {
	for _, a := range ack.GetChannels() {
		s.mu.Lock()
		c := s.chainOf(a.GetChannelId())
		c.acked = max(c.acked, a.GetPos())
		s.mu.Unlock()
		s.tell(a.GetChannelId())
	}
}
