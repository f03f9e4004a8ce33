package store_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rigelbuild/compass-operator/internal/store"
)

// worker opens the store as a delivery worker does, and takes the lease.
func (s *stage) worker(t *testing.T) (*store.Store, store.Fence) {
	t.Helper()
	db := s.Database
	w, err := store.Open(t.Context(), store.Config{
		Databases: []store.Database{{App: db.App, System: db.System, Direct: db.Direct}}, Fenced: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	lease, err := w.NewLease(store.LeaseOptions{Stream: "main", Holder: "worker", TTL: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	if err := lease.Acquire(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = lease.Release(context.WithoutCancel(t.Context())) })
	fence, _ := lease.Fence()
	return w, fence
}

func (s *stage) mention(t *testing.T) store.Message {
	t.Helper()
	n := s.tenant.Message(s.person, s.channel, "")
	n.Blocks = []store.Block{store.Mention(s.agent.Handle), store.Text("please")}
	m, _, _, err := s.Store.AppendMessage(s.tenant.Ctx, n)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func (s *stage) agentView(t *testing.T, w *store.Store) store.AgentView {
	t.Helper()
	v, err := w.AgentOwed(s.tenant.Ctx, store.AgentQuery{Stream: "main", Agent: s.agent.ID, Limit: 10})
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func pending(v store.AgentView) []string {
	out := []string{}
	for _, p := range v.Pending {
		out = append(out, p.MessageID)
	}
	return out
}

// Holds REQ-050, REQ-234 (the worker's part): what is owed beside the chain becomes commands in order of position, each
// naming the one before it, once per session, with its content; and the ack of one ends it.
func TestOwedBecomesCommands(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	w, fence := s.worker(t)
	steer, _, err := s.Store.Steer(s.tenant.Ctx, s.session.ID, "by hand")
	if err != nil {
		t.Fatal(err)
	}
	first, second := s.mention(t), s.mention(t)
	v := s.agentView(t, w)
	if diff := cmp.Diff(idsOf(first, second), pending(v)); diff != "" || v.Session == nil || v.Session.Session != s.session.ID {
		t.Fatalf("pending %s, session %+v", diff, v.Session)
	}
	ask := store.NewCommands{Agent: s.agent.ID, Session: s.session.ID, Messages: pending(v)}
	cs, err := w.AppendCommands(s.tenant.Ctx, fence, ask)
	if err != nil || len(cs) != 2 {
		t.Fatalf("commands %+v (%v)", cs, err)
	}
	if cs[0].Prev != steer.N || cs[0].N <= steer.N || cs[1].Prev != cs[0].N || cs[1].N <= cs[0].N {
		t.Errorf("chain %d→%d, %d→%d after %d", cs[0].Prev, cs[0].N, cs[1].Prev, cs[1].N, steer.N)
	}
	if cs[0].MessageID != first.ID || cs[0].Pos != first.Pos || cs[0].Kind != store.CommandMention ||
		cs[0].Message == nil || len(cs[0].Message.Blocks) != 2 {
		t.Errorf("first command %+v", cs[0])
	}
	again, err := w.AppendCommands(s.tenant.Ctx, fence, ask)
	if err != nil || cmp.Diff(cs, again) != "" {
		t.Errorf("asked again: %s (%v)", cmp.Diff(cs, again), err)
	}
	for _, p := range s.agentView(t, w).Pending {
		if !p.Command {
			t.Errorf("%s has its command", p.MessageID)
		}
	}
	ref := store.SessionRef{Session: s.session.ID, Generation: s.session.Generation, Runner: s.session.Runner}
	if _, _, err := s.Store.AckCommands(s.tenant.Ctx, ref, []store.CommandAck{{N: cs[0].N, MessageID: first.ID, Pos: first.Pos}}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(idsOf(second), pending(s.agentView(t, w))); diff != "" {
		t.Errorf("after the ack: %s", diff)
	}
	left, err := w.CommandsToPush(s.tenant.Ctx, store.CommandQuery{Session: s.session.ID})
	if err != nil || len(left) != 1 || left[0].MessageID != second.ID {
		t.Errorf("left to push %+v (%v)", left, err)
	}
	none, err := w.CommandsToPush(s.tenant.Ctx, store.CommandQuery{Session: s.session.ID, Messages: idsOf(first)})
	if err != nil || len(none) != 0 {
		t.Errorf("the acknowledged one is still to be pushed: %+v (%v)", none, err)
	}
	stale := fence
	stale.Epoch--
	if _, err := w.AppendCommands(s.tenant.Ctx, stale, ask); !errors.Is(err, store.ErrStaleWriter) {
		t.Errorf("a stale worker made commands: %v", err)
	}
}

// Commands of several writers get different numbers, and the chain has no fork: the binding's row lock orders them.
func TestCommandsNumberedSideBySide(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	w, fence := s.worker(t)
	ms := []store.Message{s.mention(t), s.mention(t), s.mention(t)}
	var group sync.WaitGroup
	for _, m := range ms {
		group.Go(func() {
			ask := store.NewCommands{Agent: s.agent.ID, Session: s.session.ID, Messages: []string{m.ID}}
			if _, err := w.AppendCommands(s.tenant.Ctx, fence, ask); err != nil {
				t.Error(err)
			}
		})
		group.Go(func() {
			if _, _, err := s.Store.Steer(s.tenant.Ctx, s.session.ID, "x"); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	broken := s.Count(t, `select count(*) from (
		select prev, lag(n, 1, 0::bigint) over (order by n) as before from compass.session_commands) c where prev <> before`)
	if n := s.Count(t, `select count(*) from compass.session_commands`); n != 6 || broken != 0 {
		t.Errorf("%d commands, %d not chained to the one before", n, broken)
	}
}

// Nothing is owed to an agent without a session that it could be sent to; it may wish to be woken.
func TestAgentWithoutSession(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	w, _ := s.worker(t)
	m := s.mention(t)
	s.Exec(t, `update compass.session_bindings set claimed = false`)
	if v := s.agentView(t, w); v.Session != nil || v.Wake {
		t.Errorf("a session that is not claimed: %+v", v)
	}
	s.Exec(t, `update compass.session_bindings set live = false`)
	s.Exec(t, `update compass.accounts set wake = 'on_owed' where id = $1`, s.agent.ID)
	v := s.agentView(t, w)
	if v.Session != nil || !v.Wake || len(v.Pending) != 1 || v.Pending[0].MessageID != m.ID {
		t.Errorf("asleep: %+v", v)
	}
}

// Holds REQ-231 (the store's part), D8: attempts are counted before the row is read, taken back when it was survived, and
// at the last one the row is set aside, in one transaction, for that recipient alone.
func TestAttemptsAndParking(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	w, fence := s.worker(t)
	m := s.post(t, "poison")
	d := store.Delivery{MessageID: m.ID, Recipient: s.agent.ID, Channel: s.channel.ID, Pos: m.Pos}
	attempts := func() int { return s.view(t).Sessions[0].Rows[0].Attempts }
	for range 2 {
		if err := w.BeginAttempt(s.tenant.Ctx, fence, d); err != nil {
			t.Fatal(err)
		}
	}
	if got := attempts(); got != 2 {
		t.Errorf("%d attempts, want 2", got)
	}
	if p, err := w.ParkDelivery(s.tenant.Ctx, fence, d, store.ReasonWorkerDied, 3); err != nil || p != nil {
		t.Errorf("parked after 2 of 3: %+v (%v)", p, err)
	}
	if err := w.SurvivedAttempt(s.tenant.Ctx, fence, d); err != nil {
		t.Fatal(err)
	}
	if got := attempts(); got != 0 {
		t.Errorf("%d attempts after the worker survived the row, want 0", got)
	}
	for range 3 {
		if err := w.BeginAttempt(s.tenant.Ctx, fence, d); err != nil {
			t.Fatal(err)
		}
	}
	p, err := w.ParkDelivery(s.tenant.Ctx, fence, d, store.ReasonWorkerDied, 3)
	if err != nil || p == nil || p.Attempts != 3 || p.FirstUnixMs == 0 || p.LastUnixMs < p.FirstUnixMs {
		t.Fatalf("parked %+v (%v)", p, err)
	}
	if got := listed(s.view(t), s.agent.ID); len(got) != 0 {
		t.Errorf("a parked message is still owed: %v", got)
	}
	if again, err := w.ParkDelivery(s.tenant.Ctx, fence, d, store.ReasonWorkerDied, 3); err != nil || again != nil {
		t.Errorf("parked twice: %+v (%v)", again, err)
	}
	stale := fence
	stale.Nonce = "x"
	if err := w.BeginAttempt(s.tenant.Ctx, stale, d); !errors.Is(err, store.ErrStaleWriter) {
		t.Errorf("a stale worker counted: %v", err)
	}
}

// Each rejection counts once, however often the Runner says it, also over a restart of the worker.
func TestRejectionsCountOnce(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	w, fence := s.worker(t)
	m := s.post(t, "cannot")
	r := store.Rejections{Delivery: store.Delivery{MessageID: m.ID, Recipient: s.agent.ID, Channel: s.channel.ID, Pos: m.Pos}}
	steps := []struct {
		reason              string
		count, known, after int
	}{
		{"the first", 1, 0, 1},
		{"the worker restarted and hears the same again", 1, -1, 1},
		{"two more since", 3, 1, 3},
		{"the worker restarted and missed one", 4, -1, 4},
		{"a new session begins at one", 1, 0, 5},
	}
	for _, step := range steps {
		r.Count, r.Known = step.count, step.known
		if err := w.CountRejections(s.tenant.Ctx, fence, r); err != nil {
			t.Fatal(err)
		}
		if got := s.view(t).Sessions[0].Rows[0].Attempts; got != step.after {
			t.Errorf("%s: %d attempts, want %d", step.reason, got, step.after)
		}
	}
	r.Pos++
	r.Count, r.Known = 9, 1
	if err := w.CountRejections(s.tenant.Ctx, fence, r); err != nil {
		t.Fatal(err)
	}
	if got := s.view(t).Sessions[0].Rows[0].Attempts; got != 5 {
		t.Errorf("another position is another delivery, and yet it counted: %d", got)
	}
}

// Parking what is owed beside the chain takes its command away, and leaves the replay to be asked for again.
func TestParkingASteer(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	w, fence := s.worker(t)
	m := s.mention(t)
	if _, err := w.AppendCommands(s.tenant.Ctx, fence, store.NewCommands{Agent: s.agent.ID, Session: s.session.ID, Messages: idsOf(m)}); err != nil {
		t.Fatal(err)
	}
	d := store.Delivery{MessageID: m.ID, Recipient: s.agent.ID, Channel: s.channel.ID, Pos: m.Pos}
	park := func() {
		t.Helper()
		if err := w.BeginAttempt(s.tenant.Ctx, fence, d); err != nil {
			t.Fatal(err)
		}
		if p, err := w.ParkDelivery(s.tenant.Ctx, fence, d, store.ReasonRejected, 1); err != nil || p == nil {
			t.Fatalf("parked %+v (%v)", p, err)
		}
		if v := s.agentView(t, w); len(v.Pending) != 0 {
			t.Errorf("still pending %+v", v.Pending)
		}
		if n := s.Count(t, `select count(*) from compass.session_commands`); n != 0 {
			t.Errorf("%d commands left", n)
		}
	}
	park()
	for range 2 {
		r, err := s.Store.ReplayDeadLetters(s.tenant.Ctx, store.DeadLetterFilter{Message: m.ID}, s.tenant.Admin.ID, false)
		if err != nil || r.Count != 1 {
			t.Fatalf("replay %+v (%v)", r, err)
		}
		if v := s.agentView(t, w); len(v.Pending) != 1 || v.Pending[0].Kind != store.CommandReplay {
			t.Fatalf("a replay is owed beside the chain: %+v", v.Pending)
		}
		park()
	}
}

// A reference of a settle names the last message of its channel; the mentions of those before it are found too.
func TestRowTargets(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	writer := s.tenant.Agent(t, "writer")
	if err := s.Store.AddMember(s.tenant.Ctx, store.Member{Channel: s.channel.ID, Account: writer.ID, Actor: s.tenant.Admin.ID}); err != nil {
		t.Fatal(err)
	}
	session := s.tenant.Session(t, writer)
	for _, blocks := range [][]store.Block{{store.Mention(s.agent.Handle)}, {store.Text("last")}} {
		n := s.tenant.Message(writer, s.channel, "")
		n.Blocks, n.In = blocks, session.In("turn")
		if _, _, _, err := s.Store.AppendMessage(s.tenant.Ctx, n); err != nil {
			t.Fatal(err)
		}
	}
	touched, err := s.Store.SettleTurn(s.tenant.Ctx, session.Next(), "turn")
	if err != nil || len(touched) != 1 {
		t.Fatalf("touched %+v (%v)", touched, err)
	}
	got, err := s.Store.RowTargets(s.tenant.Ctx, []string{touched[0].Last().ID, "m_unknown"})
	want := []store.RowTarget{{ID: touched[0].Last().ID, Channel: s.channel.ID, Agents: []string{s.agent.ID}}}
	if err != nil || cmp.Diff(want, got) != "" {
		t.Errorf("targets %s (%v)", cmp.Diff(want, got), err)
	}
}
