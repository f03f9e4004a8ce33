package fabrictest

import (
	"context"
	"errors"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rigelbuild/compass-operator/internal/fabric"
)

// RunEventFabric is the conformance suite of EventFabric and DeadLetterBox. ground is called once per case.
func RunEventFabric(t *testing.T, ground func(t *testing.T) Ground) {
	t.Helper()
	cases := map[string]func(*testing.T, Ground){
		"DeliversWhatWasPublished":        deliversWhatWasPublished,
		"KeepsWhatNobodyTakes":            keepsWhatNobodyTakes,
		"CollapsesTheSameChange":          collapsesTheSameChange,
		"RefusesBadReferences":            refusesBadReferences,
		"SaysWhenNoStreamCarriesTenant":   saysWhenNoStream,
		"CallbacksAreSerial":              callbacksAreSerial,
		"OneOfTwoClaims":                  oneOfTwoClaims,
		"UnsubscribeWaits":                unsubscribeWaits,
		"RefusesOverlap":                  refusesOverlap,
		"SubscribeTakesOneTenant":         subscribeTakesOneTenant,
		"RetryAfterNeverParks":            retryAfterNeverParks,
		"FailuresParkAtMaxDeliver":        failuresParkAtMaxDeliver,
		"RetryAfterChargesNothing":        retryAfterChargesNothing,
		"FailuresFollowTheSchedule":       failuresFollowTheSchedule,
		"PoisonParksAtOnce":               poisonParksAtOnce,
		"PanicIsAFailure":                 panicIsAFailure,
		"SlowCallbackIsRedelivered":       slowCallbackIsRedelivered,
		"UnansweredParksUnworked":         unansweredParksUnworked,
		"UndecodableParks":                undecodableParks,
		"AnnouncingTwiceStoresOne":        announcingTwiceStoresOne,
		"ReplayDeliversAgain":             replayDeliversAgain,
		"OnReconnectFiresOncePerOutage":   onReconnectFiresOnce,
		"PublishFailsWhileAway":           publishFailsWhileAway,
		"CloseEndsEverything":             closeEndsEverything,
		"CallbackMayFinishAfterCtxIsDone": callbackMayFinish,
		"CancelingFreesThePlace":          aCanceledSubscriptionFreesItsPlace,
	}
	for name, run := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run(t, ground(t))
		})
	}
}

func deliversWhatWasPublished(t *testing.T, g Ground) {
	f := g.Open(t, short())
	var seen log
	subscribe(t, f, func(_ context.Context, ref fabric.EventRef) error { seen.add(ref); return nil })
	want := fabric.EventRef{Tenant: TenantA, Kind: fabric.KindMessagePosted, RowID: "m_1", Version: 42}
	publish(t, f, want)
	Eventually(t, "the reference arrives", func() bool { return seen.len() == 1 })
	if diff := cmp.Diff(want, seen.first()); diff != "" {
		t.Errorf("the reference changed on its way (-want +got)\n%s", diff)
	}
	never(t, "an acked reference comes again", func() bool { return seen.len() > 1 })
}

func keepsWhatNobodyTakes(t *testing.T, g Ground) {
	f := g.Open(t, short())
	end := subscribe(t, f, func(context.Context, fabric.EventRef) error { return nil })
	end()
	publish(t, f, Ref(TenantA, "m_1"))
	publish(t, f, Ref(TenantB, "m_2"))
	var seen log
	subscribe(t, f, func(_ context.Context, ref fabric.EventRef) error { seen.add(ref); return nil })
	Eventually(t, "both arrive", func() bool { return seen.of("m_1") == 1 && seen.of("m_2") == 1 })
}

