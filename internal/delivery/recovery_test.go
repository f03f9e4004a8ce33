package delivery

import (
	"context"
	"log/slog"
	"reflect"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rigelbuild/compass-operator/internal/event"
	"github.com/rigelbuild/compass-operator/internal/fabric"
	"github.com/rigelbuild/compass-operator/internal/store"
)

// Holds REQ-054, REQ-056, REQ-061, REQ-080: a plain message whose reference was never published reaches a live recipient
// that never restarts, within one tick. Without the tick it does not: that is the control.
func TestTickRecoversAPlainMessage(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		tick      time.Duration
		recovered bool
	}{
		"with the tick":    {2 * time.Minute, true},
		"without the tick": {100 * time.Hour, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				g := newGround(t)
				g.truth.channel(acme, "c", "bot")
				bot := g.truth.start(acme, "bot", "r1")
				g.run(func(o *Options) { o.FloorTick = tc.tick })
				m := g.truth.post("c", "ada")
				pass(2*time.Minute + time.Second)
				if got := len(g.box.of(bot.Session)) == 1; got != tc.recovered {
					t.Errorf("delivered %v, want %v (%s)", got, tc.recovered, m.ID)
				}
			})
		})
	}
}

// Holds REQ-053, REQ-059, REQ-082 (the worker's part): after an outage both halves of the pair run, for all tenants, at once.
func TestReconnectRunsThePair(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGround(t)
		g.truth.tenant(beta, 2)
		g.truth.channel(acme, "c", "bot")
		g.truth.channel(beta, "d", "bee")
		bot, bee := g.truth.start(acme, "bot", "r1"), g.truth.start(beta, "bee", "r2")
		g.run()
		a, b := g.truth.post("c", "ada"), g.truth.post("d", "bob")
		missed := g.truth.post("c", "ada", "bot")
		g.truth.mu.Lock()
		g.truth.unrouted[acme] = []string{missed.ID}
		g.truth.log = nil
		g.truth.mu.Unlock()
		g.lane.reconnect()
		pass(0)
		if got := g.box.of(bot.Session); !slices.Contains(got, a.ID) || !slices.Contains(got, missed.ID) || len(got) != 2 {
			t.Errorf("acme took %v, want the plain one and the mention", short(got))
		}
		g.expect(bee, "beta", b)
		if !slices.Contains(g.truth.log, "sweep channels") || !slices.Contains(g.truth.log, "route") {
			t.Errorf("asked %v, want both halves", g.truth.log)
		}
	})
}

// Holds REQ-055, REQ-081: what was owed before is swept before the first reference is taken, also where Postgres is away
// when the worker starts.
func TestStartScanPrecedesTheFirstReference(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGround(t)
		g.truth.channel(acme, "c", "bot")
		bot := g.truth.start(acme, "bot", "r1")
		m := g.truth.post("c", "ada")
		g.sync(func() { g.truth.down[0] = store.ErrUnavailable })
		g.run()
		pass(30 * time.Second)
		if g.lane.handle != nil {
			t.Fatal("takes references before the sweep is through")
		}
		g.truth.mu.Lock()
		delete(g.truth.down, 0)
		g.truth.mu.Unlock()
		pass(10 * time.Second)
		if g.lane.handle == nil {
			t.Fatal("takes no references after the sweep")
		}
		g.expect(bot, "owed before the start", m)
	})
}

// Holds REQ-035, REQ-103, REQ-104, REQ-124: what a reference names is looked for under its tenant, and a forged one finds nothing.
// Holds REQ-049: a row that is not there is counted, and parks nothing.
func TestReferencesThatLeadNowhere(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGround(t)
		g.truth.tenant(beta, 2)
		g.truth.channel(acme, "c", "bot")
		bot := g.truth.start(acme, "bot", "r1")
		g.run()
		m := g.truth.post("c", "ada")
		for why, err := range map[string]error{
			"another tenant's row": g.lane.ref(t, beta, m.ID),
			"no row":               g.lane.ref(t, acme, mid(77)),
		} {
			if err != nil {
				t.Errorf("%s: %v, want it acked", why, err)
			}
		}
		pass(0)
		g.expect(bot, "nothing that leads to the message")
		g.truth.mu.Lock()
		g.truth.places["t_00000000000000000000000009"] = &store.Placement{Stream: "other"}
		g.truth.mu.Unlock()
		if err := g.lane.ref(t, "t_00000000000000000000000009", m.ID); err != nil {
			t.Errorf("another stream's tenant: %v, want it acked", err)
		}
		if err := g.lane.ref(t, "t_00000000000000000000000008", m.ID); !isPoison(err) {
			t.Errorf("a tenant that is nowhere: %v, want poison", err)
		}
		if err := g.lane.ref(t, acme, "not an id"); !isPoison(err) {
			t.Errorf("a row that is no id: %v, want poison", err)
		}
		g.rights.lose(0, true)
		if err := g.lane.ref(t, acme, m.ID); err == nil || isPoison(err) {
			t.Errorf("without the lease: %v, want neither an ack nor a park", err)
		}
	})
}

