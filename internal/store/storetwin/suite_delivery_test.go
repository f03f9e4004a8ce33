package storetwin_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/rigelbuild/compass-operator/internal/store"
)

func TestDrain(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, g *ground) {
		x := g.a
		g.runner(t, time.Minute)
		one := g.post(t, x, x.room, "1")
		v := g.owed(t, x, x.room, nil)
		equal(t, "nobody is live; who wishes to be woken", fmt.Sprint(v.Mine, len(v.Sessions), v.Asleep), fmt.Sprint(true, 0, []string{x.other.ID}))
		s := g.start(t, x, x.bot.ID)
		o := g.start(t, x, x.other.ID)
		mention := g.post(t, x, x.room, "2", store.Mention("bot"))
		own := g.say(t, x, s, "", x.room, "3")
		g.say(t, x, s, "t1", x.room, "held")
		v = g.owed(t, x, x.room, nil)
		equal(t, "the bot's chain: not its own, not what is owed beside", rows(v, x.bot.ID), []string{one.ID, "-", "-"})
		equal(t, "the other's: nothing that is held", rows(v, x.other.ID), []string{one.ID, mention.ID, own.ID})
		equal(t, "head", v.Head, own.Pos)
		v = g.owed(t, x, x.room, map[string]int64{o.Session: mention.Pos})
		equal(t, "after what was passed", rows(v, x.other.ID), []string{own.ID})
		v, err := g.ChannelOwed(x.ctx, store.ChannelQuery{Stream: g.stream, Channel: x.room, Page: 2})
		must(t, err)
		equal(t, "a page", fmt.Sprint(rows(v, x.other.ID), v.Sessions[0].Cut), fmt.Sprint([]string{one.ID, mention.ID}, true))
		v, err = g.ChannelOwed(x.ctx, store.ChannelQuery{Stream: "another", Channel: x.room, Page: 2})
		must(t, err)
		equal(t, "another stream's tenant", v.Mine, false)
		equal(t, "another tenant's channel", len(g.owed(t, g.b, x.room, nil).Sessions), 0)

		content, err := g.ChannelContent(x.ctx, store.ContentQuery{Channel: x.room, Messages: []string{one.ID}, Sessions: []string{s.Session, o.Session}})
		must(t, err)
		m, entitled, gone := content.For(o.Session, one.ID, one.Pos)
		equal(t, "content", fmt.Sprint(m.ID, entitled, gone), fmt.Sprint(one.ID, true, false))
		must(t, g.RemoveMember(x.ctx, store.Member{Channel: x.room, Account: x.other.ID, Actor: x.person}))
		content, err = g.ChannelContent(x.ctx, store.ContentQuery{Channel: x.room, Messages: []string{one.ID}, Sessions: []string{o.Session}})
		must(t, err)
		_, entitled, _ = content.For(o.Session, one.ID, one.Pos)
		equal(t, "who left", entitled, false)
		must(t, g.AddMember(x.ctx, store.Member{Channel: x.room, Account: x.other.ID, Actor: x.person}))
		equal(t, "who came back is owed nothing from before", rows(g.owed(t, x, x.room, nil), x.other.ID), []string(nil))

		acked, err := g.Ack(x.ctx, s.ref(), []store.ChannelAck{{Channel: x.room, Pos: one.Pos}})
		must(t, err)
		equal(t, "moved", acked.Moved, []string{x.room})
		acked, err = g.Ack(x.ctx, s.ref(), []store.ChannelAck{{Channel: x.room, Pos: one.Pos - 1}})
		must(t, err)
		equal(t, "never back", len(acked.Moved), 0)
		acked, err = g.Ack(x.ctx, s.ref(), []store.ChannelAck{{Channel: x.room, Pos: own.Pos + 1}})
		want(t, "beyond the head", err, store.ErrBeyondHead)
		equal(t, "refused", acked.Refused, []string{x.room})
		stale := s.ref()
		stale.Generation++
		_, err = g.Ack(x.ctx, stale, []store.ChannelAck{{Channel: x.room, Pos: own.Pos}})
		want(t, "another generation's", err, store.ErrStale)
		swept, err := g.SweepChannels(t.Context(), store.SweepQuery{Stream: g.stream, Parts: 1})
		must(t, err)
		equal(t, "owing", swept, []store.OwingChannel{{Tenant: x.id, Channel: x.room}})
		owes, err := g.SessionOwes(x.ctx, x.bot.ID)
		must(t, err)
		equal(t, "owes", owes, []string{x.room})
		_, err = g.Ack(x.ctx, s.ref(), []store.ChannelAck{{Channel: x.room, Pos: own.Pos}})
		must(t, err)
		swept, err = g.SweepChannels(t.Context(), store.SweepQuery{Stream: g.stream, Parts: 1})
		must(t, err)
		equal(t, "owing nothing", len(swept), 0)
	})
}

