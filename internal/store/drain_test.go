package store_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/rigelbuild/compass-operator/internal/store"
	"github.com/rigelbuild/compass-operator/internal/store/storetest"
	"github.com/rigelbuild/compass-operator/internal/store/worldtest"
)

// stage is a tenant with an agent that has a session, and a person who posts.
type stage struct {
	*worldtest.World
	tenant  *worldtest.Tenant
	person  store.Account
	agent   store.Account
	channel store.Channel
	session *worldtest.Session
}

func newStage(t *testing.T) *stage {
	t.Helper()
	w := worldtest.New(t)
	s := &stage{World: w, tenant: w.Tenant(t, "acme")}
	s.person = s.tenant.Person(t, "ada")
	s.agent = s.tenant.Agent(t, "bot")
	s.channel = s.tenant.Channel(t, "general", s.person, s.agent)
	s.session = s.tenant.Session(t, s.agent)
	return s
}

func (s *stage) post(t *testing.T, text string) store.Message {
	t.Helper()
	return s.tenant.Post(t, s.person, s.channel, text)
}

func (s *stage) view(t *testing.T, change ...func(*store.ChannelQuery)) store.ChannelView {
	t.Helper()
	q := store.ChannelQuery{Stream: "main", Channel: s.channel.ID, Page: 10}
	for _, c := range change {
		c(&q)
	}
	v, err := s.Store.ChannelOwed(s.tenant.Ctx, q)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// listed are the ids listed for the agent's session, in order; nil where no session is listed.
func listed(v store.ChannelView, agent string) []string {
	for _, s := range v.Sessions {
		if s.Agent == agent {
			ids := []string{}
			for _, r := range s.Rows {
				if !r.Skip {
					ids = append(ids, r.ID)
				}
			}
			return ids
		}
	}
	return nil
}

func idsOf(ms ...store.Message) []string {
	out := []string{}
	for _, m := range ms {
		out = append(out, m.ID)
	}
	return out
}

// Holds REQ-044 (order of position) and REQ-052 (what is after the cursor, and nothing else): in order, from the cursor, less
// what is the agent's own, set aside, or owed beside the chain.
func TestChannelOwed(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	first, second := s.post(t, "one"), s.post(t, "two")
	own := s.tenant.Post(t, s.agent, s.channel, "mine")
	n := s.tenant.Message(s.person, s.channel, "")
	n.Blocks = []store.Block{store.Mention(s.agent.Handle)}
	mention, _, _, err := s.Store.AppendMessage(s.tenant.Ctx, n)
	if err != nil {
		t.Fatal(err)
	}
	dead, last := s.post(t, "poison"), s.post(t, "last")
	s.Exec(t, `insert into compass.dead_letters (tenant_id, message_id, recipient_id, channel_id, pos, attempts, reason, first_unix_ms)
		values ($1, $2, $3, $4, $5, 5, 'x', 0)`, s.tenant.ID, dead.ID, s.agent.ID, s.channel.ID, dead.Pos)

	v := s.view(t)
	if diff := cmp.Diff(idsOf(first, second, last), listed(v, s.agent.ID)); diff != "" {
		t.Errorf("owed: %s", diff)
	}
	if !v.Mine || v.Head != last.Pos || v.Sessions[0].Session != s.session.ID || v.Sessions[0].Runner != s.session.Runner ||
		v.Sessions[0].Fleet != "shared" || v.Sessions[0].Generation != s.session.Generation {
		t.Errorf("view %+v", v)
	}
	skipped := []string{}
	for _, r := range v.Sessions[0].Rows {
		if r.Skip {
			skipped = append(skipped, r.ID)
		}
	}
	if diff := cmp.Diff([]string{own.ID, mention.ID, dead.ID}, skipped); diff != "" {
		t.Errorf("skipped: %s", diff)
	}

	s.Exec(t, `update compass.delivery_cursors set acked = $1 where agent_id = $2`, first.Pos, s.agent.ID)
	if diff := cmp.Diff(idsOf(second, last), listed(s.view(t), s.agent.ID)); diff != "" {
		t.Errorf("after the ack of the first: %s", diff)
	}
	passed := func(q *store.ChannelQuery) { q.Passed = map[string]int64{s.session.ID: second.Pos} }
	if diff := cmp.Diff(idsOf(last), listed(s.view(t, passed), s.agent.ID)); diff != "" {
		t.Errorf("after what was passed: %s", diff)
	}
	page := func(q *store.ChannelQuery) { q.Page = 2 }
	if v := s.view(t, page); !v.Sessions[0].Cut || len(v.Sessions[0].Rows) != 2 {
		t.Errorf("a page of 2: %+v", v.Sessions[0])
	}
	s.Exec(t, `update compass.delivery_cursors set acked = $1 where agent_id = $2`, last.Pos, s.agent.ID)
	if v := s.view(t); len(v.Sessions) != 0 {
		t.Errorf("nothing is owed, and yet %+v", v.Sessions)
	}
}

// Each of these keeps a session off the list, whatever is owed to its agent.
func TestWhoIsNotSentTo(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.post(t, "hello")
	if v := s.view(t); len(v.Sessions) != 1 {
		t.Fatalf("to begin with: %+v", v)
	}
	cases := []struct{ name, spoil, mend string }{
		{"not claimed", `update compass.session_bindings set claimed = false`, `update compass.session_bindings set claimed = true`},
		{"over", `update compass.session_bindings set live = false`, `update compass.session_bindings set live = true`},
		{"Runner's lease over", `update compass.runner_leases set expires_at = '-infinity'`, `update compass.runner_leases set expires_at = 'infinity'`},
		{"Runner of another incarnation", `update compass.runner_leases set incarnation = 2`, `update compass.runner_leases set incarnation = 1`},
		{"tenant about to move", `update compass.placements set draining = true`, `update compass.placements set draining = false`},
		{"tenant of another stream", `update compass.placements set stream = 'other'`, `update compass.placements set stream = 'main'`},
		{"tenant of no stream", `update compass.placements set stream = null`, `update compass.placements set stream = 'main'`},
	}
	for _, c := range cases {
		s.Exec(t, c.spoil)
		if v := s.view(t); len(v.Sessions) != 0 {
			t.Errorf("%s: %+v", c.name, v.Sessions)
		}
		s.Exec(t, c.mend)
	}
	if v := s.view(t); len(v.Sessions) != 1 {
		t.Errorf("all mended: %+v", v)
	}
	s.Exec(t, `update compass.placements set stream = 'other'`)
	if v := s.view(t); v.Mine {
		t.Error("a tenant of another stream is called ours")
	}
}

// Holds REQ-226: a message of an open turn is on no list, and none of its content is read to be sent.
func TestHeldIsNotOwed(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	author := s.tenant.Agent(t, "author")
	if err := s.Store.AddMember(s.tenant.Ctx, store.Member{Channel: s.channel.ID, Account: author.ID, Actor: s.tenant.Admin.ID}); err != nil {
		t.Fatal(err)
	}
	writer := s.tenant.Session(t, author)
	n := s.tenant.Message(author, s.channel, "half a sen")
	n.In = writer.In("turn")
	held, _, _, err := s.Store.AppendMessage(s.tenant.Ctx, n)
	if err != nil || !held.Held() {
		t.Fatalf("held message %+v (%v)", held, err)
	}
	after := s.post(t, "after it")
	if diff := cmp.Diff(idsOf(after), listed(s.view(t), s.agent.ID)); diff != "" {
		t.Error(diff)
	}
	content, err := s.Store.ChannelContent(s.tenant.Ctx, store.ContentQuery{
		Channel: s.channel.ID, Messages: idsOf(held, after), Sessions: []string{s.session.ID}})
	if err != nil {
		t.Fatal(err)
	}
	if _, entitled, gone := content.For(s.session.ID, held.ID, held.Pos); entitled || !gone {
		t.Error("content of an open turn was read to be sent")
	}
	targets, err := s.Store.RowTargets(s.tenant.Ctx, idsOf(held, after))
	if err != nil || len(targets) != 2 || !targets[0].Held && !targets[1].Held {
		t.Errorf("targets %+v (%v), want the held one said so", targets, err)
	}
	if _, err := s.Store.SettleTurn(s.tenant.Ctx, writer.Next(), "turn"); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(idsOf(after, held), listed(s.view(t), s.agent.ID)); diff != "" {
		t.Errorf("settled: %s", diff)
	}
	content, err = s.Store.ChannelContent(s.tenant.Ctx, store.ContentQuery{
		Channel: s.channel.ID, Messages: idsOf(held), Sessions: []string{s.session.ID}})
	if _, entitled, gone := content.For(s.session.ID, held.ID, after.Pos-1); err != nil || entitled || !gone {
		t.Errorf("settled: read to be sent at a position that it does not have (%v)", err)
	}
}

// Holds REQ-233 (the store's part): who joins is owed what comes after, who leaves nothing, who comes back nothing of before;
// also where the ids were listed before the leave.
func TestMembershipDecidesAtBothEnds(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	late := s.tenant.Agent(t, "late")
	lateSession := s.tenant.Session(t, late)
	member := store.Member{Channel: s.channel.ID, Account: late.ID, Actor: s.tenant.Admin.ID}
	before := s.post(t, "before")
	if err := s.Store.AddMember(s.tenant.Ctx, member); err != nil {
		t.Fatal(err)
	}
	after := s.post(t, "after")
	v := s.view(t)
	if diff := cmp.Diff(idsOf(after), listed(v, late.ID)); diff != "" {
		t.Errorf("who joined: %s", diff)
	}
	if diff := cmp.Diff(idsOf(before, after), listed(v, s.agent.ID)); diff != "" {
		t.Errorf("who was there: %s", diff)
	}
	entitled := func(m store.Message, session string) bool {
		t.Helper()
		c, err := s.Store.ChannelContent(s.tenant.Ctx, store.ContentQuery{
			Channel: s.channel.ID, Messages: idsOf(m), Sessions: []string{session, s.session.ID}})
		if err != nil {
			t.Fatal(err)
		}
		_, yes, _ := c.For(session, m.ID, m.Pos)
		return yes
	}
	if entitled(before, lateSession.ID) || !entitled(after, lateSession.ID) || !entitled(before, s.session.ID) {
		t.Error("entitled at sending is not what was listed")
	}
	if err := s.Store.RemoveMember(s.tenant.Ctx, member); err != nil {
		t.Fatal(err)
	}
	if entitled(after, lateSession.ID) || listed(s.view(t), late.ID) != nil {
		t.Error("who left is still sent to")
	}
	if err := s.Store.AddMember(s.tenant.Ctx, member); err != nil {
		t.Fatal(err)
	}
	if entitled(after, lateSession.ID) || len(listed(s.view(t), late.ID)) != 0 {
		t.Error("who came back is owed what was said before")
	}
}

// Holds REQ-104, REQ-107: under another tenant nothing of this one is found, whatever is asked for.
func TestDrainReadsOneTenant(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	m := s.post(t, "hello")
	other := s.Tenant(t, "beta")
	v, err := s.Store.ChannelOwed(other.Ctx, store.ChannelQuery{Stream: "main", Channel: s.channel.ID, Page: 10})
	if err != nil || len(v.Sessions) != 0 || v.Head != 0 {
		t.Errorf("another tenant's channel: %+v (%v)", v, err)
	}
	c, err := s.Store.ChannelContent(other.Ctx, store.ContentQuery{Channel: s.channel.ID, Messages: idsOf(m), Sessions: []string{s.session.ID}})
	if _, entitled, gone := c.For(s.session.ID, m.ID, m.Pos); err != nil || entitled || !gone {
		t.Errorf("another tenant's content was read (%v)", err)
	}
	targets, err := s.Store.RowTargets(other.Ctx, idsOf(m))
	if err != nil || len(targets) != 0 {
		t.Errorf("another tenant's row led to %+v (%v)", targets, err)
	}
}

// Only who wishes to be woken, has no session and is behind.
func TestAsleep(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.post(t, "hello")
	if v := s.view(t); len(v.Asleep) != 0 {
		t.Errorf("asleep with a session: %v", v.Asleep)
	}
	s.Exec(t, `update compass.session_bindings set live = false`)
	if v := s.view(t); len(v.Asleep) != 0 {
		t.Errorf("woken by hand only, and yet: %v", v.Asleep)
	}
	s.Exec(t, `update compass.accounts set wake = 'on_owed' where id = $1`, s.agent.ID)
	if v := s.view(t); len(v.Asleep) != 1 || v.Asleep[0] != s.agent.ID {
		t.Errorf("asleep %v", v.Asleep)
	}
	if yes, err := s.Store.IsOwed(s.tenant.Ctx, s.agent.ID); err != nil || !yes {
		t.Errorf("owed %v (%v)", yes, err)
	}
	s.Exec(t, `insert into compass.dead_letters (tenant_id, message_id, recipient_id, channel_id, pos, attempts, reason, first_unix_ms)
		select tenant_id, id, $1, channel_id, pos, 5, 'x', 0 from compass.messages`, s.agent.ID)
	if yes, err := s.Store.IsOwed(s.tenant.Ctx, s.agent.ID); err != nil || yes {
		t.Errorf("all it was owed is set aside, and yet owed %v (%v)", yes, err)
	}
}

// The plan is what makes a drain cheap: under row-level security and a generic plan, each session's messages are walked by
// the index on position, from the cursor, and a page at most. A backlog of 20,000 reads no more than a page.
func TestDrainWalksTheIndex(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	m := s.post(t, "hello")
	s.Exec(t, `insert into compass.messages (tenant_id, id, channel_id, author_id, seq, rev, pos, blocks, client_id, mentions_routed_at)
		select m.tenant_id, m.id || i, m.channel_id, m.author_id, m.pos + i, m.pos + i, m.pos + i, m.blocks, m.client_id || i, now()
		  from compass.messages m, generate_series(1, 20000) i`)
	s.Exec(t, `update compass.channel_heads set last = last + 20000, last_pos = last_pos + 20000`)
	s.Exec(t, `analyze`)

	conn := storetest.Connect(t, s.Database.App)
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	for _, sql := range []string{
		`select set_config('compass.tenant_id', '` + string(s.tenant.ID) + `', true)`,
		`set local plan_cache_mode = force_generic_plan`,
		`prepare owed (text, text, text, int) as ` + store.SQLChannelOwed,
	} {
		if _, err := tx.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Fatal(err)
		}
	}
	rows, err := tx.Query(t.Context(), `explain (analyze, costs off, timing off) execute owed ('main', '`+s.channel.ID+`', '{}', 16)`,
		pgx.QueryExecModeSimpleProtocol)
	if err != nil {
		t.Fatal(err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	plan := strings.Join(lines, "\n")
	walked := false
	for i, line := range lines {
		if !strings.Contains(line, "on messages ") {
			continue
		}
		line = strings.Replace(line, "rows=16.00", "rows=16", 1) // as Postgres 18 prints it
		walked = strings.Contains(line, "Index Scan using messages_tenant_id_channel_id_pos_key") && strings.Contains(line, "actual rows=16 ") &&
			strings.Contains(lines[i+1], "Index Cond:") && strings.Contains(lines[i+1], "pos > ")
	}
	if !walked {
		t.Errorf("messages are not walked by position from the cursor (first owed %s):\n%s", m.ID, plan)
	}
}
