package delivery

import (
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	compassv1 "github.com/rigelbuild/compass-operator/api/proto/compass/v1"
	"github.com/rigelbuild/compass-operator/internal/store"
)

// Holds REQ-036, REQ-071: a person's message goes at once, on its reference, in order, to who is a member and live, and
// not back to its author.
func TestReferenceDelivers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGround(t)
		g.truth.channel(acme, "c", "bot", "bee")
		bot, bee := g.truth.start(acme, "bot", "r1"), g.truth.start(acme, "bee", "r2")
		g.run()
		first := g.truth.post("c", "ada")
		g.ref(first)
		second := g.truth.post("c", "bot")
		g.ref(second)
		g.expect(bot, "the author of the second", first)
		g.expect(bee, "both", first, second)
		for _, cmd := range g.box.sent() {
			if cmd.GetFence().GetClaim() != 1 || cmd.GetFence().GetLease() != g.truth.fence.Epoch || cmd.GetStream() != "main" {
				t.Errorf("fence %v of stream %q", cmd.GetFence(), cmd.GetStream())
			}
		}
		if prev := g.box.sent()[0].GetDeliver().GetPrev(); prev != 0 {
			t.Errorf("the first link after the cursor has prev %d, want a base", prev)
		}
	})
}

// Holds REQ-043, REQ-227, REQ-049: references lost, doubled, reordered, of rows that are not there: latency changes, nothing else.
func TestReferencesAreHints(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 1))
			g := newGround(t)
			g.truth.channel(acme, "c", "bot", "bee")
			g.truth.channel(acme, "d", "bot")
			bot := g.truth.start(acme, "bot", "r1")
			g.run()
			var refs []string
			var want []store.Message
			for range 30 {
				m := g.truth.post([]string{"c", "d"}[r.IntN(2)], "ada")
				want = append(want, m)
				for range r.IntN(3) {
					refs = append(refs, m.ID)
				}
				if r.IntN(5) == 0 {
					refs = append(refs, mid(int64(9_000_000+r.IntN(9))))
				}
				if r.IntN(3) == 0 {
					r.Shuffle(len(refs), func(i, j int) { refs[i], refs[j] = refs[j], refs[i] })
					for _, id := range refs {
						if err := g.lane.ref(t, acme, id); err != nil {
							t.Fatal(err)
						}
					}
					refs = nil
				}
			}
			pass(5 * time.Minute)
			for _, channel := range []string{"c", "d"} {
				var got, wanted []string
				for _, id := range g.box.of(bot.Session) {
					if g.truth.messages[id].Channel == channel {
						got = append(got, id)
					}
				}
				for _, m := range want {
					if m.Channel == channel {
						wanted = append(wanted, m.ID)
					}
				}
				if !slices.Equal(got, wanted) {
					t.Errorf("seed %d, channel %s: took %v, want %v", seed, channel, short(got), short(wanted))
				}
			}
		})
	}
}

// Holds REQ-035, REQ-037 to REQ-040, REQ-042, REQ-226: a message whose turn is open goes to nobody, by no path, also where its author
// is dead and the worker restarts; it goes once, whole, when it was settled.
func TestOpenTurnIsNeverDelivered(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGround(t)
		g.truth.channel(acme, "c", "bot", "author")
		g.truth.start(acme, "author", "r2")
		bot := g.truth.start(acme, "bot", "r1")
		g.run()
		held := g.truth.hold("c", "author")
		g.ref(held)
		after := g.truth.post("c", "ada")
		g.ref(after)
		g.lane.reconnect()
		pass(3 * time.Minute)
		g.truth.end("author")
		g.ref(held)
		g.c.onNote(t.Context(), Hint{Tenant: string(acme), Agent: "bot"}.Note())
		pass(3 * time.Minute)
		if err := g.stop(); err != nil {
			t.Fatal(err)
		}
		g.fresh()
		g.run()
		g.expect(bot, "reference, reconnect, tick, start, restart", after)

		g.truth.mu.Lock()
		g.truth.messages[held.ID].Blocks = []store.Block{store.Text("whole")}
		g.truth.mu.Unlock()
		g.ref(g.truth.settle(held.ID))
		g.expect(bot, "settled", after, held)
		last := g.box.sent()[len(g.box.sent())-1].GetDeliver().GetMessage()
		if last.GetBlocks()[0].GetText() != "whole" {
			t.Errorf("content %v, want what it was when it settled", last.GetBlocks())
		}
	})
}

// Holds REQ-233: who starts, joins or leaves while a fan-out runs gets each message once, or not at all.
func TestMembersChangeDuringFanOut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGround(t)
		g.truth.channel(acme, "c", "bot", "leaver")
		bot, leaver := g.truth.start(acme, "bot", "r1"), g.truth.start(acme, "leaver", "r2")
		joiner := g.truth.start(acme, "joiner", "r3")
		var late store.LiveSession
		g.run()
		first := g.truth.post("c", "ada")
		var second store.Message
		changed := false
		g.truth.onOwed = func() { // after the list was read, before anything is sent
			if changed {
				return
			}
			changed = true
			g.truth.leave("c", "leaver")
			g.truth.join("c", "joiner")
			g.truth.join("c", "late")
			second = g.truth.post("c", "ada")
			late = g.truth.start(acme, "late", "r4")
		}
		g.ref(first)
		g.c.onNote(t.Context(), Hint{Tenant: string(acme), Agent: "late"}.Note())
		g.ref(second)
		g.expect(bot, "a member all along", first, second)
		g.expect(leaver, "left before it was sent")
		g.expect(joiner, "joined after the first", second)
		g.expect(late, "joined, then started", second)
		pass(5 * time.Minute)
		g.expect(late, "the tick sends nothing twice", second)
	})
}

