package store_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rigelbuild/compass-operator/internal/store"
	"github.com/rigelbuild/compass-operator/internal/store/worldtest"
)

func TestChannelsAreSeenByTheirMembers(t *testing.T) {
	t.Parallel()
	w := worldtest.New(t)
	acme := w.Tenant(t, "acme")
	ada := acme.Person(t, "ada")
	a, b := acme.Channel(t, "a", ada), acme.Channel(t, "b")
	if _, err := w.Store.CreateChannel(acme.Ctx, store.Channel{ID: w.IDs.Channel(), Name: "a", CreatedBy: ada.ID}); !errors.Is(err, store.ErrConflict) {
		t.Errorf("taken name: %v, want ErrConflict", err)
	}
	names := func(account store.Account) (out []string) {
		page := store.Page{Limit: 1}
		for {
			cs, next, err := w.Store.ListChannels(acme.Ctx, account.ID, page)
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range cs {
				out = append(out, c.Name)
			}
			if next == "" {
				return out
			}
			page.After = next
		}
	}
	if diff := cmp.Diff([]string{"a"}, names(ada)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"a", "b"}, names(acme.Admin)); diff != "" {
		t.Error(diff)
	}
	for name, err := range map[string]error{
		"archive": func() error { _, err := w.Store.ArchiveChannel(acme.Ctx, b.ID, ada.ID); return err }(),
		"list":    func() error { _, err := w.Store.ListMembers(acme.Ctx, b.ID, ada.ID); return err }(),
		"add":     w.Store.AddMember(acme.Ctx, store.Member{Channel: b.ID, Account: ada.ID, Actor: ada.ID}),
		"remove":  w.Store.RemoveMember(acme.Ctx, store.Member{Channel: b.ID, Account: acme.Admin.ID, Actor: ada.ID}),
		"unpin":   w.Store.UnpinMessage(acme.Ctx, store.Pin{Channel: b.ID, Message: "m_x", Actor: ada.ID}),
		"unknown account": w.Store.AddMember(acme.Ctx, store.Member{
			Channel: a.ID, Account: w.IDs.Account(), Actor: ada.ID,
		}),
	} {
		if !errors.Is(err, store.ErrNotFound) {
			t.Errorf("%s by who is not a member: %v, want ErrNotFound", name, err)
		}
	}
	members, err := w.Store.ListMembers(acme.Ctx, b.ID, acme.Admin.ID)
	if err != nil || len(members) != 1 {
		t.Errorf("members of b: %v, %v", members, err)
	}
}

// Holds REQ-052 (a cursor begins at the head at joining, stays on leaving, and rejoining only raises it).
func TestJoiningSetsTheCursor(t *testing.T) {
	t.Parallel()
	w := worldtest.New(t)
	acme := w.Tenant(t, "acme")
	bot := acme.Agent(t, "bot")
	channel := acme.Channel(t, "a")
	join := store.Member{Channel: channel.ID, Account: bot.ID, Actor: acme.Admin.ID}
	cursor := func() int64 {
		return int64(w.Count(t, `select acked from compass.delivery_cursors where agent_id = $1`, bot.ID))
	}
	add := func() {
		if err := w.Store.AddMember(acme.Ctx, join); err != nil {
			t.Fatal(err)
		}
	}
	first := acme.Post(t, acme.Admin, channel, "before")
	add()
	if got := cursor(); got != first.Pos {
		t.Errorf("cursor %d after joining, want the head %d", got, first.Pos)
	}
	second := acme.Post(t, acme.Admin, channel, "owed")
	add() // a member already: what is owed stays owed
	if got := cursor(); got != first.Pos {
		t.Errorf("adding a member again moved the cursor to %d: message %d is lost", got, second.Pos)
	}
	if err := w.Store.RemoveMember(acme.Ctx, join); err != nil {
		t.Fatal(err)
	}
	if got := cursor(); got != first.Pos {
		t.Errorf("leaving moved the cursor to %d", got)
	}
	third := acme.Post(t, acme.Admin, channel, "while away")
	add()
	if got := cursor(); got != third.Pos {
		t.Errorf("cursor %d after rejoining, want the head %d", got, third.Pos)
	}
}

