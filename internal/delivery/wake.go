package delivery

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/rigelbuild/compass-operator/internal/store"
)

// wakes remember when an agent was woken last, so that one that cannot start is not started all the time.
type wakes struct {
	mu   sync.Mutex
	next map[item]nap
}

type nap struct {
	until time.Time
	tries int
}

// due reports whether an agent may be woken now, and when it may be next.
func (w *wakes) due(it item, now time.Time) (bool, time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := w.next[it]
	if now.Before(n.until) {
		return false, n.until
	}
	if w.next == nil {
		w.next = map[item]nap{}
	}
	n.until = now.Add(min(wakeFirst<<min(n.tries, 10), wakeMost))
	n.tries++
	w.next[it] = n
	return true, n.until
}

func (w *wakes) forget(it item) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.next, it)
}

// prune forgets agents that were not woken for long.
func (w *wakes) prune(now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for it, n := range w.next {
		if now.After(n.until.Add(wakeMost)) {
			delete(w.next, it)
		}
	}
}

func (c *Consumer) wakeAll(ctx context.Context, t *tenant, agents []string) {
	for _, agent := range agents {
		c.wake(ctx, t, agent)
	}
}

// wake starts a session of an agent that is owed something, has none and wishes one. Once per agent at a time; without a
// Runner what is owed stays owed, and the agent is tried again after a growing pause. Its start is claimed by the Runner,
// and the claim is what marks the agent dirty.
func (c *Consumer) wake(ctx context.Context, t *tenant, agent string) {
	if c.o.Waker == nil {
		return
	}
	it := item{tenant: t.id, kind: itemAgent, id: agent}
	ok, next := c.wakes.due(it, c.clock.Now())
	if !ok {
		return // it is tried again when that pause is over
	}
	var owed bool
	err := c.step(ctx, func(ctx context.Context) (err error) {
		owed, err = c.reads.IsOwed(ctx, agent)
		return err
	})
	if err == nil && !owed {
		c.wakes.forget(it)
		return
	}
	c.later.at(item{tenant: t.id, kind: itemSession, id: agent}, whyRead, next)
	if err == nil {
		_, err = c.fence(t) // whoever is the writer now wakes it
	}
	if err == nil {
		err = c.step(ctx, func(ctx context.Context) error { return c.o.Waker.Wake(ctx, agent) })
	}
	result := "started"
	switch {
	case errors.Is(err, store.ErrConflict):
		result = "live"
	case errors.Is(err, store.ErrNoRunner):
		result = "no_runner"
	case err != nil:
		result = "failed"
		c.log.WarnContext(ctx, "Could not wake an agent", "tenant", t.id, "agent", agent, "error", err)
	}
	count(ctx, c.in.wakes, 1, "result", result)
}
