package storetwin

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/rigelbuild/compass-operator/internal/store"
)

// LeaseOptions are those of store.LeaseOptions that the twin has.
type LeaseOptions struct {
	Stream string
	Holder string
	TTL    time.Duration // default store.DefaultLeaseTTL
	Margin time.Duration // default store.DefaultLeaseMargin
	Nonce  func() string // new for each acquisition
}

// Lease is the twin of store.Lease. Its statements go one after the other, as over the one connection of the real one.
type Lease struct {
	c    *Client
	o    LeaseOptions
	wire chan struct{}

	mu       sync.Mutex
	fence    store.Fence
	deadline time.Time
	careful  bool
}

// NewLease prepares a lease.
func (c *Client) NewLease(o LeaseOptions) *Lease {
	if o.TTL <= 0 {
		o.TTL = store.DefaultLeaseTTL
	}
	if o.Margin <= 0 {
		o.Margin = min(store.DefaultLeaseMargin, o.TTL/3)
	}
	return &Lease{c: c, o: o, wire: make(chan struct{}, 1)}
}

// Database is store.Lease.Database.
func (l *Lease) Database() int { return 0 }

// Fence is store.Lease.Fence.
func (l *Lease) Fence() (store.Fence, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.fence, l.fence.Epoch != 0 && l.c.db.now().Before(l.deadline)
}

// Careful is store.Lease.Careful.
func (l *Lease) Careful() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.careful
}

func (l *Lease) held() store.Fence {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.fence
}

// ask runs one statement under the lock of the stream's batches, where alone, and its row's.
func (l *Lease) ask(ctx context.Context, what string, alone bool, body func(t *tx, w leaseRow) (leaseRow, error)) (sent time.Time, err error) {
	select {
	case l.wire <- struct{}{}:
	case <-ctx.Done():
		return time.Time{}, ctx.Err()
	}
	defer func() { <-l.wire }()
	sent = l.c.db.now()
	stream := l.o.Stream
	var wants []want
	if alone {
		wants = append(wants, want{lockKey{"writer", "", stream, ""}, true})
	}
	wants = append(wants, want{lockKey{"writer row", "", stream, ""}, true})
	return sent, l.c.asLoop(ctx, what, func(t *tx) error {
		return t.stmt(what, func() error {
			w, ok := t.writers.get(t, stream)
			if !ok {
				w.clean = true
			}
			after, err := body(t, w)
			if err == nil {
				t.writers.put(t, stream, after)
			}
			return err
		}, wants...)
	})
}

// Acquire is store.Lease.Acquire.
func (l *Lease) Acquire(ctx context.Context, above int64) error {
	nonce := l.o.Nonce()
	var epoch int64
	var careful bool
	sent, err := l.ask(ctx, "acquire lease", true, func(t *tx, w leaseRow) (leaseRow, error) {
		now := t.clock()
		if !w.clean && w.expires.After(now) && w.holder != l.o.Holder {
			return w, store.HeldError{Remaining: w.expires.Sub(now)}
		}
		careful = !w.clean
		epoch = max(w.epoch+1, t.number(), above+1)
		w.holder, w.epoch, w.nonce, w.expires, w.clean = l.o.Holder, epoch, nonce, now.Add(l.o.TTL), false
		return w, nil
	})
	if err != nil {
		if held, ok := errors.AsType[store.HeldError](err); ok {
			return held
		}
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fence = store.Fence{Stream: l.o.Stream, Epoch: epoch, Nonce: nonce}
	l.careful = careful
	l.deadline = sent.Add(l.o.TTL - l.o.Margin)
	return nil
}

// mine reports whether the row is still what the fence says, and not over. Called in a statement.
func mine(t *tx, w leaseRow, f store.Fence) bool {
	return w.epoch == f.Epoch && w.nonce == f.Nonce && w.expires.After(t.clock())
}

// Renew is store.Lease.Renew.
func (l *Lease) Renew(ctx context.Context) error {
	fence := l.held()
	ok := false
	sent, err := l.ask(ctx, "renew lease", false, func(t *tx, w leaseRow) (leaseRow, error) {
		if ok = mine(t, w, fence); ok {
			w.expires = t.clock().Add(l.o.TTL)
		}
		return w, nil
	})
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.fence != fence:
		return nil
	case !ok:
		l.fence = store.Fence{}
		return store.ErrLeaseLost
	}
	l.deadline = sent.Add(l.o.TTL - l.o.Margin)
	return nil
}

// Raise is store.Lease.Raise.
func (l *Lease) Raise(ctx context.Context, above int64) error {
	fence := l.held()
	if fence.Epoch > above {
		return nil
	}
	nonce := l.o.Nonce()
	var epoch int64
	_, err := l.ask(ctx, "raise lease", true, func(t *tx, w leaseRow) (leaseRow, error) {
		if mine(t, w, fence) {
			epoch = max(w.epoch+1, t.number(), above+1)
			w.epoch, w.nonce = epoch, nonce
		}
		return w, nil
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case err != nil:
		l.fence = store.Fence{}
		return fmt.Errorf("%w: %w", store.ErrLeaseLost, err)
	case epoch == 0:
		l.fence = store.Fence{}
		return store.ErrLeaseLost
	}
	l.fence.Epoch, l.fence.Nonce = epoch, nonce
	return nil
}

// Release is store.Lease.Release.
func (l *Lease) Release(ctx context.Context) error {
	fence := l.held()
	l.mu.Lock()
	l.fence = store.Fence{}
	l.mu.Unlock()
	if fence.Epoch == 0 {
		return nil
	}
	ok := false
	_, err := l.ask(ctx, "release lease", false, func(t *tx, w leaseRow) (leaseRow, error) {
		if ok = mine(t, w, fence); ok {
			w.clean, w.expires = true, t.clock()
		}
		return w, nil
	})
	if err == nil && !ok {
		err = store.ErrLeaseLost
	}
	return err
}
