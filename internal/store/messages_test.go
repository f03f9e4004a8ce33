package store_test

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rigelbuild/compass-operator/internal/store"
	"github.com/rigelbuild/compass-operator/internal/store/worldtest"
)

// ids are the messages that were touched, by channel.
func ids(touched []store.Touched) map[string][]string {
	out := map[string][]string{}
	for _, t := range touched {
		for _, m := range t.Messages {
			out[t.Channel] = append(out[t.Channel], m.ID)
		}
	}
	return out
}

// Holds REQ-036, REQ-225 (a person's message has its position at once: seq = rev = pos).
func TestPersonsMessageIsDeliverableAtOnce(t *testing.T) {
	t.Parallel()
	w := worldtest.New(t)
	acme := w.Tenant(t, "acme")
	channel := acme.Channel(t, "general")
	n := acme.Message(acme.Admin, channel, "hello")
	m, inserted, touched, err := w.Store.AppendMessage(acme.Ctx, n)
	if err != nil || !inserted {
		t.Fatalf("inserted %v, %v", inserted, err)
	}
	if m.Held() || m.Seq != m.Pos || m.Rev != m.Pos {
		t.Errorf("seq %d rev %d pos %d, want one number", m.Seq, m.Rev, m.Pos)
	}
	want := []store.Touched{{Channel: channel.ID, Messages: []store.MessageRef{{ID: n.ID, Pos: m.Pos}}}}
	if diff := cmp.Diff(want, touched); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(n.Blocks, m.Blocks); diff != "" {
		t.Error(diff)
	}
	if n := w.Count(t, `select count(*) from compass.messages where mentions_routed_at is null`); n != 0 {
		t.Errorf("%d messages with a position are not routed: the net must find none", n)
	}
}

// Holds REQ-068 (store side: a repeat inserts nothing and touches nothing).
func TestPostIsIdempotentByAuthorAndClientID(t *testing.T) {
	t.Parallel()
	w := worldtest.New(t)
	acme := w.Tenant(t, "acme")
	ada := acme.Person(t, "ada")
	general, other := acme.Channel(t, "general", ada), acme.Channel(t, "other", ada)
	first := acme.Message(ada, general, "one")
	made, _, _, err := w.Store.AppendMessage(acme.Ctx, first)
	if err != nil {
		t.Fatal(err)
	}
	repeat := first
	repeat.ID, repeat.Blocks = w.IDs.Message(), []store.Block{store.Text("two")}
	again, inserted, touched, err := w.Store.AppendMessage(acme.Ctx, repeat)
	if err != nil || inserted || touched != nil {
		t.Fatalf("repeat: inserted %v, touched %v, %v", inserted, touched, err)
	}
	if diff := cmp.Diff(made, again); diff != "" {
		t.Errorf("a repeat answers with the first one: %s", diff)
	}
	elsewhere := repeat
	elsewhere.Channel = other.ID
	if _, _, _, err := w.Store.AppendMessage(acme.Ctx, elsewhere); !errors.Is(err, store.ErrConflict) {
		t.Errorf("the same client id in another channel: %v, want ErrConflict", err)
	}
	if _, _, _, err := w.Store.AppendAsk(acme.Ctx, repeat); !errors.Is(err, store.ErrConflict) {
		t.Errorf("the same client id as a question: %v, want ErrConflict", err)
	}
	mine := repeat
	mine.Author = acme.Admin.ID
	if _, inserted, _, err := w.Store.AppendMessage(acme.Ctx, mine); err != nil || !inserted {
		t.Errorf("another author's client id is his own: inserted %v, %v", inserted, err)
	}
	// The repeat is answered before anything else is judged.
	if _, err := w.Store.ArchiveChannel(acme.Ctx, general.ID, ada.ID); err != nil {
		t.Fatal(err)
	}
	if _, inserted, _, err := w.Store.AppendMessage(acme.Ctx, repeat); err != nil || inserted {
		t.Errorf("repeat in an archived channel: inserted %v, %v", inserted, err)
	}
}

