package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/rigelbuild/compass-operator/internal/telemetry"
)

const (
	// sayEvery and the look at the figures before it are the longest silence while something is waited for: 8 s at most.
	sayEvery = 5 * time.Second
	// lookTime bounds a look at the figures of the processes: one of them may be gone, or stand still.
	lookTime = 2 * time.Second
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
	hop, silent := w.last(ctx, at)
	other := ""
	if ahead[hop].at != workerDeployment { // a worker that is away is behind most of it
		other = fmt.Sprintf("\n  %s logs --tail=20 deployment/%s", w.kubectl, workerDeployment)
	}
	return fmt.Errorf("%s, for %v: %w\nlook at:\n  %[4]s get pods\n  %[4]s logs --tail=20 deployment/%[5]s%[6]s",
		where(hop, silent), time.Since(began).Round(time.Second), err, w.kubectl, ahead[hop].at, other)
}

// where says what a message waits for that came as far as this, its last hop, and who does not show figures.
func where(hop string, silent int) string {
	text := "waiting until " + ahead[hop].waits
	for _, o := range order {
		if o.hop == hop {
			text += " (last seen: " + o.says + ")"
		}
	}
	if silent > 0 {
		text += fmt.Sprintf(" (%d of the processes show no figures: away, or standing still)", silent)
	}
	return text
}

// last is the last hop that a process has counted since the post, at where none has, and how many processes did not tell.
func (w watch) last(ctx context.Context, at string) (hop string, silent int) {
	if at == sessionRunner {
		return at, 0
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lookTime) // the time that is over is the message's
	defer cancel()
	now, silent := w.metrics.readable(ctx)
	for _, o := range order {
		if now[o.hop].count > w.before[o.hop].count {
			at = o.hop
		}
	}
	return at, silent
}

// readable are the hops of those processes that answer, asked all at once, and how many do not.
func (c commands) readable(ctx context.Context) (out map[string]gained, silent int) {
	out = map[string]gained{}
	answers := make(chan map[string]gained)
	for _, one := range c {
		go func() {
			hops, err := commands{one}.hops(ctx)
			if err != nil {
				hops = nil
			}
			answers <- hops
		}()
	}
	for range c {
		hops := <-answers
		if hops == nil {
			silent++
		}
		for hop, g := range hops {
			out[hop] = gained{out[hop].count + g.count, out[hop].seconds + g.seconds}
		}
	}
	return out, silent
}