// A lost command is refused by the next one's prev, and the gate goes back to what the Runner holds, once per gap, although
// every link behind it is refused too. The last command has no next one: it is sent again after AckWait, not before.
func TestLostCommands(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGround(t)
		g.truth.channel(acme, "c", "bot")
		bot := g.truth.start(acme, "bot", "r1")
		g.sync(func() { g.box.ackEach = false })
		g.sync(func() { g.box.deaf = func(n int, _ *compassv1.Command) bool { return n == 2 } })
		g.run()
		var ms []store.Message
		for range 8 {
			ms = append(ms, g.truth.post("c", "ada"))
		}
		g.ref(ms[7])
		pass(time.Second)
		g.expect(bot, "the second was lost", ms...)
		if n := len(g.box.sent()); n > 16 {
			t.Errorf("%d commands for 8 messages and one gap: refusals feed on each other", n)
		}

		g.sync(func() { g.box.deaf = func(int, *compassv1.Command) bool { return true } })
		last := g.truth.post("c", "ada")
		g.ref(last)
		g.sync(func() { g.box.deaf = nil })
		pass(29 * time.Second)
		g.expect(bot, "sent again too early", ms...)
		pass(2 * time.Second)
		g.expect(bot, "the last one was lost", append(ms, last)...)
		n := len(g.box.sent())
		pass(90 * time.Second)
		if got := len(g.box.sent()); got != n {
			t.Errorf("%d commands more: what was taken is not sent again, however long its turn", got-n)
		}
	})
}

// A lossy failover forgets a settle whose link is under way, and the turn settles again: that is another delivery. What is
// sent again under the old position must not carry it, or the Runner takes it there and once more in its place.
func TestForgottenPositionIsNotSentAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGround(t)
		g.truth.channel(acme, "c", "bot", "author")
		g.truth.start(acme, "author", "r2")
		bot := g.truth.start(acme, "bot", "r1")
		g.sync(func() { g.box.deaf = func(int, *compassv1.Command) bool { return true } })
		g.run(func(o *Options) { o.FloorTick = time.Hour })
		m := g.truth.hold("c", "author")
		g.ref(g.truth.settle(m.ID))
		g.sync(func() {
			g.box.deaf = nil
			g.truth.messages[m.ID].Pos = 0 // forgotten
		})
		m = g.truth.settle(m.ID)
		pass(3 * time.Minute)
		g.expect(bot, "settled again", m)
		if got := g.box.taken[0].pos; got != m.Pos {
			t.Errorf("taken at %d, want its position %d", got, m.Pos)
		}
	})
}

// A lossy failover forgets an ack that the Runner was answered, and no new message makes it say so again: the floor sends
// what is behind the cursor once more, and a duplicate makes the Runner acknowledge again (DupReack).
func TestForgottenAckIsAskedForAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGround(t)
		g.truth.channel(acme, "c", "bot")
		bot := g.truth.start(acme, "bot", "r1")
		g.run()
		m := g.truth.post("c", "ada")
		g.ref(m)
		g.expect(bot, "sent", m)
		g.sync(func() { g.truth.channels["c"].acked["bot"] = 0 })
		pass(2 * time.Minute)
		g.expect(bot, "not taken twice", m)
		if n := len(g.box.sent()); n < 2 || n > 8 {
			t.Errorf("sent %d times, want again with each tick", n)
		}
	})
}

// What a chain passed because it was set aside is owed again when a failover has forgotten that: the floor trusts no memory.
func TestFloorForgetsWhatWasPassed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGround(t)
		g.truth.channel(acme, "c", "bot", "author")
		bot := g.truth.start(acme, "bot", "r1")
		g.run(func(o *Options) { o.FloorTick = time.Minute })
		m := g.truth.post("c", "author")
		aside := store.Delivery{MessageID: m.ID, Recipient: "bot", Channel: m.Channel, Pos: m.Pos}
		g.sync(func() { g.truth.dead[aside] = &store.Parked{} })
		g.ref(m)
		pass(3 * time.Minute)
		g.expect(bot, "set aside")
		g.sync(func() { delete(g.truth.dead, aside) })
		pass(3 * time.Minute)
		g.expect(bot, "owed again", m)
	})
}

