package fabrictest

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/rigelbuild/compass-operator/internal/fabric"
	"github.com/rigelbuild/compass-operator/internal/fault"
	"github.com/rigelbuild/compass-operator/internal/naming"
)

func after(ms int) <-chan time.Time { return time.After(time.Duration(ms) * time.Millisecond) }

func retryAfterNeverParks(t *testing.T, g Ground) {
	o := short()
	f := g.Open(t, o)
	const delay = 30 * time.Millisecond
	var seen log
	subscribe(t, f, func(_ context.Context, ref fabric.EventRef) error {
		if seen.add(ref) <= 3*o.MaxDeliver {
			return fault.RetryAfter(delay, ErrBoom)
		}
		return nil
	})
	publish(t, f, Ref(TenantA, "m_1"))
	Eventually(t, "it is tried until it works", func() bool { return seen.len() == 3*o.MaxDeliver+1 })
	if all := letters(t, f, ""); len(all) != 0 {
		t.Errorf("parked although RetryAfter never parks: %+v", all)
	}
	at := seen.times()
	for i := 1; i < len(at); i++ {
		if gap := at[i].Sub(at[i-1]); gap < delay-5*time.Millisecond {
			t.Errorf("try %d came %s after the one before, want at least %s", i+1, gap, delay)
		}
	}
}

// Lessons U17: what is parked is a full record, not a pointer that may age out. Lessons U3: what is not known to be poison is tried
// again.
func failuresParkAtMaxDeliver(t *testing.T, g Ground) {
	o := short()
	f := g.Open(t, o)
	var seen log
	began := time.Now()
	subscribe(t, f, func(_ context.Context, ref fabric.EventRef) error {
		if ref.RowID == "healthy" {
			return nil
		}
		seen.add(ref)
		return ErrBoom
	})
	publish(t, f, Ref(TenantA, "m_1"))
	publish(t, f, Ref(TenantA, "healthy"))
	got := waitLetters(t, f, 1)[0]
	if seen.len() != o.MaxDeliver {
		t.Errorf("tried %d times, want MaxDeliver = %d attempts", seen.len(), o.MaxDeliver)
	}
	want := fabric.DeadLetter{
		Ref: Ref(TenantA, "m_1"), OriginalSubject: "compass.q.main." + TenantA + ".message_posted",
		Body:     []byte(`{"tenant":"` + TenantA + `","kind":"message_posted","row_id":"m_1"}`),
		Attempts: o.MaxDeliver, Reason: fabric.ReasonExhausted, Error: "boom",
	}
	ignore := cmpopts.IgnoreFields(fabric.DeadLetter{}, "FirstSeen", "LastSeen", "Sequence")
	if diff := cmp.Diff(want, got, ignore); diff != "" {
		t.Errorf("dead letter (-want +got)\n%s", diff)
	}
	const skew = time.Second
	if got.FirstSeen.Before(began.Add(-skew)) || got.LastSeen.Before(got.FirstSeen.Add(-skew)) || got.LastSeen.After(time.Now().Add(skew)) {
		t.Errorf("first seen %s, last seen %s do not fit a test that began at %s", got.FirstSeen, got.LastSeen, began)
	}
	never(t, "a parked reference comes again", func() bool { return seen.len() > o.MaxDeliver })
	waitLetters(t, f, 1)
}

// Lessons B1, U4, operator 49: exactly MaxDeliver tries, each after the delay that the schedule has for it, whose last value
// repeats. A broker redelivers at once what is refused without a delay.
func failuresFollowTheSchedule(t *testing.T, g Ground) {
	o := short()
	o.MaxDeliver, o.Backoff = 4, []time.Duration{40 * time.Millisecond, 160 * time.Millisecond}
	f := g.Open(t, o)
	var seen log
	subscribe(t, f, func(_ context.Context, ref fabric.EventRef) error { seen.add(ref); return ErrBoom })
	publish(t, f, Ref(TenantA, "m_1"))
	if got := waitLetters(t, f, 1)[0]; got.Attempts != o.MaxDeliver {
		t.Errorf("parked after %d attempts, want %d", got.Attempts, o.MaxDeliver)
	}
	at := seen.times()
	if len(at) != o.MaxDeliver {
		t.Fatalf("tried %d times, want %d", len(at), o.MaxDeliver)
	}
	for i, want := range []time.Duration{o.Backoff[0], o.Backoff[1], o.Backoff[1]} {
		if gap := at[i+1].Sub(at[i]); gap < want-5*time.Millisecond {
			t.Errorf("try %d came %s after the one before, want at least %s", i+2, gap, want)
		}
	}
}

