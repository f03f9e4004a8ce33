package store_test

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rigelbuild/compass-operator/internal/store"
)

// sweep runs every part of a sweep and returns what each found, as text.
func sweep(t *testing.T, s *store.Store, parts int) map[string][]string {
	t.Helper()
	out := map[string][]string{}
	for part := range parts {
		q := store.SweepQuery{Stream: "main", Part: part, Parts: parts}
		channels, err := s.SweepChannels(t.Context(), q)
		check(t, err)
		for _, c := range channels {
			out["channels"] = append(out["channels"], string(c.Tenant)+"/"+c.Channel)
		}
		agents, err := s.SweepAgents(t.Context(), q)
		check(t, err)
		for _, a := range agents {
			out["agents"] = append(out["agents"], string(a.Tenant)+"/"+a.Agent)
		}
		asleep, err := s.SweepAsleep(t.Context(), q)
		check(t, err)
		for _, a := range asleep {
			out["asleep"] = append(out["asleep"], string(a.Tenant)+"/"+a.Agent)
		}
	}
	for _, found := range out {
		slices.Sort(found)
	}
	return out
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Holds REQ-102, TickAll: the sweep finds every live (agent, channel) whose head is past the cursor and every live agent
// with something pending, whoever moved when, in each tenant once, however it is spread.
func TestSweepFindsAllThatIsOwed(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	m := s.mention(t)
	sleeper := s.tenant.Agent(t, "sleeper")
	s.Exec(t, `update compass.accounts set wake = 'on_owed' where id = $1`, sleeper.ID)
	check(t, s.Store.AddMember(s.tenant.Ctx, store.Member{Channel: s.channel.ID, Account: sleeper.ID, Actor: s.tenant.Admin.ID}))
	last := s.post(t, "for the sleeper too")
	w, _ := s.worker(t)

	id := string(s.tenant.ID)
	want := map[string][]string{
		"channels": {id + "/" + s.channel.ID}, "agents": {id + "/" + s.agent.ID},
		"asleep": {id + "/" + sleeper.ID},
	}
	for _, parts := range []int{1, 7} {
		if diff := cmp.Diff(want, sweep(t, w, parts)); diff != "" {
			t.Errorf("in %d parts: %s", parts, diff)
		}
	}
	for tenant, n := range map[store.TenantID]int{s.tenant.ID: 1, "t_another": 0} {
		found, err := w.SweepChannels(t.Context(), store.SweepQuery{Stream: "main", Parts: 1, Tenant: tenant})
		if err != nil || len(found) != n {
			t.Errorf("of tenant %s: %+v (%v)", tenant, found, err)
		}
	}
	s.Exec(t, `update compass.delivery_cursors set acked = $1`, last.Pos)
	s.Exec(t, `update compass.owed_mentions set done = true where message_id = $1`, m.ID)
	if diff := cmp.Diff(map[string][]string{}, sweep(t, w, 3)); diff != "" {
		t.Errorf("nothing owed: %s", diff)
	}
	s.Exec(t, `update compass.placements set stream = 'other'`)
	if got := sweep(t, w, 1); len(got) != 0 {
		t.Errorf("of another stream: %v", got)
	}
}

// What has come to a stream since the last look, and what is leaving it.
func TestMovedTenants(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	w, _ := s.worker(t)
	look := func(above int64) []store.StreamTenant {
		t.Helper()
		found, err := w.MovedTenants(t.Context(), 0, "main", above)
		check(t, err)
		return found
	}
	all := look(-1)
	if len(all) != 1 || all[0].Tenant != s.tenant.ID || all[0].Draining {
		t.Fatalf("all: %+v", all)
	}
	if got := look(all[0].Claim); len(got) != 0 {
		t.Errorf("seen before: %+v", got)
	}
	s.Exec(t, `update compass.placements set draining = true where tenant_id = $1`, s.tenant.ID)
	if got := look(all[0].Claim); len(got) != 1 || !got[0].Draining {
		t.Errorf("draining: %+v", got)
	}
	s.Exec(t, `update compass.placements set draining = false, claim = claim + 1 where tenant_id = $1`, s.tenant.ID)
	if got := look(all[0].Claim); len(got) != 1 || got[0].Claim != all[0].Claim+1 {
		t.Errorf("claimed again: %+v", got)
	}
}

// The sweep of one agent, under its tenant.
func TestSessionOwes(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	quiet := s.tenant.Channel(t, "quiet", s.person, s.agent)
	busy := s.tenant.Channel(t, "busy", s.person, s.agent)
	s.post(t, "first")
	s.tenant.Post(t, s.person, busy, "then")
	got, err := s.Store.SessionOwes(s.tenant.Ctx, s.agent.ID)
	if diff := cmp.Diff([]string{busy.ID, s.channel.ID}, got); err != nil || diff != "" {
		t.Errorf("%s, and not %s (%v)", diff, quiet.ID, err)
	}
}

// Holds REQ-048, REQ-057, REQ-072: the net below routing stamps and makes owed in one statement, and never what is held:
// an edit that comes after the look and before the stamp keeps its mention.
func TestRouteMissed(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	w, fence := s.worker(t)
	m := s.mention(t)
	s.Exec(t, `delete from compass.owed_mentions`)
	s.Exec(t, `update compass.messages set mentions_routed_at = null`)
	author := s.tenant.Agent(t, "author")
	check(t, s.Store.AddMember(s.tenant.Ctx, store.Member{Channel: s.channel.ID, Account: author.ID, Actor: s.tenant.Admin.ID}))
	session := s.tenant.Session(t, author)
	n := s.tenant.Message(author, s.channel, "still writing")
	n.In = session.In("turn")
	held, _, _, err := s.Store.AppendMessage(s.tenant.Ctx, n)
	check(t, err)

	tenants, err := w.SweepUnrouted(t.Context(), store.SweepQuery{Stream: "main", Parts: 1})
	if err != nil || len(tenants) != 1 || tenants[0] != s.tenant.ID {
		t.Fatalf("unrouted in %v (%v)", tenants, err)
	}
	routed, err := w.RouteMissed(s.tenant.Ctx, fence, 100)
	if diff := cmp.Diff(idsOf(m), routed); err != nil || diff != "" {
		t.Fatalf("routed %s (%v): what is held must not be stamped", diff, err)
	}
	if diff := cmp.Diff(idsOf(m), pending(s.agentView(t, w))); diff != "" {
		t.Errorf("pending %s", diff)
	}
	if _, err := s.Store.EditMessage(s.tenant.Ctx, store.Edit{
		Message: held.ID, Blocks: []store.Block{store.Text("still writing to "), store.Mention(s.agent.Handle)}, In: session.In("turn"),
	}); err != nil {
		t.Fatal(err)
	}
	_, err = s.Store.SettleTurn(s.tenant.Ctx, session.Next(), "turn")
	check(t, err)
	if diff := cmp.Diff(idsOf(m, held), pending(s.agentView(t, w))); diff != "" {
		t.Errorf("the mention of the later block was lost: %s", diff)
	}
	again, err := w.RouteMissed(s.tenant.Ctx, fence, 100)
	if tenants, _ := w.SweepUnrouted(t.Context(), store.SweepQuery{Stream: "main", Parts: 1}); err != nil || len(again) != 0 || len(tenants) != 0 {
		t.Errorf("left over %v in %v (%v)", again, tenants, err)
	}
}

// What the gauges show: owed, pending, held with its age, dead letters, of this stream's tenants alone, and owed as ListOwed has
// it: nobody is owed what he wrote himself, nor what was set aside, and a mention once.
func TestStreamBacklog(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	w, _ := s.worker(t)
	s.post(t, "owed")
	s.mention(t)
	dead := s.post(t, "dead")
	s.Exec(t, `insert into compass.dead_letters (tenant_id, message_id, recipient_id, channel_id, pos, attempts, reason, first_unix_ms)
		values ($1, $2, $3, $4, $5, 5, 'x', 0)`, s.tenant.ID, dead.ID, s.agent.ID, s.channel.ID, dead.Pos)
	author := s.tenant.Agent(t, "author")
	check(t, s.Store.AddMember(s.tenant.Ctx, store.Member{Channel: s.channel.ID, Account: author.ID, Actor: s.tenant.Admin.ID}))
	s.tenant.Post(t, author, s.channel, "the agent's own") // owed to the other alone
	n := s.tenant.Message(author, s.channel, "held")
	n.In = s.tenant.Session(t, author).In("turn")
	_, _, _, err := s.Store.AppendMessage(s.tenant.Ctx, n)
	check(t, err)
	s.Exec(t, `update compass.messages set created_at_unix_ms = created_at_unix_ms - 60000 where pos is null`)

	got, err := w.StreamBacklog(t.Context(), store.SweepQuery{Stream: "main", Parts: 1})
	check(t, err)
	if got.OldestHeldMs < 60000 {
		t.Errorf("oldest held for %d ms", got.OldestHeldMs)
	}
	got.OldestHeldMs = 0
	if diff := cmp.Diff(store.Backlog{Owed: 2, Pending: 1, Held: 1, DeadLetters: 1}, got); diff != "" {
		t.Error(diff)
	}
	listed, err := s.Store.ListOwed(s.tenant.Ctx, 100)
	check(t, err)
	var sum int64
	for _, l := range listed {
		sum += l.Count
	}
	if sum != got.Owed+got.Pending {
		t.Errorf("%d listed, %d and %d counted", sum, got.Owed, got.Pending)
	}
	if other, err := w.StreamBacklog(t.Context(), store.SweepQuery{Stream: "other", Parts: 1}); err != nil || other != (store.Backlog{}) {
		t.Errorf("another stream's: %+v (%v)", other, err)
	}
}
