package store_test

import (
	"errors"
	"testing"
	"time"

	"github.com/rigelbuild/compass-operator/internal/store"
	"github.com/rigelbuild/compass-operator/internal/store/storetest"
	"github.com/rigelbuild/compass-operator/internal/store/worldtest"
)

// blocked returns once a statement in this database waits for a lock, or call has ended.
func blocked(t *testing.T, w *worldtest.World, call <-chan error) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for time.Now().Before(deadline) {
		if w.Count(t, `select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`) > 0 {
			return
		}
		if len(call) > 0 {
			return
		}
	}
	t.Fatal("the call neither waits nor ends")
}

// start runs a call beside the test.
func start(call func() error) <-chan error {
	ended := make(chan error, 1)
	go func() { ended <- call() }()
	return ended
}

// Holds REQ-045, REQ-226 (D4: a settle waits for the post that shares its turn, and settles what that made).
func TestSettleWaitsForPosts(t *testing.T) {
	t.Parallel()
	w := worldtest.New(t)
	acme := w.Tenant(t, "acme")
	bot := acme.Agent(t, "bot")
	channel := acme.Channel(t, "a", bot)
	s := acme.Session(t, bot)
	n := acme.Message(bot, channel, "one")
	n.In = s.In("t1")
	if _, _, _, err := w.Store.AppendMessage(acme.Ctx, n); err != nil {
		t.Fatal(err)
	}
	// A post that has shared the turn and is about to insert.
	super := storetest.Connect(t, w.Database.Super)
	post, err := super.Begin(t.Context())
	must(t, err)
	_, err = post.Exec(t.Context(), `select from compass.turns where session_id = $1 for share`, s.ID)
	must(t, err)
	next := s.Next()
	settle := start(func() error {
		_, err := w.Store.SettleTurn(acme.Ctx, next, "t1")
		return err
	})
	blocked(t, w, settle)
	_, err = post.Exec(t.Context(), `insert into compass.messages
		(tenant_id, id, channel_id, author_id, session_id, turn_id, seq, rev, blocks, client_id)
		select tenant_id, $1, channel_id, author_id, session_id, turn_id, seq + 1, seq + 1, blocks, $1 from compass.messages`, w.IDs.Message())
	must(t, err)
	must(t, post.Commit(t.Context()))
	must(t, <-settle)
	if held := w.Count(t, `select count(*) from compass.messages where pos is null`); held != 0 {
		t.Errorf("%d messages are held for ever", held)
	}
}

// Holds REQ-226 (D4: posts and edits wait for the settle that has their turn, and are refused).
func TestPostsWaitForTheSettle(t *testing.T) {
	t.Parallel()
	for name, call := range map[string]func(*store.Store, *worldtest.Tenant, store.NewMessage, store.Message) error{
		"post": func(s *store.Store, acme *worldtest.Tenant, n store.NewMessage, _ store.Message) error {
			_, _, _, err := s.AppendMessage(acme.Ctx, n)
			return err
		},
		"ask": func(s *store.Store, acme *worldtest.Tenant, n store.NewMessage, _ store.Message) error {
			_, _, _, err := s.AppendAsk(acme.Ctx, n)
			return err
		},
		"frame": func(s *store.Store, acme *worldtest.Tenant, n store.NewMessage, _ store.Message) error {
			_, _, _, err := s.CommitFrame(acme.Ctx, store.Frame{NewMessage: n})
			return err
		},
		"edit": func(s *store.Store, acme *worldtest.Tenant, n store.NewMessage, first store.Message) error {
			_, err := s.EditMessage(acme.Ctx, store.Edit{Message: first.ID, Blocks: n.Blocks, In: n.In})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := worldtest.New(t)
			acme := w.Tenant(t, "acme")
			bot := acme.Agent(t, "bot")
			channel := acme.Channel(t, "a", bot)
			s := acme.Session(t, bot)
			n := acme.Message(bot, channel, "one")
			n.In = s.In("t1")
			first, _, _, err := w.Store.AppendMessage(acme.Ctx, n)
			must(t, err)
			// A settle that has not committed yet and gives no positions: its rows are still to come.
			super := storetest.Connect(t, w.Database.Super)
			settle, err := super.Begin(t.Context())
			must(t, err)
			_, err = settle.Exec(t.Context(), `update compass.turns set settled_by = 'expiry', settled_at_unix_ms = 1 where session_id = $1`, s.ID)
			must(t, err)
			second := acme.Message(bot, channel, "two")
			second.In = s.In("t1")
			ended := start(func() error { return call(w.Store, acme, second, first) })
			blocked(t, w, ended)
			must(t, settle.Commit(t.Context()))
			if err := <-ended; !errors.Is(err, store.ErrPrecondition) {
				t.Errorf("%s beside a settle: %v, want ErrPrecondition", name, err)
			}
		})
	}
}

// An archival that has the head's lock is seen by the post that waits for it.
func TestPostsWaitForTheArchival(t *testing.T) {
	t.Parallel()
	w := worldtest.New(t)
	acme := w.Tenant(t, "acme")
	channel := acme.Channel(t, "a")
	super := storetest.Connect(t, w.Database.Super)
	archive, err := super.Begin(t.Context())
	must(t, err)
	_, err = archive.Exec(t.Context(), `select from compass.channel_heads where channel_id = $1 for update`, channel.ID)
	must(t, err)
	post := start(func() error {
		_, _, _, err := w.Store.AppendMessage(acme.Ctx, acme.Message(acme.Admin, channel, "late"))
		return err
	})
	blocked(t, w, post)
	_, err = archive.Exec(t.Context(), `update compass.channels set archived = true where id = $1`, channel.ID)
	must(t, err)
	must(t, archive.Commit(t.Context()))
	if err := <-post; !errors.Is(err, store.ErrPrecondition) {
		t.Errorf("post behind an archival: %v, want ErrPrecondition", err)
	}
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// An answer that waits for the head sees the one that had it before: a question has one answer.
func TestAnswersAreSerial(t *testing.T) {
	t.Parallel()
	w := worldtest.New(t)
	acme := w.Tenant(t, "acme")
	channel := acme.Channel(t, "a")
	ask, _, _, err := w.Store.AppendAsk(acme.Ctx, acme.Message(acme.Admin, channel, "?"))
	must(t, err)
	other := acme.Post(t, acme.Admin, channel, "stands for an answer")
	super := storetest.Connect(t, w.Database.Super)
	first, err := super.Begin(t.Context())
	must(t, err)
	_, err = first.Exec(t.Context(), `select from compass.channel_heads where channel_id = $1 for update`, channel.ID)
	must(t, err)
	second := start(func() error {
		_, _, _, err := w.Store.AnswerAsk(acme.Ctx, store.NewAnswer{
			ID: w.IDs.Message(), Ask: ask.ID, Author: acme.Admin.ID, ClientID: "2", Blocks: []store.Block{store.Text("!")},
		})
		return err
	})
	blocked(t, w, second)
	_, err = first.Exec(t.Context(), `update compass.asks set answer_id = $1 where message_id = $2`, other.ID, ask.ID)
	must(t, err)
	must(t, first.Commit(t.Context()))
	if err := <-second; !errors.Is(err, store.ErrPrecondition) {
		t.Errorf("a second answer: %v, want ErrPrecondition", err)
	}
}
