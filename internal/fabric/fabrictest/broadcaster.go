package fabrictest

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rigelbuild/compass-operator/internal/fabric"
)

// RunBroadcaster is the conformance suite of Broadcaster and Notifier. ground is called once per case.
func RunBroadcaster(t *testing.T, ground func(t *testing.T) Ground) {
	t.Helper()
	cases := map[string]func(*testing.T, Ground){
		"EveryListenerOfTheTenantHears": everyListenerHears,
		"KeepsOrderAndIsSerial":         keepsOrder,
		"NobodyListeningIsNoError":      nobodyListening,
		"EndedListenersHearNothing":     endedListeners,
		"ListenersSurviveAnOutage":      listenersSurvive,
		"RefusesBadNames":               refusesBadNames,
		"NotesReachTheirAddressAlone":   notesReachTheirAddress,
	}
	for name, run := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run(t, ground(t))
		})
	}
}

// heard collects what listeners get.
type heard[T any] struct {
	mu  sync.Mutex
	all []T
}

func (h *heard[T]) add(v T) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.all = append(h.all, v)
}

func (h *heard[T]) got() []T {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]T(nil), h.all...)
}

func listen(t *testing.T, f fabric.Broadcaster, tenant string) (*heard[fabric.BroadcastMsg], fabric.Unsubscribe) {
	t.Helper()
	h := &heard[fabric.BroadcastMsg]{}
	end, err := f.Listen(t.Context(), tenant, func(_ context.Context, m fabric.BroadcastMsg) { h.add(m) })
	if err != nil {
		t.Fatal(err)
	}
	return h, end
}

func broadcast(t *testing.T, f fabric.Broadcaster, tenant, event, body string) { //nolint:unparam // the tenant is what the suite is about
	t.Helper()
	if err := f.Broadcast(t.Context(), tenant, event, []byte(body), map[string]string{"Compass-Digest": "d" + body}); err != nil {
		t.Fatalf("broadcast: %v", err)
	}
}

func everyListenerHears(t *testing.T, g Ground) {
	a, b := g.Open(t, Options{}), g.Open(t, Options{})
	onA, _ := listen(t, a, TenantA)
	onB, _ := listen(t, b, TenantA)
	other, _ := listen(t, b, TenantB)
	broadcast(t, a, TenantA, "message_visible", "1")
	want := []fabric.BroadcastMsg{{
		Tenant: TenantA, Event: "message_visible", Envelope: []byte("1"), Header: map[string]string{"Compass-Digest": "d1"},
	}}
	for who, h := range map[string]*heard[fabric.BroadcastMsg]{"the publisher itself": onA, "the other instance": onB} {
		Eventually(t, who+" hears it", func() bool { return len(h.got()) == 1 })
		if diff := cmp.Diff(want, h.got()); diff != "" {
			t.Errorf("%s (-want +got)\n%s", who, diff)
		}
	}
	never(t, "another tenant's listener hears it", func() bool { return len(other.got()) > 0 })
}

func keepsOrder(t *testing.T, g Ground) {
	f := g.Open(t, Options{})
	h, _ := listen(t, f, TenantA)
	const n = 200
	for i := range n {
		broadcast(t, f, TenantA, "presence", strconv.Itoa(i))
	}
	Eventually(t, "all arrive", func() bool { return len(h.got()) == n })
	for i, m := range h.got() {
		if string(m.Envelope) != strconv.Itoa(i) {
			t.Fatalf("number %d is %q", i, m.Envelope)
		}
	}
}

func nobodyListening(t *testing.T, g Ground) {
	broadcast(t, g.Open(t, Options{}), TenantA, "presence", "1")
}

