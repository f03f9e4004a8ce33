package delivery

import (
	"errors"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"

	compassv1 "github.com/rigelbuild/compass-operator/api/proto/compass/v1"
)

// Options are the rest of a worker's parts. Stream, Writes, Leases, DeadLetters and OpenProof are required.
type Options struct {
	Stream string

	Writes      Writes
	Leases      Leases
	DeadLetters DeadLetters
	// OpenProof returns the command inside if one of our keys signed it; fabric.CommandKeys.Open.
	OpenProof func(*compassv1.SessionsResponse) (*compassv1.Command, error)

	Notes WorkerNotes // optional: nobody to listen to
	Waker Waker       // optional: agents sleep on
	// Backlog counts what is owed, held and set aside, for gauges; optional.
	Backlog BacklogReads

	// MaxDeliver is how many attempts a delivery has, default 5; Backoff the pauses between them, default 1s, 5s, 30s, the
	// last repeats. AckWait is how long a command may stay without being taken before it is sent again, default 30 s.
	MaxDeliver int
	Backoff    []time.Duration
	AckWait    time.Duration

	// FloorTick is how often everything that is owed is visited, default 2 min; the visits are spread over it in Parts,
	// default 16, by tenant. Placements is how often moves are looked for, default 5 s.
	FloorTick  time.Duration
	Parts      int
	Placements time.Duration

	// Workers is how many items are looked at at once, default 8. A tenant never holds the last of them.
	Workers int
	// Window is how many commands of one chain may be unacknowledged, default 16.
	Window int
	// StepTimeout bounds one call to Postgres or NATS, default 5 s. Drain bounds the work that is finished on the way out,
	// default 10 s.
	StepTimeout time.Duration
	Drain       time.Duration
	// Stall is called, once, when a worker has not moved for StallAfter, default 15 s: a process that hangs must not keep
	// its lease alive. A process exits there. Default: only logged.
	Stall      func(what string)
	StallAfter time.Duration

	Clock Clock                // default SystemClock
	Meter metric.MeterProvider // default: none
}

const (
	// retryFirst and retryMost bound the pauses after a failure that is nobody's attempt: an outage, a frozen tenant, a Runner
	// that is not there.
	retryFirst = 100 * time.Millisecond
	retryMost  = 5 * time.Second
	// rewindPause keeps the refusals of one gap, which come in a row, from rewinding the gate once each.
	rewindPause = 250 * time.Millisecond
	// foreignTTL is how long a tenant is remembered as another stream's, or as unknown.
	foreignTTL = 5 * time.Second
	// agentPage is how many owed rows of one agent are looked at at once.
	agentPage = 100
	// rowPage is how many references are resolved at once; rowsMax how many of one tenant wait before they become a sweep
	// of the tenant.
	rowPage = 256
	rowsMax = 4096
	// rejectsKept is how long a rejection is remembered after the last one of its session.
	rejectsKept = time.Hour
	// wakeFirst and wakeMost bound how often one agent is woken.
	wakeFirst = time.Second
	wakeMost  = time.Minute
)

func (o Options) withDefaults() (Options, error) {
	var missing []error
	for what, absent := range map[string]bool{
		"Stream": o.Stream == "", "Writes": o.Writes == nil, "Leases": o.Leases == nil,
		"DeadLetters": o.DeadLetters == nil, "OpenProof": o.OpenProof == nil,
	} {
		if absent {
			missing = append(missing, fmt.Errorf("%s is missing", what))
		}
	}
	if len(missing) > 0 {
		return o, errors.Join(missing...)
	}
	setDefault(&o.MaxDeliver, 5)
	setDefault(&o.AckWait, 30*time.Second)
	setDefault(&o.FloorTick, 2*time.Minute)
	setDefault(&o.Parts, 16)
	setDefault(&o.Placements, 5*time.Second)
	setDefault(&o.Workers, 8)
	setDefault(&o.Window, 16)
	setDefault(&o.StepTimeout, 5*time.Second)
	setDefault(&o.Drain, 10*time.Second)
	setDefault(&o.StallAfter, 15*time.Second)
	if len(o.Backoff) == 0 {
		o.Backoff = []time.Duration{time.Second, 5 * time.Second, 30 * time.Second}
	}
	if o.Clock == nil {
		o.Clock = SystemClock{}
	}
	if o.Meter == nil {
		o.Meter = noop.NewMeterProvider()
	}
	if o.Stall == nil {
		o.Stall = func(string) {}
	}
	return o, nil
}

// backoff is the pause after the n-th failed attempt.
func (o Options) backoff(n int) time.Duration { return o.Backoff[min(max(n, 1), len(o.Backoff))-1] }

// retryAfter is the pause after the n-th failure in a row that is nobody's attempt.
func retryAfter(n int) time.Duration { return min(retryFirst<<min(n, 10), retryMost) }

func setDefault[T comparable](v *T, def T) {
	var zero T
	if *v == zero {
		*v = def
	}
}
