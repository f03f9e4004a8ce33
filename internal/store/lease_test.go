package store

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/rigelbuild/compass-operator/internal/store/storetest"
)

// fakeNow is a clock that stands until it is moved.
type fakeNow struct {
	mu sync.Mutex
	at time.Time
}

func (c *fakeNow) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at
}

func (c *fakeNow) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = c.at.Add(d)
}

// Holds REQ-209 and REQ-228 (the lease): who may take it, when, and what he is told of the one before.
func TestLeaseTakeover(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	one := f.acquired(t, "one")
	first := one.mustFence(t)
	if one.Careful() {
		t.Error("the first holder ever has nobody's death to be careful about")
	}

	two := f.lease(t, "two")
	err := two.Acquire(t.Context(), 0)
	var held HeldError
	if !errors.Is(err, ErrLeaseHeld) || !errors.As(err, &held) || held.Remaining <= 0 || held.Remaining > time.Minute {
		t.Fatalf("a held lease: %v, want HeldError with what is left of it", err)
	}
	if _, ok := two.Fence(); ok {
		t.Error("who was refused believes to hold it")
	}

	again := f.acquired(t, "one") // the same pod after a kill -9
	second := again.mustFence(t)
	if second.Epoch <= first.Epoch || second.Nonce == first.Nonce || !again.Careful() {
		t.Errorf("own pod again: %+v after %+v, careful %v", second, first, again.Careful())
	}

	if err := again.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := two.Acquire(t.Context(), 0); err != nil {
		t.Fatalf("a lease that was given back is free at once: %v", err)
	}
	if two.Careful() {
		t.Error("the one before said goodbye")
	}

	f.expire(t)
	three := f.lease(t, "three")
	if err := three.Acquire(t.Context(), two.mustFence(t).Epoch+1_000_000_000); err != nil {
		t.Fatalf("an expired lease: %v", err)
	}
	if !three.Careful() {
		t.Error("an expired holder may have died on a row")
	}
	if got, floor := three.mustFence(t).Epoch, two.mustFence(t).Epoch+1_000_000_000; got <= floor {
		t.Errorf("epoch %d is not above %d, which a Runner has seen", got, floor)
	}
}

// An expired lease is never renewed, also where nobody took it [F2]; whoever lost it knows.
func TestExpiredLeaseIsNotRenewed(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	l := f.acquired(t, "one")
	if err := l.Renew(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.expire(t)
	if err := l.Renew(t.Context()); !errors.Is(err, ErrLeaseLost) {
		t.Fatalf("renewed an expired lease: %v", err)
	}
	if _, ok := l.Fence(); ok {
		t.Error("believes to hold what it lost")
	}
	if err := l.Acquire(t.Context(), 0); err != nil {
		t.Errorf("acquire again: %v", err)
	}
}

// The deadline counts from before the statement was sent: the database judges later than that, whatever the way takes.
func TestDeadlineCountsFromBeforeSending(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	clock := &fakeNow{at: time.Unix(1_000_000, 0)}
	l := f.acquired(t, "one", func(o *LeaseOptions) {
		o.TTL, o.Margin, o.Now = time.Minute, 20*time.Second, clock.now
	})
	clock.add(10 * time.Second)

	blocker := storetest.Connect(t, f.db.Super)
	tx, err := blocker.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `select from compass.delivery_leases where stream = 'main' for update`); err != nil {
		t.Fatal(err)
	}
	renewed := make(chan error, 1)
	go func() { renewed <- l.Renew(t.Context()) }()
	until(t, "the renewal is on its way", func() bool { return f.waiting(t, "transactionid") == 1 })
	clock.add(15 * time.Second)
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-renewed; err != nil {
		t.Fatal(err)
	}
	clock.add(25*time.Second - time.Millisecond) // 40 s after it was sent, less a moment
	if _, ok := l.Fence(); !ok {
		t.Error("gave up before the deadline")
	}
	clock.add(time.Millisecond)
	if _, ok := l.Fence(); ok {
		t.Error("the deadline counts from the answer, not from before sending")
	}
}