// T6, lessons B1: while Postgres is away references are acked, no attempt is counted, and what they named is delivered when
// it is back, without a tick.
func TestOutageKeepsNoReference(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGround(t)
		g.truth.channel(acme, "c", "bot")
		bot := g.truth.start(acme, "bot", "r1")
		g.run(func(o *Options) { o.FloorTick = 100 * time.Hour })
		g.sync(func() { g.truth.down[0] = store.ErrUnavailable })
		var ms []store.Message
		for range 100 {
			m := g.truth.post("c", "ada")
			ms = append(ms, m)
			g.ref(m)
		}
		pass(3 * time.Second)
		questions := g.questions()
		pass(time.Minute)
		if n := g.questions() - questions; n > 60 {
			t.Errorf("%d questions a minute to a database that is away", n)
		}
		g.truth.mu.Lock()
		delete(g.truth.down, 0)
		g.truth.mu.Unlock()
		pass(11 * time.Second)
		g.expect(bot, "after the outage", ms...)
		if len(g.truth.attempts) != 0 {
			t.Errorf("an outage counted attempts: %v", g.truth.attempts)
		}
	})
}

// Holds REQ-239: a dedicated database that is away, or whose lease is lost, delays only its tenants; what it missed is swept
// when its lease is back.
func TestAnotherDatabaseDelaysOnlyItsTenants(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGround(t)
		g.truth.tenant(beta, 2)
		g.sync(func() { g.truth.places[beta].Database = 1 })
		g.truth.channel(acme, "c", "bot")
		g.truth.channel(beta, "d", "bee")
		bot, bee := g.truth.start(acme, "bot", "r1"), g.truth.start(beta, "bee", "r2")
		g.rights.dbs = []int{0, 1}
		g.run(func(o *Options) { o.FloorTick = 100 * time.Hour })
		g.truth.mu.Lock()
		g.truth.down[1] = store.ErrUnavailable
		g.truth.mu.Unlock()
		b := g.truth.post("d", "bob")
		g.ref(b)
		a := g.truth.post("c", "ada")
		g.ref(a)
		g.expect(bot, "the shared database", a)
		g.truth.mu.Lock()
		delete(g.truth.down, 1)
		g.truth.mu.Unlock()
		pass(6 * time.Second)
		g.expect(bee, "its own is back", b)

		g.rights.lose(1, true)
		b2 := g.truth.post("d", "bob")
		g.ref(b2)
		pass(time.Minute)
		g.expect(bee, "the lease is lost", b)
		g.rights.lose(1, false)
		g.rights.regains <- 1
		pass(0)
		g.expect(bee, "the lease is back", b, b2)
	})
}

// Holds REQ-237 (the worker's part): a tenant that comes is swept without a reference; one that leaves is let go of, and the
// word is given only after what runs for it has ended; nothing is sent for it afterwards.
func TestMoves(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGround(t)
		g.truth.channel(acme, "c", "bot")
		bot := g.truth.start(acme, "bot", "r1")
		g.sync(func() { g.truth.places[acme].Stream = "other" })
		m := g.truth.post("c", "ada")
		g.run(func(o *Options) { o.FloorTick = 100 * time.Hour })
		pass(time.Minute)
		g.expect(bot, "another stream's")
		g.truth.mu.Lock()
		g.truth.places[acme].Stream, g.truth.places[acme].Claim = "main", 300
		g.truth.mu.Unlock()
		pass(6 * time.Second)
		g.expect(bot, "claimed", m)

		slow := make(chan struct{})
		g.sync(func() { g.truth.onOwed = func() { <-slow } })
		late := g.truth.post("c", "ada")
		g.ref(late)
		g.truth.mu.Lock()
		g.truth.places[acme].Draining = true
		g.truth.mu.Unlock()
		g.c.onNote(t.Context(), Hint{Tenant: string(acme)}.Note())
		pass(6 * time.Second)
		g.truth.mu.Lock()
		_, confirmed := g.truth.drained[acme]
		g.truth.onOwed = nil
		g.truth.mu.Unlock()
		if confirmed {
			t.Error("confirmed while a drain of the tenant was running")
		}
		close(slow)
		pass(6 * time.Second)
		if got := g.truth.drained[acme]; got != 300 {
			t.Errorf("confirmed claim %d, want 300", got)
		}
		sent := len(g.box.sent())
		g.ref(g.truth.post("c", "ada"))
		g.lane.reconnect()
		pass(time.Minute)
		if n := len(g.box.sent()) - sent; n != 0 {
			t.Errorf("%d commands after the word was given", n)
		}
	})
}

