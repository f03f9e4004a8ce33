package delivery

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// watch sees whether the workers move. A process whose loop hangs would renew its lease from another goroutine for ever,
// and nobody would be served; so it is told, and exits.
type watch struct {
	mu   sync.Mutex
	busy map[int]time.Time // worker → when it last moved
}

// workerKey carries the number of a worker in its context.
type workerKey struct{}

func (w *watch) moved(ctx context.Context, now time.Time) {
	i, ok := ctx.Value(workerKey{}).(int)
	if !ok {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.busy == nil {
		w.busy = map[int]time.Time{}
	}
	w.busy[i] = now
}

func (w *watch) idle(ctx context.Context) {
	i, ok := ctx.Value(workerKey{}).(int)
	if !ok {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.busy, i)
}

// stalled returns how long the slowest worker has not moved.
func (w *watch) stalled(now time.Time) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	var longest time.Duration
	for _, since := range w.busy {
		longest = max(longest, now.Sub(since))
	}
	return longest
}

// watchdog calls Options.Stall once when a worker has not moved for StallAfter.
func (c *Consumer) watchdog(ctx context.Context) {
	for ctx.Err() == nil {
		c.pause(ctx, c.o.StallAfter/4)
		if d := c.watch.stalled(c.clock.Now()); d >= c.o.StallAfter {
			c.log.ErrorContext(ctx, "A worker hangs", "for", d)
			c.o.Stall(fmt.Sprintf("a worker has not moved for %v", d))
			return
		}
	}
}
