package delivery

import (
	"time"

	"github.com/rigelbuild/compass-operator/internal/store"
)

// A gate is the one ordered way to a session. It has a chain per channel; a chain is touched by whoever works the
// channel's item and by nobody else.
//
// chain is the sender's half of one (session generation, channel). Two numbers, never one (LowerBound):
//
//	disp    what we believe the Runner holds, the prev of the next link
//	acked   the agent's cursor: candidates come after the greater of the two
//
// It begins with disp at 0 and follows the Runner's word up or down. The first link after acked is a base, prev 0, which a
// session takes on top of whatever it holds below (FreshZero). A position never appears late (K1), so nothing can come
// between a link and its prev.
//
// A chain ends, and a new one begins at acked, with a new generation and with a new claim of the tenant (GateClaim). One
// that is dropped is no loss: to what it holds already a Runner answers with what it holds.
type chain struct {
	live  store.LiveSession
	claim int64
	acked int64
	disp  int64
	// looked is up to where everything was sent or is not for this chain; back at 0 after a rewind.
	looked int64
	flight []link // sent and not acknowledged, in order
	more   bool   // something waits behind looked

	hold    time.Time // nothing is sent before: a backoff, a Runner that is not there
	fails   int       // pauses in a row without a word of the session
	rewound time.Time // when the gate last went back, and to where
	back    int64
	doubt   time.Time // when to go back once more, unless something is taken before
}

// link is one command on its way. A resend carries the same prev, pos and id, and the fence of then.
type link struct {
	prev, pos int64
	id        string
	sent      time.Time
	taken     bool
}

// overdue reports whether the link was not taken in time.
func (l link) overdue(now time.Time, wait time.Duration) bool {
	return !l.taken && !l.sent.Add(wait).After(now)
}

// answer is what a Runner said of one chain.
type answer struct {
	session    string
	generation int64
	runner     string
	held       int64
	acked      int64
	refused    bool // a link did not fit, or was rejected: go back to held
	dropped    bool // the command did not get as far as a chain: its session is not there, or its fence was too low
	rejected   []rejection
	at         time.Time
}

// rejection is what a session said of one message.
type rejection struct {
	id     string
	pos    int64
	count  int
	reason string
}

func newChain(live store.LiveSession, claim, acked int64) *chain {
	return &chain{live: live, claim: claim, acked: acked}
}

// passed is up to where nothing needs to be listed.
func (ch *chain) passed() int64 { return max(ch.disp, ch.looked) }

// prev is what the next link must find: the one before it, or nothing where that is acknowledged.
func (ch *chain) prev() int64 {
	if ch.disp <= ch.acked {
		return 0
	}
	return ch.disp
}

// ack follows the cursor up: what is acknowledged is no longer in flight.
func (ch *chain) ack(acked int64) {
	ch.acked = max(ch.acked, acked)
	n := 0
	for n < len(ch.flight) && ch.flight[n].pos <= ch.acked {
		n++
	}
	ch.flight = ch.flight[n:]
}

func (ch *chain) room(window int) int { return window - len(ch.flight) }

// sentTo records a link that a subscriber of the Runner's was given.
func (ch *chain) sentTo(id string, pos int64, now time.Time) {
	ch.flight = append(ch.flight, link{prev: ch.prev(), pos: pos, id: id, sent: now})
	ch.disp = pos
	ch.looked = max(ch.looked, pos)
}

// unreachable holds the chain after a send that reached nobody. No attempt is counted: silence costs nothing (SilenceFree).
func (ch *chain) unreachable(now time.Time) {
	ch.hold = now.Add(retryAfter(ch.fails))
	ch.fails++
}

