package fault

import "time"

// ClassOf returns the class of err as the package comment defines it; None for nil.
func ClassOf(err error) Class { return judge(err).class }

// IsWaiting reports whether all that err says is that somebody else must move first.
func IsWaiting(err error) bool { return ClassOf(err) == ClassWaiting }

// IsTransient reports whether err is worth trying again; true of every error without a fault.
func IsTransient(err error) bool { return ClassOf(err) == ClassTransient }

// IsTerminal reports whether err cannot be cured by trying again.
func IsTerminal(err error) bool { return ClassOf(err) == ClassTerminal }

// IsPoison reports whether the delivery that err is about must be parked.
func IsPoison(err error) bool { return ClassOf(err) == ClassPoison }

// ReasonOf returns the reason of the fault that decides the class of err, "" if there is none. A fault without a reason
// of its own (RetryAfter) answers with that of its cause.
func ReasonOf(err error) string { return judge(err).reason }

// DelayOf returns how long to wait before trying again, if err is transient and a RetryAfter says so. Of several in a
// joined error the longest wins: each asked not to be tried sooner.
func DelayOf(err error) (time.Duration, bool) {
	v := judge(err)
	return v.delay, v.delayed
}

// IsTold reports whether all that err says is that somebody else must move first, of whom word will come.
func IsTold(err error) bool { return judge(err).told }

// verdict is what one branch of an error tree amounts to.
type verdict struct {
	class   Class
	reason  string
	delay   time.Duration
	delayed bool
	told    bool
}

func judge(err error) verdict {
	if err == nil {
		return verdict{}
	}
	if f, ok := err.(*fault); ok { //nolint:errorlint // the walk unwraps by itself, to see every branch
		return f.verdict()
	}
	switch e := err.(type) { //nolint:errorlint // as above
	case interface{ Unwrap() error }:
		if inner := e.Unwrap(); inner != nil {
			return judge(inner)
		}
	case interface{ Unwrap() []error }:
		return worst(e.Unwrap())
	}
	return verdict{class: ClassTransient}
}

func (f *fault) verdict() verdict {
	v := verdict{class: f.class, reason: f.reason, delay: f.delay, delayed: f.delayed, told: f.told}
	if f.class != ClassTransient {
		return v
	}
	// RetryAfter adds a delay and Transient a reason; each keeps what the other said further in.
	inner := judge(f.cause)
	if v.reason == "" {
		v.reason = inner.reason
	}
	if !v.delayed && inner.class == ClassTransient {
		v.delay, v.delayed = inner.delay, inner.delayed
	}
	return v
}

func worst(errs []error) verdict {
	var w verdict
	for _, err := range errs {
		v := judge(err)
		switch {
		case v.class > w.class:
			w = v
		case v.class == w.class:
			if w.reason == "" {
				w.reason = v.reason
			}
			w.delay, w.delayed, w.told = max(w.delay, v.delay), w.delayed || v.delayed, w.told && v.told
		}
	}
	if w.class == None { // an empty join is still an error
		w.class = ClassTransient
	}
	return w
}
