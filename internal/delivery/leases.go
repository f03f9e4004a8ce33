package delivery

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/rigelbuild/compass-operator/internal/store"
)

// heldLease is the state of one database's lease.
type heldLease interface {
	Database() int
	Fence() (store.Fence, bool)
	Careful() bool
}

// leaseMoves are what changes it. See store.Lease.
type leaseMoves interface {
	Acquire(ctx context.Context, above int64) error
	Renew(ctx context.Context) error
	Raise(ctx context.Context, above int64) error
	Release(ctx context.Context) error
}

// Lease is one database's lease; *store.Lease is one.
type Lease interface {
	heldLease
	leaseMoves
}

// LeaseOptions are the parts of a LeaseSet. Leases and Log are required; database 0 must be among them.
type LeaseOptions struct {
	Leases []Lease
	Renew  time.Duration // how often, and how long a renewal may take; default store.DefaultLeaseRenew
	Clock  Clock
	Log    *slog.Logger
}

// LeaseSet keeps the leases of a worker, one per database. Database 0's is the process's life: without it NATS is not even
// connected, and when it is lost the process exits. Another's only sets its tenants aside until it is back (REQ-239).
type LeaseSet struct {
	o       LeaseOptions
	byID    map[int]Lease
	regains chan int
	raised  chan struct{}
}

// NewLeaseSet acquires nothing yet.
func NewLeaseSet(o LeaseOptions) (*LeaseSet, error) {
	l := &LeaseSet{o: o, byID: map[int]Lease{}, raised: make(chan struct{}, 1)}
	for _, lease := range o.Leases {
		l.byID[lease.Database()] = lease
	}
	if l.byID[0] == nil || o.Log == nil {
		return nil, errors.New("leases: database 0 and a logger are required")
	}
	setDefault(&l.o.Renew, store.DefaultLeaseRenew)
	if l.o.Clock == nil {
		l.o.Clock = SystemClock{}
	}
	l.regains = make(chan int, len(l.byID))
	return l, nil
}

// Acquire waits until database 0's lease is held, and tries the others once. It returns early where ctx ends, and where
// waiting cures nothing, such as a pooler in the lease's way. A worker connects to NATS after it.
func (l *LeaseSet) Acquire(ctx context.Context) error {
	for {
		err := l.try(ctx, l.byID[0])
		if err == nil {
			break
		}
		wait := l.o.Renew / 4
		var held store.HeldError
		switch {
		case errors.As(err, &held):
			wait = min(max(held.Remaining, time.Millisecond), l.o.Renew/4)
		case !away(err) && ctx.Err() == nil:
			return fmt.Errorf("acquire leases: %w", err)
		}
		l.o.Log.InfoContext(ctx, "Waiting for the lease", "error", err)
		if !l.rest(ctx, wait) {
			return fmt.Errorf("acquire leases: %w", ctx.Err())
		}
	}
	l.tryOthers(ctx)
	return nil
}

// tryOthers tries all at once and not for long: database 0's lease is not renewed meanwhile, and Run goes on trying.
func (l *LeaseSet) tryOthers(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, l.o.Renew/2)
	defer cancel()
	var all sync.WaitGroup
	defer all.Wait()
	for id, lease := range l.byID {
		if id == 0 {
			continue
		}
		all.Go(func() {
			if err := l.try(ctx, lease); err != nil {
				l.o.Log.WarnContext(ctx, "Lease of a database is not held yet; its tenants wait", "database", id, "error", err)
			}
		})
	}
}

// away: the database may answer later.
func away(err error) bool {
	return errors.Is(err, store.ErrUnavailable) || errors.Is(err, store.ErrTimeout) || errors.Is(err, context.DeadlineExceeded)
}

func (l *LeaseSet) try(ctx context.Context, lease Lease) error {
	ctx, cancel := context.WithTimeout(ctx, 2*l.o.Renew)
	defer cancel()
	return lease.Acquire(ctx, 0)
}

// Run renews until ctx ends, and returns store.ErrLeaseLost when database 0's is no longer held: then the process exits,
// at once and without a goodbye, because somebody else may already be the writer.
func (l *LeaseSet) Run(ctx context.Context) error {
	var others sync.WaitGroup
	defer others.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for id, lease := range l.byID {
		if id != 0 {
			others.Go(func() { l.keep(ctx, lease) })
		}
	}
	return l.renew(ctx, l.byID[0])
}

// renew renews one lease until it is lost or ctx ends. A renewal that fails is tried again until the deadline: an answer
// that did not come says nothing.
func (l *LeaseSet) renew(ctx context.Context, lease Lease) error {
	wait := l.o.Renew
	for {
		if !l.rest(ctx, wait) {
			return nil
		}
		if _, ok := lease.Fence(); !ok {
			return store.ErrLeaseLost
		}
		try, cancel := context.WithTimeout(ctx, l.o.Renew)
		err := lease.Renew(try)
		cancel()
		wait = l.o.Renew
		switch {
		case errors.Is(err, store.ErrLeaseLost):
			return err
		case err != nil && ctx.Err() == nil:
			l.o.Log.WarnContext(ctx, "Could not renew the lease", "database", lease.Database(), "error", err)
			wait = l.o.Renew / 8
		}
	}
}

// keep renews another database's lease, and acquires it again when it was lost.
func (l *LeaseSet) keep(ctx context.Context, lease Lease) {
	for ctx.Err() == nil {
		if _, ok := lease.Fence(); !ok {
			if err := l.try(ctx, lease); err != nil {
				l.rest(ctx, l.o.Renew)
				continue
			}
			l.o.Log.InfoContext(ctx, "Lease of a database is held (again)", "database", lease.Database())
			select {
			case l.regains <- lease.Database():
			default: // it is told already
			}
		}
		if err := l.renew(ctx, lease); err != nil {
			l.o.Log.WarnContext(ctx, "Lease of a database is lost; its tenants wait", "database", lease.Database(), "error", err)
		}
	}
}

// rest waits; a raise that lost the lease ends it early. False: ctx has ended.
func (l *LeaseSet) rest(ctx context.Context, d time.Duration) bool {
	timer := l.o.Clock.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-l.raised:
	case <-timer.C():
	}
	return ctx.Err() == nil
}

// Release says goodbye in every database: to be called when the worker has stopped and nothing is being written or sent.
func (l *LeaseSet) Release(ctx context.Context) error {
	var errs []error
	for _, lease := range l.byID {
		if err := lease.Release(ctx); err != nil && !errors.Is(err, store.ErrLeaseLost) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// Fence implements Leases.
func (l *LeaseSet) Fence(database int) (store.Fence, bool) {
	lease, ok := l.byID[database]
	if !ok {
		return store.Fence{}, false
	}
	return lease.Fence()
}

// Raise implements Leases. One that fails has lost the lease.
func (l *LeaseSet) Raise(ctx context.Context, database int, above int64) error {
	lease, ok := l.byID[database]
	if !ok {
		return store.ErrLeaseLost
	}
	err := lease.Raise(ctx, above)
	if errors.Is(err, store.ErrLeaseLost) {
		poke(l.raised)
	}
	return err
}

// Careful implements Leases.
func (l *LeaseSet) Careful(database int) bool {
	lease, ok := l.byID[database]
	return ok && lease.Careful()
}

// Held implements Leases.
func (l *LeaseSet) Held() []int {
	var held []int
	for id, lease := range l.byID {
		if _, ok := lease.Fence(); ok {
			held = append(held, id)
		}
	}
	slices.Sort(held)
	return held
}

// Regained implements Leases.
func (l *LeaseSet) Regained() <-chan int { return l.regains }
