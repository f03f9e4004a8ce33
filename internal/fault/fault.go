package fault

import "time"

// Class says what the handler of an error should do. The order is the order of badness.
type Class int

const (
	// None is the class of a nil error.
	None Class = iota
	// ClassWaiting says that another party must move first; nothing is wrong.
	ClassWaiting
	// ClassTransient says to try again, later and less often. It is the class of every error that carries no fault.
	ClassTransient
	// ClassTerminal says that this input cannot work; trying again without a change of it is useless.
	ClassTerminal
	// ClassPoison says that this one delivery cannot be handled by anybody; set it aside and go on.
	ClassPoison
)

// String names the class as logs and metrics do.
func (c Class) String() string {
	switch c {
	case None:
		return "none"
	case ClassWaiting:
		return "waiting"
	case ClassTransient:
		return "transient"
	case ClassTerminal:
		return "terminal"
	case ClassPoison:
		return "poison"
	}
	return "unknown"
}

// fault is one classified error. Its text is the cause's: the class and the reason are for machines and conditions.
type fault struct {
	class   Class
	reason  string
	msg     string
	delay   time.Duration
	delayed bool
	told    bool
	cause   error
}

func (f *fault) Error() string {
	switch {
	case f.cause != nil:
		return f.cause.Error()
	case f.msg != "":
		return f.msg
	case f.reason != "":
		return f.reason
	}
	return f.class.String()
}

func (f *fault) Unwrap() error { return f.cause }

// Waiting says that somebody else must move first. The reason is a condition reason (WaitingFor…); the message is shown
// to users, so it names what is awaited and holds no times, counters or generated names.
func Waiting(reason, msg string) error {
	return &fault{class: ClassWaiting, reason: reason, msg: msg}
}

// Told is Waiting where whoever moves first is heard of, so that nobody need look again and again.
func Told(reason, msg string) error {
	return &fault{class: ClassWaiting, reason: reason, msg: msg, told: true}
}

// Terminal says that the input cannot work as it stands. It is a judgement of one generation, never a latch: if a change
// made by somebody else could cure it, it is Waiting.
func Terminal(reason string, err error) error {
	return &fault{class: ClassTerminal, reason: reason, cause: err}
}

// Transient adds a reason to an error that is worth trying again. It changes no class of an ordinary error, but hides
// that of a fault inside it.
func Transient(reason string, err error) error {
	return &fault{class: ClassTransient, reason: reason, cause: err}
}

// RetryAfter says that trying again is right, and not before d has passed. A negative d counts as zero.
func RetryAfter(d time.Duration, err error) error {
	return &fault{class: ClassTransient, delay: max(d, 0), delayed: true, cause: err, msg: "retry after " + d.String()}
}

// Poison says that this delivery can be handled by nobody and must be parked at once, without counting attempts.
func Poison(reason string, err error) error {
	return &fault{class: ClassPoison, reason: reason, cause: err}
}
