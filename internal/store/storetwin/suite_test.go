package storetwin_test

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/rigelbuild/compass-operator/internal/store"
)

func TestPost(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, g *ground) {
		x := g.a
		first, second := g.post(t, x, x.room, "1"), g.post(t, x, x.room, "2")
		if first.Pos == 0 || first.Pos >= second.Pos || first.Seq != first.Pos || first.Rev != first.Pos {
			t.Errorf("numbers %+v, %+v", first, second)
		}
		again := g.draft(x.room, x.person, "1")
		m, inserted, touched, err := g.AppendMessage(x.ctx, again)
		must(t, err)
		if m.ID != first.ID || inserted || len(touched) != 0 {
			t.Errorf("a repeat: %+v, inserted %v, touched %v", m, inserted, touched)
		}
		_, _, _, err = g.AppendMessage(x.ctx, g.draft(x.side, x.person, "1"))
		want(t, "the client id of another message", err, store.ErrConflict)
		_, _, _, err = g.AppendMessage(x.ctx, g.draft(x.side, x.other.ID, "x"))
		want(t, "no member", err, store.ErrNotFound)
		_, _, _, err = g.AppendMessage(g.b.ctx, g.draft(x.room, g.b.person, "x"))
		want(t, "another tenant's channel", err, store.ErrNotFound)
		_, err = g.MessageByID(g.b.ctx, first.ID)
		want(t, "another tenant's message", err, store.ErrNotFound)
		_, err = g.ArchiveChannel(x.ctx, x.side, x.person)
		must(t, err)
		_, _, _, err = g.AppendMessage(x.ctx, g.draft(x.side, x.person, "y"))
		want(t, "archived", err, store.ErrPrecondition)
		_, _, touched, err = g.AppendMessage(x.ctx, g.draft(x.room, x.person, "3"))
		must(t, err)
		if len(touched) != 1 || touched[0].Channel != x.room || touched[0].Last().Pos <= second.Pos {
			t.Errorf("touched %+v", touched)
		}
	})
}

func TestTurn(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, g *ground) {
		x := g.a
		g.runner(t, time.Minute)
		s := g.start(t, x, x.bot.ID)
		one := g.say(t, x, s, "t1", x.room, "1")
		two := g.say(t, x, s, "t1", x.side, "2")
		three := g.say(t, x, s, "t1", x.room, "3")
		if !one.Held() || one.Author != x.bot.ID {
			t.Errorf("in a turn: %+v", one)
		}
		edited, err := g.EditMessage(x.ctx, store.Edit{Message: one.ID, Blocks: []store.Block{store.Text("+")}, Append: true, In: s.in("t1")})
		must(t, err)
		if len(edited.Blocks) != 2 || edited.Rev <= three.Rev || !edited.Held() {
			t.Errorf("edited %+v", edited)
		}
		before := g.post(t, x, x.room, "person")
		touched := g.settle(t, x, s, "t1")
		var got []string
		for _, c := range touched {
			for _, m := range c.Messages {
				got = append(got, m.ID)
			}
		}
		wanted := [][]string{{one.ID, three.ID}, {two.ID}}
		if x.side < x.room {
			slices.Reverse(wanted)
		}
		equal(t, "settled, sorted by channel, in order of seq", got, slices.Concat(wanted...))
		now, err := g.MessageByID(x.ctx, one.ID)
		must(t, err)
		if now.Pos <= before.Pos || now.Rev != now.Pos || now.Seq != one.Seq {
			t.Errorf("its position is that of the settle: %+v after %d", now, before.Pos)
		}
		_, err = g.EditMessage(x.ctx, store.Edit{Message: one.ID, Blocks: []store.Block{store.Text("late")}, In: s.in("t1")})
		want(t, "edit after the settle", err, store.ErrPrecondition)
		late := g.draft(x.room, "", "late")
		late.In = s.in("t1")
		_, _, _, err = g.AppendMessage(x.ctx, late)
		want(t, "post after the settle", err, store.ErrPrecondition)
		repeat := g.draft(x.room, "", "1")
		repeat.In = &store.InTurn{Event: store.Event{Session: s.Session, Generation: s.Generation, Runner: s.Runner, N: 1}, Turn: "t1"}
		m, inserted, _, err := g.AppendMessage(x.ctx, repeat)
		must(t, err)
		if m.ID != one.ID || inserted {
			t.Errorf("a repeat is answered though its turn is settled: %+v", m)
		}
		g.say(t, x, s, "t2", x.room, "4")
		n := g.draft(x.room, "", "5")
		n.In = s.in("t3")
		_, _, touched, err = g.AppendMessage(x.ctx, n)
		must(t, err)
		if len(touched) != 1 || len(touched[0].Messages) != 1 {
			t.Errorf("the next turn settles the one before: %+v", touched)
		}
		b, err := g.Session(x.ctx, s.Session)
		must(t, err)
		equal(t, "open turn", b.OpenTurn, "t3")
		stale := s.in("t3")
		stale.Event.Runner = "r-00000000000000000000000000"
		n = g.draft(x.room, "", "6")
		n.In = stale
		_, _, _, err = g.AppendMessage(x.ctx, n)
		want(t, "another Runner's session", err, store.ErrStale)
		f := store.Frame{NewMessage: g.draft(x.room, "", "frame")}
		f.In = s.in("t3")
		_, created, _, err := g.CommitFrame(x.ctx, f)
		must(t, err)
		f.In, f.Append = s.in("t3"), true
		m, again, _, err := g.CommitFrame(x.ctx, f)
		must(t, err)
		equal(t, "frames", fmt.Sprint(created, again, len(m.Blocks)), "true false 2")
	})
}