// apply follows the Runner, and reports how long the newly taken links took. Answers are applied between drains only: one
// applied in the middle would move disp under the links that are being sent (AnswersQueued).
func (ch *chain) apply(a answer) (taken []time.Duration) {
	for i := range ch.flight {
		l := &ch.flight[i]
		if l.pos <= a.held && !l.taken {
			l.taken = true
			taken = append(taken, a.at.Sub(l.sent))
		}
	}
	if len(taken) > 0 {
		ch.doubt = time.Time{}
	}
	if a.dropped {
		ch.drop(a.at)
		return taken
	}
	ch.fails = 0
	switch {
	case a.held > ch.disp: // it took what an earlier worker sent
		ch.disp, ch.looked, ch.more = a.held, max(ch.looked, a.held), true
	case !a.refused || a.held >= ch.disp:
	case a.held == ch.back && a.at.Before(ch.rewound.Add(rewindPause)):
		// Refusals of one gap come in a row, one for each link that was sent before the rewind.
		ch.doubt = ch.rewound.Add(rewindPause)
	default:
		ch.rewind(a.held, a.at)
	}
	ch.ack(a.acked)
	return taken
}

// rewind goes back to what the Runner holds, and sends again from there.
func (ch *chain) rewind(held int64, now time.Time) {
	n := len(ch.flight)
	for n > 0 && ch.flight[n-1].pos > held {
		n--
	}
	ch.flight = ch.flight[:n]
	ch.disp, ch.looked, ch.more = held, 0, true
	ch.rewound, ch.back, ch.doubt = now, held, time.Time{}
}

// again rewinds once more where a doubt has not been settled in time.
func (ch *chain) again(now time.Time) {
	if !ch.doubt.IsZero() && !now.Before(ch.doubt) && ch.back < ch.disp {
		ch.rewind(ch.back, now)
	}
	if !now.Before(ch.doubt) {
		ch.doubt = time.Time{}
	}
}

// drop takes back what never got to a chain of the Runner's, and waits a little longer each time: its session may be about
// to begin.
func (ch *chain) drop(now time.Time) {
	held := ch.acked
	for _, l := range ch.flight {
		if l.taken {
			held = l.pos
		}
	}
	if held < ch.disp {
		ch.rewind(held, now)
		ch.rewound = time.Time{}
		ch.unreachable(now)
	}
}

// probe lets the last link be sent again where all were taken and nothing was heard for long: the word that a message was
// rejected, and everything after it un-taken, may be lost, and would never be said again.
func (ch *chain) probe(now time.Time, after time.Duration) {
	if n := len(ch.flight); n > 0 && ch.resendAt(0).IsZero() && ch.flight[n-1].sent.Add(after).Before(now) {
		ch.flight[n-1].taken, ch.flight[n-1].sent = false, time.Time{}
	}
}

// overdue reports whether a link has been on its way for longer than wait without being taken.
func (ch *chain) overdue(now time.Time, wait time.Duration) bool {
	for _, l := range ch.flight {
		if l.overdue(now, wait) {
			return true
		}
	}
	return false
}

// resendAt is when the first link that was not taken is due again; zero: none. A link that was taken and is not
// acknowledged is not sent again in this generation, however long its turn takes.
func (ch *chain) resendAt(wait time.Duration) time.Time {
	var first time.Time
	for _, l := range ch.flight {
		if !l.taken && (first.IsZero() || l.sent.Add(wait).Before(first)) {
			first = l.sent.Add(wait)
		}
	}
	return first
}

// ready reports whether a drain would find something to do.
func (ch *chain) ready(now time.Time, window int, wait time.Duration) bool {
	return !now.Before(ch.hold) && (ch.more && ch.room(window) > 0 || ch.overdue(now, wait))
}

// wake is when the chain must be looked at again although nobody says so; zero: never. A full window is looked at too: the
// answer that told of an ack may be lost.
func (ch *chain) wake(now time.Time, window int, wait time.Duration) time.Time {
	at := earliest(ch.resendAt(wait), ch.doubt)
	switch {
	case ch.more && ch.room(window) > 0:
		at = earliest(at, latest(now, ch.hold))
	case ch.more:
		at = earliest(at, now.Add(wait))
	}
	if !at.IsZero() && at.Before(ch.hold) {
		at = ch.hold
	}
	return at
}

func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

func latest(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
