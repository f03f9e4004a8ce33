package store

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rigelbuild/compass-operator/internal/store/storetest"
)

// Holds REQ-120, REQ-132, REQ-152: a start goes to the Runner with the fewest sessions among those that the tenant may use
// and that are alive, and binding and placement name it.
func TestStartPlacesOnTheLeastLoadedRunner(t *testing.T) {
	t.Parallel()
	f := newSessions(t)
	f.runner(t, over)
	foreign := f.enroll(t, string(tenantB))
	f.hello(t, &foreign, alive)
	silent := f.enroll(t, string(tenantA)) // enrolled, never said hello
	shared := f.runner(t, alive)
	own := f.enroll(t, string(tenantA))
	f.hello(t, &own, alive)

	x, y := f.start(t, inA(t), agentX, false), f.start(t, inA(t), agentY, false)
	got := []string{x.Runner, y.Runner}
	want := []string{shared.ID, own.ID}
	slices.Sort(got)
	slices.Sort(want)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("Runners of two starts (foreign %s, silent %s): %s", foreign.ID, silent.ID, diff)
	}
	byID := map[string]Runner{shared.ID: shared, own.ID: own}
	for _, b := range []Binding{x, y} {
		r := byID[b.Runner]
		if b.Incarnation != r.Incarnation || b.Fleet != r.Fleet || !b.Live || b.Claimed {
			t.Errorf("binding %+v does not fit Runner %+v", b, r)
		}
		placed := one[string](t, f.fixture, `select session_id from compass.agent_placements where agent_id = $1 and generation = $2 and runner_id = $3`,
			b.Agent, b.Generation, b.Runner)
		if placed != b.Session {
			t.Errorf("placement names %s, want %s", placed, b.Session)
		}
	}
	z := f.start(t, inB(t), agentX, false)
	if z.Runner != foreign.ID && z.Runner != shared.ID {
		t.Errorf("a session of the other tenant runs on %s", z.Runner)
	}
}

// Holds REQ-152: an agent has one live session. A start by hand says which; Replace, or a Runner that began anew, ends it.
func TestStartAndTheLiveSession(t *testing.T) {
	t.Parallel()
	f := newSessions(t)
	r := f.runner(t, alive)
	ctx := inA(t)
	first := f.start(t, ctx, agentX, true)
	held := f.say(t, ctx, first.event(1), "t1", chanC, "half")

	try := func(replace bool) (Started, error) {
		return f.StartSession(ctx, NewSession{Session: f.newID(t, ctx), Agent: agentX, Replace: replace})
	}
	_, err := try(false)
	wantErr(t, "second start", err, ErrConflict)
	if live, ok := errors.AsType[*LiveSessionError](err); !ok || live.Session != first.Session {
		t.Errorf("second start: %v does not name %s", err, first.Session)
	}
	f.mustExec(t, `update compass.runner_leases set expires_at = clock_timestamp()`)
	_, err = try(false)
	wantErr(t, "start over an expired lease that nobody expired", err, ErrConflict)
	f.hello(t, &r, alive)

	second, err := try(false)
	if err != nil {
		t.Fatalf("start after the Runner began anew: %v", err)
	}
	if diff := cmp.Diff([]Touched{{Channel: chanC, Messages: []MessageRef{{ID: held.ID, Pos: second.Touched[0].Messages[0].Pos}}}}, second.Touched); diff != "" {
		t.Errorf("what the old session held: %s", diff)
	}
	third, err := try(true)
	if err != nil {
		t.Fatal(err)
	}
	if first.Generation >= second.Binding.Generation || second.Binding.Generation >= third.Binding.Generation {
		t.Errorf("generations %d, %d, %d do not rise", first.Generation, second.Binding.Generation, third.Binding.Generation)
	}
	for _, b := range []Binding{first, second.Binding} {
		if f.binding(t, ctx, b.Session).Live {
			t.Errorf("session %s lives on", b.Session)
		}
	}
	if got, err := f.SessionForAccount(ctx, agentX); err != nil || got.Session != third.Binding.Session {
		t.Errorf("session of the agent: %s, %v; want %s", got.Session, err, third.Binding.Session)
	}
}

