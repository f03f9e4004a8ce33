package delivery

import (
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rigelbuild/compass-operator/internal/store"
)

var errDies = errors.New("the process dies here")

// deadly lets the worker die, as a process would, whenever the message's row is read. It returns how often it did.
func (g *ground) deadly(id string) *atomic.Int64 {
	deaths := new(atomic.Int64)
	g.truth.mu.Lock()
	defer g.truth.mu.Unlock()
	g.truth.onRead = func(message string) error {
		if message != id {
			return nil
		}
		deaths.Add(1)
		g.rights.lose(0, true) // from here on it writes and sends nothing
		return errDies
	}
	return deaths
}

// reborn is the next worker after an unclean exit.
func (g *ground) reborn(change ...func(*Options)) {
	g.t.Helper()
	if err := g.stop(); err != nil {
		g.t.Fatal(err)
	}
	g.fresh()
	g.rights.careful = true
	g.truth.mu.Lock()
	g.truth.fence.Epoch++
	g.truth.mu.Unlock()
	g.run(change...)
	pass(time.Second)
}

// Holds REQ-231: care does not end with a page on which nothing is for this chain; the row behind it would kill every life
// without an attempt on record. A simulation found it.
func TestCareGoesBeyondAPageThatIsPassed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGround(t)
		g.truth.channel(acme, "c", "bot")
		g.truth.start(acme, "bot", "r1")
		for range 40 { // more than a page of its own messages
			g.truth.post("c", "bot")
		}
		poison := g.truth.post("c", "ada")
		deaths := g.deadly(poison.ID)
		g.run()
		pass(time.Second)
		lives := 1
		for ; len(g.truth.dead) == 0 && lives < 20; lives++ {
			g.reborn()
			pass(31 * time.Second)
		}
		if deaths.Load() != 6 { // once without care, then maxDeliver times
			t.Errorf("died %d times in %d lives, want 1 + 5", deaths.Load(), lives)
		}
	})
}

// Holds REQ-231, lessons B9: a row that kills the worker collects its deaths, parks at maxDeliver, and is announced;
// meanwhile everybody else is served, and the messages before and after it come in order.
func TestARowThatKillsTheWorkerParks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGround(t)
		g.truth.tenant(beta, 2)
		g.truth.channel(acme, "c", "bot")
		g.truth.channel(beta, "d", "bee")
		bot, bee := g.truth.start(acme, "bot", "r1"), g.truth.start(beta, "bee", "r2")
		before, poison, after := g.truth.post("c", "ada"), g.truth.post("c", "ada"), g.truth.post("c", "ada")
		deaths := g.deadly(poison.ID)
		g.run()
		pass(time.Second)
		var others []store.Message
		lives := 1
		for ; len(g.truth.dead) == 0 && lives < 20; lives++ {
			others = append(others, g.truth.post("d", "bob"))
			g.reborn()
			if lives > 1 { // the first with care has no suspect yet
				g.expect(bee, "another tenant is served in each life", others...)
			}
			pass(31 * time.Second) // the pause after the last attempt
		}
		if deaths.Load() != 6 { // once without care, then maxDeliver times
			t.Errorf("died %d times in %d lives, want 1 + 5", deaths.Load(), lives)
		}
		g.reborn()
		pass(31 * time.Second)
		g.expect(bot, "before and after the row", before, after)
		if len(g.truth.dead) != 1 || len(g.shelf.kept) != 1 {
			t.Fatalf("%d dead letters, %d announced", len(g.truth.dead), len(g.shelf.kept))
		}
		if d := g.shelf.kept[0]; d.Ref.RowID != poison.ID || d.Recipient != "bot" || d.Attempts != 5 || d.Reason != store.ReasonWorkerDied {
			t.Errorf("announced %+v", d)
		}
		if len(g.truth.attempts) != 0 {
			t.Errorf("attempts left %v", g.truth.attempts)
		}
	})
}

