package store

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/rigelbuild/compass-operator/internal/store/storetest"
)

// take takes an event and does nothing else.
func take(ctx context.Context, s *Store, e Event) (duplicate bool, err error) {
	err = s.inTenantTx(ctx, func(ctx context.Context, tx pgx.Tx) (err error) {
		_, duplicate, err = takeEvent(ctx, tx, e)
		return err
	})
	return duplicate, err
}

// Holds REQ-229: an event that arrives several times, also at several Servers at once, has its effect once.
func TestEventsAreTakenOnce(t *testing.T) {
	t.Parallel()
	f := newSessions(t)
	f.runner(t, alive)
	ctx := inA(t)
	b := f.start(t, ctx, agentX, true)
	other := f.open(t)
	for n := int64(1); n <= 5; n++ {
		var group sync.WaitGroup
		var fresh atomic.Int64
		for i := range 6 {
			group.Go(func() {
				duplicate, err := take(ctx, []*Store{f.Store, other}[i%2], b.event(n))
				if err != nil {
					t.Errorf("event %d: %v", n, err)
				}
				if !duplicate {
					fresh.Add(1)
				}
			})
		}
		group.Wait()
		if fresh.Load() != 1 {
			t.Errorf("event %d was taken %d times", n, fresh.Load())
		}
	}
	if duplicate, err := take(ctx, f.Store, b.event(2)); err != nil || !duplicate {
		t.Errorf("a late repeat: duplicate %v, %v", duplicate, err)
	}
	if got := f.binding(t, ctx, b.Session).LastN; got != 5 {
		t.Errorf("last n %d, want 5", got)
	}
}

// Holds REQ-116, REQ-229: an event counts only from the current session's own Runner.
func TestEventRefusals(t *testing.T) {
	t.Parallel()
	f := newSessions(t)
	f.runner(t, alive)
	ctx := inA(t)
	b := f.start(t, ctx, agentX, true)
	for name, change := range map[string]func(*Event){
		"another Runner":     func(e *Event) { e.Runner = "r-other" },
		"another generation": func(e *Event) { e.Generation-- },
		"unknown session":    func(e *Event) { e.Session = f.newID(t, ctx) },
	} {
		e := b.event(1)
		change(&e)
		_, err := take(ctx, f.Store, e)
		wantErr(t, name, err, ErrStale)
	}
	_, err := take(inB(t), f.Store, b.event(1))
	wantErr(t, "another tenant", err, ErrStale)
	_, err = take(ctx, f.Store, b.event(0))
	wantErr(t, "no number", err, ErrPrecondition)
	f.mustExec(t, `update compass.tenants set frozen = true where id = $1`, tenantA)
	_, err = take(ctx, f.Store, b.event(1))
	wantErr(t, "frozen tenant", err, ErrFrozen)
	f.mustExec(t, `update compass.tenants set frozen = false`)
	if duplicate, err := take(ctx, f.Store, b.event(1)); err != nil || duplicate {
		t.Errorf("after all refusals: duplicate %v, %v", duplicate, err)
	}
	if _, err := f.StopSession(ctx, b.Session); err != nil {
		t.Fatal(err)
	}
	_, err = take(ctx, f.Store, b.event(2))
	wantErr(t, "after the stop", err, ErrStale)
	_, err = take(ctx, f.Store, b.event(1))
	wantErr(t, "a repeat after the stop", err, ErrStale)
}

