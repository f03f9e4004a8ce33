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

// owedRows lists what is owed beside the chain as "handle kind message".
func owedRows(t *testing.T, w *worldtest.World) []string {
	t.Helper()
	return w.Strings(t, `select a.handle || ' ' || o.kind || ' ' || o.message_id || case when o.done then ' done' else '' end
		from compass.owed_mentions o join compass.accounts a on a.tenant_id = o.tenant_id and a.id = o.agent_id
		join compass.messages m on m.tenant_id = o.tenant_id and m.id = o.message_id and m.pos = o.pos order by 1`)
}

// Holds REQ-226 (an ask inside a turn does not wait for itself, and comes after its context and before what follows).
func TestAskInATurnKeepsItsContext(t *testing.T) {
	t.Parallel()
	w := worldtest.New(t)
	acme := w.Tenant(t, "acme")
	bot := acme.Agent(t, "bot")
	a, b := acme.Channel(t, "a", bot), acme.Channel(t, "b", bot)
	s := acme.Session(t, bot)
	say := func(c store.Channel, text string) string {
		n := acme.Message(bot, c, text)
		n.In = s.In("t1")
		m, _, touched, err := w.Store.AppendMessage(acme.Ctx, n)
		if err != nil || touched != nil || !m.Held() {
			t.Fatalf("%s: %+v, touched %v, %v", text, m, touched, err)
		}
		return m.ID
	}
	one, elsewhere, two := say(a, "one"), say(b, "elsewhere"), say(a, "two")
	question := acme.Message(bot, a, "which?")
	question.In = s.In("t1")
	ask, inserted, touched, err := w.Store.AppendAsk(acme.Ctx, question)
	if err != nil || !inserted || ask.Held() || ask.Kind != store.KindAsk {
		t.Fatalf("ask %+v, inserted %v, %v", ask, inserted, err)
	}
	if diff := cmp.Diff(map[string][]string{a.ID: {one, two, ask.ID}}, ids(touched)); diff != "" {
		t.Errorf("what the question made deliverable, in order: %s", diff)
	}
	if m, _ := w.Store.MessageByID(acme.Ctx, elsewhere); !m.Held() {
		t.Error("what was said in another channel left with the question")
	}
	three := say(a, "three") // the turn is still open
	repeat := question
	repeat.ID, repeat.In = w.IDs.Message(), s.In("t1")
	if again, inserted, touched, err := w.Store.AppendAsk(acme.Ctx, repeat); err != nil || inserted || touched != nil || again.ID != ask.ID {
		t.Errorf("repeat: %s inserted %v touched %v, %v", again.ID, inserted, touched, err)
	}
	touched, err = w.Store.SettleTurn(acme.Ctx, s.Next(), "t1")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string][]string{a.ID: {three}, b.ID: {elsewhere}}, ids(touched)); diff != "" {
		t.Error(diff)
	}
	if _, _, _, err := w.Store.AppendAsk(acme.Ctx, store.NewMessage{
		ID: w.IDs.Message(), Channel: a.ID, ClientID: "late", Blocks: question.Blocks, In: s.In("t1"),
	}); !errors.Is(err, store.ErrPrecondition) {
		t.Errorf("ask in a settled turn: %v, want ErrPrecondition", err)
	}
}

func TestAskNeedsMembership(t *testing.T) {
	t.Parallel()
	w := worldtest.New(t)
	acme := w.Tenant(t, "acme")
	bot := acme.Agent(t, "bot")
	channel := acme.Channel(t, "a")
	s := acme.Session(t, bot)
	n := acme.Message(bot, channel, "?")
	n.In = s.In("t1")
	if _, _, _, err := w.Store.AppendAsk(acme.Ctx, n); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("in a turn: %v, want ErrNotFound", err)
	}
	n.In = nil
	if _, _, _, err := w.Store.AppendAsk(acme.Ctx, n); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("outside a turn: %v, want ErrNotFound", err)
	}
	if turns := w.Count(t, `select count(*) from compass.turns`); turns != 0 {
		t.Error("a refused ask left its turn open")
	}
}

// Holds REQ-050, REQ-070 (store side: the answer is owed to the agent that asked, once, as an answer).
func TestAnswerIsOwedToTheAsker(t *testing.T) {
	t.Parallel()
	w := worldtest.New(t)
	acme := w.Tenant(t, "acme")
	ada, bot := acme.Person(t, "ada"), acme.Agent(t, "bot")
	channel := acme.Channel(t, "a", ada, bot)
	s := acme.Session(t, bot)
	question := acme.Message(bot, channel, "which?")
	question.In = s.In("t1")
	ask, _, _, err := w.Store.AppendAsk(acme.Ctx, question)
	if err != nil {
		t.Fatal(err)
	}
	n := store.NewAnswer{
		ID: w.IDs.Message(), Ask: ask.ID, Author: ada.ID, ClientID: "1",
		Blocks: []store.Block{store.Mention("bot"), store.Text(" that one")},
	}
	answer, inserted, touched, err := w.Store.AnswerAsk(acme.Ctx, n)
	if err != nil || !inserted || answer.Held() || answer.Ask != ask.ID {
		t.Fatalf("answer %+v, inserted %v, %v", answer, inserted, err)
	}
	if diff := cmp.Diff(map[string][]string{channel.ID: {answer.ID}}, ids(touched)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"bot answer " + answer.ID}, owedRows(t, w)); diff != "" {
		t.Errorf("owed both as a mention and as an answer, it is one row: %s", diff)
	}
	again, inserted, touched, err := w.Store.AnswerAsk(acme.Ctx, n)
	if err != nil || inserted || touched != nil {
		t.Errorf("repeat: inserted %v, touched %v, %v", inserted, touched, err)
	}
	if diff := cmp.Diff(answer, again); diff != "" {
		t.Error(diff)
	}
	second := n
	second.ID, second.ClientID = w.IDs.Message(), "2"
	if _, _, _, err := w.Store.AnswerAsk(acme.Ctx, second); !errors.Is(err, store.ErrPrecondition) {
		t.Errorf("a second answer: %v, want ErrPrecondition", err)
	}
	asked, err := w.Store.MessageByID(acme.Ctx, ask.ID)
	if err != nil || asked.Answer != answer.ID {
		t.Errorf("the question names answer %q, %v", asked.Answer, err)
	}
}

