package store

// Binding is one session: one run of an agent on a Runner. It is current while it is live; a binding and its agent's
// placement change in one transaction, so a live binding is the one that the placement names (REQ-120, REQ-132).
type Binding struct {
	Session       string // ses_<tenant>_…, new for every start
	Agent         string
	Runner        string
	Fleet         string // where the Runner listens; empty where its lease is unknown in this database
	Incarnation   int64  // of the Runner at the start; any other ends the session (IncMismatch)
	Generation    int64  // rises with every start of the agent, by the clock, so also across a lossy failover
	Live          bool
	Claimed       bool   // the Runner has taken the start
	ClaimCounter  int64  // the Runner's heartbeat counter at the claim: an older heartbeat cannot end the session
	OpenTurn      string // empty for none
	LastN         int64  // the newest event taken; moved under the row lock alone (EventOrder)
	LastCommand   int64  // the newest command number given out
	BoundAtUnixMs int64
}

// SessionRef is how a Runner speaks of a session of its own. A session is found only if all three are the binding's: the
// id alone is no authority (REQ-116).
type SessionRef struct {
	Session    string
	Generation int64
	Runner     string
}

// Event numbers one call of a session, in order and without gaps: the Runner sends N+1 after the answer to N. An event
// whose N was taken before is a repeat and has no effect again (REQ-229).
type Event struct {
	Session    string
	Generation int64
	Runner     string
	N          int64
}

// Ref is whose event it is.
func (e Event) Ref() SessionRef {
	return SessionRef{Session: e.Session, Generation: e.Generation, Runner: e.Runner}
}

// CommandKind tells the commands beside the chain apart.
type CommandKind string

// The kinds of a session command. Starts are claimed and stops are read from the binding, so neither has a row.
const (
	CommandSteer   CommandKind = "steer"   // text by hand
	CommandMention CommandKind = "mention" // these three name a message and are backed by its owed_mentions row
	CommandAnswer  CommandKind = "answer"
	CommandReplay  CommandKind = "replay"
)

// SessionCommand is one command beside the chain. N is clock-based; Prev is the number before it in the same session, so
// that a gap shows (CmdChain). The Runner acknowledges it by (N, MessageID, Pos).
type SessionCommand struct {
	N         int64
	Prev      int64
	Kind      CommandKind
	MessageID string
	Pos       int64
	Text      string   // of a steer
	Message   *Message // the content of MessageID; nil where only the numbers were asked for
}

// CommandAck says that a command was consumed. Message and Pos are those of the command, and are compared: a number that
// a failover made free says nothing about the row that has it now (AckPos).
type CommandAck struct {
	N         int64
	MessageID string
	Pos       int64
}

// ChannelAck says that everything up to Pos that was sent in the channel's chain was consumed.
type ChannelAck struct {
	Channel string
	Pos     int64
}

// Runner is an enrolled Runner.
type Runner struct {
	ID          string
	Fleet       string // naming.SharedFleet or the tenant that it serves alone
	PublicKey   string // an nkey, U…
	Incarnation int64  // of its newest process; 0 before the first hello
}

// SessionState is what a Runner says in its heartbeat of one session, as of the last event that was answered (HbOrder).
type SessionState struct {
	Session    string
	Generation int64
	N          int64
	OpenTurn   string // empty for none
	Over       bool
}

// SessionOrders is what the answer to a heartbeat says of one session.
type SessionOrders struct {
	Session       string
	Generation    int64
	NewestCommand int64
	Unacked       []SessionCommand // without content
	Start         bool             // it waits to be claimed
	Stop          bool             // it is over as far as we know, or never was this Runner's
}

// How a turn was settled when its author did not do it, as turns.settled_by has it.
const (
	SettledByAuthor     = "author"
	SettledByHeartbeat  = "heartbeat"
	SettledBySessionEnd = "session_end"
	SettledByExpiry     = "expiry"
	SettledByMaxAge     = "max_age"
)
