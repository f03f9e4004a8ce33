package runner

import (
	"context"
	"errors"

	compassv1 "github.com/rigelbuild/compass-operator/api/proto/compass/v1"
)

// Agent is what runs in a session. It ends the session by returning; the context ends when the session is over.
//
// Between turns it calls Next and says Done with each item after the consequence, not before: a crash between the two is
// the one case in which a later generation sees the message again.
type Agent func(ctx context.Context, s *Session) error

// ErrOver is returned by a session's methods when the session has ended.
var ErrOver = errors.New("session is over")

// Item is one thing for the agent: a message of a channel, or a command beside the chain.
type Item struct {
	// Message is nil for a steer by hand.
	Message *compassv1.Message
	// Steer says that it came beside the chain: it may interrupt a turn.
	Steer bool
	// Text of a steer by hand.
	Text string

	command *compassv1.SessionCommand
}

// Next waits for the next item: commands first, then deliveries in the order of positions.
func (s *Session) Next(ctx context.Context) (Item, error) {
	return s.wait(ctx, true)
}

// NextSteer waits for the next command. Inside a turn an agent takes nothing else.
func (s *Session) NextSteer(ctx context.Context) (Item, error) {
	return s.wait(ctx, false)
}

func (s *Session) wait(ctx context.Context, deliveries bool) (Item, error) {
	for {
		item, ok, changed := s.pop(deliveries)
		if ok {
			return item, nil
		}
		select {
		case <-changed:
		case <-s.over:
			return Item{}, ErrOver
		case <-ctx.Done():
			return Item{}, ctx.Err()
		}
	}
}

// pop takes the next item, or returns the channel that is closed when there may be one.
func (s *Session) pop(deliveries bool) (Item, bool, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if cmd := s.commands.next(); cmd != nil {
		return Item{Message: cmd.GetMessage(), Steer: true, Text: cmd.GetText(), command: cmd}, true, nil
	}
	if deliveries && len(s.inbox) > 0 {
		m := s.inbox[0]
		s.inbox = s.inbox[1:]
		return Item{Message: m}, true, nil
	}
	return Item{}, false, s.changed
}

// Done says that the item had its consequence. The ack follows within the coalescing time.
func (s *Session) Done(item Item) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case item.command != nil:
		s.commands.consume(item.command)
	case item.Message != nil:
		s.chainOf(item.Message.GetChannelId()).consume(item.Message.GetPos())
	}
	s.signal()
}

// Reject says that the agent cannot take the delivery. The worker counts an attempt and, after its back-off, sends it again
// until its attempts are used up. What was taken after it in the channel is dropped and comes again.
func (s *Session) Reject(item Item, reason string) {
	m := item.Message
	if m == nil || item.Steer {
		return
	}
	s.mu.Lock()
	s.chainOf(m.GetChannelId()).reject(m, reason)
	kept := s.inbox[:0]
	for _, other := range s.inbox {
		if other.GetChannelId() != m.GetChannelId() {
			kept = append(kept, other)
		}
	}
	s.inbox = kept
	s.mu.Unlock()
	s.tell(m.GetChannelId())
}
