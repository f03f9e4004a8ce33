package flow

import (
	"container/heap"
	"maps"
	"sync"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// Fair is a kind's queue that keeps the objects of one server from taking every place of the kind's work: those of a server
// whose backends hang wait for one another, and everybody else's go on (REQ-219). Who waits does so in order of priority, so
// that a user's edit goes before everything that is only looked at again.
//
// An object whose server has all its places taken is parked: to the queue beneath it looks as if it were being looked at. When
// one of the server's is done, the best of those that are parked goes back, before all others of its priority.
type Fair struct {
	priorityqueue.PriorityQueue[reconcile.Request]
	o FairOptions

	mu    sync.Mutex
	lanes map[client.ObjectKey]*lane
	taken map[reconcile.Request]client.ObjectKey // handed out, and in whose lane
	freed map[reconcile.Request]*parked          // in the queue beneath again
	order uint64
}

// FairOptions of a queue. All are required.
type FairOptions struct {
	// Server is what an object's passes wait for; the zero key, where the object is gone, waits for nothing.
	Server func(reconcile.Request) client.ObjectKey
	// Most passes of one server at the same time. It should be half of what there is.
	Most int
	// Idle passes of one server at the same time at most, of those that nobody asked for: a backlog of them leaves places for
	// what a user does, and time to do it in.
	Idle  int
	Asked *Asked // shared by the queues of all kinds
	Now   func() time.Time
}

const (
	// slowPass is how long a pass may take before its server counts as slow; a healthy one takes a hundredth of it.
	slowPass = 5 * time.Second
	// slowMost passes of a slow server at the same time: enough to see that it is well again.
	slowMost = 1
)

// lane is one server's.
type lane struct {
	server client.ObjectKey
	began  map[reconcile.Request]look
	parked map[reconcile.Request]*parked
	best   waiting // the same, the best first
	slow   bool    // the last to end was
}

type look struct {
	at   time.Time
	idle bool // nobody asked for it
}

type parked struct {
	item     reconcile.Request
	server   client.ObjectKey
	priority int
	order    uint64
	at       int // in waiting
}

// waiting is a heap: the highest priority first, and of those who has waited longest.
type waiting []*parked

func (w waiting) Len() int { return len(w) }

func (w waiting) Less(i, j int) bool {
	if w[i].priority != w[j].priority {
		return w[i].priority > w[j].priority
	}
	return w[i].order < w[j].order
}

func (w waiting) Swap(i, j int) {
	w[i], w[j] = w[j], w[i]
	w[i].at, w[j].at = i, j
}

// Push see heap.Interface.
func (w *waiting) Push(x any) {
	p, _ := x.(*parked)
	p.at = len(*w)
	*w = append(*w, p)
}

// Pop see heap.Interface.
func (w *waiting) Pop() any {
	last := len(*w) - 1
	p := (*w)[last]
	(*w)[last] = nil
	*w = (*w)[:last]
	return p
}

// NewFair makes a queue fair.
func NewFair(q priorityqueue.PriorityQueue[reconcile.Request], o FairOptions) *Fair {
	f := &Fair{
		PriorityQueue: q, o: o, lanes: map[client.ObjectKey]*lane{}, taken: map[reconcile.Request]client.ObjectKey{},
		freed: map[reconcile.Request]*parked{},
	}
	o.Asked.join(f)
	return f
}

// GetWithPriority waits for something that may be looked at.
func (f *Fair) GetWithPriority() (reconcile.Request, int, bool) {
	for {
		item, priority, shutdown := f.PriorityQueue.GetWithPriority()
		if shutdown {
			return item, priority, shutdown
		}
		if priority, ok := f.enter(item, priority); ok {
			return item, priority, false
		}
	}
}

// Get see GetWithPriority.
func (f *Fair) Get() (reconcile.Request, bool) {
	item, _, shutdown := f.GetWithPriority()
	return item, shutdown
}

func (f *Fair) enter(item reconcile.Request, priority int) (int, bool) {
	server := f.o.Server(item)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.order++
	order := f.order
	if was, ok := f.freed[item]; ok { // it counts where it waited, whatever became of it
		delete(f.freed, item)
		server, order = was.server, was.order
		if priority == was.priority+1 {
			priority = was.priority
		}
	}
	if server == (client.ObjectKey{}) {
		return priority, true
	}
	l := f.lanes[server]
	if l == nil {
		l = &lane{server: server, began: map[reconcile.Request]look{}, parked: map[reconcile.Request]*parked{}}
		f.lanes[server] = l
	}
	if !f.room(l, priority, 0) {
		l.parked[item] = &parked{item: item, server: server, priority: priority, order: order}
		heap.Push(&l.best, l.parked[item])
		return 0, false
	}
	l.began[item], f.taken[item] = look{f.o.Now(), priority < 0}, server
	if priority >= 0 {
		f.o.Asked.begin(server)
	}
	return priority, true
}

// room reports whether one more of the server's may be looked at, while some are on their way.
func (f *Fair) room(l *lane, priority, coming int) bool {
	now, slow, idle := f.o.Now(), l.slow, coming
	for began := range maps.Values(l.began) {
		slow = slow || now.Sub(began.at) > slowPass
		if began.idle {
			idle++
		}
	}
	most := f.o.Most
	if slow {
		most = slowMost
	}
	return len(l.began)+coming < most && (priority >= 0 || idle < f.o.Asked.idle(l.server, f.o.Idle))
}

// Done see workqueue.TypedInterface.
func (f *Fair) Done(item reconcile.Request) {
	f.PriorityQueue.Done(item)
	server, asked := f.end(item)
	f.wake(server)
	if !asked {
		return
	}
	for _, other := range f.o.Asked.end(server) {
		other.wake(server)
	}
}

// end notes that a pass is over, and says of which server it was and whether somebody had asked for it.
func (f *Fair) end(item reconcile.Request) (server client.ObjectKey, asked bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	server, ok := f.taken[item]
	if !ok {
		return server, false
	}
	delete(f.taken, item)
	l := f.lanes[server]
	l.slow = f.o.Now().Sub(l.began[item].at) > slowPass
	asked = !l.began[item].idle
	delete(l.began, item)
	return server, asked
}

// wake lets those of a server go on for whom there is room.
func (f *Fair) wake(server client.ObjectKey) {
	f.mu.Lock()
	defer f.mu.Unlock()
	l := f.lanes[server]
	if l == nil {
		return
	}
	f.free(l)
	if len(l.began)+len(l.parked) == 0 && !l.slow {
		delete(f.lanes, server) // a server that is gone is forgotten
	}
}

// free sends back the best of those that are parked, as many as there is room for.
func (f *Fair) free(l *lane) {
	for coming := 0; len(l.best) > 0; coming++ {
		best := l.best[0]
		if !f.room(l, best.priority, coming) {
			return
		}
		heap.Pop(&l.best)
		delete(l.parked, best.item)
		f.freed[best.item] = best
		f.PriorityQueue.Done(best.item)
		f.PriorityQueue.AddWithOpts(priorityqueue.AddOpts{Priority: new(best.priority + 1)}, best.item)
	}
}

// Add see workqueue.TypedInterface.
func (f *Fair) Add(item reconcile.Request) { f.AddWithOpts(priorityqueue.AddOpts{}, item) }

// AddWithOpts raises the priority of who is parked as well, who then goes on where there is room for it.
func (f *Fair) AddWithOpts(o priorityqueue.AddOpts, items ...reconcile.Request) {
	f.PriorityQueue.AddWithOpts(o, items...)
	if o.After > 0 || o.RateLimited {
		return
	}
	priority := 0
	if o.Priority != nil {
		priority = *o.Priority
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, l := range f.lanes {
		for _, item := range items {
			if was, ok := l.parked[item]; ok && was.priority < priority {
				was.priority = priority
				heap.Fix(&l.best, was.at)
				f.free(l)
			}
		}
	}
}
