package flow

import (
	"context"
	"sync"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// Fair keeps the objects of one server from taking every place of a kind's work: those of a server whose backends hang wait
// for one another, and everybody else's go on (REQ-219).
type Fair[T client.Object] struct {
	Next reconcile.ObjectReconciler[T] // required
	// Server is what an object's passes wait for (required).
	Server func(T) client.ObjectKey
	// Most passes of one server at the same time (required). It should be half of what there is.
	Most int
	// Now is the clock.
	Now func() time.Time

	mu      sync.Mutex
	servers map[client.ObjectKey]*inFlight
}

const (
	// slowPass is how long a pass may take before its server counts as slow; a healthy one takes a hundredth of it.
	slowPass = 5 * time.Second
	// slowMost passes of a slow server at the same time: enough to see that it is well again.
	slowMost = 1
	// crowded is when to come back to a server that has all its places taken.
	crowded = time.Second
)

// inFlight are the passes of one server.
type inFlight struct {
	began map[int]time.Time
	next  int
	slow  bool // the last to end was
}

// Reconcile see reconcile.ObjectReconciler.
func (f *Fair[T]) Reconcile(ctx context.Context, obj T) (reconcile.Result, error) {
	server := f.Server(obj)
	id, ok := f.enter(server)
	if !ok {
		return reconcile.Result{RequeueAfter: crowded}, nil
	}
	defer f.leave(server, id)
	return f.Next.Reconcile(ctx, obj)
}

func (f *Fair[T]) enter(server client.ObjectKey) (id int, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.servers == nil {
		f.servers = map[client.ObjectKey]*inFlight{}
	}
	s := f.servers[server]
	if s == nil {
		s = &inFlight{began: map[int]time.Time{}}
		f.servers[server] = s
	}
	now, most := f.Now(), f.Most
	slow := s.slow
	for _, began := range s.began {
		slow = slow || now.Sub(began) > slowPass
	}
	if slow {
		most = slowMost
	}
	if len(s.began) >= most {
		return 0, false
	}
	s.next++
	s.began[s.next] = now
	return s.next, true
}

func (f *Fair[T]) leave(server client.ObjectKey, id int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.servers[server]
	s.slow = f.Now().Sub(s.began[id]) > slowPass
	delete(s.began, id)
	if len(s.began) == 0 && !s.slow {
		delete(f.servers, server) // a server that is gone is forgotten
	}
}
