package stream

import (
	"sync"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// What is done about somebody who keeps scaling a worker. A second worker is harmless, the lease sees to that, and two
// controllers that write against each other are not: after a few times ours waits, longer each time.
const (
	scaleReverts    = 3                // undone at once
	scalePause      = 30 * time.Second // before the next, doubled each time
	scalePauseMost  = 8 * time.Minute
	scaleCalm       = 10 * time.Minute // without it, and it is forgotten
	scalePauseSteps = 5                // doublings until scalePauseMost
)

// contests remembers, for as long as the process runs, whose scale was undone how often.
type contests struct {
	mu sync.Mutex
	of map[client.ObjectKey]contest
}

type contest struct {
	reverts int
	wrote   time.Time // the last revert
	seen    time.Time // somebody else's number was there
}

// found is told that a worker has a scale of somebody else's, and says whether to undo it now.
func (c *contests) found(stream client.ObjectKey, now time.Time) (undo bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of == nil {
		c.of = map[client.ObjectKey]contest{}
	}
	this := c.of[stream]
	if now.Sub(this.seen) > scaleCalm {
		this = contest{}
	}
	this.seen = now
	if undo = this.reverts < scaleReverts || now.Sub(this.wrote) >= this.pause(); undo {
		this.reverts++
		this.wrote = now
	}
	c.of[stream] = this
	return undo
}

// contested reports whether somebody keeps scaling the worker, and forgets about who has stopped.
func (c *contests) contested(stream client.ObjectKey, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	this, ok := c.of[stream]
	if ok && now.Sub(this.seen) > scaleCalm {
		delete(c.of, stream)
		return false
	}
	return ok && this.reverts >= scaleReverts
}

func (c *contests) forget(stream client.ObjectKey) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.of, stream)
}

func (c contest) pause() time.Duration {
	return min(scalePause<<min(c.reverts-scaleReverts, scalePauseSteps), scalePauseMost)
}