// Holds REQ-231 beside the chain: a mention that kills the worker waits for its pause in each life, and is set aside at maxDeliver.
func TestAMentionThatKillsTheWorkerParks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGround(t)
		g.truth.channel(acme, "c", "bot")
		bot := g.truth.start(acme, "bot", "r1")
		poison := g.truth.post("c", "ada", "bot")
		deaths := g.deadly(poison.ID)
		g.rights.careful = true
		g.run()
		pass(time.Second)
		for range 8 {
			before := deaths.Load()
			g.reborn()
			if before >= 2 && deaths.Load() != before { // reborn lets a second pass, and the second pause has five
				t.Errorf("death %d came before its pause was over", deaths.Load())
			}
			pass(31 * time.Second)
		}
		if deaths.Load() != 5 || len(g.truth.dead) != 1 || len(g.truth.attempts) != 0 {
			t.Errorf("died %d times, set aside %d, attempts %v: want 5, 1 and none", deaths.Load(), len(g.truth.dead), g.truth.attempts)
		}
		g.expect(bot, "nobody is given it")
	})
}

// D-227: of two rows with an attempt on record, of whatever tenants, one is read at a time: the pauses of both end together in
// each life, so the innocent one would be charged with every death of the other.
func TestSuspectsAreReadOneAtATime(t *testing.T) {
	t.Parallel()
	for how, mentions := range map[string][]string{"in a chain": nil, "beside the chain": {"bee"}} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				g := newGround(t)
				g.truth.tenant(beta, 2)
				g.truth.channel(acme, "c", "bot")
				g.truth.channel(beta, "d", "bee")
				g.truth.start(acme, "bot", "r1")
				bee := g.truth.start(beta, "bee", "r2")
				poison, innocent := g.truth.post("c", "ada"), g.truth.post("d", "bob", mentions...)
				for recipient, m := range map[string]store.Message{"bot": poison, "bee": innocent} {
					d := store.Delivery{MessageID: m.ID, Recipient: recipient, Channel: m.Channel, Pos: m.Pos}
					g.truth.attempts[d], g.truth.tried[d] = 1, time.Now()
				}
				g.truth.onRead = func(message string) error {
					pass := map[string]time.Duration{poison.ID: 100 * time.Millisecond, innocent.ID: 300 * time.Millisecond}
					<-time.After(pass[message])
					if message == poison.ID {
						g.rights.lose(0, true)
						return errDies
					}
					return nil
				}
				g.run()
				for lives := 0; len(g.truth.dead) == 0 && lives < 10; lives++ {
					g.reborn()
					pass(31 * time.Second)
				}
				g.reborn()
				pass(31 * time.Second)
				g.expect(bee, "the innocent one", innocent)
				for d := range g.truth.dead {
					if d.MessageID != poison.ID {
						t.Errorf("the innocent one is set aside for %s", d.Recipient)
					}
				}
			})
		})
	}
}

// AttemptClear: rows that a worker reads and survives never collect attempts, however often it dies of something else.
func TestInnocentRowsNeverPark(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGround(t)
		g.truth.channel(acme, "c", "bot")
		bot := g.truth.start(acme, "bot", "r1")
		g.sync(func() { g.box.ackEach = false }) // it sleeps on them
		ms := []store.Message{g.truth.post("c", "ada"), g.truth.post("c", "ada", "bot"), g.truth.post("c", "ada")}
		g.run()
		for range 8 {
			pass(time.Second)
			g.rights.lose(0, true)
			g.reborn()
		}
		if len(g.truth.attempts) != 0 || len(g.truth.dead) != 0 {
			t.Errorf("attempts %v, dead %v", g.truth.attempts, g.truth.dead)
		}
		if got := g.box.of(bot.Session); len(got) != len(ms) {
			t.Errorf("took %v, want each of three once", short(got))
		}
	})
}

