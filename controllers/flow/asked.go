package flow

import (
	"sync"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// courtesy is for how long what nobody asked for stands still because somebody waits for something else of its server. After
// that it goes on, one at a time: resyncs must happen while users keep us busy.
const courtesy = 2 * time.Second

// Asked is what the queues of all kinds know together: of which servers something is looked at that somebody asked for. As
// long as that lasts, objects of that server that are only looked at again wait, whatever their kind: a new object is ready
// before a backlog has been worked off (REQ-220).
type Asked struct {
	now func() time.Time

	mu     sync.Mutex
	of     map[client.ObjectKey]*rush
	queues []*Fair
}

// rush is passes without a pause between them.
type rush struct {
	passes int // under way
	since  time.Time
}

// NewAsked returns one that knows of nothing yet.
func NewAsked(now func() time.Time) *Asked {
	return &Asked{now: now, of: map[client.ObjectKey]*rush{}}
}

func (a *Asked) join(f *Fair) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.queues = append(a.queues, f)
}

func (a *Asked) begin(server client.ObjectKey) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.of[server] == nil {
		a.of[server] = &rush{since: a.now()}
	}
	a.of[server].passes++
}

// end returns the queues in which there may be room again.
func (a *Asked) end(server client.ObjectKey) []*Fair {
	a.mu.Lock()
	defer a.mu.Unlock()
	r := a.of[server]
	if r.passes--; r.passes == 0 {
		delete(a.of, server)
	} else if a.now().Sub(r.since) < courtesy {
		return nil
	}
	return a.queues
}

// idle is how many passes that nobody asked for a server may have in a queue that would have most.
func (a *Asked) idle(server client.ObjectKey, most int) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch r := a.of[server]; {
	case r == nil:
		return most
	case a.now().Sub(r.since) < courtesy:
		return 0
	}
	return min(most, 1)
}