// Holds REQ-229: settling is once, and the end of a session is answered as done however often it is said.
func TestSettleAndEndByEvent(t *testing.T) {
	t.Parallel()
	f := newSessions(t)
	f.runner(t, alive)
	ctx := inA(t)
	b := f.start(t, ctx, agentX, true)
	first := f.say(t, ctx, b.event(1), "t1", chanC, "one")
	touched, err := f.SettleTurn(ctx, b.event(2), "t1")
	if err != nil || len(touched) != 1 || touched[0].Last().ID != first.ID {
		t.Fatalf("settle: %+v, %v", touched, err)
	}
	if again, err := f.SettleTurn(ctx, b.event(2), "t1"); err != nil || again != nil {
		t.Errorf("settle again: %+v, %v", again, err)
	}
	second := f.say(t, ctx, b.event(3), "t2", chanC, "two")
	// A repeat of an old settle that names the open turn must not touch it.
	if again, err := f.SettleTurn(ctx, b.event(2), "t2"); err != nil || again != nil {
		t.Errorf("old settle: %+v, %v", again, err)
	}
	if got := f.binding(t, ctx, b.Session).OpenTurn; got != "t2" {
		t.Errorf("open turn %q, want t2", got)
	}
	ended, err := f.EndSession(ctx, b.event(4))
	if err != nil || !ended.Was || len(ended.Touched) != 1 || ended.Touched[0].Last().ID != second.ID {
		t.Errorf("end: %+v, %v", ended, err)
	}
	if again, err := f.EndSession(ctx, b.event(4)); err != nil || again.Was {
		t.Errorf("end again: %+v, %v", again, err)
	}
	foreign := b.event(5)
	foreign.Runner = "r-other"
	_, err = f.EndSession(ctx, foreign)
	wantErr(t, "end by another Runner", err, ErrStale)
	foreign = b.event(5)
	foreign.Session = f.newID(t, ctx)
	_, err = f.EndSession(ctx, foreign)
	wantErr(t, "end of nothing", err, ErrStale)
}

func (f *sessions) acked(t *testing.T, agent, channel string) int64 {
	t.Helper()
	return one[int64](t, f.fixture, `select acked from compass.delivery_cursors where tenant_id = $1 and agent_id = $2 and channel_id = $3`,
		tenantA, agent, channel)
}

// Holds REQ-232: a cursor goes up to the head and never beyond, never back, and only for the agent whose session the
// Runner proves (D10).
func TestAckGuards(t *testing.T) {
	t.Parallel()
	f := newSessions(t)
	f.runner(t, alive)
	ctx := inA(t)
	b := f.start(t, ctx, agentX, true)
	p1, p2 := f.post(t, ctx, "a_1", chanC, Text("1")).Pos, f.post(t, ctx, "a_1", chanC, Text("2")).Pos
	q1 := f.post(t, ctx, "a_1", chanD, Text("1")).Pos
	ack := func(ref SessionRef, acks ...ChannelAck) (Acked, error) { return f.Ack(ctx, ref, acks) }

	got, err := ack(b.ref(), ChannelAck{chanD, q1}, ChannelAck{chanC, 1_000_000_000_000_000_000})
	wantErr(t, "far beyond the head", err, ErrBeyondHead)
	if len(got.Ages) != 1 || got.Ages[0] <= 0 || got.Ages[0] > time.Hour { // a position is ahead of the plain clock by minutes
		t.Errorf("ages = %v: want the time since the position was given", got.Ages)
	}
	got.Ages = nil
	if diff := cmp.Diff(Acked{Agent: agentX, Moved: []string{chanD}, Refused: []string{chanC}}, got); diff != "" {
		t.Errorf("what a refused batch did: %s", diff)
	}
	_, err = ack(b.ref(), ChannelAck{chanC, p2 + 1})
	wantErr(t, "one beyond the head", err, ErrBeyondHead)
	if at := f.acked(t, agentX, chanC); at != 0 {
		t.Fatalf("a refused ack moved the cursor to %d", at)
	}
	for name, ref := range map[string]SessionRef{
		"stale generation": {b.Session, b.Generation - 1, b.Runner},
		"another Runner":   {b.Session, b.Generation, "r-other"},
		"unknown session":  {f.newID(t, ctx), b.Generation, b.Runner},
	} {
		_, err := ack(ref, ChannelAck{chanC, p1})
		wantErr(t, name, err, ErrStale)
	}
	_, err = f.Ack(inB(t), b.ref(), []ChannelAck{{chanC, p1}})
	wantErr(t, "another tenant", err, ErrStale)
	f.mustExec(t, `update compass.tenants set frozen = true where id = $1`, tenantA)
	_, err = ack(b.ref(), ChannelAck{chanC, p1})
	wantErr(t, "frozen tenant", err, ErrFrozen)
	f.mustExec(t, `update compass.tenants set frozen = false`)
	if at := f.acked(t, agentX, chanC); at != 0 {
		t.Fatalf("a refused ack moved the cursor to %d", at)
	}
	for _, step := range []struct {
		p, want int64
		moved   bool
	}{{p2, p2, true}, {p1, p2, false}, {p2, p2, false}} {
		got, err := ack(b.ref(), ChannelAck{chanC, step.p})
		if at := f.acked(t, agentX, chanC); err != nil || at != step.want || (len(got.Moved) == 1) != step.moved {
			t.Errorf("ack %d: cursor %d, want %d; %+v, %v", step.p, at, step.want, got, err)
		}
	}
	if got, err := ack(b.ref(), ChannelAck{"c_none", 5}); err != nil || len(got.Moved) > 0 {
		t.Errorf("a channel that the agent is not in: %+v, %v", got, err)
	}
	if at := f.acked(t, agentY, chanC); at != 0 {
		t.Errorf("another agent's cursor moved to %d", at)
	}
	if _, err := f.StopSession(ctx, b.Session); err != nil {
		t.Fatal(err)
	}
	_, err = ack(b.ref(), ChannelAck{chanC, p2})
	wantErr(t, "after the stop", err, ErrStale)
}

