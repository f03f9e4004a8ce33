package delivery

import (
	"testing"
	"testing/synctest"
	"time"

	compassv1 "github.com/rigelbuild/compass-operator/api/proto/compass/v1"
	"github.com/rigelbuild/compass-operator/internal/store"
)

// RaiseEpoch: a lease that is older than the tenant's claim would be refused by Runners that heard the last stream; so the
// epoch is lifted above the claim before the first command.
func TestEpochIsRaisedAboveTheClaim(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGround(t)
		g.sync(func() { g.truth.places[acme].Claim = 9000 })
		g.truth.channel(acme, "c", "bot")
		bot := g.truth.start(acme, "bot", "r1")
		m := g.truth.post("c", "ada", "bot")
		plain := g.truth.post("c", "ada")
		g.run()
		pass(0)
		if got := g.box.of(bot.Session); len(got) != 2 {
			t.Errorf("took %v, want %s and %s", short(got), m.ID, plain.ID)
		}
		for _, cmd := range g.box.sent() {
			if cmd.GetFence().GetLease() <= 9000 || cmd.GetFence().GetClaim() != 9000 {
				t.Errorf("sent with fence %v under claim 9000", cmd.GetFence())
			}
		}
	})
}

// Holds REQ-228 (the Runner as fence, from the worker's side): refused with a proof, the worker raises its epoch above it
// and delivers; refused without one, it does not, and leaves that Runner alone for a while.
func TestRefusedForTheFence(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		key    string
		raises bool
	}{"proved": {"k", true}, "unproved": {"forged", false}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				g := newGround(t)
				g.truth.channel(acme, "c", "bot", "bee")
				bot, bee := g.truth.start(acme, "bot", "r1"), g.truth.start(acme, "bee", "r2")
				seen := &compassv1.Command{RunnerId: "r1", TenantId: string(acme), Fence: &compassv1.Fence{Claim: 1, Lease: 7777}}
				g.box.seen[string(acme)] = seen.GetFence()
				g.box.proof[string(acme)] = signed(t, seen, tc.key)
				g.box.deaf = func(_ int, cmd *compassv1.Command) bool {
					return cmd.GetRunnerId() == "r2" && cmd.GetFence().GetLease() < 7777
				}
				g.run()
				m := g.truth.post("c", "ada")
				g.ref(m)
				pass(time.Second)
				if tc.raises {
					g.expect(bot, "raised", m)
					if e := g.truth.fence.Epoch; e <= 7777 {
						t.Errorf("epoch %d", e)
					}
					return
				}
				g.expect(bot, "not moved by a forgery")
				if g.rights.raises != 0 {
					t.Error("raised for a forgery")
				}
				n := len(g.box.sent())
				g.ref(g.truth.post("c", "ada"))
				g.ref(g.truth.post("c", "ada", "bot"))
				pass(time.Minute)
				for _, cmd := range g.box.sent()[n:] {
					if cmd.GetRunnerId() == "r1" {
						t.Error("still sends to the Runner that refuses without a proof")
					}
				}
				_ = bee
				pass(3 * time.Minute)
				again := false
				for _, cmd := range g.box.sent()[n:] {
					again = again || cmd.GetRunnerId() == "r1"
				}
				if !again {
					t.Error("never tried that Runner again")
				}
			})
		})
	}
}

// A refused steer went nowhere: with the next look, which raises the epoch, it is pushed again, in its place.
func TestRefusedSteersArePushedAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGround(t)
		g.truth.channel(acme, "c")
		bot := g.truth.start(acme, "bot", "r1")
		g.run()
		seen := &compassv1.Command{RunnerId: "r1", TenantId: string(acme), Fence: &compassv1.Fence{Claim: 1, Lease: 7777}}
		g.sync(func() { g.box.seen[string(acme)], g.box.proof[string(acme)] = seen.GetFence(), signed(t, seen, "k") })
		a := g.truth.post("c", "ada", "bot")
		g.ref(a)
		g.expect(bot, "refused")
		b := g.truth.post("c", "ada", "bot")
		g.ref(b)
		pass(time.Second)
		g.expect(bot, "the refused one and the next", a, b)
	})
}

// A proof for another tenant, another Runner or another fence than the one it speaks of is none.
func TestProofsThatProveNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGround(t)
		g.truth.channel(acme, "c", "bot")
		bot := g.truth.start(acme, "bot", "r1")
		g.run()
		g.ref(g.truth.post("c", "ada"))
		for why, cmd := range map[string]*compassv1.Command{
			"another tenant": {RunnerId: "r1", TenantId: string(beta), Fence: &compassv1.Fence{Claim: 1, Lease: 9999}},
			"another Runner": {RunnerId: "r2", TenantId: string(acme), Fence: &compassv1.Fence{Claim: 1, Lease: 9999}},
			"a lower fence":  {RunnerId: "r1", TenantId: string(acme), Fence: &compassv1.Fence{Claim: 1, Lease: 1}},
			"no fence":       {RunnerId: "r1", TenantId: string(acme)},
		} {
			g.box.state("r1", &compassv1.RunnerState{TenantId: string(acme), SessionId: bot.Session, Generation: bot.Generation,
				Refused: true, Seen: &compassv1.Fence{Claim: 1, Lease: 9999}, SeenProof: signed(t, cmd, "k")})
			pass(5 * time.Minute)
			g.ref(g.truth.post("c", "ada")) // whoever believed it would raise before this
			if g.rights.raises != 0 {
				t.Errorf("%s: raised", why)
			}
		}
	})
}