// Whoever joins while others post is owed exactly what has a higher position than its cursor.
func TestJoiningDuringPosts(t *testing.T) {
	t.Parallel()
	w := worldtest.New(t)
	acme := w.Tenant(t, "acme")
	channel := acme.Channel(t, "a")
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			for range 15 {
				acme.Post(t, acme.Admin, channel, "x")
			}
		})
	}
	var joined []string
	for i := range 5 {
		bot := acme.Agent(t, fmt.Sprint("bot", i))
		joined = append(joined, bot.ID)
		if err := w.Store.AddMember(acme.Ctx, store.Member{Channel: channel.ID, Account: bot.ID, Actor: acme.Admin.ID}); err != nil {
			t.Error(err)
		}
	}
	wg.Wait()
	for _, id := range joined {
		between := w.Count(t, `select count(*) from compass.delivery_cursors d where d.agent_id = $1
			and d.acked <> 0 and not exists (select from compass.messages m where m.channel_id = d.channel_id and m.pos = d.acked)`, id)
		if between != 0 {
			t.Errorf("cursor of %s is at no message's position", id)
		}
	}
}

// Holds REQ-048, REQ-050, REQ-226 (mentions are routed once, in the transaction that gives the position: agents of the
// same tenant, member or not, never the author).
func TestMentionsAreRoutedWithThePosition(t *testing.T) {
	t.Parallel()
	w := worldtest.New(t)
	acme, rival := w.Tenant(t, "acme"), w.Tenant(t, "rival")
	bot, far := acme.Agent(t, "bot"), acme.Agent(t, "far")
	acme.Person(t, "ada")
	rival.Agent(t, "foreign")
	channel := acme.Channel(t, "a", bot)
	names := []store.Block{
		store.Mention("bot"), store.Mention("far"), store.Mention("far"), store.Mention("ada"),
		store.Mention("foreign"), store.Mention("nobody"),
	}
	n := acme.Message(bot, channel, "")
	n.Blocks = names
	m, _, _, err := w.Store.AppendMessage(acme.Ctx, n)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"far mention " + m.ID}, owedRows(t, w)); diff != "" {
		t.Errorf("outside a turn: %s", diff)
	}
	s := acme.Session(t, far)
	if err := w.Store.AddMember(acme.Ctx, store.Member{Channel: channel.ID, Account: far.ID, Actor: acme.Admin.ID}); err != nil {
		t.Fatal(err)
	}
	held := acme.Message(far, channel, "")
	held.Blocks, held.In = names, s.In("t1")
	h, _, _, err := w.Store.AppendMessage(acme.Ctx, held)
	if err != nil {
		t.Fatal(err)
	}
	if got := owedRows(t, w); len(got) != 1 {
		t.Errorf("a held message is owed: %v", got)
	}
	// The last content counts: a mention that was edited away reaches nobody.
	for _, e := range []store.Edit{
		{Message: h.ID, Blocks: []store.Block{store.Text("nobody")}, In: s.In("t1")},
		{Message: h.ID, Blocks: []store.Block{store.Mention("bot")}, Append: true, In: s.In("t1")},
	} {
		if _, err := w.Store.EditMessage(acme.Ctx, e); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if _, err := w.Store.SettleTurn(acme.Ctx, s.Next(), "t1"); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{"bot mention " + h.ID, "far mention " + m.ID}
	if diff := cmp.Diff(want, owedRows(t, w)); diff != "" {
		t.Errorf("after the settle: %s", diff)
	}
	if err := w.Store.RemoveMember(acme.Ctx, store.Member{Channel: channel.ID, Account: bot.ID, Actor: bot.ID}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"far mention " + m.ID}, owedRows(t, w)); diff != "" {
		t.Errorf("leaving ends what is owed: %s", diff)
	}
}

