package store

import (
	"testing"

	"github.com/rigelbuild/compass-operator/internal/naming"
	"github.com/rigelbuild/compass-operator/internal/store/storetest"
)

// Holds REQ-234: an enrolment token binds to the first key. The same key again gets the same answer; another one is
// refused, and nobody can use the token from then on (R4).
func TestEnrolment(t *testing.T) {
	t.Parallel()
	f := newSessions(t)
	token, err := f.ids.RunnerToken(naming.SharedFleet)
	if err != nil {
		t.Fatal(err)
	}
	hash := naming.TokenHash(token)
	enroll := func(hash [32]byte, key string) (Runner, error) {
		return f.EnrollRunner(t.Context(), Enrolment{TokenHash: hash, PublicKey: key, ID: f.ids.Runner()})
	}
	_, err = enroll(hash, "U1")
	wantErr(t, "a token that nobody issued", err, ErrNotFound)
	if err := f.IssueRunnerToken(t.Context(), hash, naming.SharedFleet); err != nil {
		t.Fatal(err)
	}
	first, err := enroll(hash, "U1")
	if err != nil || first.Fleet != naming.SharedFleet {
		t.Fatalf("enrolled %+v, %v", first, err)
	}
	if again, err := enroll(hash, "U1"); err != nil || again != first {
		t.Errorf("again %+v, %v; want %+v", again, err, first)
	}
	_, err = enroll(hash, "U2")
	wantErr(t, "another key", err, ErrTokenStolen)
	_, err = enroll(hash, "U1")
	wantErr(t, "the first key after that", err, ErrTokenDisabled)
	if found, err := f.FindRunner(t.Context(), first.ID); err != nil || found.PublicKey != "U1" || found.Fleet != first.Fleet {
		t.Errorf("found %+v, %v", found, err)
	}
	_, err = f.FindRunner(t.Context(), f.ids.Runner())
	wantErr(t, "unknown Runner", err, ErrNotFound)
	_, err = f.HelloRunner(t.Context(), f.ids.Runner(), alive)
	wantErr(t, "hello of an unknown Runner", err, ErrNotFound)
}

// Holds REQ-239: each database has leases of its own, judged by its own clock. A Runner speaks to all of them; one that
// did not hear its hello hears of it by a heartbeat, and what ends in one database leaves the other's sessions alone.
func TestLeasesOfTwoDatabases(t *testing.T) {
	t.Parallel()
	second := storetest.NewDatabase(t)
	f := newSessions(t, func(c *Config) {
		c.Databases = append(c.Databases, Database{ID: 1, App: second.App, System: second.System})
	})
	far := storetest.Connect(t, second.Super)
	there := func(sql string, args ...any) {
		t.Helper()
		if _, err := far.Exec(t.Context(), sql, args...); err != nil {
			t.Fatal(err)
		}
	}
	f.mustExec(t, `update compass.placements set database_id = 1 where tenant_id = $1`, tenantB)
	there(`insert into compass.tenants (id, slug) values ($1, 'b')`, tenantB)
	there(`insert into compass.accounts (tenant_id, id, kind, handle) values ($1, 'a_x', 'agent', 'x')`, tenantB)

	r := f.runner(t, alive)
	here, away := f.start(t, inA(t), agentX, true), f.start(t, inB(t), agentX, true)
	if away.Incarnation != r.Incarnation || away.Runner != r.ID {
		t.Fatalf("the far session %+v is not the Runner's", away)
	}
	there(`update compass.runner_leases set expires_at = clock_timestamp()`)
	states := []SessionState{here.state(0, ""), away.state(0, "")}
	if a := f.beat(t, r, 2, states...); a.Expired || len(a.Orders) != 2 || a.Orders[0].Stop || a.Orders[1].Stop {
		t.Errorf("a heartbeat is answered with %+v", a)
	}
	if late, err := f.OverdueRunners(t.Context(), 1); err != nil || len(late) != 0 {
		t.Errorf("overdue in the far database after a heartbeat: %v, %v", late, err)
	}
	if a := f.beat(t, r, 3, states[0]); len(a.Healed) != 1 || a.Healed[0].Tenant != tenantB {
		t.Errorf("a far session that is gone: healed %+v", a.Healed)
	}
	away = f.start(t, inB(t), agentX, true)

	there(`delete from compass.runner_leases`) // it was away when the Runner said hello
	if a := f.beat(t, r, 4, here.state(0, ""), away.state(0, "")); a.Expired {
		t.Error("a database that did not hear the hello ended the incarnation")
	}
	if stale, err := f.StaleSessions(t.Context(), 1, ""); err != nil || len(stale) != 0 {
		t.Errorf("stale in the far database: %v, %v", stale, err)
	}
	there(`update compass.runner_leases set expires_at = clock_timestamp()`)
	now, err := f.PingDatabase(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	if ok, err := f.ExpireRunner(t.Context(), Expiry{Database: 1, Runner: r.ID, Probe: now, Fresh: alive}); err != nil || !ok {
		t.Fatalf("expired %v, %v", ok, err)
	}
	stale, err := f.StaleSessions(t.Context(), 1, "")
	if err != nil || len(stale) != 1 || stale[0].Session != away.Session {
		t.Errorf("stale in the far database: %v, %v", stale, err)
	}
	if stale, err := f.StaleSessions(t.Context(), 0, ""); err != nil || len(stale) != 0 {
		t.Errorf("stale in database 0: %v, %v", stale, err)
	}
	if a := f.beat(t, r, 5, here.state(0, "")); !a.Expired {
		t.Error("the Runner was not told that it expired in one database")
	}
	before := r.Incarnation
	f.hello(t, &r, alive)
	if r.Incarnation <= before {
		t.Errorf("incarnation %d after %d", r.Incarnation, before)
	}
	if a := f.beat(t, r, 1); a.Expired {
		t.Error("the new incarnation is refused")
	}
	if _, err := f.EndStaleSession(inB(t), away.Session); err != nil {
		t.Fatal(err)
	}
	if b := f.start(t, inB(t), agentX, true); b.Incarnation != r.Incarnation {
		t.Errorf("the far database starts in incarnation %d, want %d", b.Incarnation, r.Incarnation)
	}
}
