package store

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// Holds REQ-229: the whole rule of what one heartbeat may change.
func TestHeartbeatJudge(t *testing.T) {
	t.Parallel()
	type b = Binding
	claimed := b{Claimed: true, ClaimCounter: 5, LastN: 8, OpenTurn: "t1"}
	cases := map[string]struct {
		binding Binding
		counter int64
		listed  bool
		state   SessionState
		want    verdict
		reason  string
	}{
		"runs on":          {claimed, 6, true, SessionState{N: 8, OpenTurn: "t1"}, verdict{}, ""},
		"gone":             {claimed, 6, false, SessionState{}, verdict{end: true}, "it was claimed before this heartbeat was sent"},
		"older than claim": {claimed, 5, false, SessionState{}, verdict{}, "sent before the claim was answered"},
		"unclaimed":        {b{}, 6, false, SessionState{}, verdict{}, "the Runner has not heard of it"},
		"over":             {claimed, 1, true, SessionState{Over: true}, verdict{end: true}, "over is for good"},
		"claim lost":       {b{LastN: 3}, 6, true, SessionState{N: 3}, verdict{claim: true}, "HbClaims"},
		"settle lost":      {claimed, 6, true, SessionState{N: 8}, verdict{settle: true}, "no turn as of our last event"},
		"other turn":       {claimed, 6, true, SessionState{N: 9, OpenTurn: "t2"}, verdict{settle: true}, "one turn at a time"},
		"older state":      {claimed, 6, true, SessionState{N: 7}, verdict{}, "HbOrder: the turn was opened after"},
		"nothing open":     {b{Claimed: true, LastN: 8}, 6, true, SessionState{N: 9}, verdict{}, ""},
	}
	for name, c := range cases {
		if got := (Heartbeat{Counter: c.counter}).judge(c.binding, c.state, c.listed); got != c.want {
			t.Errorf("%s: %+v, want %+v (%s)", name, got, c.want, c.reason)
		}
	}
}

func orders(a HeartbeatAnswer) map[string]SessionOrders {
	out := map[string]SessionOrders{}
	for _, o := range a.Orders {
		out[o.Session] = o
	}
	return out
}

// Holds REQ-229: a heartbeat that was sent before a turn was opened and arrives after it does not settle the turn
// (HbOrder); one that is newer heals a settle that was lost.
func TestHeartbeatSettlesOnlyWhatItIsNewerThan(t *testing.T) {
	t.Parallel()
	f := newSessions(t)
	r := f.runner(t, alive)
	ctx := inA(t)
	b := f.start(t, ctx, agentX, true)
	m := f.say(t, ctx, b.event(1), "t1", chanC, "half") // opens t1 with event 1
	if a := f.beat(t, r, 2, b.state(0, "")); len(a.Healed) != 0 {
		t.Errorf("an older heartbeat healed %+v", a.Healed)
	}
	if a := f.beat(t, r, 3, b.state(1, "t1")); len(a.Healed) != 0 {
		t.Errorf("a heartbeat that names the turn healed %+v", a.Healed)
	}
	if got := f.binding(t, ctx, b.Session); got.OpenTurn != "t1" || !got.Live {
		t.Fatalf("the live turn was touched: %+v", got)
	}
	a := f.beat(t, r, 4, b.state(2, "")) // event 2, the settle, was answered and then forgotten
	if len(a.Healed) != 1 || a.Healed[0].Tenant != tenantA || a.Healed[0].Was || a.Healed[0].Touched[0].Last().ID != m.ID {
		t.Errorf("healed %+v", a.Healed)
	}
	got := f.binding(t, ctx, b.Session)
	if got.OpenTurn != "" || got.LastN != 2 || !got.Live {
		t.Errorf("after the settle: %+v", got)
	}
	if by := one[string](t, f.fixture, `select settled_by from compass.turns where id = 't1'`); by != SettledByHeartbeat {
		t.Errorf("settled by %s", by)
	}
}

// Holds REQ-229, REQ-234: a heartbeat claims what it lists, even where the claim was lost, and an older one that arrives
// later and does not list it ends nothing (HbClaims).
func TestHeartbeatClaimsWhatItLists(t *testing.T) {
	t.Parallel()
	f := newSessions(t)
	r := f.runner(t, alive)
	ctx := inA(t)
	b := f.start(t, ctx, agentX, false)
	if o := orders(f.beat(t, r, 1))[b.Session]; !o.Start || o.Generation != b.Generation || o.Stop {
		t.Errorf("an unclaimed start is answered with %+v", o)
	}
	if o := orders(f.beat(t, r, 3, b.state(0, "")))[b.Session]; o.Start || o.Stop {
		t.Errorf("a running session is answered with %+v", o)
	}
	if got := f.binding(t, ctx, b.Session); !got.Claimed || got.ClaimCounter != 3 {
		t.Errorf("not claimed: %+v", got)
	}
	f.beat(t, r, 2) // late
	if !f.binding(t, ctx, b.Session).Live {
		t.Fatal("an older heartbeat ended the session")
	}
	if _, err := f.ClaimStart(ctx, Claim{SessionRef: b.ref(), Incarnation: r.Incarnation, Counter: 1}); err != nil {
		t.Errorf("the claim itself, late: %v", err)
	}
	f.beat(t, r, 2)
	if !f.binding(t, ctx, b.Session).Live {
		t.Fatal("the late claim let an older heartbeat end the session")
	}
	if a := f.beat(t, r, 4); len(a.Healed) != 1 || !a.Healed[0].Was {
		t.Errorf("a newer one that does not list it healed %+v", a.Healed)
	}
}