// Holds REQ-152: of two starts of one agent at once, at two Servers, one wins, and the other is told which session there is.
func TestStartsAreSerial(t *testing.T) {
	t.Parallel()
	f := newSessions(t)
	f.runner(t, alive)
	ctx := inA(t)
	// Both are under way before either can go on: they wait for the Runner's row, or one for the other.
	lock, err := storetest.Connect(t, f.db.Super).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lock.Exec(t.Context(), `select from compass.runner_leases for update`); err != nil {
		t.Fatal(err)
	}
	results := make(chan error, 2)
	var group sync.WaitGroup
	for i, s := range []*Store{f.Store, f.open(t)} {
		id := f.newID(t, ctx)
		group.Go(func() {
			_, err := s.StartSession(ctx, NewSession{Session: id, Agent: agentX})
			results <- err
		})
		f.waiting(t, i+1)
	}
	if err := lock.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	group.Wait()
	close(results)
	won, err := f.SessionForAccount(ctx, agentX)
	if err != nil {
		t.Fatal(err)
	}
	ok := 0
	for err := range results {
		if err == nil {
			ok++
		} else if live, is := errors.AsType[*LiveSessionError](err); !is || live.Session != won.Session {
			t.Errorf("the other start: %v, want it to name %s", err, won.Session)
		}
	}
	if ok != 1 {
		t.Errorf("%d of two starts succeeded, want 1", ok)
	}
}

func TestStartRefusals(t *testing.T) {
	t.Parallel()
	f := newSessions(t)
	ctx := inA(t)
	start := func(ctx context.Context, agent string) error {
		_, err := f.StartSession(ctx, NewSession{Session: f.newID(t, ctx), Agent: agent})
		return err
	}
	wantErr(t, "no Runner", start(ctx, agentX), ErrNoRunner)
	f.runner(t, alive)
	wantErr(t, "a person", start(ctx, "a_1"), ErrNotFound)
	wantErr(t, "unknown", start(ctx, "a_none"), ErrNotFound)
	f.mustExec(t, `update compass.tenants set frozen = true where id = $1`, tenantA)
	wantErr(t, "frozen tenant", start(ctx, agentX), ErrFrozen)
	f.mustExec(t, `update compass.tenants set frozen = false`)
	f.mustExec(t, `update compass.accounts set deleted_at_unix_ms = 1 where id = $1`, agentX)
	wantErr(t, "deleted agent", start(ctx, agentX), ErrNotFound)
}

// Holds REQ-234: a start is taken by the Runner and the process that it is for, as often as it asks, and by nobody else; a
// start command that is replayed later takes nothing (R4).
func TestClaimStart(t *testing.T) {
	t.Parallel()
	f := newSessions(t)
	r := f.runner(t, alive)
	ctx := inA(t)
	pinned := f.post(t, ctx, "a_1", chanC, Text("read me"))
	f.mustExec(t, `insert into compass.pins (tenant_id, channel_id, message_id) values ($1, $2, $3)`, tenantA, chanC, pinned.ID)
	b := f.start(t, ctx, agentX, false)
	good := Claim{SessionRef: b.ref(), Incarnation: r.Incarnation, Counter: 7}

	for name, change := range map[string]func(*Claim){
		"another Runner":      func(c *Claim) { c.Runner = f.ids.Runner() },
		"another generation":  func(c *Claim) { c.Generation-- },
		"another incarnation": func(c *Claim) { c.Incarnation-- },
		"unknown session":     func(c *Claim) { c.Session = f.newID(t, ctx) },
	} {
		bad := good
		change(&bad)
		_, err := f.ClaimStart(ctx, bad)
		wantErr(t, name, err, ErrStale)
	}
	_, err := f.ClaimStart(inB(t), good)
	wantErr(t, "another tenant", err, ErrStale)
	if f.binding(t, ctx, b.Session).Claimed {
		t.Fatal("a refused claim claimed")
	}
	for range 2 {
		got, err := f.ClaimStart(ctx, good)
		if err != nil {
			t.Fatal(err)
		}
		if !got.Binding.Claimed || got.Binding.ClaimCounter != 7 || got.Handle != "x" || len(got.Pins) != 1 || got.Pins[0].ID != pinned.ID {
			t.Errorf("claimed %+v", got)
		}
	}
	if _, err := f.StopSession(ctx, b.Session); err != nil {
		t.Fatal(err)
	}
	_, err = f.ClaimStart(ctx, good)
	wantErr(t, "replay after the stop", err, ErrStale)
	next := f.start(t, ctx, agentX, true)
	_, err = f.ClaimStart(ctx, good)
	wantErr(t, "replay after the next start", err, ErrStale)
	if got := f.binding(t, ctx, next.Session); !got.Live || got.ClaimCounter != 1 {
		t.Errorf("the replay changed the new session: %+v", got)
	}
	f.hello(t, &r, alive)
	_, err = f.ClaimStart(ctx, Claim{SessionRef: next.ref(), Incarnation: next.Incarnation, Counter: 9})
	wantErr(t, "a process that is gone", err, ErrStale)
}