func TestPins(t *testing.T) {
	t.Parallel()
	w := worldtest.New(t)
	acme := w.Tenant(t, "acme")
	bot := acme.Agent(t, "bot")
	a, b := acme.Channel(t, "a", bot), acme.Channel(t, "b")
	m, foreign := acme.Post(t, acme.Admin, a, "read me"), acme.Post(t, acme.Admin, b, "not here")
	s := acme.Session(t, bot)
	n := acme.Message(bot, a, "unfinished")
	n.In = s.In("t1")
	held, _, _, err := w.Store.AppendMessage(acme.Ctx, n)
	if err != nil {
		t.Fatal(err)
	}
	pin := func(message string) error {
		return w.Store.PinMessage(acme.Ctx, store.Pin{Channel: a.ID, Message: message, Actor: bot.ID})
	}
	for range 2 {
		if err := pin(m.ID); err != nil {
			t.Error(err)
		}
	}
	if err := pin(foreign.ID); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("a message of another channel: %v, want ErrNotFound", err)
	}
	if err := pin(held.ID); !errors.Is(err, store.ErrPrecondition) {
		t.Errorf("a held message: %v, want ErrPrecondition", err)
	}
	pins, err := w.Store.PinsOf(acme.Ctx, bot.ID)
	if err != nil || len(pins) != 1 || pins[0].ID != m.ID {
		t.Errorf("pins %v, %v", pins, err)
	}
	if err := w.Store.UnpinMessage(acme.Ctx, store.Pin{Channel: a.ID, Message: m.ID, Actor: bot.ID}); err != nil {
		t.Error(err)
	}
	if pins, err := w.Store.PinsOf(acme.Ctx, bot.ID); err != nil || len(pins) != 0 {
		t.Errorf("pins after unpin %v, %v", pins, err)
	}
}

// Open-turn text is shown to people and to its author, never to other agents (design section 2, visibility).
func TestListMessagesByRev(t *testing.T) {
	t.Parallel()
	w := worldtest.New(t)
	acme := w.Tenant(t, "acme")
	ada, bot, other := acme.Person(t, "ada"), acme.Agent(t, "bot"), acme.Agent(t, "other")
	channel := acme.Channel(t, "a", ada, bot, other)
	s := acme.Session(t, bot)
	n := acme.Message(bot, channel, "held")
	n.In = s.In("t1")
	held, _, _, err := w.Store.AppendMessage(acme.Ctx, n)
	if err != nil {
		t.Fatal(err)
	}
	posted := acme.Post(t, ada, channel, "posted")
	list := func(reader store.Account, after int64, limit int) ([]string, bool) {
		ms, more, err := w.Store.ListMessages(acme.Ctx, store.MessagePage{Channel: channel.ID, Reader: reader.ID, AfterRev: after, Limit: limit})
		if err != nil {
			t.Fatal(err)
		}
		out := []string{}
		for _, m := range ms {
			out = append(out, m.ID)
		}
		return out, more
	}
	for _, c := range []struct {
		name   string
		reader store.Account
		want   []string
	}{
		{"a person", ada, []string{held.ID, posted.ID}},
		{"its author", bot, []string{held.ID, posted.ID}},
		{"another agent", other, []string{posted.ID}},
	} {
		if got, more := list(c.reader, 0, 10); more || !cmp.Equal(c.want, got) {
			t.Errorf("%s sees %v, more %v, want %v", c.name, got, more, c.want)
		}
	}
	if got, more := list(ada, 0, 1); !more || !cmp.Equal([]string{held.ID}, got) {
		t.Errorf("first page %v, more %v", got, more)
	}
	if got, more := list(ada, held.Rev, 1); more || !cmp.Equal([]string{posted.ID}, got) {
		t.Errorf("second page %v, more %v", got, more)
	}
	if _, err := w.Store.SettleTurn(acme.Ctx, s.Next(), "t1"); err != nil {
		t.Fatal(err)
	}
	if got, _ := list(other, posted.Rev, 10); !cmp.Equal([]string{held.ID}, got) {
		t.Errorf("after the settle another agent sees %v", got)
	}
	out := acme.Person(t, "out")
	if _, _, err := w.Store.ListMessages(acme.Ctx, store.MessagePage{Channel: channel.ID, Reader: out.ID, Limit: 10}); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("not a member: %v, want ErrNotFound", err)
	}
}