// GateClaim: when the tenant is claimed again the gates begin anew, and what is sent again carries the fence of now.
func TestClaimEndsTheGates(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGround(t)
		g.truth.channel(acme, "c", "bot")
		bot := g.truth.start(acme, "bot", "r1")
		g.sync(func() { g.box.ackEach = false })
		g.sync(func() { g.box.deaf = func(int, *compassv1.Command) bool { return true } })
		g.run()
		m := g.truth.post("c", "ada")
		g.ref(m)
		g.sync(func() { g.truth.places[acme].Claim = 400 })
		g.sync(func() { g.box.deaf = nil })
		pass(6 * time.Second)
		g.expect(bot, "claimed again", m)
		last := g.box.sent()[len(g.box.sent())-1]
		if last.GetFence().GetClaim() != 400 || last.GetDeliver().GetPrev() != 0 {
			t.Errorf("sent again with claim %d and prev %d, want 400 and a base", last.GetFence().GetClaim(), last.GetDeliver().GetPrev())
		}

		g.sync(func() { g.box.deaf = func(int, *compassv1.Command) bool { return true } })
		next := g.truth.post("c", "ada")
		g.ref(next)
		g.sync(func() { g.box.deaf = nil })
		g.sync(func() { g.truth.fence.Epoch = 123456 })
		pass(31 * time.Second)
		g.expect(bot, "a resend after a raise", m, next)
		if last := g.box.sent()[len(g.box.sent())-1]; last.GetFence().GetLease() != 123456 || last.GetDeliver().GetPrev() != m.Pos {
			t.Errorf("a resend carries %v on %d, want the fence of now and the prev of then", last.GetFence(), last.GetDeliver().GetPrev())
		}
	})
}

// The deadline is looked at before each publish: whoever lost the lease in the middle of a drain sends no more.
func TestDeadlineBeforeEachPublish(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGround(t)
		g.truth.channel(acme, "c", "bot")
		g.truth.start(acme, "bot", "r1")
		g.sync(func() { g.box.onTake = func(*compassv1.Command) { g.rights.lose(0, true) } })
		g.run()
		g.truth.post("c", "ada")
		g.truth.post("c", "ada")
		g.ref(g.truth.post("c", "ada"))
		pass(time.Minute)
		if n := len(g.box.sent()); n != 1 {
			t.Errorf("%d commands, want the one before the lease was lost", n)
		}
	})
}

// Answers of a Runner that is not the session's, or of another generation, move nothing.
func TestOnlyTheSessionsRunnerMovesItsGate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGround(t)
		g.truth.channel(acme, "c", "bot")
		bot := g.truth.start(acme, "bot", "r1")
		g.sync(func() { g.box.ackEach = false })
		g.run()
		m := g.truth.post("c", "ada")
		g.ref(m)
		sent := len(g.box.sent())
		back := func(runner string, generation int64) {
			g.box.state(runner, &compassv1.RunnerState{TenantId: string(acme), SessionId: bot.Session, Generation: generation,
				Channels: []*compassv1.ChannelState{{ChannelId: "c", Held: 0, Refused: true}}})
			pass(0)
		}
		back("r2", bot.Generation)
		back("r1", bot.Generation-1)
		if n := len(g.box.sent()) - sent; n != 0 {
			t.Errorf("%d commands set off by somebody else's answers", n)
		}
		back("r1", bot.Generation)
		if n := len(g.box.sent()) - sent; n != 1 {
			t.Errorf("%d commands set off by its own, want 1", n)
		}
	})
}

// Holds REQ-050, K4: a mention goes beside the chain, also where the window is full, once, and before it is acknowledged no
// second command is made; the chain passes it.
func TestMentionsGoBesideTheChain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGround(t)
		g.truth.channel(acme, "c", "bot")
		bot := g.truth.start(acme, "bot", "r1")
		g.sync(func() { g.box.ackEach = false })
		g.run()
		var ms []store.Message
		for range 20 {
			ms = append(ms, g.truth.post("c", "ada"))
		}
		mention := g.truth.post("c", "ada", "bot")
		g.ref(mention)
		pass(0)
		want := append(append([]store.Message{}, ms[:16]...), mention)
		if got := g.box.of(bot.Session); len(got) != 17 {
			t.Fatalf("took %v, want a full window and the mention", short(got))
		}
		pass(20 * time.Second)
		if got := g.box.of(bot.Session); len(got) != len(want) {
			t.Errorf("pushed again within the time of a resend: %v", short(got))
		}
		g.truth.ackCommand(bot.Session, g.truth.commands[bot.Session][0].N)
		g.truth.ack("bot", "c", ms[15].Pos)
		pass(3 * time.Minute)
		all := g.box.of(bot.Session)
		if len(all) != 21 {
			t.Errorf("took %d, want 20 and the mention, each once", len(all))
		}
	})
}

// A steer whose session lost it is pushed again after AckWait, and the order of numbers is that of positions.
func TestSteersArePushedAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGround(t)
		g.truth.channel(acme, "c") // the agent is no member: a mention is owed all the same
		bot := g.truth.start(acme, "bot", "r1")
		g.sync(func() { g.box.deaf = func(int, *compassv1.Command) bool { return true } })
		g.run()
		a, b := g.truth.post("c", "ada", "bot"), g.truth.post("c", "ada", "bot")
		g.ref(a)
		g.ref(b)
		g.sync(func() { g.box.deaf = nil })
		pass(25 * time.Second)
		g.expect(bot, "too early")
		pass(10 * time.Second)
		g.expect(bot, "pushed again", a, b)
		if len(g.truth.commands[bot.Session]) != 0 {
			t.Errorf("commands left %v", g.truth.commands[bot.Session])
		}
	})
}