// Holds REQ-226: stopping settles the open turn as it stands, drops the commands, and may be repeated.
func TestStopSession(t *testing.T) {
	t.Parallel()
	f := newSessions(t)
	f.runner(t, alive)
	ctx := inA(t)
	b := f.start(t, ctx, agentX, true)
	held := f.say(t, ctx, b.event(1), "t1", chanC, "half")
	if _, _, err := f.Steer(ctx, b.Session, "stop"); err != nil {
		t.Fatal(err)
	}
	_, err := f.StopSession(inB(t), b.Session)
	wantErr(t, "another tenant", err, ErrNotFound)

	ended, err := f.StopSession(ctx, b.Session)
	if err != nil || !ended.Was || len(ended.Touched) != 1 || ended.Touched[0].Last().ID != held.ID {
		t.Errorf("stop: %+v, %v", ended, err)
	}
	again, err := f.StopSession(ctx, b.Session)
	if err != nil || again.Was || len(again.Touched) != 0 {
		t.Errorf("second stop: %+v, %v", again, err)
	}
	after := f.binding(t, ctx, b.Session)
	if after.Live || after.OpenTurn != "" {
		t.Errorf("binding after the stop: %+v", after)
	}
	if n := one[int64](t, f.fixture, `select count(*) from compass.session_commands`); n != 0 {
		t.Errorf("%d commands are left", n)
	}
	if by := one[string](t, f.fixture, `select settled_by from compass.turns where id = 't1'`); by != SettledBySessionEnd {
		t.Errorf("the turn was settled by %s", by)
	}
}

// Holds REQ-133, REQ-135: a Server that starts later resolves a session from Postgres; what is over, foreign or another
// Runner's resolves to nobody.
func TestResolveSessionAccount(t *testing.T) {
	t.Parallel()
	f := newSessions(t)
	f.runner(t, alive)
	ctx := inA(t)
	b := f.start(t, ctx, agentX, true)
	later := f.open(t)
	if agent, err := later.ResolveSessionAccount(ctx, b.ref()); err != nil || agent != agentX {
		t.Errorf("resolved to %q, %v", agent, err)
	}
	for name, ref := range map[string]SessionRef{
		"another Runner":     {b.Session, b.Generation, "r-other"},
		"another generation": {b.Session, b.Generation + 1, b.Runner},
		"unknown":            {f.newID(t, ctx), b.Generation, b.Runner},
	} {
		_, err := later.ResolveSessionAccount(ctx, ref)
		wantErr(t, name, err, ErrNotFound)
	}
	_, err := later.ResolveSessionAccount(inB(t), b.ref())
	wantErr(t, "another tenant", err, ErrNotFound)
	if _, err := f.StopSession(ctx, b.Session); err != nil {
		t.Fatal(err)
	}
	_, err = later.ResolveSessionAccount(ctx, b.ref())
	wantErr(t, "stopped", err, ErrNotFound)
}

// Holds REQ-058.
func TestListSessions(t *testing.T) {
	t.Parallel()
	f := newSessions(t)
	f.runner(t, alive)
	ctx := inA(t)
	x, y := f.start(t, ctx, agentX, true), f.start(t, ctx, agentY, true)
	f.start(t, inB(t), agentX, true)
	if _, err := f.StopSession(ctx, x.Session); err != nil {
		t.Fatal(err)
	}
	names := func(bs []Binding, err error) []string {
		if err != nil {
			t.Fatal(err)
		}
		out := make([]string, len(bs))
		for i, b := range bs {
			out[i] = b.Session
		}
		return out
	}
	if diff := cmp.Diff([]string{y.Session}, names(f.LiveAgentSessions(ctx))); diff != "" {
		t.Errorf("live: %s", diff)
	}
	all := []string{x.Session, y.Session}
	slices.Sort(all)
	slices.Reverse(all)
	if diff := cmp.Diff(all, names(f.ListSessions(ctx, 10))); diff != "" {
		t.Errorf("all: %s", diff)
	}
}