func TestOwedBesideTheChain(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, g *ground) {
		x := g.a
		g.runner(t, time.Minute)
		_, fence := g.writer(t)
		one := g.post(t, x, x.side, "1", store.Mention("other")) // no member there
		two := g.post(t, x, x.side, "2", store.Mention("other"), store.Mention("person"))
		asleep, err := g.SweepAsleep(t.Context(), store.SweepQuery{Stream: g.stream, Parts: 1})
		must(t, err)
		equal(t, "asleep", asleep, []store.OwedAgent{{Tenant: x.id, Agent: x.other.ID}})
		owed, err := g.IsOwed(x.ctx, x.other.ID)
		must(t, err)
		equal(t, "owed", owed, true)
		s := g.start(t, x, x.other.ID)
		agents, err := g.SweepAgents(t.Context(), store.SweepQuery{Stream: g.stream, Parts: 1})
		must(t, err)
		equal(t, "swept", agents, []store.OwedAgent{{Tenant: x.id, Agent: x.other.ID}})
		targets, err := g.RowTargets(x.ctx, []string{two.ID, g.ids.Message()})
		must(t, err)
		if len(targets) != 1 || targets[0].Channel != x.side || !slices.Contains(targets[0].Agents, x.other.ID) {
			t.Errorf("targets %+v", targets)
		}
		view := func() store.AgentView {
			t.Helper()
			v, err := g.AgentOwed(x.ctx, store.AgentQuery{Stream: g.stream, Agent: x.other.ID, Limit: 10})
			must(t, err)
			return v
		}
		v := view()
		if v.Session == nil || v.Session.Session != s.Session || len(v.Pending) != 2 || v.Pending[0].MessageID != one.ID || v.Pending[0].Command {
			t.Errorf("pending %+v", v)
		}
		commands, err := g.AppendCommands(x.ctx, fence, store.NewCommands{Agent: x.other.ID, Session: s.Session, Messages: []string{two.ID, one.ID}})
		must(t, err)
		if len(commands) != 2 || commands[0].MessageID != one.ID || commands[1].Prev != commands[0].N || commands[0].Prev != 0 || commands[0].Message == nil {
			t.Errorf("commands %+v", commands)
		}
		commands, err = g.AppendCommands(x.ctx, fence, store.NewCommands{Agent: x.other.ID, Session: s.Session, Messages: []string{one.ID, two.ID}})
		must(t, err)
		equal(t, "what has a command gets no second one", len(commands), 2)
		fetched, err := g.FetchCommands(x.ctx, store.Fetch{Session: s.Session, Runner: s.Runner, After: commands[0].N})
		must(t, err)
		if len(fetched) != 1 || fetched[0].N != commands[1].N || fetched[0].Message.ID != two.ID {
			t.Errorf("fetched %+v", fetched)
		}
		_, err = g.FetchCommands(x.ctx, store.Fetch{Session: s.Session, Runner: "r-00000000000000000000000000"})
		want(t, "another Runner's", err, store.ErrStale)
		ack := func(n int64, m string, pos int64) int {
			t.Helper()
			_, done, err := g.AckCommands(x.ctx, s.ref(), []store.CommandAck{{N: n, MessageID: m, Pos: pos}})
			must(t, err)
			return done
		}
		equal(t, "an ack of another position", ack(commands[0].N, one.ID, one.Pos+1), 0)
		equal(t, "pending still", len(view().Pending), 2)
		equal(t, "acked", ack(commands[0].N, one.ID, one.Pos), 1)
		equal(t, "acked twice", ack(commands[0].N, one.ID, one.Pos), 0)
		equal(t, "pending", len(view().Pending), 1)
		push, err := g.CommandsToPush(x.ctx, store.CommandQuery{Session: s.Session})
		must(t, err)
		equal(t, "to push", len(push), 1)
		stale := s.ref()
		stale.Generation++
		_, _, err = g.AckCommands(x.ctx, stale, []store.CommandAck{{N: 1}})
		want(t, "another generation's", err, store.ErrStale)
		unrouted, err := g.SweepUnrouted(t.Context(), store.SweepQuery{Stream: g.stream, Parts: 1})
		must(t, err)
		equal(t, "unrouted", len(unrouted), 0)
	})
}