// Holds REQ-234: the answer names the newest command, the unacknowledged ones and what to stop (CmdHeads, CmdReack).
func TestHeartbeatOrders(t *testing.T) {
	t.Parallel()
	f := newSessions(t)
	r := f.runner(t, alive)
	x, y := f.start(t, inA(t), agentX, true), f.start(t, inB(t), agentY, true)
	c1, _, err1 := f.Steer(inA(t), x.Session, "one")
	c2, _, err2 := f.Steer(inA(t), x.Session, "two")
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	unknown := SessionState{Session: f.newID(t, inA(t)), Generation: 1}
	garbage := SessionState{Session: "ses_x"}
	older := y.state(0, "")
	older.Generation--
	got := f.beat(t, r, 9, x.state(0, ""), y.state(0, ""), older, unknown, garbage).Orders
	ack := func(c SessionCommand) SessionCommand { return SessionCommand{N: c.N, Prev: c.Prev, Kind: c.Kind} }
	want := map[string][]SessionOrders{
		x.Session:       {{Session: x.Session, Generation: x.Generation, NewestCommand: c2.N, Unacked: []SessionCommand{ack(c1), ack(c2)}}},
		y.Session:       {{Session: y.Session, Generation: y.Generation}, {Session: y.Session, Generation: y.Generation - 1, Stop: true}},
		unknown.Session: {{Session: unknown.Session, Generation: 1, Stop: true}},
		"ses_x":         {{Session: "ses_x", Stop: true}},
	}
	bySession := map[string][]SessionOrders{}
	for _, o := range got {
		bySession[o.Session] = append(bySession[o.Session], o)
	}
	if diff := cmp.Diff(want, bySession); diff != "" {
		t.Error(diff)
	}
	if a := f.beat(t, r, 10, x.state(0, ""), SessionState{Session: y.Session, Generation: y.Generation, Over: true}); len(a.Healed) != 1 ||
		a.Healed[0].Tenant != tenantB || !orders(a)[y.Session].Stop {
		t.Errorf("a session that is over: %+v", a)
	}
	if f.binding(t, inB(t), y.Session).Live {
		t.Error("a session that is over lives on")
	}
}

// Holds REQ-116: another Runner's heartbeat that lists a session changes nothing of it.
func TestHeartbeatOfAnotherRunner(t *testing.T) {
	t.Parallel()
	f := newSessions(t)
	f.runner(t, alive)
	ctx := inA(t)
	b := f.start(t, ctx, agentX, true)
	f.say(t, ctx, b.event(1), "t1", chanC, "half")
	thief := f.runner(t, alive)
	// Even in the unlikely case that both began with the same number.
	f.mustExec(t, `update compass.runner_leases set incarnation = $1`, b.Incarnation)
	thief.Incarnation = b.Incarnation
	state := b.state(9, "")
	state.Over = true
	a := f.beat(t, thief, 9, state)
	if len(a.Healed) != 0 || !orders(a)[b.Session].Stop {
		t.Errorf("answer %+v", a)
	}
	if got := f.binding(t, ctx, b.Session); !got.Live || got.OpenTurn != "t1" {
		t.Errorf("changed to %+v", got)
	}
}

// Holds REQ-229: the heartbeat of an incarnation that is over renews nothing, heals nothing, and is told so.
func TestHeartbeatOfAZombie(t *testing.T) {
	t.Parallel()
	f := newSessions(t)
	r := f.runner(t, alive)
	zombie := r
	f.hello(t, &r, over)
	ctx := inA(t)
	f.hello(t, &r, alive)
	b := f.start(t, ctx, agentX, true)
	before := one[time.Time](t, f.fixture, `select expires_at from compass.runner_leases`)
	if a := f.beat(t, zombie, 99); !a.Expired || len(a.Orders) != 0 {
		t.Errorf("answer %+v", a)
	}
	if !one[time.Time](t, f.fixture, `select expires_at from compass.runner_leases`).Equal(before) || !f.binding(t, ctx, b.Session).Live {
		t.Error("a zombie changed something")
	}
}
