package e2e

import (
	"testing"
	"time"

	compassv1 "github.com/rigelbuild/compass-operator/api/proto/compass/v1"
)

// move hands the tenant from one stream to another as the operator does: the old worker is asked, gives its word or has no
// lease any more, and then the placement changes.
func (c *cluster) move(from, to string) {
	c.tb.Helper()
	ctx, st := c.tb.Context(), c.world.Store
	must(c.tb, st.DrainTenant(ctx, c.tenant.ID, from))
	await(c.tb, "the worker of "+from+" lets go", func() string {
		row, err := st.TenantBySlug(ctx, c.tenant.Slug)
		must(c.tb, err)
		held, err := st.ReadLease(ctx, from, 0)
		must(c.tb, err)
		return unless(!held.Held || held.Drained[c.tenant.ID] >= row.Claim, "%v", held)
	})
	must(c.tb, st.PlaceTenant(ctx, c.tenant.ID, from, to))
}

// A tenant goes to and fro between two streams while its people post, once with a worker that dies over it. It is how one
// scales; nothing is lost, nothing comes twice.
//
// Holds REQ-237 where streams take tenants from each other.
func TestTenantsMoveUnderLoad(t *testing.T) {
	t.Parallel()
	const other = "other"
	c := newCluster(t)
	c.lease = 20 * time.Second // a worker that Postgres does not answer for so long would end, and nobody here starts it again
	c.tick = 3 * time.Second   // what was published to the stream of before waits for it
	s, w := newSceneIn(t, c, "worker 1")
	s.makeStream(other)
	second := s.workerOf(other, "worker 2").serves()
	for range 3 {
		s.move(stream, other)
		s.talk.goesOn(t, 10)
		s.delivers("with the other " + time.Now().String())
		s.move(other, stream)
		s.talk.goesOn(t, 10)
	}
	w.kill()
	s.move(stream, other)
	s.delivers("after a death")
	if !second.running() {
		t.Error("the other stream's worker has ended")
	}
	s.end()
}

// Six rolling restarts of everything that is ours while people post: each process says goodbye, so the next worker need
// neither wait nor be careful, and nobody's message is lost, set aside or charged an attempt.
//
// Holds REQ-227 and operator lesson 50.
func TestRollingRestarts(t *testing.T) {
	t.Parallel()
	s, w := newScene(t, "worker")
	front := newProxy(t, host(t, s.s.url))
	s.talk.end()
	s.talk = newTalk(t, newAPI("http://"+front.address(), s.tenant.Token), s.channel, "that")
	for range 6 {
		old := s.s
		s.s = s.server("server")
		front.open(host(t, s.s.url))
		s.box.web.open(host(t, s.s.url))
		if code := old.terminate(); code != 0 {
			t.Errorf("the Server's exit code = %d after SIGTERM", code)
		}
		if code := w.terminate(); code != 0 {
			t.Errorf("the worker's exit code = %d after SIGTERM", code)
		}
		if l := s.truth.lease(); !l.Clean {
			t.Errorf("the lease is %v: want a goodbye", l)
		}
		w = s.worker("worker").serves()
		s.talk.goesOn(t, 10)
	}
	s.end()
	if n := s.truth.attempts(); n != 0 {
		t.Errorf("%d deliveries were charged an attempt", n)
	}
}

// An agent that wishes to be woken gets a session when something is owed to it, from a worker that is a process of its own,
// without a tick and without anybody's call; and another one when that was stopped.
//
// Holds REQ-152: the worker places it as StartSession would.
func TestOwedWakesAnAgent(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.tick = time.Hour
	s := c.server("server")
	c.worker("worker 1").serves()
	box := c.box(s)
	channel := s.api.channel(t, "general")
	agent := call(t, s.api.accounts.CreateAccount, &compassv1.CreateAccountRequest{
		Kind: compassv1.AccountKind_ACCOUNT_KIND_AGENT, Handle: "sleeper", Wake: compassv1.Wake_WAKE_ON_OWED,
	}).GetAccount().GetId()
	call(t, s.api.channels.AddMember, &compassv1.AddMemberRequest{ChannelId: channel, AccountId: agent})
	var last string
	for _, words := range []string{"wake up", "and again"} {
		box.record.await(s.api.post(t, channel, words).GetId(), 1)
		s.api.settled(t)
		live := call(t, s.api.sessions.ListSessions, &compassv1.ListSessionsRequest{}).GetSessions()
		if len(live) != 1 || live[0].GetAgentId() != agent || live[0].GetId() == last {
			t.Fatalf("sessions = %v: want one of the agent, and not %q", live, last)
		}
		last = live[0].GetId()
		call(t, s.api.sessions.StopSession, &compassv1.StopSessionRequest{SessionId: last})
	}
	c.truth.check(box.record, agent, channel)
}

// Postgres fails over to a server that lacks the newest commits, also those of the lease: the worker that had it is nobody
// there. It ends; the next has a higher epoch than the Runner has seen all the same, because epochs come from the clock; and
// what is in the database is delivered, in order, once.
//
// Holds REQ-237.
func TestFailoverLosesTheLease(t *testing.T) {
	t.Parallel()
	s, w1 := newScene(t, "worker 1")
	w2 := s.waits("worker 2")
	everybody := []*proxy{s.s.pg, w1.pg, w2.pg}
	copied := s.truth.lease()
	s.outage(func() { s.elsewhere(`create database "$_standby" template "$"`) }, everybody...)
	s.talk.goesOn(t, 20)
	w1.kill()
	lost := s.holds(w2, copied.Epoch)
	s.delivers("will be lost")
	s.talk.goesOn(t, 20)
	s.outage(func() {
		s.elsewhere(`alter database "$" rename to "$_lost"`, `alter database "$_standby" rename to "$"`)
	}, everybody...)
	if id := s.truth.message("will be lost"); id != "" {
		t.Fatal("nothing was lost")
	}
	if code := w2.code(); code == 0 {
		t.Error("who had the lost lease ended as if nothing had happened")
	}
	w3 := s.worker("worker 3")
	s.holds(w3, lost.Epoch)
	s.delivers("by the third")
	s.talk.goesOn(t, 20)
	s.end()
	s.elsewhere(`drop database "$_lost" with (force)`)
}
