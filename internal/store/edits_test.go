package store_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rigelbuild/compass-operator/internal/store"
	"github.com/rigelbuild/compass-operator/internal/store/worldtest"
)

// Holds REQ-226 (an edit changes only what no agent was shown: refused once the message has its position).
func TestEditOnlyWhileTheTurnIsOpen(t *testing.T) {
	t.Parallel()
	w := worldtest.New(t)
	acme := w.Tenant(t, "acme")
	bot := acme.Agent(t, "bot")
	channel := acme.Channel(t, "a", bot)
	s := acme.Session(t, bot)
	n := acme.Message(bot, channel, "one")
	n.In = s.In("t1")
	m, _, _, err := w.Store.AppendMessage(acme.Ctx, n)
	if err != nil {
		t.Fatal(err)
	}
	edit := store.Edit{Message: m.ID, Blocks: []store.Block{store.Text(" two"), store.Mention("bot")}, Append: true, In: s.In("t1")}
	edited, err := w.Store.EditMessage(acme.Ctx, edit)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]store.Block{store.Text("one"), store.Text(" two"), store.Mention("bot")}, edited.Blocks); diff != "" {
		t.Error(diff)
	}
	if edited.Rev <= m.Rev || edited.Seq != m.Seq || !edited.Held() {
		t.Errorf("edit made seq %d rev %d pos %d of seq %d rev %d", edited.Seq, edited.Rev, edited.Pos, m.Seq, m.Rev)
	}
	again, err := w.Store.EditMessage(acme.Ctx, edit) // the same event: appended once
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(edited, again); diff != "" {
		t.Error(diff)
	}
	replace := store.Edit{Message: m.ID, Author: bot.ID, Blocks: []store.Block{store.Text("three")}}
	if edited, err = w.Store.EditMessage(acme.Ctx, replace); err != nil || len(edited.Blocks) != 1 {
		t.Errorf("replace: %v, %v", edited.Blocks, err)
	}
	other := replace
	other.In = s.In("t9")
	if _, err := w.Store.EditMessage(acme.Ctx, other); !errors.Is(err, store.ErrPrecondition) {
		t.Errorf("edit from another turn: %v, want ErrPrecondition", err)
	}
	if _, err := w.Store.SettleTurn(acme.Ctx, s.Next(), "t1"); err != nil {
		t.Fatal(err)
	}
	before, _ := w.Store.MessageByID(acme.Ctx, m.ID)
	if _, err := w.Store.EditMessage(acme.Ctx, replace); !errors.Is(err, store.ErrPrecondition) {
		t.Errorf("edit after the settle: %v, want ErrPrecondition", err)
	}
	after, _ := w.Store.MessageByID(acme.Ctx, m.ID)
	if diff := cmp.Diff(before, after); diff != "" {
		t.Error(diff)
	}
}

func TestEditRefusals(t *testing.T) {
	t.Parallel()
	w := worldtest.New(t)
	acme := w.Tenant(t, "acme")
	bot := acme.Agent(t, "bot")
	channel := acme.Channel(t, "a", bot)
	s := acme.Session(t, bot)
	n := acme.Message(bot, channel, "one")
	n.In = s.In("t1")
	held, _, _, err := w.Store.AppendMessage(acme.Ctx, n)
	if err != nil {
		t.Fatal(err)
	}
	posted := acme.Post(t, acme.Admin, channel, "done")
	text := []store.Block{store.Text("x")}
	for name, c := range map[string]struct {
		edit store.Edit
		want error
	}{
		"unknown":           {store.Edit{Message: w.IDs.Message(), Author: bot.ID, Blocks: text}, store.ErrNotFound},
		"somebody else's":   {store.Edit{Message: held.ID, Author: acme.Admin.ID, Blocks: text}, store.ErrNotFound},
		"a person's":        {store.Edit{Message: posted.ID, Author: acme.Admin.ID, Blocks: text}, store.ErrPrecondition},
		"grown too large":   {store.Edit{Message: held.ID, Author: bot.ID, Blocks: text, Append: true, MaxBytes: 20}, store.ErrTooLarge},
		"too large at once": {store.Edit{Message: held.ID, Author: bot.ID, Blocks: []store.Block{store.Text(strings.Repeat("x", 50))}, MaxBytes: 40}, store.ErrTooLarge},
	} {
		if _, err := w.Store.EditMessage(acme.Ctx, c.edit); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
	now, err := w.Store.MessageByID(acme.Ctx, held.ID)
	if err != nil || !cmp.Equal(held, now) {
		t.Errorf("a refused edit changed the message: %s", cmp.Diff(held, now))
	}
	if err := w.Store.RemoveMember(acme.Ctx, store.Member{Channel: channel.ID, Account: bot.ID, Actor: bot.ID}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Store.EditMessage(acme.Ctx, store.Edit{Message: held.ID, Author: bot.ID, Blocks: text}); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("an ex-member's edit: %v, want ErrNotFound", err)
	}
}

// Holds REQ-229 (a frame's event is taken once, whether the frame makes the message or changes it).
func TestFramesMakeOneMessage(t *testing.T) {
	t.Parallel()
	w := worldtest.New(t)
	acme := w.Tenant(t, "acme")
	bot := acme.Agent(t, "bot")
	channel := acme.Channel(t, "a", bot)
	s := acme.Session(t, bot)
	frame := func(text string, extend bool) (store.Frame, store.Message, bool) {
		n := acme.Message(bot, channel, text)
		n.ClientID, n.In = "answer", s.In("t1")
		f := store.Frame{NewMessage: n, Append: extend, MaxBytes: 1000}
		m, created, touched, err := w.Store.CommitFrame(acme.Ctx, f)
		if err != nil || touched != nil {
			t.Fatalf("touched %v, %v", touched, err)
		}
		return f, m, created
	}
	_, first, created := frame("a", false)
	if !created || !first.Held() {
		t.Errorf("first frame: %+v, created %v", first, created)
	}
	f, second, created := frame("b", true)
	if created || second.ID != first.ID || len(second.Blocks) != 2 || second.Rev <= first.Rev {
		t.Errorf("second frame: %+v, created %v", second, created)
	}
	again, created, _, err := w.Store.CommitFrame(acme.Ctx, f)
	if err != nil || created || !cmp.Equal(second, again) {
		t.Errorf("repeat of the second frame: created %v, %v: %s", created, err, cmp.Diff(second, again))
	}
	if _, err := w.Store.SettleTurn(acme.Ctx, s.Next(), "t1"); err != nil {
		t.Fatal(err)
	}
	for turn, name := range map[string]string{"t1": "the settled turn", "t2": "another turn"} {
		late := f
		late.In = s.In(turn)
		if _, _, _, err := w.Store.CommitFrame(acme.Ctx, late); !errors.Is(err, store.ErrPrecondition) {
			t.Errorf("a frame from %s: %v, want ErrPrecondition", name, err)
		}
	}
	f.In = nil
	if _, _, _, err := w.Store.CommitFrame(acme.Ctx, f); !errors.Is(err, store.ErrPrecondition) {
		t.Errorf("a frame outside a turn: %v, want ErrPrecondition", err)
	}
}