func endedListeners(t *testing.T, g Ground) {
	f := g.Open(t, Options{})
	gone, end := listen(t, f, TenantA)
	ctx, cancel := context.WithCancel(t.Context())
	canceled := &heard[fabric.BroadcastMsg]{}
	if _, err := f.Listen(ctx, TenantA, func(_ context.Context, m fabric.BroadcastMsg) { canceled.add(m) }); err != nil {
		t.Fatal(err)
	}
	stays, _ := listen(t, f, TenantA)
	broadcast(t, f, TenantA, "presence", "1")
	Eventually(t, "all hear the first", func() bool { return len(gone.got())+len(canceled.got())+len(stays.got()) == 3 })
	end()
	end()
	cancel()
	Eventually(t, "a canceled listener ends", func() bool {
		before := len(canceled.got())
		broadcast(t, f, TenantA, "presence", "2")
		n := len(stays.got())
		Eventually(t, "the one that stays hears", func() bool { return len(stays.got()) >= n })
		return len(canceled.got()) == before
	})
	if n := len(gone.got()); n != 1 {
		t.Errorf("an ended listener heard %d, want 1", n)
	}
}

func listenersSurvive(t *testing.T, g Ground) {
	a, b := g.Open(t, Options{}), g.Open(t, Options{})
	h, _ := listen(t, b, TenantA)
	restore := g.Outage(t)
	Eventually(t, "broadcasting fails once the connection is known to be gone", func() bool {
		return errors.Is(a.Broadcast(t.Context(), TenantA, "presence", nil, nil), fabric.ErrUnavailable)
	})
	restore()
	Eventually(t, "the listener hears again", func() bool {
		_ = a.Broadcast(t.Context(), TenantA, "presence", []byte("x"), nil) // fails until reconnected
		return len(h.got()) > 0
	})
}

func refusesBadNames(t *testing.T, g Ground) {
	f := g.Open(t, Options{})
	for _, c := range [][2]string{{"*", "presence"}, {TenantA, "*"}, {TenantA, "a.b"}, {"", "presence"}, {TenantA, ""}, {"acme", "presence"}} {
		if err := f.Broadcast(t.Context(), c[0], c[1], nil, nil); !errors.Is(err, fabric.ErrBadRef) {
			t.Errorf("broadcast %q: got %v, want ErrBadRef", c, err)
		}
	}
	nop := func(context.Context, fabric.BroadcastMsg) {}
	for _, tenant := range []string{"*", ">", "", "a.b"} {
		if _, err := f.Listen(t.Context(), tenant, nop); !errors.Is(err, fabric.ErrBadRef) {
			t.Errorf("listen to %q: got %v, want ErrBadRef", tenant, err)
		}
	}
	if err := f.NotifyClient(t.Context(), "*", fabric.Note{Event: "resync"}); !errors.Is(err, fabric.ErrBadRef) {
		t.Errorf("notify any client: got %v, want ErrBadRef", err)
	}
	if err := f.NotifyWorker(t.Context(), "main.x", fabric.Note{Event: "resync"}); !errors.Is(err, fabric.ErrBadRef) {
		t.Errorf("notify a worker below: got %v, want ErrBadRef", err)
	}
}

func notesReachTheirAddress(t *testing.T, g Ground) {
	a, b := g.Open(t, Options{}), g.Open(t, Options{})
	var client, otherClient, worker, otherWorker heard[fabric.Note]
	hear := func(h *heard[fabric.Note]) func(context.Context, fabric.Note) {
		return func(_ context.Context, n fabric.Note) { h.add(n) }
	}
	var errs []error
	_, err := b.HearClient(t.Context(), Client1, hear(&client))
	errs = append(errs, err)
	_, err = b.HearClient(t.Context(), Client2, hear(&otherClient))
	errs = append(errs, err)
	_, err = b.HearWorker(t.Context(), Stream, hear(&worker))
	errs = append(errs, err)
	_, err = b.HearWorker(t.Context(), "second", hear(&otherWorker))
	errs = append(errs, err)
	note := fabric.Note{Event: "resync", Envelope: []byte("e"), Header: map[string]string{"Compass-Digest": "d"}}
	errs = append(errs, a.NotifyClient(t.Context(), Client1, note), a.NotifyWorker(t.Context(), Stream, note))
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	Eventually(t, "both arrive", func() bool { return len(client.got()) == 1 && len(worker.got()) == 1 })
	for _, h := range []*heard[fabric.Note]{&client, &worker} {
		if diff := cmp.Diff([]fabric.Note{note}, h.got()); diff != "" {
			t.Errorf("(-want +got)\n%s", diff)
		}
	}
	never(t, "a note reaches another address", func() bool { return len(otherClient.got())+len(otherWorker.got()) > 0 })
}