func retryAfterChargesNothing(t *testing.T, g Ground) {
	o := short()
	f := g.Open(t, o)
	var seen log
	subscribe(t, f, func(_ context.Context, ref fabric.EventRef) error {
		if seen.add(ref) <= 4 {
			return fault.RetryAfter(10*time.Millisecond, ErrBoom)
		}
		return ErrBoom
	})
	publish(t, f, Ref(TenantA, "m_1"))
	got := waitLetters(t, f, 1)[0]
	if want := 4 + o.MaxDeliver; seen.len() != want {
		t.Errorf("tried %d times, want %d: four excused, then MaxDeliver failures", seen.len(), want)
	}
	if got.Attempts != o.MaxDeliver {
		t.Errorf("attempts: got %d, want %d", got.Attempts, o.MaxDeliver)
	}
}

func poisonParksAtOnce(t *testing.T, g Ground) {
	f := g.Open(t, short())
	var seen log
	subscribe(t, f, func(_ context.Context, ref fabric.EventRef) error {
		seen.add(ref)
		if ref.RowID == "bad" {
			return fault.Poison("NoSuchTenant", ErrBoom)
		}
		return nil
	})
	publish(t, f, Ref(TenantA, "bad"))
	publish(t, f, Ref(TenantB, "good"))
	got := waitLetters(t, f, 1)[0]
	if got.Reason != "NoSuchTenant" || got.Attempts != 1 || got.Ref.RowID != "bad" {
		t.Errorf("got %+v, want reason NoSuchTenant after one attempt", got)
	}
	Eventually(t, "the healthy one is served", func() bool { return seen.of("good") == 1 })
	never(t, "poison is tried again", func() bool { return seen.of("bad") > 1 })
	if n := len(letters(t, f, TenantB)); n != 0 {
		t.Errorf("the other tenant has %d dead letters, want none", n)
	}
	if n := len(letters(t, f, TenantA)); n != 1 {
		t.Errorf("the tenant has %d dead letters, want 1", n)
	}
}

func panicIsAFailure(t *testing.T, g Ground) {
	o := short()
	f := g.Open(t, o)
	var seen log
	subscribe(t, f, func(_ context.Context, ref fabric.EventRef) error {
		if ref.RowID == "ok" {
			return nil
		}
		seen.add(ref)
		panic("ouch")
	})
	publish(t, f, Ref(TenantA, "m_1"))
	got := waitLetters(t, f, 1)[0]
	if seen.len() != o.MaxDeliver || !strings.Contains(got.Error, "ouch") {
		t.Errorf("tried %d times with %q, want %d times and the panic's text", seen.len(), got.Error, o.MaxDeliver)
	}
}

// Holds REQ-079: a callback held past AckWait is delivered again though nothing is wrong with the reference.
func slowCallbackIsRedelivered(t *testing.T, g Ground) {
	o := short()
	o.AckWait = 300 * time.Millisecond
	a, b := g.Open(t, o), g.Open(t, o)
	release := make(chan struct{})
	var first, again log
	subscribe(t, a, func(_ context.Context, ref fabric.EventRef) error { first.add(ref); <-release; return nil })
	publish(t, a, Ref(TenantA, "m_1"))
	Eventually(t, "the slow one has it", func() bool { return first.len() == 1 })
	subscribe(t, b, func(_ context.Context, ref fabric.EventRef) error { again.add(ref); return nil })
	Eventually(t, "the other one gets it too", func() bool { return again.len() == 1 })
	close(release)
	if all := letters(t, a, ""); len(all) != 0 {
		t.Errorf("parked: %+v", all)
	}
}

// Holds REQ-079: and it can march to a park, where nobody answers in time.
func unansweredParksUnworked(t *testing.T, g Ground) {
	o := short()
	o.AckWait, o.MaxDeliver = 300*time.Millisecond, 2
	release := make(chan struct{})
	var seen log
	for range o.MaxDeliver {
		subscribe(t, g.Open(t, o), func(_ context.Context, ref fabric.EventRef) error { seen.add(ref); <-release; return nil })
	}
	defer close(release)
	last := g.Open(t, o)
	publish(t, last, Ref(TenantA, "m_1"))
	Eventually(t, "every slow one holds it", func() bool { return seen.len() == o.MaxDeliver })
	var worked log
	subscribe(t, last, func(_ context.Context, ref fabric.EventRef) error { worked.add(ref); return nil })
	got := waitLetters(t, last, 1)[0]
	if got.Reason != fabric.ReasonUnanswered || worked.len() != 0 {
		t.Errorf("reason %s, worked %d times: want %s, unworked", got.Reason, worked.len(), fabric.ReasonUnanswered)
	}
}

