package store_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rigelbuild/compass-operator/internal/store"
	"github.com/rigelbuild/compass-operator/internal/store/worldtest"
)

// park writes what the delivery worker writes when a message is out of attempts.
func park(t *testing.T, w *worldtest.World, m store.Message, recipient store.Account) {
	t.Helper()
	w.Exec(t, `insert into compass.dead_letters (tenant_id, message_id, recipient_id, channel_id, pos, attempts, reason, first_unix_ms)
		select tenant_id, id, $2, channel_id, pos, 5, 'Rejected', 1 from compass.messages where id = $1`, m.ID, recipient.ID)
}

func deadLetters(t *testing.T, c *worldtest.Tenant) (out []string) {
	t.Helper()
	page := store.Page{Limit: 1}
	for {
		ds, next, err := c.World.Store.ListDeadLetters(c.Ctx, page)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range ds {
			out = append(out, d.Message+" "+d.Recipient)
		}
		if next == "" {
			return out
		}
		page.After = next
	}
}

// Lessons U10. Holds REQ-050 (a replay comes back beside the chain; the dead letter stays until it is acknowledged).
func TestReplayMakesAnOwedRow(t *testing.T) {
	t.Parallel()
	w := worldtest.New(t)
	acme, rival := w.Tenant(t, "acme"), w.Tenant(t, "rival")
	bot, gone := acme.Agent(t, "bot"), acme.Agent(t, "gone")
	channel := acme.Channel(t, "a", bot, gone)
	one, two := acme.Post(t, acme.Admin, channel, "one"), acme.Post(t, acme.Admin, channel, "two")
	park(t, w, one, bot)
	park(t, w, two, bot)
	park(t, w, one, gone)
	if err := w.Store.RemoveMember(acme.Ctx, store.Member{Channel: channel.ID, Account: gone.ID, Actor: gone.ID}); err != nil {
		t.Fatal(err)
	}
	if got := deadLetters(t, acme); len(got) != 3 {
		t.Errorf("dead letters %v, want 3 over as many pages", got)
	}
	if got := deadLetters(t, rival); len(got) != 0 {
		t.Errorf("another tenant sees %v", got)
	}
	replay := func(c *worldtest.Tenant, f store.DeadLetterFilter, dry bool) store.Replayed {
		t.Helper()
		r, err := w.Store.ReplayDeadLetters(c.Ctx, f, "test", dry)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	if r := replay(rival, store.DeadLetterFilter{Message: one.ID}, false); r.Count != 0 {
		t.Errorf("another tenant replayed %d", r.Count)
	}
	if r := replay(acme, store.DeadLetterFilter{}, true); r.Count != 2 || len(owedRows(t, w)) != 0 {
		t.Errorf("a dry run counted %d, want 2 (the ex-member is entitled to nothing), and made %v", r.Count, owedRows(t, w))
	}
	r := replay(acme, store.DeadLetterFilter{}, false)
	want := store.Replayed{Count: 2, Touched: []store.Touched{{
		Channel: channel.ID, Messages: []store.MessageRef{{ID: one.ID, Pos: one.Pos}, {ID: two.ID, Pos: two.Pos}},
	}}}
	if diff := cmp.Diff(want, r); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"bot replay " + one.ID, "bot replay " + two.ID}, owedRows(t, w)); diff != "" {
		t.Error(diff)
	}
	if got := deadLetters(t, acme); len(got) != 3 {
		t.Errorf("the dead letters went before their ack: %v", got)
	}
	if r := replay(acme, store.DeadLetterFilter{}, false); r.Count != 0 {
		t.Errorf("replaying what is being replayed counted %d", r.Count)
	}
	w.Exec(t, `update compass.owed_mentions set done = true where message_id = $1`, one.ID)
	if r := replay(acme, store.DeadLetterFilter{Message: one.ID, Recipient: bot.ID, Channel: channel.ID}, false); r.Count != 1 {
		t.Errorf("a second replay after the first was consumed counted %d", r.Count)
	}
}

func TestPurgeGivesUpForGood(t *testing.T) {
	t.Parallel()
	w := worldtest.New(t)
	acme := w.Tenant(t, "acme")
	bot := acme.Agent(t, "bot")
	channel := acme.Channel(t, "a", bot)
	one, two := acme.Post(t, acme.Admin, channel, "one"), acme.Post(t, acme.Admin, channel, "two")
	park(t, w, one, bot)
	owed := func() int64 {
		t.Helper()
		rows, err := w.Store.ListOwed(acme.Ctx, 10)
		if err != nil {
			t.Fatal(err)
		}
		if len(rows) == 0 {
			return 0
		}
		if rows[0].Agent != bot.ID || rows[0].Channel != channel.ID || rows[0].LastPos != two.Pos {
			t.Errorf("owed %+v", rows[0])
		}
		return rows[0].Count
	}
	if n := owed(); n != 1 {
		t.Errorf("%d owed, want 1: what is set aside is not owed", n)
	}
	for _, c := range []struct {
		dry        bool
		want, left int64
	}{{true, 1, 1}, {false, 1, 0}, {false, 0, 0}} {
		n, err := w.Store.PurgeDeadLetters(acme.Ctx, store.DeadLetterFilter{}, "test", c.dry)
		if err != nil || n != c.want || int64(len(deadLetters(t, acme))) != c.left {
			t.Errorf("purge %+v counted %d, %v; left %v", c, n, err, deadLetters(t, acme))
		}
	}
	if n := owed(); n != 1 {
		t.Errorf("%d owed after the purge, want 1: the purged message came back through the chain", n)
	}
}

func TestStatusAndHeld(t *testing.T) {
	t.Parallel()
	w := worldtest.New(t)
	acme := w.Tenant(t, "acme")
	bot, other := acme.Agent(t, "bot"), acme.Agent(t, "other")
	channel := acme.Channel(t, "a", bot)
	acme.Post(t, acme.Admin, channel, "chain")
	n := acme.Message(acme.Admin, channel, "")
	n.Blocks = []store.Block{store.Mention("bot"), store.Mention("other")}
	if _, _, _, err := w.Store.AppendMessage(acme.Ctx, n); err != nil {
		t.Fatal(err)
	}
	s := acme.Session(t, bot)
	held := acme.Message(bot, channel, "secret so far")
	held.In = s.In("t1")
	if _, _, _, err := w.Store.AppendMessage(acme.Ctx, held); err != nil {
		t.Fatal(err)
	}
	status, err := w.Store.TenantStatus(acme.Ctx)
	want := store.Status{ID: acme.ID, Slug: "acme", Stream: "main", Messages: 3, Owed: 3, Held: 1, LiveSessions: 1}
	if err != nil || !cmp.Equal(want, status) {
		t.Errorf("%v %s", err, cmp.Diff(want, status))
	}
	owed, err := w.Store.ListOwed(acme.Ctx, 1)
	if err != nil || len(owed) != 1 || owed[0].Agent != bot.ID || owed[0].Count != 2 {
		t.Errorf("owes most: %+v, %v; want %s with 2 (%s is owed a mention)", owed, err, bot.ID, other.ID)
	}
	ms, err := w.Store.ListHeld(acme.Ctx, 10)
	if err != nil || len(ms) != 1 || ms[0].ID != held.ID || ms[0].Blocks != nil {
		t.Errorf("held %+v, %v: want it without content", ms, err)
	}
}