// A database that goes away in the middle of an attempt costs at most one, however often it flaps.
func TestFlappingDatabaseIsNoDeath(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGround(t)
		g.truth.channel(acme, "c", "bot")
		bot := g.truth.start(acme, "bot", "r1")
		m := g.truth.post("c", "ada")
		flaps := 0
		g.truth.onRead = func(string) error {
			if flaps++; flaps > 12 {
				return nil
			}
			// Away from the read until the taking back has failed too.
			g.sync(func() { g.truth.down[0] = store.ErrUnavailable })
			time.AfterFunc(50*time.Millisecond, func() {
				g.truth.mu.Lock()
				delete(g.truth.down, 0)
				g.truth.mu.Unlock()
			})
			return store.ErrUnavailable
		}
		g.rights.careful = true
		g.run()
		pass(10 * time.Minute)
		g.expect(bot, "after 12 flaps", m)
		if len(g.truth.dead) != 0 || len(g.truth.attempts) != 0 {
			t.Errorf("dead %v, attempts %v", g.truth.dead, g.truth.attempts)
		}
	})
}

// The care ends: after the first look of each channel the worker reads as usual again.
func TestCareEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGround(t)
		g.truth.channel(acme, "c", "bot")
		bot := g.truth.start(acme, "bot", "r1")
		m := g.truth.post("c", "ada")
		g.rights.careful = true
		g.run()
		pass(time.Second)
		count := func() (n int) {
			g.truth.mu.Lock()
			defer g.truth.mu.Unlock()
			for _, what := range g.truth.log {
				if what == "attempt" {
					n++
				}
			}
			return n
		}
		if count() != 1 {
			t.Fatalf("%d attempts for one row, want 1", count())
		}
		next := g.truth.post("c", "ada")
		g.ref(next)
		if count() != 1 {
			t.Error("still careful after the first look")
		}
		g.expect(bot, "both", m, next)
	})
}

// A Runner that rejects a message by name: each new count is an attempt, the pauses are kept, what follows waits, and at
// maxDeliver the message parks and the chain goes on. Nothing else counts.
func TestRejectedByName(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGround(t)
		g.truth.channel(acme, "c", "bot")
		bot := g.truth.start(acme, "bot", "r1")
		g.run(func(o *Options) { o.MaxDeliver = 3 })
		first, bad, last := g.truth.post("c", "ada"), g.truth.post("c", "ada"), g.truth.post("c", "ada")
		g.sync(func() { g.box.rejects[bad.ID] = 100 })
		g.ref(last)
		g.expect(bot, "the first attempt failed", first)
		attempts := func() int {
			g.truth.mu.Lock()
			defer g.truth.mu.Unlock()
			return g.truth.attempts[store.Delivery{MessageID: bad.ID, Recipient: "bot", Channel: "c", Pos: bad.Pos}]
		}
		if attempts() != 1 {
			t.Fatalf("%d attempts, want 1", attempts())
		}
		g.lane.reconnect() // whatever marks the channel, the pause is kept
		pass(900 * time.Millisecond)
		if attempts() != 1 {
			t.Error("tried again within the pause of 1 s")
		}
		pass(200 * time.Millisecond)
		if attempts() != 2 {
			t.Errorf("%d attempts after the first pause, want 2", attempts())
		}
		pass(4 * time.Second)
		g.expect(bot, "within the second pause", first)
		pass(2 * time.Second)
		g.expect(bot, "set aside after three", first, last)
		if len(g.shelf.kept) != 1 || g.shelf.kept[0].Reason != store.ReasonRejected || g.shelf.kept[0].Attempts != 3 {
			t.Errorf("announced %+v", g.shelf.kept)
		}

		fine := g.truth.post("c", "ada")
		g.sync(func() { g.box.rejects[fine.ID] = 2 })
		g.ref(fine)
		pass(10 * time.Second)
		g.expect(bot, "taken at the third attempt", first, last, fine)
	})
}

// An announcement that fails is made again; the deliveries do not wait for it.
func TestAnnouncementsAreRetried(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGround(t)
		g.truth.channel(acme, "c", "bot")
		bot := g.truth.start(acme, "bot", "r1")
		g.shelf.fails = 3
		g.run(func(o *Options) { o.MaxDeliver = 1 })
		bad, last := g.truth.post("c", "ada"), g.truth.post("c", "ada")
		g.sync(func() { g.box.rejects[bad.ID] = 1 })
		g.ref(last)
		g.expect(bot, "not held up", last)
		pass(10 * time.Second)
		if len(g.shelf.kept) != 1 {
			t.Errorf("%d announced, want 1", len(g.shelf.kept))
		}
	})
}