// Holds REQ-232: acks of one cursor that race end at the highest, whatever their order.
func TestAcksRace(t *testing.T) {
	t.Parallel()
	f := newSessions(t)
	f.runner(t, alive)
	ctx := inA(t)
	b := f.start(t, ctx, agentX, true)
	var acks [][]ChannelAck
	var c, d int64
	for range 6 {
		c, d = f.post(t, ctx, "a_1", chanC, Text("c")).Pos, f.post(t, ctx, "a_1", chanD, Text("d")).Pos
		acks = append(acks, []ChannelAck{{chanC, c}, {chanD, d}}, []ChannelAck{{chanD, d}, {chanC, c}})
	}
	var group sync.WaitGroup
	for _, a := range acks {
		group.Go(func() {
			if _, err := f.Ack(ctx, b.ref(), a); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	if gotC, gotD := f.acked(t, agentX, chanC), f.acked(t, agentX, chanD); gotC != c || gotD != d {
		t.Errorf("cursors at %d and %d, want %d and %d", gotC, gotD, c, d)
	}
}

// Holds REQ-232: two batches of one agent that name the same channels in another order do not wait for each other.
func TestAcksDoNotDeadlock(t *testing.T) {
	t.Parallel()
	f := newSessions(t)
	f.runner(t, alive)
	ctx := inA(t)
	b := f.start(t, ctx, agentX, true)
	c1, d1 := f.post(t, ctx, "a_1", chanC, Text("c")).Pos, f.post(t, ctx, "a_1", chanD, Text("d")).Pos
	c2, d2 := f.post(t, ctx, "a_1", chanC, Text("c")).Pos, f.post(t, ctx, "a_1", chanD, Text("d")).Pos

	// The first waits for C; the second, if it began with D, would hold that and wait for C behind it.
	lock, err := storetest.Connect(t, f.db.Super).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lock.Exec(t.Context(), `select from compass.delivery_cursors where tenant_id = $1 and agent_id = $2 and channel_id = $3 for update`,
		tenantA, agentX, chanC); err != nil {
		t.Fatal(err)
	}
	var group sync.WaitGroup
	for i, acks := range [][]ChannelAck{{{chanC, c1}, {chanD, d1}}, {{chanD, d2}, {chanC, c2}}} {
		group.Go(func() {
			if _, err := f.Ack(ctx, b.ref(), acks); err != nil {
				t.Error(err)
			}
		})
		f.waiting(t, i+1)
	}
	if err := lock.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	group.Wait()
	if gotC, gotD := f.acked(t, agentX, chanC), f.acked(t, agentX, chanD); gotC != c2 || gotD != d2 {
		t.Errorf("cursors at %d and %d, want %d and %d", gotC, gotD, c2, d2)
	}
}

// waiting returns when n transactions of the database wait for a lock.
func (f *sessions) waiting(t *testing.T, n int) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for time.Now().Before(deadline) {
		if one[int64](t, f.fixture, `select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`) == int64(n) {
			return
		}
	}
	t.Fatalf("no %d transactions wait for a lock", n)
}

// owed lists what is owed beside the chain to agent x, by message, with whether it is done.
func (f *sessions) owed(t *testing.T) map[string]bool {
	t.Helper()
	rows, err := f.super.Query(t.Context(), `select message_id, done from compass.owed_mentions where tenant_id = $1 and agent_id = $2`, tenantA, agentX)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]bool{}
	var id string
	var done bool
	if _, err := pgx.ForEachRow(rows, []any{&id, &done}, func() error { out[id] = done; return nil }); err != nil {
		t.Fatal(err)
	}
	return out
}

// Holds REQ-048: the ack of a steer marks its owed row done, if it names the very delivery, and moves no cursor (SteerAck,
// AckPos); the chain's next ack clears what it passed. The ack of a replay ends the dead letter.
func TestAckCommands(t *testing.T) {
	t.Parallel()
	f := newSessions(t)
	f.runner(t, alive)
	ctx := inA(t)
	b := f.start(t, ctx, agentX, true)
	m1, m2, m3 := f.post(t, ctx, "a_1", chanC, Mention("x")), f.post(t, ctx, "a_1", chanC, Mention("x")), f.post(t, ctx, "a_1", chanC, Mention("x"))
	f.mustExec(t, `update compass.owed_mentions set kind = 'replay' where message_id = $1`, m2.ID)
	f.mustExec(t, `insert into compass.dead_letters (tenant_id, message_id, recipient_id, channel_id, pos, attempts, reason, first_unix_ms)
select tenant_id, id, 'a_x', channel_id, pos, 5, 'test', 1 from compass.messages where id = any ($1)`, []string{m1.ID, m2.ID})
	for i, m := range []Message{m1, m2, m3} {
		f.mustExec(t, `insert into compass.session_commands (tenant_id, session_id, n, prev, kind, message_id, pos) values ($1, $2, $3, $4, 'mention', $5, $6)`,
			tenantA, b.Session, i+1, i, m.ID, m.Pos)
	}
	left := func() int64 { return one[int64](t, f.fixture, `select count(*) from compass.session_commands`) }

	other := b.ref()
	other.Runner = "r-other"
	_, _, err := f.AckCommands(ctx, other, []CommandAck{{1, m1.ID, m1.Pos}})
	wantErr(t, "another Runner", err, ErrStale)
	_, _, err = f.AckCommands(inB(t), b.ref(), []CommandAck{{1, m1.ID, m1.Pos}})
	wantErr(t, "another tenant", err, ErrStale)
	if left() != 3 {
		t.Fatal("a refused ack took a command")
	}
	_, done, err := f.AckCommands(ctx, b.ref(), []CommandAck{{1, m1.ID, m1.Pos}, {2, m2.ID, m2.Pos}, {3, m3.ID, m3.Pos - 1}})
	if err != nil || done != 2 || left() != 0 {
		t.Errorf("done %d, %d commands left, %v", done, left(), err)
	}
	if diff := cmp.Diff(map[string]bool{m1.ID: true, m2.ID: true, m3.ID: false}, f.owed(t)); diff != "" {
		t.Errorf("owed after the acks: %s", diff)
	}
	if dead := one[string](t, f.fixture, `select string_agg(message_id, ' ') from compass.dead_letters`); dead != m1.ID {
		t.Errorf("dead letters %s, want only %s: it was no replay", dead, m1.ID)
	}
	if at := f.acked(t, agentX, chanC); at != 0 {
		t.Errorf("acks of commands moved the cursor to %d", at)
	}
	if _, done, err = f.AckCommands(ctx, b.ref(), []CommandAck{{1, m1.ID, m1.Pos}}); err != nil || done != 0 {
		t.Errorf("again: done %d, %v", done, err)
	}
	for _, step := range []struct {
		pos  int64
		want map[string]bool
	}{{m1.Pos, map[string]bool{m2.ID: true, m3.ID: false}}, {m3.Pos, map[string]bool{m3.ID: false}}} {
		if _, err := f.Ack(ctx, b.ref(), []ChannelAck{{chanC, step.pos}}); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(step.want, f.owed(t)); diff != "" {
			t.Errorf("owed after the chain passed %d: %s", step.pos, diff)
		}
	}
}
