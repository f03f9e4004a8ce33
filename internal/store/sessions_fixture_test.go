package store

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/rigelbuild/compass-operator/internal/naming"
)

const (
	alive  = time.Hour // a lease that no test outlives
	over   = time.Duration(0)
	agentX = "a_x"
	agentY = "a_y"
	chanC  = "c_1"
	chanD  = "c_2"
)

// sessions is a fixture with agents x and y in channels C and D of both tenants, and what a Runner would do.
type sessions struct {
	*fixture
	ids  *naming.IDs
	made atomic.Int64
}

func newSessions(t *testing.T, change ...func(*Config)) *sessions {
	t.Helper()
	f := &sessions{fixture: newFixture(t, change...), ids: &naming.IDs{Now: time.Now, Rand: rand.Reader}}
	for _, tenant := range []TenantID{tenantA, tenantB} {
		f.mustExec(t, `
insert into compass.accounts (tenant_id, id, kind, handle)
select $1, x, 'agent', substr(x, 3) from unnest(array['a_x', 'a_y']) x`, tenant)
		f.mustExec(t, `
insert into compass.channels (tenant_id, id, name, created_by)
select $1, c, c, 'a_x' from unnest(array['c_1', 'c_2']) c`, tenant)
		f.mustExec(t, `insert into compass.channel_heads (tenant_id, channel_id) select tenant_id, id from compass.channels where tenant_id = $1`, tenant)
		f.mustExec(t, `
insert into compass.channel_members (tenant_id, channel_id, account_id, joined_at)
select $1, c.id, a.id, 0 from compass.channels c, compass.accounts a where c.tenant_id = $1 and a.tenant_id = $1`, tenant)
		f.mustExec(t, `
insert into compass.delivery_cursors (tenant_id, agent_id, channel_id, acked)
select $1, a.id, c.id, 0 from compass.channels c, compass.accounts a where c.tenant_id = $1 and a.tenant_id = $1 and a.kind = 'agent'`, tenant)
	}
	return f
}

func inA(t *testing.T) context.Context { t.Helper(); return WithTenant(t.Context(), tenantA) }
func inB(t *testing.T) context.Context { t.Helper(); return WithTenant(t.Context(), tenantB) }

// enroll makes a Runner of a fleet.
func (f *sessions) enroll(t *testing.T, fleet string) Runner {
	t.Helper()
	token, err := f.ids.RunnerToken(fleet)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.IssueRunnerToken(t.Context(), naming.TokenHash(token), fleet); err != nil {
		t.Fatal(err)
	}
	r, err := f.EnrollRunner(t.Context(), Enrolment{TokenHash: naming.TokenHash(token), PublicKey: "U" + token, ID: f.ids.Runner()})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// runner enrolls a shared Runner and lets it say hello.
func (f *sessions) runner(t *testing.T, lease time.Duration) Runner {
	t.Helper()
	r := f.enroll(t, naming.SharedFleet)
	f.hello(t, &r, lease)
	return r
}

func (f *sessions) hello(t *testing.T, r *Runner, lease time.Duration) {
	t.Helper()
	var err error
	if r.Incarnation, err = f.HelloRunner(t.Context(), r.ID, lease); err != nil {
		t.Fatal(err)
	}
}

func (f *sessions) newID(t *testing.T, ctx context.Context) string {
	t.Helper()
	tenant, _ := TenantFromContext(ctx)
	id, err := f.ids.Session(string(tenant))
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// start starts a session and, on request, claims it.
func (f *sessions) start(t *testing.T, ctx context.Context, agent string, claim bool) Binding {
	t.Helper()
	started, err := f.StartSession(ctx, NewSession{Session: f.newID(t, ctx), Agent: agent})
	if err != nil {
		t.Fatal(err)
	}
	b := started.Binding
	if claim {
		claimed, err := f.ClaimStart(ctx, Claim{SessionRef: b.ref(), Incarnation: b.Incarnation, Counter: 1})
		if err != nil {
			t.Fatal(err)
		}
		b = claimed.Binding
	}
	return b
}

func (b Binding) ref() SessionRef {
	return SessionRef{Session: b.Session, Generation: b.Generation, Runner: b.Runner}
}

func (b Binding) event(n int64) Event {
	return Event{Session: b.Session, Generation: b.Generation, Runner: b.Runner, N: n}
}

func (b Binding) state(n int64, turn string) SessionState {
	return SessionState{Session: b.Session, Generation: b.Generation, N: n, OpenTurn: turn}
}

// say posts as the session's agent in a turn; "" is outside of one.
func (f *sessions) say(t *testing.T, ctx context.Context, e Event, turn, channel, text string) Message {
	t.Helper()
	i := f.made.Add(1)
	m, inserted, _, err := f.AppendMessage(ctx, NewMessage{
		ID: fmt.Sprintf("m_%d", i), Channel: channel, ClientID: fmt.Sprint(i),
		Blocks: []Block{Text(text)}, In: &InTurn{Event: e, Turn: turn},
	})
	if err != nil || !inserted {
		t.Fatalf("post: inserted %v, %v", inserted, err)
	}
	return m
}

// post posts as a person.
func (f *sessions) post(t *testing.T, ctx context.Context, author, channel string, blocks ...Block) Message {
	t.Helper()
	i := f.made.Add(1)
	m, _, _, err := f.AppendMessage(ctx, NewMessage{ID: fmt.Sprintf("m_%d", i), Channel: channel, Author: author, ClientID: fmt.Sprint(i), Blocks: blocks})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// beat sends a heartbeat; the lease stays alive.
func (f *sessions) beat(t *testing.T, r Runner, counter int64, states ...SessionState) HeartbeatAnswer {
	t.Helper()
	a, err := f.Heartbeat(t.Context(), Heartbeat{Runner: r.ID, Incarnation: r.Incarnation, Counter: counter, Sessions: states, Lease: alive})
	if err != nil {
		t.Fatal(err)
	}
	if len(a.Skipped) > 0 {
		t.Fatalf("skipped %v", a.Skipped)
	}
	return a
}

// binding reads a session as Postgres has it.
func (f *sessions) binding(t *testing.T, ctx context.Context, session string) Binding {
	t.Helper()
	b, err := f.Session(ctx, session)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// one reads one value past row-level security.
func one[T any](t *testing.T, f *fixture, sql string, args ...any) T {
	t.Helper()
	rows, err := f.super.Query(t.Context(), sql, args...)
	if err != nil {
		t.Fatal(err)
	}
	v, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[T])
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

func wantErr(t *testing.T, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: %v, want %v", what, err, want)
	}
}
