package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/rigelbuild/compass-operator/internal/telemetry"
)

const (
	// sayEvery is the longest silence while something is waited for.
	sayEvery = 8 * time.Second
	// lookTime bounds a look at the figures of the processes: one of them may be gone.
	lookTime = 5 * time.Second
)

// ahead is where a message is that has taken a hop and not the next one: what it waits for, and whose logs say why.
var ahead = map[string]struct{ waits, at string }{
	"":                    {"a Server commits it", "main-server"},
	telemetry.HopCommit:   {"the Server publishes its reference to JetStream", "main-server"},
	telemetry.HopPublish:  {"the worker sees the reference", workerDeployment},
	telemetry.HopHint:     {"the worker reads what is owed from Postgres", workerDeployment},
	telemetry.HopDrain:    {"the worker sends it to the Runner", workerDeployment},
	telemetry.HopDispatch: {"the Runner takes it", runnerDeployment},
	telemetry.HopTaken:    {"the Runner's agent acknowledges it", runnerDeployment},
	telemetry.HopAck:      {"the agent's answer has settled", runnerDeployment},
	sessionRunner:         {"a Runner takes the agent's session", runnerDeployment},
}

const (
	workerDeployment = "main-compass-delivery"
	runnerDeployment = "demo-runner"
	// sessionRunner is where the message has not set out: its agent has no session yet.
	sessionRunner = "session"
)

// watch says what is waited for while it is, so that a delivery that does not work is not silent.
type watch struct {
	out     io.Writer
	every   time.Duration
	metrics commands
	before  map[string]gained
	kubectl string // as somebody calls it for the namespace
}

// aloud runs wait. Its error says how far the message came and what to look at; at is where it is if no figures tell.
func (w watch) aloud(ctx context.Context, at string, wait func() error) error {
	began, stop, done := time.Now(), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(w.every)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				fmt.Fprintf(w.out, "%s %s … %v so far\n", time.Now().Format(time.TimeOnly), where(w.last(ctx, at)), time.Since(began).Round(time.Second))
			case <-stop:
				return
			}
		}
	}()
	err := wait()
	close(stop)
	<-done
	if err == nil {
		return nil
	}
	hop, other := w.last(ctx, at), ""
	if ahead[hop].at != workerDeployment { // a worker that is away is behind most of it
		other = fmt.Sprintf("\n  %s logs --tail=20 deployment/%s", w.kubectl, workerDeployment)
	}
	return fmt.Errorf("%s, for %v: %w\nlook at:\n  %[4]s get pods\n  %[4]s logs --tail=20 deployment/%[5]s%[6]s",
		where(hop), time.Since(began).Round(time.Second), err, w.kubectl, ahead[hop].at, other)
}

// where says what a message waits for that came as far as this, and its last hop.
func where(hop string) string {
	text := "waiting until " + ahead[hop].waits
	for _, o := range order {
		if o.hop == hop {
			text += " (last seen: " + o.says + ")"
		}
	}
	return text
}

// last is the last hop that a process has counted since the post; at where none has, or it cannot be asked.
func (w watch) last(ctx context.Context, at string) string {
	if at == sessionRunner {
		return at
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lookTime) // the time that is over is the message's
	defer cancel()
	now := w.metrics.readable(ctx)
	for _, o := range order {
		if now[o.hop].count > w.before[o.hop].count {
			at = o.hop
		}
	}
	return at
}

// readable are the hops of those processes that answer.
func (c commands) readable(ctx context.Context) map[string]gained {
	out := map[string]gained{}
	for _, one := range c {
		hops, err := commands{one}.hops(ctx)
		if err != nil {
			continue
		}
		for hop, g := range hops {
			out[hop] = gained{out[hop].count + g.count, out[hop].seconds + g.seconds}
		}
	}
	return out
}
