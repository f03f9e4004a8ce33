package comms

import (
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/rigelbuild/compass-operator/internal/fault"
	"github.com/rigelbuild/compass-operator/internal/store"
	"github.com/rigelbuild/compass-operator/internal/wire"
)

const (
	// limitsAge is how long read limits are used before they are read again.
	limitsAge = 30 * time.Second
	// idleAge is how long a tenant that writes nothing is remembered; its bucket is full again long before.
	idleAge = 10 * time.Minute
)

// admission lets each tenant write so many messages per second through this process, and none beyond its size (REQ-106,
// at the edge). What it refuses never reaches Postgres.
type admission struct {
	limits limits
	known  *store.KnownLimits
	now    func() time.Time

	mu      sync.Mutex
	tenants map[store.TenantID]*admitted
	swept   time.Time
}

// admitted is one tenant's bucket.
type admitted struct {
	bucket   *rate.Limiter
	maxBytes int
	read     time.Time
	used     time.Time
}

func newAdmission(l limits, known *store.KnownLimits, now func() time.Time) *admission {
	return &admission{limits: l, known: known, now: now, tenants: map[store.TenantID]*admitted{}}
}

// admit takes one write of the tenant in the context, or refuses: store.ErrTooLarge, or wire.ErrExhausted with the time
// after which one more would pass. It returns how large a message may be.
func (a *admission) admit(ctx context.Context, blocks []store.Block) (maxBytes int, err error) {
	tenant, ok := store.TenantFromContext(ctx)
	if !ok {
		return 0, store.ErrNoTenant
	}
	t, err := a.tenant(ctx, tenant)
	if err != nil {
		return 0, fmt.Errorf("admit: %w", err)
	}
	if size := sizeOf(blocks); size > t.maxBytes {
		return 0, fmt.Errorf("%w: %d bytes, allowed are %d", store.ErrTooLarge, size, t.maxBytes)
	}
	now := a.now()
	place := t.bucket.ReserveN(now, 1)
	if wait := place.DelayFrom(now); !place.OK() || wait > 0 {
		place.CancelAt(now)
		return 0, fault.RetryAfter(wait, fmt.Errorf("%w: the tenant writes more than its limit", wire.ErrExhausted))
	}
	return t.maxBytes, nil
}

// tenant returns the tenant's bucket with limits that are not too old. Where they cannot be read now, the ones of before
// go on counting.
func (a *admission) tenant(ctx context.Context, id store.TenantID) (admitted, error) {
	now := a.now()
	a.mu.Lock()
	known := a.tenants[id]
	if known != nil && now.Sub(known.read) < limitsAge {
		known.used = now
		defer a.mu.Unlock()
		return *known, nil
	}
	a.mu.Unlock()

	read, err := a.limits.TenantLimits(ctx)
	a.mu.Lock()
	defer a.mu.Unlock()
	known = a.tenants[id]
	if err != nil && known == nil {
		return admitted{}, err
	}
	if err == nil {
		a.known.Note(id, read.Database)
		known = a.keep(id, read.Messages)
	}
	known.read, known.used = now, now
	return *known, nil
}

// keep takes new limits over without emptying or filling the bucket. The caller holds the lock.
func (a *admission) keep(id store.TenantID, l store.MessageLimits) *admitted {
	a.forget()
	t := a.tenants[id]
	if t == nil {
		t = &admitted{bucket: rate.NewLimiter(rate.Limit(l.PerSecond), l.Burst)}
		a.tenants[id] = t
	}
	now := a.now()
	t.bucket.SetLimitAt(now, rate.Limit(l.PerSecond))
	t.bucket.SetBurstAt(now, l.Burst)
	t.maxBytes = l.MaxBytes
	return t
}

// forget drops tenants that have been idle, so that memory follows who is here. The caller holds the lock.
func (a *admission) forget() {
	now := a.now()
	if now.Sub(a.swept) < idleAge {
		return
	}
	a.swept = now
	for id, t := range a.tenants {
		if now.Sub(t.used) >= idleAge {
			delete(a.tenants, id)
		}
	}
}

// sizeOf counts what a client sent as content.
func sizeOf(blocks []store.Block) int {
	n := 0
	for _, b := range blocks {
		n += len(b.Text) + len(b.Handle)
	}
	return n
}