func collapsesTheSameChange(t *testing.T, g Ground) {
	a, b := g.Open(t, short()), g.Open(t, short())
	end := subscribe(t, a, func(context.Context, fabric.EventRef) error { return nil })
	end()
	publish(t, a, Ref(TenantA, "m_1"))
	publish(t, b, Ref(TenantA, "m_1")) // the same change by another process
	again := Ref(TenantA, "m_1")
	again.Version = 2
	publish(t, a, again) // the next change of the same row
	publish(t, a, Ref(TenantA, "last"))
	var seen log
	subscribe(t, a, func(_ context.Context, ref fabric.EventRef) error { seen.add(ref); return nil })
	Eventually(t, "the last one arrives", func() bool { return seen.of("last") == 1 })
	if n := seen.of("m_1"); n != 2 {
		t.Errorf("two changes, one of them published twice: delivered %d times, want 2", n)
	}
}

func refusesBadReferences(t *testing.T, g Ground) {
	f := g.Open(t, short())
	good, _ := fabric.CommsSubject(TenantA, fabric.KindMessagePosted)
	bad := map[string]struct {
		subject string
		ref     fabric.EventRef
	}{
		"OtherTenant":  {good, Ref(TenantB, "m_1")},
		"NoSubject":    {"", Ref(TenantA, "m_1")},
		"WireSubject":  {"compass.q.main." + TenantA + ".message_posted", Ref(TenantA, "m_1")},
		"DottedRow":    {good, Ref(TenantA, "m.1")},
		"EmptyRow":     {good, Ref(TenantA, "")},
		"WildcardRow":  {good, Ref(TenantA, "*")},
		"NoVersion":    {good, fabric.EventRef{Tenant: TenantA, Kind: fabric.KindMessagePosted, RowID: "m_1"}},
		"OtherKind":    {good, fabric.EventRef{Tenant: TenantA, Kind: "settled", RowID: "m_1", Version: 1}},
		"ForgedTenant": {"compass.*.comms.message_posted", Ref("*", "m_1")},
	}
	for name, c := range bad {
		if err := f.Publish(t.Context(), c.subject, c.ref); !errors.Is(err, fabric.ErrBadRef) {
			t.Errorf("%s: got %v, want ErrBadRef", name, err)
		}
	}
	if _, err := fabric.CommsSubject("a.b", fabric.KindMessagePosted); !errors.Is(err, fabric.ErrBadRef) {
		t.Errorf("a tenant with a dot: got %v, want ErrBadRef", err)
	}
}

func saysWhenNoStream(t *testing.T, g Ground) {
	o := short()
	o.StreamOf = func(tenant string) (string, bool) { return Stream, tenant == TenantA }
	f := g.Open(t, o)
	subscribe(t, f, func(context.Context, fabric.EventRef) error { return nil })
	publish(t, f, Ref(TenantA, "m_1"))
	if err := tryPublish(t, f, Ref(TenantB, "m_1")); !errors.Is(err, fabric.ErrNoStream) {
		t.Errorf("got %v, want ErrNoStream", err)
	}
}

func callbacksAreSerial(t *testing.T, g Ground) {
	f := g.Open(t, short())
	var running, most, done atomic.Int64
	subscribe(t, f, func(ctx context.Context, _ fabric.EventRef) error {
		n := running.Add(1)
		defer running.Add(-1)
		if n > most.Load() {
			most.Store(n)
		}
		yieldFor(ctx)
		done.Add(1)
		return nil
	})
	const n = 40
	for i := range n {
		publish(t, f, Ref(TenantA, "m_"+strconv.Itoa(i)))
	}
	Eventually(t, "all arrive", func() bool { return done.Load() == n })
	if most.Load() != 1 {
		t.Errorf("%d callbacks overlapped, want none", most.Load())
	}
}