// Lessons U2: a reference whose tenant is not that of its subject is nobody's.
func undecodableParks(t *testing.T, g Ground) {
	f := g.Open(t, short())
	var seen log
	end := subscribe(t, f, func(context.Context, fabric.EventRef) error { return nil })
	end()
	subject := "compass.q.main." + TenantA + ".message_posted"
	body := []byte(`{"tenant":"` + TenantB + `","kind":"message_posted","row_id":"m_1"}`)
	g.Raw(t, subject, nil, []byte("not json"))
	g.Raw(t, subject, nil, []byte("not json")) // the same again has the same place
	g.Raw(t, subject, header(body), body)      // another tenant's reference
	g.Raw(t, "compass.q.main."+TenantA+".other_kind", header(kindBody), kindBody)
	g.Raw(t, "compass.q.main.nobody", nil, []byte("{}"))
	g.Raw(t, subject, map[string]string{"Status": "400"}, nil) // what a broker says when it ends a request
	garbled := []byte(`{"tenant":"` + TenantA + `","kind":"message_posted","row_id":"garbled"}`)
	g.Raw(t, subject, header([]byte("as it was")), garbled)
	unversioned := []byte(`{"tenant":"` + TenantA + `","kind":"message_posted","row_id":"unversioned"}`)
	noVersion := header(unversioned)
	delete(noVersion, naming.HeaderVersion)
	g.Raw(t, subject, noVersion, unversioned)
	subscribe(t, f, func(_ context.Context, ref fabric.EventRef) error { seen.add(ref); return nil })
	got := waitLetters(t, f, 7)
	reasons := map[string]int{}
	for _, d := range got {
		reasons[d.Reason]++
		if d.OriginalSubject == "" {
			t.Errorf("no original subject: %+v", d)
		}
	}
	if diff := cmp.Diff(map[string]int{fabric.ReasonUndecodable: 6, fabric.ReasonUnknownKind: 1}, reasons); diff != "" {
		t.Errorf("reasons (-want +got)\n%s", diff)
	}
	if seen.len() != 0 {
		t.Errorf("a callback was asked about %+v", seen.first())
	}
	publish(t, f, Ref(TenantA, "m_2"))
	Eventually(t, "healthy ones still flow", func() bool { return seen.of("m_2") == 1 })
	if err := f.Replay(t.Context(), Stream, got[0]); !errors.Is(err, fabric.ErrBadRef) {
		t.Errorf("replay of what nobody could read: got %v, want ErrBadRef", err)
	}
}

func announcingTwiceStoresOne(t *testing.T, g Ground) {
	f := g.Open(t, short())
	subscribe(t, f, func(context.Context, fabric.EventRef) error { return nil })
	letter := fabric.DeadLetter{
		Ref: Ref(TenantA, "m_1"), Recipient: "a_0000000000000000000000000a", Attempts: 5, Reason: "Refused",
		Error: "two\nlines", FirstSeen: time.Now().Add(-time.Hour), LastSeen: time.Now(),
	}
	for range 2 {
		if err := f.Announce(t.Context(), Stream, letter); err != nil {
			t.Fatal(err)
		}
	}
	other := letter
	other.Recipient = "a_0000000000000000000000000b"
	again := letter
	again.Replay = 1
	for _, d := range []fabric.DeadLetter{other, again} {
		if err := f.Announce(t.Context(), Stream, d); err != nil {
			t.Fatal(err)
		}
	}
	got := waitLetters(t, f, 3)
	if got[0].Recipient != letter.Recipient || got[0].Error != "two lines" || !got[0].FirstSeen.Equal(letter.FirstSeen) {
		t.Errorf("read back %+v, want %+v", got[0], letter)
	}
	if err := f.Remove(t.Context(), Stream, got[1]); err != nil {
		t.Fatal(err)
	}
	if err := f.Remove(t.Context(), Stream, got[1]); err != nil {
		t.Errorf("removing what is gone: %v, want success", err)
	}
	wrong := got[0]
	wrong.Recipient = other.Recipient
	if err := f.Remove(t.Context(), Stream, wrong); !errors.Is(err, fabric.ErrMismatch) {
		t.Errorf("removing another one's place: got %v, want ErrMismatch", err)
	}
	waitLetters(t, f, 2)
}

// Lessons B5, U8, U9: what is parked stays until somebody replays it, and goes only when that is stored.
func replayDeliversAgain(t *testing.T, g Ground) {
	f := g.Open(t, short())
	var seen log
	subscribe(t, f, func(_ context.Context, ref fabric.EventRef) error {
		if seen.add(ref) <= 2 {
			return fault.Poison("Bad", ErrBoom)
		}
		return nil
	})
	publish(t, f, Ref(TenantA, "m_1"))
	for replay := range 2 {
		Eventually(t, "it is parked", func() bool {
			return slices.ContainsFunc(letters(t, f, ""), func(d fabric.DeadLetter) bool { return d.Replay == replay })
		})
		d := waitLetters(t, f, 1)[0]
		if err := f.Replay(t.Context(), Stream, d); err != nil {
			t.Fatalf("replay %d: %v", replay, err)
		}
		// Within the duplicate window the same replay stores nothing, and must say so.
		if err := f.Replay(t.Context(), Stream, d); !errors.Is(err, fabric.ErrDuplicate) {
			t.Errorf("the same replay again: got %v, want ErrDuplicate", err)
		}
	}
	Eventually(t, "the second replay works", func() bool { return seen.len() == 3 })
	waitLetters(t, f, 0)
}

var kindBody = []byte(`{"tenant":"` + TenantA + `","kind":"other_kind","row_id":"m_1"}`)
