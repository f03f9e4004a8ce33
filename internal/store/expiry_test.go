package store

import (
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// expireAll does what the expirer does once it has seen one lease of health, and returns how many sessions ended.
func (f *sessions) expireAll(t *testing.T) int {
	t.Helper()
	overdue, err := f.OverdueRunners(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range overdue {
		now, err := f.Ping(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.ExpireRunner(t.Context(), Expiry{Runner: id, Probe: now, Fresh: time.Hour}); err != nil {
			t.Fatal(err)
		}
	}
	stale, err := f.StaleSessions(t.Context(), 0, "")
	if err != nil {
		t.Fatal(err)
	}
	ended := 0
	for _, s := range stale {
		e, err := f.EndStaleSession(WithTenant(t.Context(), s.Tenant), s.Session)
		if err != nil {
			t.Fatal(err)
		}
		if e.Was {
			ended++
		}
	}
	return ended
}

// Holds REQ-038, REQ-229, REQ-230: a Runner that crashed has its lease expired; its turns settle with positions, as in any
// settle, and what its old process still sends is refused.
func TestExpiryEndsTheSessionsOfACrashedRunner(t *testing.T) {
	t.Parallel()
	f := newSessions(t)
	crashed := f.runner(t, alive)
	ctx := inA(t)
	b := f.start(t, ctx, agentX, true)
	m := f.say(t, ctx, b.event(1), "t1", chanC, "as it stood")
	well := f.runner(t, alive)
	other := f.start(t, inB(t), agentY, true)
	if other.Runner != well.ID {
		t.Fatalf("the second session runs on %s", other.Runner)
	}
	if n := f.expireAll(t); n != 0 {
		t.Fatalf("%d sessions ended while every lease was alive", n)
	}
	f.mustExec(t, `update compass.runner_leases set expires_at = clock_timestamp() where runner_id = $1`, crashed.ID)
	if n := f.expireAll(t); n != 1 {
		t.Errorf("%d sessions ended, want 1", n)
	}
	if n := f.expireAll(t); n != 0 {
		t.Errorf("%d sessions ended by a second look", n)
	}
	if got, err := f.MessageByID(ctx, m.ID); err != nil || got.Held() {
		t.Errorf("the message is held for ever: %+v, %v", got, err)
	}
	if by := one[string](t, f.fixture, `select settled_by from compass.turns where id = 't1'`); by != SettledByExpiry {
		t.Errorf("settled by %s", by)
	}
	if f.binding(t, ctx, b.Session).Live || !f.binding(t, inB(t), other.Session).Live {
		t.Error("the wrong session ended")
	}
	if a := f.beat(t, crashed, 50, b.state(1, "t1")); !a.Expired {
		t.Error("the old process was not told that it is over")
	}
	if _, err := f.SettleTurn(ctx, b.event(2), "t1"); err == nil {
		t.Error("the old process settled a turn")
	}
	incarnation := crashed.Incarnation
	f.hello(t, &crashed, alive)
	if crashed.Incarnation <= incarnation {
		t.Error("the next incarnation is not above the expired one")
	}
	f.start(t, ctx, agentX, true)
}

// Holds REQ-230: the verdict is judged again under the Runner's row lock: by the lease as it is, and by the age of the
// last healthy look, so that a Server which was frozen in between expires nothing (ExpireRecheck, HealthDB).
func TestExpireRunnerJudgesAgain(t *testing.T) {
	t.Parallel()
	f := newSessions(t)
	r := f.runner(t, alive)
	f.start(t, inA(t), agentX, true)
	expire := func(ago time.Duration) bool {
		now, err := f.Ping(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		ok, err := f.ExpireRunner(t.Context(), Expiry{Runner: r.ID, Probe: now.Add(-ago), Fresh: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		return ok
	}
	if expire(0) {
		t.Error("a lease that is alive was expired")
	}
	f.mustExec(t, `update compass.runner_leases set expires_at = clock_timestamp()`)
	if expire(2 * time.Minute) {
		t.Error("expired by a look of two minutes ago")
	}
	if a := f.beat(t, r, 5, SessionState{}); a.Expired {
		t.Error("the incarnation was raised all the same")
	}
	f.mustExec(t, `update compass.runner_leases set expires_at = clock_timestamp()`)
	if !expire(0) {
		t.Error("a lease that is over was not expired")
	}
}

// Holds REQ-229: a Runner that restarted has its old sessions ended although its lease is fresh (IncMismatch); judged
// again, a session of the new process is left alone.
func TestSessionsOfAnOldIncarnationEnd(t *testing.T) {
	t.Parallel()
	f := newSessions(t)
	r := f.runner(t, alive)
	ctx := inA(t)
	b := f.start(t, ctx, agentX, true)
	f.say(t, ctx, b.event(1), "t1", chanC, "half")
	other := f.runner(t, alive)
	f.hello(t, &r, alive)
	stale, err := f.StaleSessions(t.Context(), 0, r.ID)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]TenantSession{{Tenant: tenantA, Session: b.Session}}, stale); diff != "" {
		t.Error(diff)
	}
	if stale, err := f.StaleSessions(t.Context(), 0, other.ID); err != nil || len(stale) != 0 {
		t.Errorf("of another Runner: %v, %v", stale, err)
	}
	if n := f.expireAll(t); n != 1 {
		t.Errorf("%d sessions ended, want 1", n)
	}
	next := f.start(t, ctx, agentX, true)
	if e, err := f.EndStaleSession(ctx, next.Session); err != nil || e.Was || !f.binding(t, ctx, next.Session).Live {
		t.Errorf("a session of the new process: %+v, %v", e, err)
	}
}

// Holds REQ-229: many Servers expire at once; the turn's lock makes doubles harmless, and a hello in between does not
// deadlock with it.
func TestExpiryRacesWithItselfAndWithHello(t *testing.T) {
	t.Parallel()
	f := newSessions(t)
	r := f.runner(t, over)
	for range 10 {
		var group sync.WaitGroup
		for range 3 {
			group.Go(func() {
				now, err := f.Ping(t.Context())
				if err == nil {
					_, err = f.ExpireRunner(t.Context(), Expiry{Runner: r.ID, Probe: now, Fresh: time.Hour})
				}
				if err != nil {
					t.Errorf("expire: %v", err)
				}
			})
			group.Go(func() {
				if _, err := f.HelloRunner(t.Context(), r.ID, over); err != nil {
					t.Errorf("hello: %v", err)
				}
			})
		}
		group.Wait()
	}
	lease := one[int64](t, f.fixture, `select incarnation from compass.runner_leases`)
	if own := one[int64](t, f.fixture, `select incarnation from compass.runners`); own != lease {
		t.Errorf("incarnation %d of the Runner, %d of its lease", own, lease)
	}
}

// A turn may have a maximum age; its session goes on.
func TestOverlongTurns(t *testing.T) {
	t.Parallel()
	f := newSessions(t)
	f.runner(t, alive)
	ctx := inA(t)
	b := f.start(t, ctx, agentX, true)
	m := f.say(t, ctx, b.event(1), "t1", chanC, "endless")
	if found, err := f.OverlongTurns(t.Context(), 0, time.Hour); err != nil || len(found) != 0 {
		t.Errorf("young turns: %v, %v", found, err)
	}
	if touched, err := f.SettleOverlongTurn(ctx, b.Session, "t1", time.Hour); err != nil || touched != nil {
		t.Errorf("a young turn settled: %v, %v", touched, err)
	}
	f.mustExec(t, `update compass.turns set opened_at_unix_ms = opened_at_unix_ms - 7200000`)
	found, err := f.OverlongTurns(t.Context(), 0, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]TenantSession{{tenantA, b.Session, "t1"}}, found); diff != "" {
		t.Error(diff)
	}
	touched, err := f.SettleOverlongTurn(ctx, b.Session, "t1", time.Hour)
	if err != nil || len(touched) != 1 || touched[0].Last().ID != m.ID {
		t.Errorf("settled %+v, %v", touched, err)
	}
	if got := f.binding(t, ctx, b.Session); !got.Live || got.OpenTurn != "" {
		t.Errorf("the session after it: %+v", got)
	}
}
