package store

import (
	"encoding/json"
	"errors"
	"fmt"
)

// AccountKind tells people from agents: agents have cursors and are delivered to, people read by subscribing.
type AccountKind string

// The kinds of an account.
const (
	KindPerson AccountKind = "person"
	KindAgent  AccountKind = "agent"
)

// Role is what an account may do inside its tenant.
type Role string

// The roles of an account.
const (
	RoleMember Role = "member"
	RoleAdmin  Role = "admin"
)

// Wake says what happens when something is owed to an agent that has no live session.
type Wake string

// WakeManual leaves its sessions to people; WakeOnOwed lets the delivery worker start one.
const (
	WakeManual Wake = "manual"
	WakeOnOwed Wake = "on_owed"
)

// Account is a person or an agent of one tenant.
type Account struct {
	ID              string
	Kind            AccountKind
	Role            Role
	Handle          string // unique in the tenant; what an @mention names
	DisplayName     string
	Wake            Wake
	CreatedAtUnixMs int64
	DeletedAtUnixMs int64 // 0 while it exists
}

// Channel is where messages live; it is seen by its members alone.
type Channel struct {
	ID              string
	Name            string // unique in the tenant
	Archived        bool
	CreatedBy       string
	CreatedAtUnixMs int64
}

// MessageKind tells ordinary messages from questions that wait for an answer, and the answers.
type MessageKind string

// The kinds of a message.
const (
	KindMessage MessageKind = "message"
	KindAsk     MessageKind = "ask"
	KindAnswer  MessageKind = "answer"
)

// Message is one message as Postgres has it. Seq, Rev and Pos are numbers of its channel's one order (K1): where it was
// made, where it last changed, where it became deliverable.
type Message struct {
	ID              string
	Channel         string
	Author          string
	Session         string // with Turn, the turn it was written in; both empty for people and outside a turn
	Turn            string
	Kind            MessageKind
	Seq             int64
	Rev             int64
	Pos             int64 // 0 while its turn is open: held
	Blocks          []Block
	ClientID        string // chosen by the author, unique per author: what makes a post idempotent
	CreatedAtUnixMs int64
	Ask             string // of an answer: its question
	Answer          string // of an answered question: its answer
}

// Held reports whether the message waits for its turn to settle; it is delivered to nobody until then (REQ-226).
func (m Message) Held() bool { return m.Pos == 0 }

// MessageRef names a message and the position it has: what identifies a delivery.
type MessageRef struct {
	ID  string
	Pos int64
}

// Touched is what one transaction made deliverable in one channel, in order of position. Never empty.
type Touched struct {
	Channel  string
	Messages []MessageRef
}

// Last is the newest of them: the one reference to publish for the channel, because a reference is a hint and the drain
// goes by position (K2).
func (t Touched) Last() MessageRef { return t.Messages[len(t.Messages)-1] }

// BlockType tells what a block holds.
type BlockType string

// The types of a block.
const (
	BlockText    BlockType = "text"
	BlockMention BlockType = "mention"
)

// Block is one piece of a message's content: text, or the handle of an account of the same tenant.
type Block struct {
	Type   BlockType
	Text   string // of BlockText
	Handle string // of BlockMention, without the @
}

// Text returns a block of text.
func Text(s string) Block { return Block{Type: BlockText, Text: s} }

// Mention returns a block that names an account.
func Mention(handle string) Block { return Block{Type: BlockMention, Handle: handle} }

// blockJSON is a block as column messages.blocks has it: an object with exactly one of the two.
type blockJSON struct {
	Text    *string `json:"text,omitempty"`
	Mention *string `json:"mention,omitempty"`
}

var errBlock = errors.New("a block holds text or a mention")

// MarshalJSON writes {"text":…} or {"mention":…}.
func (b Block) MarshalJSON() ([]byte, error) {
	switch b.Type {
	case BlockText:
		return json.Marshal(blockJSON{Text: &b.Text})
	case BlockMention:
		return json.Marshal(blockJSON{Mention: &b.Handle})
	}
	return nil, fmt.Errorf("%w: type %q", errBlock, b.Type)
}

// UnmarshalJSON reads what MarshalJSON writes, and nothing else.
func (b *Block) UnmarshalJSON(data []byte) error {
	var raw blockJSON
	if err := json.Unmarshal(data, &raw); err != nil {
		return fmt.Errorf("read block: %w", err)
	}
	switch {
	case raw.Text != nil && raw.Mention == nil:
		*b = Text(*raw.Text)
	case raw.Mention != nil && raw.Text == nil:
		*b = Mention(*raw.Mention)
	default:
		return errBlock
	}
	return nil
}

// Mentions returns the handles that the blocks name, in order, each once.
func Mentions(blocks []Block) []string {
	handles := make([]string, 0, len(blocks))
	seen := make(map[string]bool, len(blocks))
	for _, b := range blocks {
		if b.Type == BlockMention && !seen[b.Handle] {
			seen[b.Handle] = true
			handles = append(handles, b.Handle)
		}
	}
	return handles
}
