package fabrictest

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/rigelbuild/compass-operator/internal/fabric"
)

func onReconnectFiresOnce(t *testing.T, g Ground) {
	f := g.Open(t, short())
	var first, second, gone atomic.Int64
	for _, n := range []*atomic.Int64{&first, &second} {
		if _, err := f.OnReconnect(func() { n.Add(1) }); err != nil {
			t.Fatal(err)
		}
	}
	end, err := f.OnReconnect(func() { gone.Add(1) })
	if err != nil {
		t.Fatal(err)
	}
	end()
	if _, err := f.OnReconnect(nil); !errors.Is(err, fabric.ErrConfig) {
		t.Errorf("no function: got %v, want ErrConfig", err)
	}
	never(t, "it fires without an outage", func() bool { return first.Load() > 0 })
	for i := range int64(2) {
		g.Outage(t)()
		Eventually(t, "both hooks fire", func() bool { return first.Load() == i+1 && second.Load() == i+1 })
		never(t, "a hook fires twice for one outage", func() bool { return first.Load() > i+1 || second.Load() > i+1 })
	}
	if gone.Load() != 0 {
		t.Error("a hook fired after its end")
	}
}

func publishFailsWhileAway(t *testing.T, g Ground) {
	f := g.Open(t, short())
	var seen log
	subscribe(t, f, func(_ context.Context, ref fabric.EventRef) error { seen.add(ref); return nil })
	publish(t, f, Ref(TenantA, "before"))
	Eventually(t, "it works before", func() bool { return seen.of("before") == 1 })
	restore := g.Outage(t)
	if err := tryPublish(t, f, Ref(TenantA, "during")); !errors.Is(err, fabric.ErrUnavailable) {
		t.Errorf("got %v, want ErrUnavailable", err)
	}
	restore()
	Eventually(t, "publishing works again", func() bool { return tryPublish(t, f, Ref(TenantA, "after")) == nil })
	Eventually(t, "and arrives on the same subscription", func() bool { return seen.of("after") == 1 })
	if seen.of("during") != 0 {
		t.Error("what was refused was sent later after all")
	}
}

func closeEndsEverything(t *testing.T, g Ground) {
	f := g.Open(t, short())
	subscribe(t, f, func(context.Context, fabric.EventRef) error { return nil })
	publish(t, f, Ref(TenantA, "m_1"))
	for range 2 {
		if err := f.Close(t.Context()); err != nil {
			t.Fatalf("close: %v", err)
		}
	}
	if err := tryPublish(t, f, Ref(TenantA, "m_2")); !errors.Is(err, fabric.ErrClosed) {
		t.Errorf("publish after Close: got %v, want ErrClosed", err)
	}
	if _, err := f.SubscribeKind(t.Context(), fabric.KindMessagePosted, func(context.Context, fabric.EventRef) error { return nil }); !errors.Is(err, fabric.ErrClosed) {
		t.Errorf("subscribe after Close: got %v, want ErrClosed", err)
	}
	if _, err := f.OnReconnect(func() {}); !errors.Is(err, fabric.ErrClosed) {
		t.Errorf("OnReconnect after Close: got %v, want ErrClosed", err)
	}
}

func callbackMayFinish(t *testing.T, g Ground) {
	f := g.Open(t, short())
	ctx, cancel := context.WithCancel(t.Context())
	entered, release, result := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	_, err := f.SubscribeKind(ctx, fabric.KindMessagePosted, func(ctx context.Context, _ fabric.EventRef) error {
		close(entered)
		<-release
		result <- ctx.Err()
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	publish(t, f, Ref(TenantA, "m_1"))
	<-entered
	cancel()
	close(release)
	if err := <-result; err != nil {
		t.Errorf("the callback's context ended with the subscription's: %v", err)
	}
}

func aCanceledSubscriptionFreesItsPlace(t *testing.T, g Ground) {
	f := g.Open(t, short())
	ctx, cancel := context.WithCancel(t.Context())
	nop := func(context.Context, fabric.EventRef) error { return nil }
	if _, err := f.SubscribeKind(ctx, fabric.KindMessagePosted, nop); err != nil {
		t.Fatal(err)
	}
	cancel()
	Eventually(t, "another can subscribe", func() bool {
		_, err := f.SubscribeKind(t.Context(), fabric.KindMessagePosted, nop)
		return err == nil
	})
}