func TestAsk(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, g *ground) {
		x := g.a
		g.runner(t, time.Minute)
		s := g.start(t, x, x.bot.ID)
		said := g.say(t, x, s, "t1", x.room, "context")
		ask := g.draft(x.room, "", "ask")
		ask.In = s.in("t1")
		q, inserted, touched, err := g.AppendAsk(x.ctx, ask)
		must(t, err)
		if !inserted || q.Held() || len(touched) != 1 || len(touched[0].Messages) != 2 || touched[0].Messages[0].ID != said.ID {
			t.Errorf("the question comes after its context: %+v, %+v", q, touched)
		}
		answer := store.NewAnswer{ID: g.ids.Message(), Ask: q.ID, Author: x.person, ClientID: "a", Blocks: []store.Block{store.Text("yes")}}
		m, inserted, _, err := g.AnswerAsk(x.ctx, answer)
		must(t, err)
		equal(t, "answer", fmt.Sprint(inserted, m.Ask == q.ID, m.Channel == x.room), "true true true")
		m, inserted, _, err = g.AnswerAsk(x.ctx, answer)
		must(t, err)
		equal(t, "repeat", fmt.Sprint(inserted, m.Ask == q.ID), "false true")
		answer.ClientID, answer.ID = "b", g.ids.Message()
		_, _, _, err = g.AnswerAsk(x.ctx, answer)
		want(t, "a second answer", err, store.ErrPrecondition)
		_, _, _, err = g.AnswerAsk(g.b.ctx, answer)
		want(t, "another tenant's question", err, store.ErrNotFound)
		v, err := g.AgentOwed(x.ctx, store.AgentQuery{Stream: g.stream, Agent: x.bot.ID, Limit: 10})
		must(t, err)
		if len(v.Pending) != 1 || v.Pending[0].Kind != store.CommandAnswer || v.Pending[0].MessageID != m.ID {
			t.Errorf("the asker is owed the answer: %+v", v)
		}
		read, err := g.MessageByID(x.ctx, q.ID)
		must(t, err)
		equal(t, "the question knows its answer", read.Answer, m.ID)
		b, err := g.Session(x.ctx, s.Session)
		must(t, err)
		equal(t, "the turn stays open", b.OpenTurn, "t1")
	})
}