func oneOfTwoClaims(t *testing.T, g Ground) {
	a, b := g.Open(t, short()), g.Open(t, short())
	var byA, byB log
	subscribe(t, a, func(ctx context.Context, ref fabric.EventRef) error { yieldFor(ctx); byA.add(ref); return nil })
	subscribe(t, b, func(ctx context.Context, ref fabric.EventRef) error { yieldFor(ctx); byB.add(ref); return nil })
	const n = 60
	for i := range n {
		publish(t, a, Ref(TenantA, "m_"+strconv.Itoa(i))) // the poster's own process may be the claimer (X4)
	}
	Eventually(t, "all arrive", func() bool { return byA.len()+byB.len() >= n })
	never(t, "a reference is claimed twice", func() bool { return byA.len()+byB.len() > n })
	for i := range n {
		row := "m_" + strconv.Itoa(i)
		if got := byA.of(row) + byB.of(row); got != 1 {
			t.Errorf("%s was claimed %d times, want once", row, got)
		}
	}
	if byA.len() == 0 || byB.len() == 0 {
		t.Errorf("one instance got nothing: %d and %d", byA.len(), byB.len())
	}
}

// Lessons U18.
func unsubscribeWaits(t *testing.T, g Ground) {
	f := g.Open(t, short())
	entered, release := make(chan struct{}), make(chan struct{})
	var finished atomic.Bool
	end := subscribe(t, f, func(context.Context, fabric.EventRef) error {
		close(entered)
		<-release
		finished.Store(true)
		return nil
	})
	publish(t, f, Ref(TenantA, "m_1"))
	<-entered
	ended := make(chan bool, 1)
	go func() { end(); ended <- finished.Load() }()
	never(t, "Unsubscribe returns while the callback runs", func() bool { return len(ended) > 0 })
	close(release)
	if !<-ended {
		t.Error("Unsubscribe returned before the callback had finished")
	}
	end() // may be called again
	publish(t, f, Ref(TenantA, "m_2"))
	var seen log
	subscribe(t, f, func(_ context.Context, ref fabric.EventRef) error { seen.add(ref); return nil })
	Eventually(t, "the next subscriber gets what came later", func() bool { return seen.of("m_2") == 1 })
	if seen.of("m_1") != 0 {
		t.Error("the answer of the last callback was lost")
	}
}

// Lessons B25: two consumers of a work queue that get the same references are refused, not found out later.
func refusesOverlap(t *testing.T, g Ground) {
	nop := func(context.Context, fabric.EventRef) error { return nil }
	f := g.Open(t, short())
	end := subscribe(t, f, nop)
	if _, err := f.SubscribeKind(t.Context(), fabric.KindMessagePosted, nop); !errors.Is(err, fabric.ErrOverlap) {
		t.Errorf("a second SubscribeKind: got %v, want ErrOverlap", err)
	}
	subject, _ := fabric.CommsSubject(TenantA, fabric.KindMessagePosted)
	other := g.Open(t, short())
	if _, err := other.Subscribe(t.Context(), subject, nop); !errors.Is(err, fabric.ErrOverlap) {
		t.Errorf("Subscribe beside SubscribeKind: got %v, want ErrOverlap", err)
	}
	end()
	subscribe(t, f, nop) // free again
}

func subscribeTakesOneTenant(t *testing.T, g Ground) {
	f := g.Open(t, short())
	subject, _ := fabric.CommsSubject(TenantA, fabric.KindMessagePosted)
	var seen log
	end, err := f.Subscribe(t.Context(), subject, func(_ context.Context, ref fabric.EventRef) error { seen.add(ref); return nil })
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.SubscribeKind(t.Context(), fabric.KindMessagePosted, func(context.Context, fabric.EventRef) error { return nil }); !errors.Is(err, fabric.ErrOverlap) {
		t.Errorf("SubscribeKind beside Subscribe: got %v, want ErrOverlap", err)
	}
	publish(t, f, Ref(TenantB, "m_b"))
	publish(t, f, Ref(TenantA, "m_a"))
	Eventually(t, "the tenant's reference arrives", func() bool { return seen.of("m_a") == 1 })
	end()
	if seen.of("m_b") != 0 {
		t.Error("another tenant's reference arrived")
	}
	subscribe(t, f, func(_ context.Context, ref fabric.EventRef) error { seen.add(ref); return nil })
	Eventually(t, "the other tenant's was kept", func() bool { return seen.of("m_b") == 1 })
}

// yieldFor gives others the chance to overlap if they could.
func yieldFor(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-after(2):
	}
}