func TestAnswerRefusals(t *testing.T) {
	t.Parallel()
	w := worldtest.New(t)
	acme := w.Tenant(t, "acme")
	ada, out := acme.Person(t, "ada"), acme.Person(t, "out")
	channel := acme.Channel(t, "a", ada)
	plain := acme.Post(t, ada, channel, "no question")
	ask := func() store.Message {
		m, _, _, err := w.Store.AppendAsk(acme.Ctx, acme.Message(ada, channel, "?"))
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	first, second := ask(), ask()
	answer := func(author store.Account, ask, client string) error {
		_, _, _, err := w.Store.AnswerAsk(acme.Ctx, store.NewAnswer{
			ID: w.IDs.Message(), Ask: ask, Author: author.ID, ClientID: client, Blocks: []store.Block{store.Text("x")},
		})
		return err
	}
	if err := answer(ada, plain.ID, "1"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("what is no question: %v, want ErrNotFound", err)
	}
	if err := answer(out, first.ID, "1"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("not a member: %v, want ErrNotFound", err)
	}
	if err := answer(ada, first.ID, "1"); err != nil {
		t.Error(err)
	}
	if err := answer(ada, second.ID, "1"); !errors.Is(err, store.ErrConflict) {
		t.Errorf("the client id of another answer: %v, want ErrConflict", err)
	}
	if got := owedRows(t, w); len(got) != 0 {
		t.Errorf("a person is owed %v", got)
	}
	if _, err := w.Store.ArchiveChannel(acme.Ctx, channel.ID, ada.ID); err != nil {
		t.Fatal(err)
	}
	if err := answer(ada, second.ID, "3"); !errors.Is(err, store.ErrPrecondition) {
		t.Errorf("archived: %v, want ErrPrecondition", err)
	}
}

func TestOneOfManyAnswersWins(t *testing.T) {
	t.Parallel()
	w := worldtest.New(t)
	acme := w.Tenant(t, "acme")
	bot := acme.Agent(t, "bot")
	channel := acme.Channel(t, "a", bot)
	ask, _, _, err := w.Store.AppendAsk(acme.Ctx, acme.Message(bot, channel, "?"))
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	made := 0
	for i := range 8 {
		wg.Go(func() {
			_, inserted, _, err := w.Store.AnswerAsk(acme.Ctx, store.NewAnswer{
				ID: w.IDs.Message(), Ask: ask.ID, Author: acme.Admin.ID, ClientID: fmt.Sprint(i), Blocks: []store.Block{store.Text("x")},
			})
			mu.Lock()
			defer mu.Unlock()
			if inserted {
				made++
			}
			if err != nil && !errors.Is(err, store.ErrPrecondition) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if made != 1 || len(owedRows(t, w)) != 1 {
		t.Errorf("%d answers were made, %v are owed", made, owedRows(t, w))
	}
}

// Asks, edits, settles and posts of two sessions over the same channels, side by side: the order of locks holds.
func TestAsksDoNotDeadlock(t *testing.T) {
	t.Parallel()
	w := worldtest.New(t)
	acme := w.Tenant(t, "acme")
	bots := []store.Account{acme.Agent(t, "bot1"), acme.Agent(t, "bot2"), acme.Agent(t, "bot3")}
	channels := []store.Channel{acme.Channel(t, "a", bots...), acme.Channel(t, "b", bots...), acme.Channel(t, "c", bots...)}
	var wg sync.WaitGroup
	for i, bot := range bots {
		s := acme.Session(t, bot)
		wg.Go(func() {
			for round := range 12 {
				turn := fmt.Sprint("t", round/2) // every other turn is ended by the next one
				var last store.Message
				for j := range channels {
					n := acme.Message(bot, channels[(i+j)%len(channels)], "x")
					n.Blocks = append(n.Blocks, store.Mention(bots[(i+1)%3].Handle))
					n.In = s.In(turn)
					m, _, _, err := w.Store.AppendMessage(acme.Ctx, n)
					if err != nil {
						t.Error(err)
						return
					}
					last = m
				}
				if _, err := w.Store.EditMessage(acme.Ctx, store.Edit{
					Message: last.ID, Blocks: []store.Block{store.Text("y")}, In: s.In(turn),
				}); err != nil {
					t.Error(err)
				}
				n := acme.Message(bot, channels[(i+round)%len(channels)], "?")
				n.In = s.In(turn)
				if _, _, _, err := w.Store.AppendAsk(acme.Ctx, n); err != nil {
					t.Error(err)
				}
				if round%4 == 3 {
					if _, err := w.Store.SettleTurn(acme.Ctx, s.Next(), turn); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	wg.Wait()
	if n := w.Count(t, `select count(*) from compass.messages where (pos is null) <> (mentions_routed_at is null)`); n != 0 {
		t.Errorf("%d messages got their position without being routed", n)
	}
	if n := w.Count(t, `select deadlocks from pg_stat_database where datname = current_database()`); n != 0 {
		t.Errorf("%d deadlocks", n)
	}
}
