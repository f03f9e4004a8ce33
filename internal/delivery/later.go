package delivery

import (
	"container/heap"
	"context"
	"sync"
	"time"
)

// later wakes items at a time: a resend, a backoff, a retry after an outage. One entry per item: the earliest time wins, and
// the reasons are joined. Who wakes too early finds nothing overdue and asks again.
type later struct {
	clock Clock
	fire  func(item, why)

	mu    sync.Mutex
	due   map[item]wish
	queue dueHeap
	poke  chan struct{}
}

type wish struct {
	at  time.Time
	why why
}

func newLater(clock Clock, fire func(item, why)) *later {
	return &later{clock: clock, fire: fire, due: map[item]wish{}, poke: make(chan struct{}, 1)}
}

// at marks it at t, or earlier if that was asked for before. A zero t asks for nothing.
func (l *later) at(it item, w why, t time.Time) {
	if t.IsZero() {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	old, ok := l.due[it]
	w |= old.why
	if ok && !t.Before(old.at) {
		l.due[it] = wish{old.at, w}
		return
	}
	l.due[it] = wish{t, w}
	heap.Push(&l.queue, dueItem{it, t})
	if l.queue[0].item == it {
		select {
		case l.poke <- struct{}{}:
		default:
		}
	}
}

// run fires what is due until ctx ends.
func (l *later) run(ctx context.Context) {
	for {
		wait := l.fireDue()
		timer := l.clock.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C():
		case <-l.poke:
			timer.Stop()
		}
	}
}

// idleWait is how long run sleeps where nothing is due: any wish pokes it.
const idleWait = time.Hour

func (l *later) fireDue() time.Duration {
	now := l.clock.Now()
	var due []work
	wait := idleWait
	l.mu.Lock()
	for len(l.queue) > 0 {
		first := l.queue[0]
		wish := l.due[first.item]
		if !wish.at.Equal(first.at) { // an earlier wish replaced it
			heap.Pop(&l.queue)
			continue
		}
		if first.at.After(now) {
			wait = min(wait, first.at.Sub(now))
			break
		}
		heap.Pop(&l.queue)
		delete(l.due, first.item)
		due = append(due, work{item: first.item, why: wish.why})
	}
	l.mu.Unlock()
	for _, w := range due {
		l.fire(w.item, w.why)
	}
	return wait
}

type dueItem struct {
	item item
	at   time.Time
}

// dueHeap implements heap.Interface.
type dueHeap []dueItem

func (h dueHeap) Len() int           { return len(h) }
func (h dueHeap) Less(i, j int) bool { return h[i].at.Before(h[j].at) }
func (h dueHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }

// Push implements heap.Interface.
func (h *dueHeap) Push(x any) {
	if d, ok := x.(dueItem); ok {
		*h = append(*h, d)
	}
}

// Pop implements heap.Interface.
func (h *dueHeap) Pop() any {
	old := *h
	last := old[len(old)-1]
	*h = old[:len(old)-1]
	return last
}
