package delivery

import (
	"context"
	"sync"

	"github.com/rigelbuild/compass-operator/internal/fabric"
)

// letters are announcements of dead letters that are still to be made. Losing one loses no truth: the row in dead_letters
// is what is listed, replayed and purged.
type letters struct {
	mu      sync.Mutex
	waiting []fabric.DeadLetter
	news    chan struct{}
}

// lettersMax bounds what waits while the dead-letter stream is away; the oldest is given up first.
const lettersMax = 1000

func newLetters() letters { return letters{news: make(chan struct{}, 1)} }

func (l *letters) add(d fabric.DeadLetter) (gaveUp bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if gaveUp = len(l.waiting) >= lettersMax; gaveUp {
		l.waiting = l.waiting[1:]
	}
	l.waiting = append(l.waiting, d)
	poke(l.news)
	return gaveUp
}

func (l *letters) take() (fabric.DeadLetter, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.waiting) == 0 {
		return fabric.DeadLetter{}, false
	}
	d := l.waiting[0]
	l.waiting = l.waiting[1:]
	return d, true
}

func (l *letters) putBack(d fabric.DeadLetter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting = append([]fabric.DeadLetter{d}, l.waiting...)
}

// announceLoop makes the announcements, in order, until ctx ends. It is beside the workers: a dead-letter stream that is
// away delays no delivery.
func (c *Consumer) announceLoop(ctx context.Context) {
	for fails := 0; ; {
		d, ok := c.letters.take()
		if !ok {
			select {
			case <-ctx.Done():
				return
			case <-c.letters.news:
				continue
			}
		}
		try, cancel := context.WithTimeout(ctx, c.o.StepTimeout)
		err := c.o.DeadLetters.Announce(try, c.o.Stream, d)
		cancel()
		if err == nil {
			fails = 0
			continue
		}
		if ctx.Err() != nil {
			return
		}
		c.log.WarnContext(ctx, "Could not announce a dead letter", "tenant", d.Ref.Tenant, "message", d.Ref.RowID, "error", err)
		if fails++; fails < lettersTries {
			c.letters.putBack(d)
		} else {
			fails = 0
			c.in.unannounced.Add(ctx, 1)
		}
		c.pause(ctx, retryAfter(fails))
	}
}

// lettersTries is how often one announcement is tried.
const lettersTries = 10