func TestSessions(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, g *ground) {
		x := g.a
		id, _ := g.ids.Session(string(x.id))
		_, err := g.StartSession(x.ctx, store.NewSession{Session: id, Agent: x.bot.ID})
		want(t, "nobody to place it on", err, store.ErrNoRunner)
		runner, inc := g.runner(t, time.Minute)
		_, err = g.StartSession(x.ctx, store.NewSession{Session: id, Agent: x.person})
		want(t, "a person", err, store.ErrNotFound)
		s := g.start(t, x, x.bot.ID)
		var live *store.LiveSessionError
		_, err = g.StartSession(x.ctx, store.NewSession{Session: id, Agent: x.bot.ID})
		if !errors.As(err, &live) || live.Session != s.Session || !errors.Is(err, store.ErrConflict) {
			t.Errorf("a second start: %v", err)
		}
		_, err = g.ClaimStart(x.ctx, store.Claim{SessionRef: s.ref(), Incarnation: inc + 1})
		want(t, "claim of another process", err, store.ErrStale)
		g.say(t, x, s, "t1", x.room, "half")
		next, err := g.HelloRunner(t.Context(), runner, time.Minute)
		must(t, err)
		if next <= inc {
			t.Errorf("incarnation %d after %d", next, inc)
		}
		found, err := g.StaleSessions(t.Context(), 0, runner)
		must(t, err)
		equal(t, "stale", found, []store.TenantSession{{Tenant: x.id, Session: s.Session}})
		ended, err := g.EndStaleSession(x.ctx, s.Session)
		must(t, err)
		if !ended.Was || len(ended.Touched) != 1 {
			t.Errorf("its turn settles as it stands: %+v", ended)
		}
		ended, err = g.EndStaleSession(x.ctx, s.Session)
		must(t, err)
		if ended.Was || len(ended.Touched) != 0 {
			t.Errorf("a double does nothing: %+v", ended)
		}
		s.n++
		_, err = g.SettleTurn(x.ctx, s.event(), "t1")
		want(t, "an event of what is over", err, store.ErrStale)
		again := g.start(t, x, x.bot.ID)
		if again.Generation <= s.Generation {
			t.Errorf("generation %d after %d", again.Generation, s.Generation)
		}
		ended, err = g.EndStaleSession(x.ctx, again.Session)
		must(t, err)
		equal(t, "one that runs is not stale", ended.Was, false)
		again.n++
		ended, err = g.EndSession(x.ctx, again.event())
		must(t, err)
		equal(t, "ended", ended.Was, true)
		ended, err = g.EndSession(x.ctx, again.event())
		must(t, err)
		equal(t, "ended again", ended.Was, false)
		ended, err = g.StopSession(x.ctx, again.Session)
		must(t, err)
		equal(t, "stopped", ended.Was, false)
		_, err = g.StopSession(g.b.ctx, again.Session)
		want(t, "another tenant's", err, store.ErrNotFound)
		list, err := g.LiveAgentSessions(x.ctx)
		must(t, err)
		equal(t, "live", len(list), 0)
		list, err = g.ListSessions(x.ctx, 10)
		must(t, err)
		equal(t, "all", len(list), 2)
	})
}

func TestHeartbeat(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, g *ground) {
		x := g.a
		runner, inc := g.runner(t, time.Minute)
		counter := int64(1)
		beat := func(states ...store.SessionState) store.HeartbeatAnswer {
			t.Helper()
			counter++
			a, err := g.Heartbeat(t.Context(), store.Heartbeat{Runner: runner, Incarnation: inc, Counter: counter, Sessions: states, Lease: time.Minute})
			must(t, err)
			return a
		}
		id, _ := g.ids.Session(string(x.id))
		started, err := g.StartSession(x.ctx, store.NewSession{Session: id, Agent: x.bot.ID})
		must(t, err)
		s := &session{Binding: started.Binding}
		a := beat()
		if len(a.Orders) != 1 || !a.Orders[0].Start || a.Orders[0].Session != id {
			t.Errorf("an unclaimed start is ordered: %+v", a)
		}
		a = beat(store.SessionState{Session: id, Generation: s.Generation})
		if len(a.Orders) != 1 || a.Orders[0].Start || a.Orders[0].Stop {
			t.Errorf("whoever runs it has claimed it: %+v", a)
		}
		equal(t, "whose claim was not known", a.Back, []store.TenantAgent{{Tenant: x.id, Agent: x.bot.ID}})
		equal(t, "who was there all along", beat(store.SessionState{Session: id, Generation: s.Generation}).Back, nil)
		b, err := g.Session(x.ctx, id)
		must(t, err)
		equal(t, "claimed", b.Claimed, true)
		g.say(t, x, s, "t1", x.room, "1")
		a = beat(store.SessionState{Session: id, Generation: s.Generation, N: 0})
		equal(t, "a state older than the turn settles nothing", len(a.Healed), 0)
		a = beat(store.SessionState{Session: id, Generation: s.Generation, N: 1})
		if len(a.Healed) != 1 || a.Healed[0].Was || len(a.Healed[0].Touched) != 1 {
			t.Errorf("a turn that is over is settled: %+v", a)
		}
		command, _, err := g.Steer(x.ctx, id, "stop it")
		must(t, err)
		a = beat(store.SessionState{Session: id, Generation: s.Generation, N: 1})
		if len(a.Orders) != 1 || a.Orders[0].NewestCommand != command.N || len(a.Orders[0].Unacked) != 1 {
			t.Errorf("the newest command and what is unacked: %+v", a)
		}
		a = beat()
		if len(a.Healed) != 1 || !a.Healed[0].Was {
			t.Errorf("it ran, and does not any more: %+v", a)
		}
		a = beat(store.SessionState{Session: id, Generation: s.Generation, N: 1})
		if len(a.Orders) != 1 || !a.Orders[0].Stop {
			t.Errorf("what is over is stopped: %+v", a)
		}
		_, err = g.HelloRunner(t.Context(), runner, time.Minute)
		must(t, err)
		equal(t, "an incarnation that is over", beat().Expired, true)
	})
}

