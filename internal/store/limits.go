package store

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// Limits bound what one tenant takes from the database in this process (REQ-106).
type Limits struct {
	// StatementTimeout ends a statement of the tenant; zero means the default, 5 s.
	StatementTimeout time.Duration
	// Transactions is how many the tenant may have at once; the next one waits for its turn, or for its context. Zero means
	// the default, 10. However many, a quarter of the app pool's connections is left to others.
	Transactions int
}

// share is how many connections of the app pool one tenant may have, whatever its limit.
func (c Config) share() int { return max(1, int(c.MaxConns)*3/4) }

// DefaultLimits are those of a CompassTenant that states none.
var DefaultLimits = Limits{StatementTimeout: 5 * time.Second, Transactions: 10}

func (l Limits) orDefault() Limits {
	if l.StatementTimeout <= 0 {
		l.StatementTimeout = DefaultLimits.StatementTimeout
	}
	if l.Transactions <= 0 {
		l.Transactions = DefaultLimits.Transactions
	}
	return l
}

// turnstile lets each tenant have so many transactions at once, first come first served. It holds an entry only for
// tenants that are inside or waiting.
type turnstile struct {
	mu      sync.Mutex
	tenants map[TenantID]*queue
}

type queue struct {
	inside  int
	waiting []chan struct{}
}

// enter waits for a place and returns how to leave, to be called once.
func (t *turnstile) enter(ctx context.Context, id TenantID, limit int) (leave func(), err error) {
	t.mu.Lock()
	q := t.tenants[id]
	if q == nil {
		q = &queue{}
		if t.tenants == nil {
			t.tenants = map[TenantID]*queue{}
		}
		t.tenants[id] = q
	}
	leave = func() { t.leave(id, q) }
	if q.inside < limit && len(q.waiting) == 0 {
		q.inside++
		t.mu.Unlock()
		return leave, nil
	}
	turn := make(chan struct{})
	q.waiting = append(q.waiting, turn)
	t.mu.Unlock()

	select {
	case <-turn: // the place was handed over: inside already counts it
		return leave, nil
	case <-ctx.Done():
		t.abandon(id, q, turn)
		return nil, fmt.Errorf("%w: the tenant has %d transactions open and none ended in time: %w", ErrTimeout, limit, ctx.Err())
	}
}

// leave hands the place to whoever waits longest.
func (t *turnstile) leave(id TenantID, q *queue) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(q.waiting) > 0 {
		close(q.waiting[0])
		q.waiting = q.waiting[1:]
		return
	}
	if q.inside--; q.inside == 0 {
		delete(t.tenants, id)
	}
}

// abandon takes a waiter out of the queue; where its turn came at that very moment, it passes it on.
func (t *turnstile) abandon(id TenantID, q *queue, turn chan struct{}) {
	t.mu.Lock()
	for i, w := range q.waiting {
		if w == turn {
			q.waiting = append(q.waiting[:i], q.waiting[i+1:]...)
			t.mu.Unlock()
			return
		}
	}
	t.mu.Unlock()
	t.leave(id, q)
}