// While the word is being written that a tenant is let go of, who would drain the tenant neither waits for it, or a hung
// statement would hold the workers of everybody, nor asks on and on.
func TestNobodyWaitsForTheWord(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGround(t)
		g.truth.tenant(beta, 2)
		g.truth.channel(acme, "c", "bot")
		g.truth.channel(beta, "d", "bee")
		g.truth.start(acme, "bot", "r1")
		bee := g.truth.start(beta, "bee", "r2")
		g.run(func(o *Options) { o.FloorTick, o.Workers, o.StepTimeout = 100*time.Hour, 2, time.Hour })
		slow := make(chan struct{})
		defer close(slow)
		g.sync(func() {
			g.truth.onWrite = func(_ context.Context, what string) {
				if what == "confirm" {
					<-slow
				}
			}
			g.truth.places[acme].Draining = true
		})
		g.c.onNote(t.Context(), Hint{Tenant: string(acme)}.Note())
		pass(0)
		before := g.questions()
		g.ref(g.truth.post("c", "ada"))
		m := g.truth.post("d", "ada")
		g.ref(m)
		g.expect(bee, "another tenant's, beside the word", m)
		pass(time.Second)
		if n := g.questions() - before; n > 40 {
			t.Errorf("%d questions in a second", n)
		}
	})
}

// design section 7, Placement: who wishes is woken once, with growing pauses while there is no Runner, and then served.
func TestWake(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGround(t)
		g.truth.channel(acme, "c", "bot", "manual")
		g.truth.wakers["bot"] = true
		w := &waker{ground: g, err: store.ErrNoRunner}
		g.run(func(o *Options) { o.Waker = w })
		m := g.truth.post("c", "ada")
		g.ref(m)
		pass(10 * time.Minute)
		if n := len(w.asked); n < 5 || n > 20 {
			t.Errorf("asked %d times in 10 minutes without a Runner", n)
		}
		w.mu.Lock()
		w.err, w.asked = nil, nil
		w.mu.Unlock()
		pass(2 * time.Minute)
		if !slices.Equal(w.asked, []string{"bot"}) {
			t.Errorf("woke %v, want bot once", w.asked)
		}
		if len(g.box.sent()) != 0 {
			t.Error("sent to a session that is not claimed")
		}
		g.truth.mu.Lock()
		g.truth.sessions["bot"].claimed = true
		bot := g.truth.sessions["bot"].LiveSession
		g.truth.mu.Unlock()
		g.c.onNote(t.Context(), Hint{Tenant: string(acme), Agent: "bot"}.Note())
		pass(0)
		g.expect(bot, "woken", m)
	})
}

// Holds REQ-041, REQ-047: a reference is acknowledged as soon as its row is marked dirty; it waits for no drain and no sweep,
// also where every worker hangs in one.
func TestReferencesWaitForNoDrain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGround(t)
		g.truth.channel(acme, "c", "bot")
		bot := g.truth.start(acme, "bot", "r1")
		g.run(func(o *Options) { o.Workers = 1 })
		slow := make(chan struct{})
		g.sync(func() { g.truth.onOwed = func() { <-slow } })
		ms := []store.Message{g.truth.post("c", "ada")}
		g.ref(ms[0]) // the one worker hangs in its drain
		g.lane.reconnect()
		acked := make(chan error, 10)
		for range cap(acked) {
			m := g.truth.post("c", "ada")
			ms = append(ms, m)
			go func() { acked <- g.lane.ref(t, acme, m.ID) }()
		}
		pass(0)
		if len(acked) != cap(acked) {
			t.Errorf("%d of %d references were answered while a drain hangs", len(acked), cap(acked))
		}
		g.expect(bot, "nothing yet")
		g.sync(func() { g.truth.onOwed = nil })
		close(slow)
		pass(time.Second)
		g.expect(bot, "by what was marked", ms...)
	})
}

// Tests bring a store, Runners and a broker of their own.
var _ func(DeliveryReads, ControlDispatcher, SessionResolver, fabric.EventFabric, *slog.Logger, Options) (*Consumer, error) = NewConsumer

// Holds REQ-034, REQ-051: the worker is made of its ports, and nothing in it is the bus of a process.
func TestConsumerKnowsNoBus(t *testing.T) {
	t.Parallel()
	seen := map[reflect.Type]bool{}
	var walk func(path string, of reflect.Type)
	walk = func(path string, of reflect.Type) {
		switch {
		case seen[of]:
			return
		case of == reflect.TypeFor[event.Bus]():
			t.Errorf("%s is a bus: what is owed comes from rows, and hints from the fabric", path)
		}
		seen[of] = true
		switch of.Kind() { //nolint:exhaustive // the others hold nothing
		case reflect.Pointer, reflect.Slice, reflect.Array, reflect.Map, reflect.Chan:
			walk(path, of.Elem())
		case reflect.Struct:
			for i := range of.NumField() {
				walk(path+"."+of.Field(i).Name, of.Field(i).Type)
			}
		}
	}
	walk("Consumer", reflect.TypeFor[Consumer]())
	if len(seen) < 20 {
		t.Errorf("looked at %d types only", len(seen))
	}
}

// Holds REQ-062: without its parts there is no worker.
func TestNoWorkerWithoutItsParts(t *testing.T) {
	t.Parallel()
	tr := newTruth()
	if _, err := NewConsumer(tr, newBox(tr), tr, nil, nil, Options{}); err == nil {
		t.Error("made a worker without a fabric")
	}
	if _, err := NewConsumer(tr, newBox(tr), tr, &queueLane{}, nil, Options{Stream: "main"}); err == nil {
		t.Error("made a worker without leases")
	}
}