func TestExpiry(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, g *ground) {
		x := g.a
		runner, inc := g.runner(t, 1500*time.Millisecond)
		s := g.start(t, x, x.bot.ID)
		g.say(t, x, s, "t1", x.room, "1")
		late := func() {
			t.Helper()
			var overdue []string
			for deadline := time.Now().Add(30 * time.Second); len(overdue) == 0 && time.Now().Before(deadline); {
				var err error
				overdue, err = g.OverdueRunners(t.Context(), 0)
				must(t, err)
			}
			equal(t, "overdue", overdue, []string{runner})
		}
		late()
		beat := store.Heartbeat{Runner: runner, Incarnation: inc, Counter: 8, Lease: time.Millisecond,
			Sessions: []store.SessionState{{Session: s.Session, Generation: s.Generation, N: s.n, OpenTurn: "t1"}}}
		back, err := g.Heartbeat(t.Context(), beat)
		must(t, err)
		equal(t, "who comes back after its lease", back.Back, []store.TenantAgent{{Tenant: x.id, Agent: x.bot.ID}})
		late()
		now, err := g.PingDatabase(t.Context(), 0)
		must(t, err)
		expired, err := g.ExpireRunner(t.Context(), store.Expiry{Runner: runner, Probe: now.Add(-time.Hour), Fresh: time.Minute})
		must(t, err)
		equal(t, "by a look of long ago", expired, false)
		expired, err = g.ExpireRunner(t.Context(), store.Expiry{Runner: runner, Probe: now, Fresh: time.Minute})
		must(t, err)
		equal(t, "by a fresh one", expired, true)
		a, err := g.Heartbeat(t.Context(), store.Heartbeat{Runner: runner, Incarnation: inc, Counter: 9, Lease: time.Minute})
		must(t, err)
		equal(t, "a zombie's heartbeat", a.Expired, true)
		turns, err := g.OverlongTurns(t.Context(), 0, 0)
		must(t, err)
		equal(t, "overlong", turns, []store.TenantSession{{Tenant: x.id, Session: s.Session, Turn: "t1"}})
		touched, err := g.SettleOverlongTurn(x.ctx, s.Session, "t1", 0)
		must(t, err)
		equal(t, "settled", len(touched), 1)
		ended, err := g.EndStaleSession(x.ctx, s.Session)
		must(t, err)
		equal(t, "ended", ended.Was, true)
	})
}

// Many at once: positions have no holes in their order, a client id is used once, and a settle misses nothing.
func TestSideBySide(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, g *ground) {
		x := g.a
		g.runner(t, time.Minute)
		s := g.start(t, x, x.bot.ID)
		var group sync.WaitGroup
		var mu sync.Mutex
		made, once := map[int64]bool{}, 0
		for i := range 12 {
			group.Go(func() {
				m, _, _, err := g.AppendMessage(x.ctx, g.draft(x.room, x.person, fmt.Sprint(i)))
				mu.Lock()
				defer mu.Unlock()
				if err != nil || made[m.Pos] {
					t.Errorf("post %d: %d, %v", i, m.Pos, err)
				}
				made[m.Pos] = true
			})
		}
		for i := range 4 {
			group.Go(func() {
				_, inserted, _, err := g.AppendMessage(x.ctx, g.draft([]string{x.room, x.side}[i%2], x.person, "the same"))
				mu.Lock()
				defer mu.Unlock()
				if inserted {
					once++
				}
				if err != nil && !errors.Is(err, store.ErrConflict) {
					t.Error(err)
				}
			})
		}
		g.say(t, x, s, "t1", x.room, "first")
		for i := range 6 {
			n := g.draft([]string{x.room, x.side}[i%2], "", fmt.Sprint("turn", i))
			n.In = s.in("t1")
			group.Go(func() {
				_, _, _, err := g.AppendMessage(x.ctx, n)
				if err != nil && !errors.Is(err, store.ErrPrecondition) && !errors.Is(err, store.ErrConflict) {
					t.Error(err)
				}
			})
		}
		s.n += 10
		last := s.event()
		group.Go(func() {
			_, err := g.SettleTurn(x.ctx, last, "t1")
			if err != nil {
				t.Error(err)
			}
		})
		group.Wait()
		equal(t, "one of the same client id", once, 1)
		all, _, err := g.ListMessages(x.ctx, store.MessagePage{Channel: x.room, Reader: x.person, Limit: 100})
		must(t, err)
		for i, m := range all {
			if m.Held() || i > 0 && m.Rev <= all[i-1].Rev {
				t.Errorf("message %d: %+v", i, m)
			}
		}
	})
}
