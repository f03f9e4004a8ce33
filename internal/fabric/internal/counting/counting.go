package counting

import (
	"errors"
	"fmt"
	"time"

	"github.com/rigelbuild/compass-operator/internal/fault"
)

// Outcome is what becomes of one delivery; also the value of a metric's attribute.
type Outcome string

// The outcomes.
const (
	Ack   Outcome = "acked"
	Retry Outcome = "retried" // asked for by RetryAfter: excused
	Nak   Outcome = "failed"  // counted
	Park  Outcome = "parked"
)

// Why a reference was parked, as its dead letter says it.
const (
	ReasonUndecodable = "Undecodable"
	ReasonUnknownKind = "UnknownKind"
	ReasonExhausted   = "Exhausted"
	ReasonUnanswered  = "Unanswered"
	ReasonPoison      = "Poison"
)

// ErrUnanswered stands in for the error that a process which died could not tell.
var ErrUnanswered = errors.New("delivered again and again without an answer: processes died on it or were too slow")

// Verdict is a decision about one delivery.
type Verdict struct {
	Outcome Outcome
	Delay   time.Duration // of Retry and Nak
	Reason  string        // of Park
	Err     error
}

// Record is what a process remembers of a reference that it has put off. It lives as long as the reference does, so there
// are never more of them than unanswered references (MaxAckPending).
type Record struct {
	Excused int      // naks by RetryAfter: they count no attempt
	Parking *Verdict // decided, but the dead letter could not be stored yet: the callback is not asked again
}

// Rules are the numbers by which references are judged. Backoff must not be empty.
type Rules struct {
	MaxDeliver int
	Backoff    []time.Duration
}

// OnEntry decides before the callback is asked; ask means that it should be. delivered counts this delivery too; known is
// nil where this process has put the reference off never.
func (r Rules) OnEntry(delivered int, known *Record) (v Verdict, ask bool) {
	switch {
	case known != nil && known.Parking != nil:
		return *known.Parking, false
	case known == nil && delivered > r.MaxDeliver:
		return Verdict{Outcome: Park, Reason: ReasonUnanswered, Err: ErrUnanswered}, false
	}
	return Verdict{}, true
}

// OnReturn decides by what the callback returned.
func (r Rules) OnReturn(delivered int, known *Record, err error) Verdict {
	attempts := r.Attempts(delivered, known)
	delay, asked := fault.DelayOf(err)
	switch {
	case err == nil:
		return Verdict{Outcome: Ack}
	case fault.IsPoison(err):
		reason := fault.ReasonOf(err)
		if reason == "" {
			reason = ReasonPoison
		}
		return Verdict{Outcome: Park, Reason: reason, Err: err}
	case asked: // a delay of nothing would be redelivered at once and spin
		return Verdict{Outcome: Retry, Delay: max(delay, time.Millisecond), Err: err}
	case attempts >= r.MaxDeliver:
		return Verdict{Outcome: Park, Reason: ReasonExhausted, Err: err}
	}
	return Verdict{Outcome: Nak, Delay: r.After(attempts), Err: err}
}

// Attempts is how many deliveries count: all but those that RetryAfter excused in this process.
func (r Rules) Attempts(delivered int, known *Record) int {
	if known != nil {
		delivered -= known.Excused
	}
	return max(delivered, 1)
}

// After is the delay behind the n-th attempt, counted from 1; the last value of the schedule repeats.
func (r Rules) After(n int) time.Duration { return r.Backoff[min(n, len(r.Backoff))-1] }

// Guard calls fn and makes a panic an error, so that it is counted like any other failure.
func Guard(fn func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("callback panic: %v", p)
		}
	}()
	return fn()
}
