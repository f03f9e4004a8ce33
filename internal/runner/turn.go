package runner

import (
	"context"
	"fmt"

	compassv1 "github.com/rigelbuild/compass-operator/api/proto/compass/v1"
)

// Turn is the stretch in which an agent writes. Its messages may change until it settles, and nobody is delivered any of
// them before that; asks are deliverable at once.
type Turn struct {
	s    *Session
	id   string
	made int
}

// Turn runs fn inside a new turn and settles it when fn returns nil. Where fn fails, the turn stays open: what was written
// is not whole. The next turn, the session's end or its expiry settles it.
func (s *Session) Turn(ctx context.Context, fn func(ctx context.Context, t *Turn) error) error {
	s.mu.Lock()
	t := &Turn{s: s, id: fmt.Sprintf("turn-%d", s.answered.n+1)}
	s.mu.Unlock()
	if err := fn(ctx, t); err != nil {
		return err
	}
	if t.made == 0 {
		return nil // nobody ever heard of it
	}
	return s.numbered(ctx, "", func(ctx context.Context, n int64) error {
		return s.send(ctx, &compassv1.RunnerEvent{N: n, Event: &compassv1.RunnerEvent_TurnSettled_{
			TurnSettled: &compassv1.RunnerEvent_TurnSettled{TurnId: t.id},
		}})
	})
}

// Post writes a message into the turn. It is held until the turn settles.
func (t *Turn) Post(ctx context.Context, channel string, blocks ...*compassv1.Block) (*compassv1.Message, error) {
	return t.relay(ctx, func(q *compassv1.RelayCommsCallRequest, clientID string) {
		q.Call = &compassv1.RelayCommsCallRequest_Post{Post: &compassv1.RelayPost{ChannelId: channel, ClientId: clientID, Blocks: blocks}}
	})
}

// Update replaces the blocks of one of the turn's messages.
func (t *Turn) Update(ctx context.Context, message string, blocks ...*compassv1.Block) (*compassv1.Message, error) {
	return t.relay(ctx, func(q *compassv1.RelayCommsCallRequest, _ string) {
		q.Call = &compassv1.RelayCommsCallRequest_Update{Update: &compassv1.RelayUpdate{MessageId: message, Blocks: blocks}}
	})
}

// Append adds blocks to one of the turn's messages.
func (t *Turn) Append(ctx context.Context, message string, blocks ...*compassv1.Block) (*compassv1.Message, error) {
	return t.relay(ctx, func(q *compassv1.RelayCommsCallRequest, _ string) {
		q.Call = &compassv1.RelayCommsCallRequest_Update{Update: &compassv1.RelayUpdate{MessageId: message, Blocks: blocks, Append: true}}
	})
}

// Frame writes a piece of a message as it is generated: the first frame under a name posts the message, later ones replace
// or append to it.
func (t *Turn) Frame(ctx context.Context, channel, name string, appending bool, blocks ...*compassv1.Block) (*compassv1.Message, error) {
	var message *compassv1.Message
	err := t.s.numbered(ctx, t.id, func(ctx context.Context, n int64) error {
		answer, err := t.s.runner.server.CommitConversationFrame(ctx, request(&compassv1.CommitConversationFrameRequest{
			RunnerId: t.s.runner.id, SessionId: t.s.ID, Generation: t.s.generation, N: n, TurnId: t.id,
			ChannelId: channel, ClientId: t.s.ID + "/" + t.id + "/" + name, Blocks: blocks, Append: appending,
		}))
		if err == nil {
			message = answer.Msg.GetMessage()
		}
		return err
	})
	if err == nil {
		t.made++
	}
	return message, err
}

// Ask posts a question, deliverable at once, and waits for its answer. Other steers that come meanwhile are handed to
// other, which says Done with them.
func (t *Turn) Ask(ctx context.Context, channel string, other func(Item), blocks ...*compassv1.Block) (*compassv1.Message, error) {
	ask, err := t.relay(ctx, func(q *compassv1.RelayCommsCallRequest, clientID string) {
		q.Call = &compassv1.RelayCommsCallRequest_Ask{Ask: &compassv1.RelayAsk{ChannelId: channel, ClientId: clientID, Blocks: blocks}}
	})
	if err != nil {
		return nil, err
	}
	for {
		item, err := t.s.NextSteer(ctx)
		if err != nil {
			return nil, err
		}
		if item.Message.GetAskId() == ask.GetId() {
			t.s.Done(item)
			return item.Message, nil
		}
		other(item)
	}
}

// Respond answers somebody's question.
func (t *Turn) Respond(ctx context.Context, ask string, blocks ...*compassv1.Block) (*compassv1.Message, error) {
	return t.relay(ctx, func(q *compassv1.RelayCommsCallRequest, clientID string) {
		q.Call = &compassv1.RelayCommsCallRequest_Respond{Respond: &compassv1.RelayRespond{AskId: ask, ClientId: clientID, Blocks: blocks}}
	})
}

// relay makes one call of the turn. The client id is derived from session and event number, so a repeat of the call finds
// the first one.
func (t *Turn) relay(ctx context.Context, fill func(q *compassv1.RelayCommsCallRequest, clientID string)) (*compassv1.Message, error) {
	var message *compassv1.Message
	err := t.s.numbered(ctx, t.id, func(ctx context.Context, n int64) error {
		q := &compassv1.RelayCommsCallRequest{
			RunnerId: t.s.runner.id, SessionId: t.s.ID, Generation: t.s.generation, N: n, TurnId: t.id,
		}
		fill(q, fmt.Sprintf("%s/%d", t.s.ID, n))
		answer, err := t.s.runner.server.RelayCommsCall(ctx, request(q))
		if err != nil {
			return err
		}
		message = answer.Msg.GetMessage()
		return nil
	})
	if err == nil {
		t.made++
	}
	return message, err
}

// Text is a block of text.
func Text(s string) *compassv1.Block {
	return &compassv1.Block{Content: &compassv1.Block_Text{Text: s}}
}

// Mention is a block that names an account by its handle.
func Mention(handle string) *compassv1.Block {
	return &compassv1.Block{Content: &compassv1.Block_Mention{Mention: handle}}
}
