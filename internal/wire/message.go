package wire

import (
	"errors"
	"fmt"
	"unicode/utf8"

	compassv1 "github.com/rigelbuild/compass-operator/api/proto/compass/v1"
	"github.com/rigelbuild/compass-operator/internal/naming"
	"github.com/rigelbuild/compass-operator/internal/store"
)

// ErrShape is matched by every refusal of what a client sent; its text is for the client.
var ErrShape = errors.New("invalid request")

// MaxBlocks is how many blocks one message may have.
const MaxBlocks = 256

// Message is a stored message as the API shows it. The turn is named only while it is open: afterwards nothing may change
// the message any more and the turn is nobody's business.
func Message(m store.Message) *compassv1.Message {
	out := &compassv1.Message{
		Id: m.ID, ChannelId: m.Channel, AuthorId: m.Author, Kind: messageKind(m.Kind), Blocks: Blocks(m.Blocks),
		Seq: m.Seq, Rev: m.Rev, Pos: m.Pos, CreatedAtUnixMs: m.CreatedAtUnixMs,
		AnswerId: m.Answer, AskId: m.Ask,
	}
	if m.Held() {
		out.TurnId = m.Turn
	}
	return out
}

// Messages is Message for each.
func Messages(ms []store.Message) []*compassv1.Message {
	out := make([]*compassv1.Message, len(ms))
	for i, m := range ms {
		out[i] = Message(m)
	}
	return out
}

// Blocks is a message's content as the API shows it.
func Blocks(blocks []store.Block) []*compassv1.Block {
	out := make([]*compassv1.Block, len(blocks))
	for i, b := range blocks {
		if b.Type == store.BlockMention {
			out[i] = &compassv1.Block{Content: &compassv1.Block_Mention{Mention: b.Handle}}
			continue
		}
		out[i] = &compassv1.Block{Content: &compassv1.Block_Text{Text: b.Text}}
	}
	return out
}

// FromBlocks checks what a client sent as content: at least one block, at most MaxBlocks, each with text or a mention.
// Whether a mentioned handle exists is for routing to find out; an unknown one is text that reaches nobody. Errors match
// ErrShape.
func FromBlocks(blocks []*compassv1.Block) ([]store.Block, error) {
	if len(blocks) == 0 || len(blocks) > MaxBlocks {
		return nil, fmt.Errorf("%w: %d blocks, allowed are 1 to %d", ErrShape, len(blocks), MaxBlocks)
	}
	out := make([]store.Block, len(blocks))
	for i, b := range blocks {
		block, err := fromBlock(b)
		if err != nil {
			return nil, fmt.Errorf("block %d: %w", i, err)
		}
		out[i] = block
	}
	return out, nil
}

func fromBlock(b *compassv1.Block) (store.Block, error) {
	switch content := b.GetContent().(type) {
	case *compassv1.Block_Text:
		return store.Text(content.Text), validText(content.Text)
	case *compassv1.Block_Mention:
		return store.Mention(content.Mention), Handle(content.Mention)
	}
	return store.Block{}, fmt.Errorf("%w: neither text nor mention", ErrShape)
}

// validText refuses what Postgres cannot keep in jsonb: the zero character. protobuf refuses invalid UTF-8, JSON does not
// reach us with it; it is checked all the same because a frame may come over NATS.
func validText(s string) error {
	if !utf8.ValidString(s) {
		return fmt.Errorf("%w: text is not UTF-8", ErrShape)
	}
	for i := range len(s) {
		if s[i] == 0 {
			return fmt.Errorf("%w: text has a zero character", ErrShape)
		}
	}
	return nil
}

func messageKind(k store.MessageKind) compassv1.MessageKind {
	switch k {
	case store.KindMessage:
		return compassv1.MessageKind_MESSAGE_KIND_MESSAGE
	case store.KindAsk:
		return compassv1.MessageKind_MESSAGE_KIND_ASK
	case store.KindAnswer:
		return compassv1.MessageKind_MESSAGE_KIND_ANSWER
	}
	return compassv1.MessageKind_MESSAGE_KIND_UNSPECIFIED
}

// ClientID refuses what cannot make a post idempotent: 1 to 128 characters, none of them a control character.
func ClientID(s string) error { return printable("client_id", s, 128) }

// ID refuses what is no id of that kind; use naming's …Prefix constants. A wrong id is refused like an unknown one would
// be, by the caller, because which ids exist is nobody's business (REQ-090).
func ID(prefix, s string) error {
	if err := naming.ValidID(prefix, s); err != nil {
		return fmt.Errorf("%w: %w", ErrShape, err)
	}
	return nil
}
