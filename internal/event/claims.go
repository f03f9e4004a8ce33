package event

import (
	"container/list"
	"sync"
	"time"
)

// claims remembers which digests this process has taken, for a while and up to a count. It is of this process alone: a
// shared one would let the first instance take the fact from all others. A copy that arrives while the first one's emit is
// failing is dropped with it: the broadcast is lost then, which the lane allows.
type claims struct {
	now   func() time.Time
	ttl   time.Duration
	limit int

	mu    sync.Mutex
	byKey map[Digest]*list.Element
	order *list.List // of claim, oldest first; the time to live is one for all, so oldest is also first to end
}

type claim struct {
	digest Digest
	ends   time.Time
}

func newClaims(now func() time.Time, ttl time.Duration, limit int) *claims {
	return &claims{now: now, ttl: ttl, limit: limit, byKey: map[Digest]*list.Element{}, order: list.New()}
}

// take reads and records the digest in one step, so that of two copies handled side by side exactly one gets true.
func (c *claims) take(d Digest) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	for e := c.order.Front(); e != nil && !claimOf(e).ends.After(now); e = c.order.Front() {
		c.drop(e)
	}
	if _, taken := c.byKey[d]; taken {
		return false
	}
	if len(c.byKey) >= c.limit {
		c.drop(c.order.Front())
	}
	c.byKey[d] = c.order.PushBack(claim{digest: d, ends: now.Add(c.ttl)})
	return true
}

// release gives the digest back, because its consequence did not happen.
func (c *claims) release(d Digest) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e, taken := c.byKey[d]; taken {
		c.drop(e)
	}
}

func (c *claims) drop(e *list.Element) {
	delete(c.byKey, claimOf(e).digest)
	c.order.Remove(e)
}

func claimOf(e *list.Element) claim {
	held, _ := e.Value.(claim) // the list holds nothing else
	return held
}