func TestWriter(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, g *ground) {
		x := g.a
		g.runner(t, time.Minute)
		s := g.start(t, x, x.bot.ID)
		m := g.post(t, x, x.room, "1")
		d := store.Delivery{MessageID: m.ID, Recipient: x.bot.ID, Channel: x.room, Pos: m.Pos}
		lease, fence := g.writer(t)
		equal(t, "the first holder", lease.Careful(), false)
		other := g.lease(g.stream, "two", time.Minute)
		var held store.HeldError
		if err := other.Acquire(t.Context(), 0); !errors.As(err, &held) || held.Remaining <= 0 {
			t.Errorf("held: %v", err)
		}
		must(t, lease.Renew(t.Context()))
		for range 2 {
			must(t, g.BeginAttempt(x.ctx, fence, d))
		}
		v := g.owed(t, x, x.room, nil)
		equal(t, "attempts", v.Sessions[0].Rows[0].Attempts, 2)
		none, err := g.ParkDelivery(x.ctx, fence, d, store.ReasonRejected, 3)
		must(t, err)
		if none != nil {
			t.Errorf("parked %+v below its attempts", none)
		}
		must(t, g.CountRejections(x.ctx, fence, store.Rejections{Delivery: d, Count: 1}))
		parked, err := g.ParkDelivery(x.ctx, fence, d, store.ReasonRejected, 3)
		must(t, err)
		if parked == nil || parked.Attempts != 3 {
			t.Errorf("parked %+v", parked)
		}
		equal(t, "set aside", rows(g.owed(t, x, x.room, nil), x.bot.ID), []string{"-"})
		dry, err := g.ReplayDeadLetters(x.ctx, store.DeadLetterFilter{}, "test", true)
		must(t, err)
		replayed, err := g.ReplayDeadLetters(x.ctx, store.DeadLetterFilter{Message: m.ID}, "test", false)
		must(t, err)
		equal(t, "replayed", fmt.Sprint(dry.Count, replayed.Count, len(replayed.Touched)), "1 1 1")
		commands, err := g.AppendCommands(x.ctx, fence, store.NewCommands{Agent: x.bot.ID, Session: s.Session, Messages: []string{m.ID}})
		must(t, err)
		if len(commands) != 1 || commands[0].Kind != store.CommandReplay {
			t.Errorf("commands %+v", commands)
		}
		_, _, err = g.AckCommands(x.ctx, s.ref(), []store.CommandAck{{N: commands[0].N, MessageID: m.ID, Pos: m.Pos}})
		must(t, err)
		dry, err = g.ReplayDeadLetters(x.ctx, store.DeadLetterFilter{}, "test", true)
		must(t, err)
		equal(t, "the ack of a replay ends its dead letter", dry.Count, int64(0))
		must(t, g.BeginAttempt(x.ctx, fence, d))
		must(t, g.SurvivedAttempt(x.ctx, fence, d))

		must(t, lease.Raise(t.Context(), fence.Epoch+1000))
		raised, _ := lease.Fence()
		if raised.Epoch <= fence.Epoch+1000 || raised.Nonce == fence.Nonce {
			t.Errorf("raised %+v from %+v", raised, fence)
		}
		want(t, "the fence of before", g.BeginAttempt(x.ctx, fence, d), store.ErrStaleWriter)
		must(t, g.ConfirmDrain(x.ctx, raised, 1))
		nobodys := raised
		nobodys.Nonce = "another"
		want(t, "another nonce", g.BeginAttempt(x.ctx, nobodys, d), store.ErrStaleWriter)
		must(t, lease.Release(t.Context()))
		want(t, "after the goodbye", g.BeginAttempt(x.ctx, raised, d), store.ErrStaleWriter)
		must(t, other.Acquire(t.Context(), raised.Epoch+5))
		next, _ := other.Fence()
		equal(t, "after a goodbye", fmt.Sprint(other.Careful(), next.Epoch > raised.Epoch+5), "false true")
		want(t, "to release what is another's", lease.Renew(t.Context()), store.ErrLeaseLost)
		again := g.lease(g.stream, "two", time.Minute)
		must(t, again.Acquire(t.Context(), 0))
		equal(t, "the same pod, that said no goodbye", again.Careful(), true)

		p, err := g.Placement(x.ctx)
		must(t, err)
		moved, err := g.MovedTenants(t.Context(), 0, g.stream, p.Claim-1)
		must(t, err)
		if len(moved) != 2 || moved[0].Claim > moved[1].Claim {
			t.Errorf("moved %+v", moved)
		}
	})
}

