package fabric

import (
	"sync"
	"time"
)

// recovery tells its hooks, once things have held still for a while, that references may have been lost. However many
// outages fall into that while, the hooks run once, after the last of them.
type recovery struct {
	settle time.Duration

	mu     sync.Mutex
	hooks  map[int]func()
	next   int
	timer  *time.Timer
	closed bool

	run sync.Mutex // held while hooks run: never two rounds at a time
}

func newRecovery(settle time.Duration) *recovery {
	return &recovery{settle: settle, hooks: map[int]func(){}}
}

// lost puts off what found had scheduled: the next found schedules it again.
func (r *recovery) lost() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.timer != nil {
		r.timer.Stop()
	}
}

// found schedules a round, in place of one that is scheduled already.
func (r *recovery) found() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return
	}
	if r.timer != nil {
		r.timer.Stop()
	}
	r.timer = time.AfterFunc(r.settle, r.round)
}

func (r *recovery) round() {
	r.run.Lock()
	defer r.run.Unlock()
	r.mu.Lock()
	fns := make([]func(), 0, len(r.hooks))
	for _, fn := range r.hooks {
		fns = append(fns, fn)
	}
	closed := r.closed
	r.mu.Unlock()
	if closed {
		return
	}
	for _, fn := range fns {
		fn()
	}
}

func (r *recovery) add(fn func()) Unsubscribe {
	r.mu.Lock()
	defer r.mu.Unlock()
	id := r.next
	r.next++
	r.hooks[id] = fn
	return func() {
		r.mu.Lock()
		delete(r.hooks, id)
		r.mu.Unlock()
		r.run.Lock() // a round that is running may still call fn
		defer r.run.Unlock()
	}
}

func (r *recovery) close() {
	r.mu.Lock()
	r.closed = true
	if r.timer != nil {
		r.timer.Stop()
	}
	r.mu.Unlock()
	r.run.Lock()
	defer r.run.Unlock()
}
