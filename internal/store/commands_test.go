package store

import (
	"sync"
	"testing"
)

// Holds REQ-121, REQ-139, REQ-234: steers of one session by two Servers, from right after its start on, are numbered in
// the order of their rows, each naming the one before, and fetched so (R3, CmdChain).
func TestSteersOfTwoServersAreChained(t *testing.T) {
	t.Parallel()
	f := newSessions(t)
	f.runner(t, alive)
	ctx := inA(t)
	b := f.start(t, ctx, agentX, false) // unclaimed: a steer right after the start waits for the claim
	servers := []*Store{f.Store, f.open(t)}
	var order []string
	for i := range 10 { // one after the other, changing Servers
		text := string(rune('a' + i))
		if _, _, err := servers[i%2].Steer(ctx, b.Session, text); err != nil {
			t.Fatal(err)
		}
		order = append(order, text)
	}
	var group sync.WaitGroup
	for i := range 20 { // and all at once
		group.Go(func() {
			if _, _, err := servers[i%2].Steer(ctx, b.Session, "z"); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	fetch := Fetch{b.Session, b.Runner, 0}
	got, err := f.FetchCommands(ctx, fetch)
	if err != nil || len(got) != 30 {
		t.Fatalf("fetched %d, %v", len(got), err)
	}
	prev := int64(0)
	for i, c := range got {
		if c.Prev != prev || c.N <= prev || c.Kind != CommandSteer {
			t.Errorf("command %d: %+v does not follow %d", i, c, prev)
		}
		if i < len(order) && c.Text != order[i] {
			t.Errorf("command %d is %q, want %q", i, c.Text, order[i])
		}
		prev = c.N
	}
	if newest := f.binding(t, ctx, b.Session).LastCommand; newest != prev {
		t.Errorf("the binding names %d as newest, want %d", newest, prev)
	}
	rest, err := f.FetchCommands(ctx, Fetch{b.Session, b.Runner, got[27].N})
	if err != nil || len(rest) != 2 {
		t.Errorf("fetched %d after the 28th, %v", len(rest), err)
	}
}

// Holds REQ-234: a number is by the clock, so that it is not given out again by a server that forgot the newest commands.
func TestCommandNumbersSurviveALostCommit(t *testing.T) {
	t.Parallel()
	f := newSessions(t)
	f.runner(t, alive)
	ctx := inA(t)
	b := f.start(t, ctx, agentX, true)
	lost, _, err := f.Steer(ctx, b.Session, "lost")
	if err != nil {
		t.Fatal(err)
	}
	f.mustExec(t, `delete from compass.session_commands`)
	f.mustExec(t, `update compass.session_bindings set last_command = 0`)
	next, _, err := f.Steer(ctx, b.Session, "next")
	if err != nil || next.N <= lost.N || next.Prev != 0 {
		t.Errorf("after %d was forgotten: n %d, prev %d, %v", lost.N, next.N, next.Prev, err)
	}
}

func TestFetchCommands(t *testing.T) {
	t.Parallel()
	f := newSessions(t)
	f.runner(t, alive)
	ctx := inA(t)
	b := f.start(t, ctx, agentX, true)
	m := f.post(t, ctx, "a_1", chanC, Text("hello "), Mention("x"))
	f.mustExec(t, `insert into compass.session_commands (tenant_id, session_id, n, prev, kind, message_id, pos) values ($1, $2, 1, 0, 'mention', $3, $4)`,
		tenantA, b.Session, m.ID, m.Pos)
	if _, _, err := f.Steer(ctx, b.Session, "hurry"); err != nil {
		t.Fatal(err)
	}
	fetch := Fetch{b.Session, b.Runner, 0}
	got, err := f.FetchCommands(ctx, fetch)
	if err != nil || len(got) != 2 {
		t.Fatalf("fetched %+v, %v", got, err)
	}
	if got[0].Kind != CommandMention || got[0].Message == nil || got[0].Message.Blocks[0].Text != "hello " || got[0].Pos != m.Pos {
		t.Errorf("the mention came as %+v", got[0])
	}
	if got[1].Text != "hurry" || got[1].Message != nil {
		t.Errorf("the steer came as %+v", got[1])
	}
	_, err = f.FetchCommands(ctx, Fetch{b.Session, "r-other", 0})
	wantErr(t, "another Runner", err, ErrStale)
	_, err = f.FetchCommands(inB(t), fetch)
	wantErr(t, "another tenant", err, ErrStale)
	_, _, err = f.Steer(inB(t), b.Session, "x")
	wantErr(t, "steer from another tenant", err, ErrNotFound)
	if _, err := f.StopSession(ctx, b.Session); err != nil {
		t.Fatal(err)
	}
	_, err = f.FetchCommands(ctx, fetch)
	wantErr(t, "after the stop", err, ErrStale)
	_, _, err = f.Steer(ctx, b.Session, "x")
	wantErr(t, "steer after the stop", err, ErrPrecondition)
}