func TestMove(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, g *ground) {
		x := g.a
		seen, err := g.ReadLease(t.Context(), g.stream, 0)
		must(t, err)
		equal(t, "nobody's lease", seen.Held, false)
		lease, fence := g.writer(t)
		before, err := g.Placement(x.ctx)
		must(t, err)
		want(t, "from where it is not", g.PlaceTenant(t.Context(), x.id, "another", "third"), store.ErrConflict)
		for range 2 {
			must(t, g.DrainTenant(t.Context(), x.id, g.stream))
		}
		must(t, g.DrainTenant(t.Context(), g.b.id, "another"))
		v := g.owed(t, x, x.room, nil)
		equal(t, "a tenant that is to leave", fmt.Sprint(v.Mine, v.Draining), "true true")
		moved, err := g.MovedTenants(t.Context(), 0, g.stream, before.Claim+1_000_000_000)
		must(t, err)
		equal(t, "listed", moved, []store.StreamTenant{{Tenant: x.id, Claim: before.Claim, Draining: true}})
		must(t, g.ConfirmDrain(x.ctx, fence, before.Claim))
		seen, err = g.ReadLease(t.Context(), g.stream, 0)
		must(t, err)
		equal(t, "the word", fmt.Sprint(seen.Held, seen.Epoch == fence.Epoch, seen.Drained), fmt.Sprint(true, true, map[store.TenantID]int64{x.id: before.Claim}))
		must(t, g.PlaceTenant(t.Context(), x.id, g.stream, "another"))
		after, err := g.Placement(x.ctx)
		must(t, err)
		equal(t, "placed", fmt.Sprint(after.Stream, " ", after.Draining, after.Claim > before.Claim), "another false true")
		want(t, "the word of whom it has left", g.ConfirmDrain(x.ctx, fence, before.Claim), store.ErrStaleWriter)
		must(t, lease.Release(t.Context()))
		seen, err = g.ReadLease(t.Context(), g.stream, 0)
		must(t, err)
		equal(t, "given back", seen.Held, false)
	})
}