// RaiseEpoch: the holder lifts its own epoch, what carries the old one is refused, and it holds on.
func TestRaiseEpoch(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	ctx := WithTenant(t.Context(), tenantA)
	l := f.acquired(t, "one")
	before := l.mustFence(t)
	above := before.Epoch + 5_000_000_000
	if err := l.Raise(t.Context(), above); err != nil {
		t.Fatal(err)
	}
	after := l.mustFence(t)
	if after.Epoch <= above || after.Nonce == before.Nonce {
		t.Errorf("raised %+v to %+v, want above %d with a new nonce", before, after, above)
	}
	if err := f.writerDo(ctx, before, rename("old")); !errors.Is(err, ErrStaleWriter) {
		t.Errorf("the epoch before the raise still writes: %v", err)
	}
	if err := f.writerDo(ctx, after, rename("new")); err != nil {
		t.Error(err)
	}
	if err := l.Raise(t.Context(), above-1); err != nil || l.mustFence(t) != after {
		t.Errorf("raised where nothing asks for it: %v", err)
	}
	if err := l.Renew(t.Context()); err != nil {
		t.Errorf("renew after a raise: %v", err)
	}
	f.expire(t)
	if err := l.Raise(t.Context(), after.Epoch); !errors.Is(err, ErrLeaseLost) {
		t.Errorf("raised an expired lease: %v", err)
	}
}

// A failover that forgot the newest acquisition: the one before is in the row again, and its epoch may tie. The nonce and
// the expiry keep it out.
func TestForgottenAcquisition(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	ctx := WithTenant(t.Context(), tenantA)
	lost := f.acquired(t, "lost").mustFence(t)
	f.mustExec(t, `update compass.delivery_leases set epoch = $1::bigint - 1, nonce = 'before', holder = 'before', expires_at = '-infinity'`, lost.Epoch)
	f.mustExec(t, `update compass.delivery_leases set epoch = $1, nonce = 'the same number, given out again', expires_at = 'infinity'`, lost.Epoch)
	if err := f.writerDo(ctx, lost, rename("twice")); !errors.Is(err, ErrStaleWriter) {
		t.Errorf("an epoch that was given out twice: %v, want ErrStaleWriter", err)
	}
}

// Five at once: one holds it.
func TestLeaseContended(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	results := make(chan error, 5)
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		l := f.lease(t, name)
		go func() { results <- l.Acquire(t.Context(), 0) }()
	}
	got := 0
	for range 5 {
		switch err := <-results; {
		case err == nil:
			got++
		case !errors.Is(err, ErrLeaseHeld):
			t.Error(err)
		}
	}
	if got != 1 {
		t.Errorf("%d hold the lease, want 1", got)
	}
}

// A connection that breaks is not the end of the lease: the next renewal makes a new one, within the deadline.
func TestRenewSurvivesACutConnection(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	proxy := storetest.NewProxy(t, f.db.Direct, 0)
	s := f.open(t, func(c *Config) { c.Databases[0].Direct = proxy.Through(t, f.db.Direct) })
	l, err := s.NewLease(LeaseOptions{Stream: "main", Holder: "one", TTL: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Acquire(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	fence := l.mustFence(t)
	proxy.Cut()
	if err := l.Renew(t.Context()); !errors.Is(err, ErrUnavailable) {
		t.Errorf("renew over a cut connection: %v, want ErrUnavailable", err)
	}
	if got := l.mustFence(t); got != fence {
		t.Errorf("fence %+v after a cut, want %+v until the deadline", got, fence)
	}
	if err := l.Renew(t.Context()); err != nil {
		t.Errorf("renew over a new connection: %v", err)
	}
	if err := l.Release(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestLeaseNeedsADirectConnection(t *testing.T) {
	t.Parallel()
	f := newFixture(t, func(c *Config) { c.Databases[0].Direct = "" })
	if _, err := f.NewLease(LeaseOptions{Stream: "main", Holder: "one"}); err == nil {
		t.Error("made a lease without a direct connection")
	}
}
