package event

import (
	"math"
	"sync"
)

// pace is how far a subscription that leads has come. A nil one is nobody's.
type pace struct {
	mu    sync.Mutex
	seq   uint64
	moved chan struct{} // closed by the next move
}

// Behind makes s see an event only once first, which leads in the same bus and tenant, has asked for what comes after it:
// what first prepares is there when s wakes. It is called before the first read. When first is closed nothing is held back.
func (s *Subscription) Behind(first *Subscription) { s.ahead = first.pace }

func (p *pace) move(seq uint64) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if seq > p.seq {
		p.seq = seq
		close(p.moved)
		p.moved = make(chan struct{})
	}
}

// at returns up to where one that stays behind may read, and what tells it of more.
func (p *pace) at(t *topic) (bound uint64, wake <-chan struct{}) {
	if p == nil {
		return math.MaxUint64, t.wake
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.seq == math.MaxUint64 {
		return p.seq, t.wake
	}
	return p.seq, p.moved
}
