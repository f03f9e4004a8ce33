package event

import (
	"context"
	"errors"
	"testing"
	"time"
)

// nothing says whether a subscription has nothing to tell yet.
func nothing(t *testing.T, s *Subscription) bool {
	t.Helper()
	now := make(chan time.Time)
	close(now)
	for range 20 { // of several things that are ready any may be chosen
		events, err := s.Batch(t.Context(), 16, now)
		if err != nil {
			t.Fatal(err)
		}
		if len(events) > 0 {
			return false
		}
	}
	return true
}

// Who stays behind sees an event when the one before it has asked for the next, and no later.
func TestBehind(t *testing.T) {
	t.Parallel()
	b := newBus(t, BusOptions{Epoch: "e"})
	first := subscribe(t, b, SubscribeOptions{Tenant: acme, Leads: true})
	behind := subscribe(t, b, SubscribeOptions{Tenant: acme})
	behind.Behind(first)
	emit(t, b, acme, 1)
	if !nothing(t, behind) {
		t.Error("told before the one that leads has read it")
	}
	if e, err := first.Next(t.Context()); err != nil || e.Version != 1 {
		t.Fatalf("%+v, %v", e, err)
	}
	emit(t, b, acme, 2)
	if !nothing(t, behind) {
		t.Error("told while the one that leads is still at it")
	}
	woken := make(chan int64, 1)
	go func() {
		e, err := behind.Next(t.Context())
		if err != nil {
			t.Error(err)
		}
		woken <- e.Version
	}()
	if e, err := first.Next(t.Context()); err != nil || e.Version != 2 {
		t.Fatalf("%+v, %v", e, err)
	}
	if v := <-woken; v != 1 {
		t.Errorf("told %d, want 1", v)
	}
	if !nothing(t, behind) {
		t.Error("told what the one that leads is at")
	}
	first.Close()
	if e, err := behind.Next(t.Context()); err != nil || e.Version != 2 {
		t.Errorf("%+v, %v when nobody leads any more", e, err)
	}
	emit(t, b, acme, 3)
	if e, err := behind.Next(t.Context()); err != nil || e.Version != 3 {
		t.Errorf("%+v, %v when nobody leads any more", e, err)
	}
}

// A leader that falls behind the ring is told so, and so are those that it held back.
func TestBehindOneThatLags(t *testing.T) {
	t.Parallel()
	b := newBus(t, BusOptions{Epoch: "e", Ring: 2})
	first := subscribe(t, b, SubscribeOptions{Tenant: acme, Leads: true})
	behind := subscribe(t, b, SubscribeOptions{Tenant: acme})
	behind.Behind(first)
	for v := int64(1); v <= 4; v++ {
		emit(t, b, acme, v)
	}
	for name, s := range map[string]*Subscription{"first": first, "behind": behind} {
		if _, err := s.Next(t.Context()); !errors.Is(err, ErrLagged) {
			t.Errorf("%s: %v, want ErrLagged", name, err)
		}
	}
	emit(t, b, acme, 5)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		for ctx.Err() == nil {
			_, _ = first.Next(ctx)
		}
	}()
	if e, err := behind.Next(t.Context()); err != nil || e.Version != 5 {
		t.Errorf("%+v, %v, want what came after", e, err)
	}
}
