package store

import (
	"errors"
	"testing"
)

// The database failed over to a server whose clock is behind: a lease from before would last for as long as the clocks are
// apart. It does not keep anybody out for longer than twice its length; one that a small step made longer does, as any.
func TestLeaseFromAheadOfTheClock(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	one := f.acquired(t, "one")
	two := f.lease(t, "two")
	f.mustExec(t, `update compass.delivery_leases set expires_at = clock_timestamp() + 1.5 * ttl`)
	if err := two.Acquire(t.Context(), 0); !errors.Is(err, ErrLeaseHeld) {
		t.Fatalf("a step that is small: %v, want ErrLeaseHeld", err)
	}
	f.mustExec(t, `update compass.delivery_leases set expires_at = clock_timestamp() + interval '1 hour' + 2 * ttl`)
	before := one.mustFence(t)
	if err := two.Acquire(t.Context(), 0); err != nil {
		t.Fatalf("a lease from an hour ahead: %v", err)
	}
	if got := two.mustFence(t); got.Epoch <= before.Epoch || !two.Careful() {
		t.Errorf("%+v after %+v, careful %v", got, before, two.Careful())
	}
	if err := one.Renew(t.Context()); !errors.Is(err, ErrLeaseLost) {
		t.Errorf("the one before renews: %v", err)
	}
}