func TestConcurrentRepeatsMakeOneMessage(t *testing.T) {
	t.Parallel()
	w := worldtest.New(t)
	acme := w.Tenant(t, "acme")
	channels := []store.Channel{acme.Channel(t, "a"), acme.Channel(t, "b")}
	for round := range 10 {
		var wg sync.WaitGroup
		var mu sync.Mutex
		made := 0
		for i := range 8 {
			wg.Go(func() {
				n := acme.Message(acme.Admin, channels[i%2], "x")
				n.ClientID = fmt.Sprint("round ", round)
				_, inserted, _, err := w.Store.AppendMessage(acme.Ctx, n)
				mu.Lock()
				defer mu.Unlock()
				if inserted {
					made++
				}
				if err != nil && !errors.Is(err, store.ErrConflict) {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if made != 1 {
			t.Fatalf("round %d made %d messages", round, made)
		}
	}
	// A position without a message would leave every agent behind its channel's head for ever.
	orphans := w.Count(t, `select count(*) from compass.channel_heads h
		where h.last_pos > coalesce((select max(pos) from compass.messages m where m.channel_id = h.channel_id), 0)`)
	if orphans != 0 {
		t.Errorf("%d heads point beyond their last message", orphans)
	}
}

func TestPostNeedsMembershipAndAnOpenChannel(t *testing.T) {
	t.Parallel()
	w := worldtest.New(t)
	acme := w.Tenant(t, "acme")
	ada := acme.Person(t, "ada")
	channel := acme.Channel(t, "general")
	if _, _, _, err := w.Store.AppendMessage(acme.Ctx, acme.Message(ada, channel, "x")); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("not a member: %v, want ErrNotFound", err)
	}
	unknown := store.Channel{ID: w.IDs.Channel()}
	if _, _, _, err := w.Store.AppendMessage(acme.Ctx, acme.Message(ada, unknown, "x")); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("unknown channel: %v, want ErrNotFound", err)
	}
	head := w.Count(t, `select last from compass.channel_heads where channel_id = $1`, channel.ID)
	if head != 0 {
		t.Errorf("a refused post took position %d", head)
	}
	if _, err := w.Store.ArchiveChannel(acme.Ctx, channel.ID, acme.Admin.ID); err != nil {
		t.Fatal(err)
	}
	for name, post := range map[string]func() error{
		"post": func() error {
			_, _, _, err := w.Store.AppendMessage(acme.Ctx, acme.Message(acme.Admin, channel, "x"))
			return err
		},
		"ask": func() error {
			_, _, _, err := w.Store.AppendAsk(acme.Ctx, acme.Message(acme.Admin, channel, "x"))
			return err
		},
	} {
		if err := post(); !errors.Is(err, store.ErrPrecondition) {
			t.Errorf("%s in an archived channel: %v, want ErrPrecondition", name, err)
		}
	}
}

// Holds REQ-037, REQ-226 (held while the turn is open; settled whole, in the order in which it was written).
func TestTurnIsHeldAndSettlesWhole(t *testing.T) {
	t.Parallel()
	w := worldtest.New(t)
	acme := w.Tenant(t, "acme")
	bot := acme.Agent(t, "bot")
	a, b := acme.Channel(t, "a", bot), acme.Channel(t, "b", bot)
	s := acme.Session(t, bot)
	want := map[string][]string{}
	for i, c := range []store.Channel{b, a, b, a, b} {
		n := acme.Message(bot, c, fmt.Sprint(i))
		n.In = s.In("t1")
		m, inserted, touched, err := w.Store.AppendMessage(acme.Ctx, n)
		if err != nil || !inserted || touched != nil {
			t.Fatalf("inserted %v, touched %v, %v", inserted, touched, err)
		}
		if !m.Held() || m.Turn != "t1" || m.Session != s.ID || m.Author != bot.ID {
			t.Errorf("message in a turn is %+v, want it held", m)
		}
		want[c.ID] = append(want[c.ID], m.ID)
	}
	if last := w.Count(t, `select coalesce(max(last_pos), 0) from compass.channel_heads`); last != 0 {
		t.Errorf("last_pos %d before the settle: a held message moved the head of what is deliverable", last)
	}
	touched, err := w.Store.SettleTurn(acme.Ctx, s.Next(), "t1")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, ids(touched)); diff != "" {
		t.Error(diff)
	}
	if !slices.IsSortedFunc(touched, func(x, y store.Touched) int { return cmpString(x.Channel, y.Channel) }) {
		t.Error("channels are not in the order of their locks")
	}
	for _, tc := range touched {
		for i, ref := range tc.Messages {
			m, err := w.Store.MessageByID(acme.Ctx, ref.ID)
			if err != nil || m.Pos != ref.Pos || m.Rev != ref.Pos {
				t.Errorf("message %+v, %v: want pos = rev = %d", m, err, ref.Pos)
			}
			if i > 0 && ref.Pos != tc.Messages[i-1].Pos+1 {
				t.Errorf("positions of one settle are not consecutive: %v", tc.Messages)
			}
		}
	}
	again, err := w.Store.SettleTurn(acme.Ctx, s.Next(), "t1")
	if err != nil || again != nil {
		t.Errorf("settling again touched %v, %v", again, err)
	}
	late := acme.Message(bot, a, "late")
	late.In = s.In("t1")
	if _, _, _, err := w.Store.AppendMessage(acme.Ctx, late); !errors.Is(err, store.ErrPrecondition) {
		t.Errorf("post in a settled turn: %v, want ErrPrecondition", err)
	}
}

func cmpString(a, b string) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// Holds REQ-229 (an event is applied once; its repeat is answered as it was, also after its turn has settled).
func TestRepeatOfATurnsPostIsAnswered(t *testing.T) {
	t.Parallel()
	w := worldtest.New(t)
	acme := w.Tenant(t, "acme")
	bot := acme.Agent(t, "bot")
	channel := acme.Channel(t, "a", bot)
	s := acme.Session(t, bot)
	n := acme.Message(bot, channel, "x")
	n.In = s.In("t1")
	made, _, _, err := w.Store.AppendMessage(acme.Ctx, n)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Store.SettleTurn(acme.Ctx, s.Next(), "t1"); err != nil {
		t.Fatal(err)
	}
	for name, in := range map[string]*store.InTurn{
		"same event": {Event: store.Event{Session: s.ID, Generation: s.Generation, Runner: s.Runner, N: 1}, Turn: "t1"},
		"new event":  s.In("t1"),
	} {
		repeat := n
		repeat.ID, repeat.In = w.IDs.Message(), in
		m, inserted, touched, err := w.Store.AppendMessage(acme.Ctx, repeat)
		if err != nil || inserted || touched != nil || m.ID != made.ID {
			t.Errorf("%s: message %s inserted %v touched %v, %v", name, m.ID, inserted, touched, err)
		}
	}
	other := acme.Message(bot, channel, "y")
	other.In = &store.InTurn{Event: s.Last(), Turn: "t2"}
	if _, _, _, err := w.Store.AppendMessage(acme.Ctx, other); !errors.Is(err, store.ErrConflict) {
		t.Errorf("another call with a number that was taken: %v, want ErrConflict", err)
	}
}

// A turn that is open when the session opens the next one is over (OneTurn).
func TestNextTurnSettlesTheOneBefore(t *testing.T) {
	t.Parallel()
	w := worldtest.New(t)
	acme := w.Tenant(t, "acme")
	bot := acme.Agent(t, "bot")
	a, b := acme.Channel(t, "a", bot), acme.Channel(t, "b", bot)
	s := acme.Session(t, bot)
	post := func(turn string, c store.Channel) ([]store.Touched, string) {
		n := acme.Message(bot, c, turn)
		n.In = s.In(turn)
		m, _, touched, err := w.Store.AppendMessage(acme.Ctx, n)
		if err != nil {
			t.Fatal(err)
		}
		return touched, m.ID
	}
	_, first := post("t1", a)
	_, second := post("t1", b)
	touched, third := post("t2", a)
	if diff := cmp.Diff(map[string][]string{a.ID: {first}, b.ID: {second}}, ids(touched)); diff != "" {
		t.Error(diff)
	}
	m, err := w.Store.MessageByID(acme.Ctx, third)
	if err != nil || !m.Held() {
		t.Errorf("message of the next turn: %+v, %v: want it held", m, err)
	}
	by := w.Strings(t, `select coalesce(settled_by, 'open') from compass.turns order by id`)
	if diff := cmp.Diff([]string{"next_turn", "open"}, by); diff != "" {
		t.Error(diff)
	}
	if open := w.Strings(t, `select coalesce(open_turn, '') from compass.session_bindings`); open[0] != "t2" {
		t.Errorf("binding names turn %q, want t2", open[0])
	}
}

func TestEventsOfAnotherSessionAreStale(t *testing.T) {
	t.Parallel()
	w := worldtest.New(t)
	acme := w.Tenant(t, "acme")
	bot := acme.Agent(t, "bot")
	channel := acme.Channel(t, "a", bot)
	s := acme.Session(t, bot)
	for name, spoil := range map[string]func(*store.Event){
		"session":    func(e *store.Event) { e.Session = "ses_unknown" },
		"generation": func(e *store.Event) { e.Generation++ },
		"runner":     func(e *store.Event) { e.Runner = "r-other" },
	} {
		n := acme.Message(bot, channel, "x")
		n.In = s.In("t1")
		spoil(&n.In.Event)
		if _, _, _, err := w.Store.AppendMessage(acme.Ctx, n); !errors.Is(err, store.ErrStale) {
			t.Errorf("%s: %v, want ErrStale", name, err)
		}
	}
}

// Holds REQ-226 (settle and post cannot race into "held for ever").
func TestSettleAgainstPostsHoldsNothingForEver(t *testing.T) {
	t.Parallel()
	w := worldtest.New(t)
	acme := w.Tenant(t, "acme")
	bot := acme.Agent(t, "bot")
	a, b := acme.Channel(t, "a", bot), acme.Channel(t, "b", bot)
	s := acme.Session(t, bot)
	for round := range 15 {
		turn := fmt.Sprint("t", round)
		open := acme.Message(bot, a, "first")
		open.In = s.In(turn)
		first, _, _, err := w.Store.AppendMessage(acme.Ctx, open)
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		// A session's own events are serial by its binding; edits through the API and a settle by the expirer are not.
		for range 3 {
			wg.Go(func() {
				edit := store.Edit{Message: first.ID, Author: bot.ID, Blocks: []store.Block{store.Text("+")}, Append: true}
				if _, err := w.Store.EditMessage(acme.Ctx, edit); err != nil && !errors.Is(err, store.ErrPrecondition) {
					t.Error(err)
				}
			})
		}
		post, settle := acme.Message(bot, b, "second"), s.Next()
		post.In = s.In(turn)
		wg.Go(func() {
			_, _, _, err := w.Store.AppendMessage(acme.Ctx, post)
			if err != nil && !errors.Is(err, store.ErrPrecondition) {
				t.Error(err)
			}
		})
		wg.Go(func() {
			if _, err := w.Store.SettleTurn(acme.Ctx, settle, turn); err != nil {
				t.Error(err)
			}
		})
		wg.Wait()
		if _, err := w.Store.SettleTurn(acme.Ctx, s.Next(), turn); err != nil { // where the post's number overtook the settle's
			t.Fatal(err)
		}
		stuck := w.Strings(t, `select m.id from compass.messages m join compass.turns t on t.session_id = m.session_id and t.id = m.turn_id
			where m.pos is null and t.settled_by is not null`)
		if len(stuck) != 0 {
			t.Fatalf("round %d: held for ever: %v", round, stuck)
		}
	}
}