// The window: 16 of a chain are unacknowledged at most, each ack lets one more go, and another channel is not held up.
func TestWindow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGround(t)
		g.truth.channel(acme, "c", "bot")
		g.truth.channel(acme, "d", "bot")
		bot := g.truth.start(acme, "bot", "r1")
		g.sync(func() { g.box.ackEach = false })
		g.run()
		var ms []store.Message
		for range 50 {
			ms = append(ms, g.truth.post("c", "ada"))
		}
		g.ref(ms[49])
		g.expect(bot, "a full window", ms[:16]...)
		other := g.truth.post("d", "ada")
		g.ref(other)
		g.expect(bot, "another channel", append(slices.Clone(ms[:16]), other)...)
		g.truth.ack("bot", "c", ms[4].Pos)
		g.box.state("r1", &compassv1.RunnerState{TenantId: string(acme), SessionId: bot.Session, Generation: bot.Generation,
			Channels: []*compassv1.ChannelState{{ChannelId: "c", Held: ms[15].Pos, Acked: ms[4].Pos}}})
		pass(0)
		if got := g.box.of(bot.Session); len(got) != 22 {
			t.Errorf("%d taken after 5 acks, want 16 + 1 + 5", len(got))
		}
		g.truth.ack("bot", "c", ms[10].Pos) // and the word of it is lost
		pass(31 * time.Second)
		if got := g.box.of(bot.Session); len(got) != 28 {
			t.Errorf("%d taken, want 28: a full window is looked at again by itself", len(got))
		}
		if got, most := g.c.in.inFlight.Load(), int64(17); got > most {
			t.Errorf("%d links in memory, want at most %d however much is owed", got, most)
		}
	})
}

// AnswersQueued: an answer that comes in the middle of a drain does not move the gate under the links that are being sent.
// Without the queue the Runner takes p3 on top of what it held, and p2 is lost.
func TestAnswersWaitForTheDrain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGround(t)
		g.truth.channel(acme, "c", "bot")
		bot := g.truth.start(acme, "bot", "r1")
		g.sync(func() { g.box.ackEach = false })
		g.run()
		zero := g.truth.post("c", "ada")
		g.ref(zero)
		g.sync(func() { g.box.deaf = func(n int, _ *compassv1.Command) bool { return n == 2 } })
		told := false
		g.box.onTake = func(*compassv1.Command) {
			if !told {
				told = true
				g.box.tell(addr("r1"), &compassv1.RunnerState{TenantId: string(acme), SessionId: bot.Session, Generation: bot.Generation,
					Channels: []*compassv1.ChannelState{{ChannelId: "c", Held: zero.Pos, Refused: true}}})
			}
		}
		ms := []store.Message{zero, g.truth.post("c", "ada"), g.truth.post("c", "ada"), g.truth.post("c", "ada")}
		g.ref(ms[3])
		pass(time.Minute)
		g.expect(bot, "a late answer in the middle", ms...)
	})
}

// A new worker on a session that holds what the cursor does not know yet: nothing twice, nothing lost.
func TestWorkerRestartsUnderALiveSession(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGround(t)
		g.truth.channel(acme, "c", "bot")
		bot := g.truth.start(acme, "bot", "r1")
		g.sync(func() { g.box.ackEach = false })
		g.run()
		var ms []store.Message
		for range 5 {
			ms = append(ms, g.truth.post("c", "ada"))
		}
		g.ref(ms[4])
		g.truth.ack("bot", "c", ms[1].Pos)
		if err := g.stop(); err != nil {
			t.Fatal(err)
		}
		ms = append(ms, g.truth.post("c", "ada"))
		g.fresh()
		g.run()
		pass(time.Second)
		g.expect(bot, "after a restart", ms...)

		g.truth.end("bot")
		g.sync(func() { g.box.ackEach = true })
		next := g.truth.start(acme, "bot", "r1")
		g.c.onNote(t.Context(), Hint{Tenant: string(acme), Agent: "bot"}.Note())
		synctestWait()
		g.expect(next, "a new generation begins at the cursor", ms[2:]...)
	})
}

// A session that the database knows and the Runner does not have yet: the commands wait for it, briefly, and count nothing.
func TestSessionNotThereYet(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGround(t)
		g.truth.channel(acme, "c", "bot")
		bot := g.truth.start(acme, "bot", "r1")
		g.box.gone[bot.Session] = true
		m := g.truth.post("c", "ada")
		g.run()
		pass(time.Second)
		g.box.mu.Lock()
		delete(g.box.gone, bot.Session)
		sent := len(g.box.commands)
		g.box.mu.Unlock()
		if sent > 6 {
			t.Errorf("%d commands in a second to a session that is not there", sent)
		}
		pass(6 * time.Second)
		g.expect(bot, "the session began", m)

		g.box.mu.Lock()
		g.box.away["r1"] = true
		g.box.mu.Unlock()
		next := g.truth.post("c", "ada")
		g.ref(next)
		pass(10 * time.Minute)
		g.box.mu.Lock()
		delete(g.box.away, "r1")
		g.box.mu.Unlock()
		pass(6 * time.Second)
		g.expect(bot, "its Runner came back", m, next)
		if len(g.truth.attempts) != 0 || len(g.truth.dead) != 0 {
			t.Errorf("silence counted: %v, %v", g.truth.attempts, g.truth.dead)
		}
	})
}
