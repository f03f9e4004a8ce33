package comms_test

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/rigelbuild/compass-operator/internal/comms"
	"github.com/rigelbuild/compass-operator/internal/event"
	"github.com/rigelbuild/compass-operator/internal/store"
	"github.com/rigelbuild/compass-operator/internal/telemetry"
)

// Holds REQ-003, REQ-004, REQ-005, REQ-006, REQ-067 (T1a: one reference per insert, of three fields, on the tenant's
// subject, after the commit, and after the bus).
func TestPostPublishesOneReferenceAfterTheCommit(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	acme := f.Tenant(t, "acme")
	channel := acme.Channel(t, "a")
	sub, err := f.bus.Subscribe(event.SubscribeOptions{Tenant: string(acme.ID)})
	must(t, err)
	defer sub.Close()
	f.queue.before = func(r event.Ref) {
		if n := f.Count(t, `select count(*) from compass.messages where id = $1`, r.RowID); n != 1 {
			t.Error("the reference was handed over before the row had committed")
		}
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		told, err := sub.Next(ctx)
		if err != nil || told.Kind != event.NameMessageVisible || told.RowID != r.RowID || told.Scope != channel.ID {
			t.Errorf("the bus told %+v, %v: want the message, before the queue", told, err)
		}
	}
	r, err := f.comms.PostMessage(acme.Ctx, text(channel, acme.Admin, "one"))
	must(t, err)
	if diff := cmp.Diff([]published{posted(acme, r.Message.ID, r.Message.Pos)}, f.queue.take()); diff != "" {
		t.Error(diff)
	}
}

// Holds REQ-068 (T1b: a repeat publishes nothing).
func TestRepeatPublishesNothing(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	acme := f.Tenant(t, "acme")
	channel := acme.Channel(t, "a")
	ask, err := f.comms.AskQuestion(acme.Ctx, text(channel, acme.Admin, "ask"))
	must(t, err)
	calls := map[string]func() (comms.Result, error){
		"post": func() (comms.Result, error) { return f.comms.PostMessage(acme.Ctx, text(channel, acme.Admin, "post")) },
		"ask":  func() (comms.Result, error) { return f.comms.AskQuestion(acme.Ctx, text(channel, acme.Admin, "ask2")) },
		"respond": func() (comms.Result, error) {
			return f.comms.RespondToAsk(acme.Ctx, store.NewAnswer{
				Ask: ask.Message.ID, Author: acme.Admin.ID, ClientID: "answer", Blocks: []store.Block{store.Text("x")},
			})
		},
	}
	f.queue.take()
	for name, call := range calls {
		first, err := call()
		must(t, err)
		if got := f.queue.take(); len(got) != 1 || first.Duplicate {
			t.Errorf("%s: published %v, duplicate %v", name, got, first.Duplicate)
		}
		position := f.bus.Position()
		again, err := call()
		must(t, err)
		if got := f.queue.take(); len(got) != 0 || !again.Duplicate || again.Message.ID != first.Message.ID {
			t.Errorf("%s again: published %v, duplicate %v, %s", name, got, again.Duplicate, again.Message.ID)
		}
		if f.bus.Position() != position {
			t.Errorf("%s again told the bus something", name)
		}
	}
}

// Holds REQ-011, REQ-069 (T1c: what happens to the reference after the commit is not the poster's error, and is heard of).
func TestPublishErrorIsNotThePosters(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	acme := f.Tenant(t, "acme")
	channel := acme.Channel(t, "a")
	f.queue.err = errDown
	r, err := f.comms.PostMessage(acme.Ctx, text(channel, acme.Admin, "one"))
	if err != nil || r.Duplicate || r.Message.Held() {
		t.Errorf("post while the queue is down: %+v, %v", r, err)
	}
	f.queue.mu.Lock()
	defer f.queue.mu.Unlock()
	if len(f.queue.lostSeen) != 1 || !errors.Is(f.queue.lostSeen[0], errDown) {
		t.Errorf("lost %v, want it heard of once", f.queue.lostSeen)
	}
}

// Holds REQ-070 (T1d: the answer is published, after its one transaction).
func TestAnswerIsPublished(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	acme := f.Tenant(t, "acme")
	bot := acme.Agent(t, "bot")
	channel := acme.Channel(t, "a", bot)
	ask, err := f.comms.AskQuestion(acme.Ctx, text(channel, bot, "?"))
	must(t, err)
	f.queue.take()
	f.queue.before = func(r event.Ref) {
		if n := f.Count(t, `select count(*) from compass.asks q join compass.owed_mentions o on o.message_id = q.answer_id
			where q.answer_id = $1 and o.agent_id = $2 and o.kind = 'answer'`, r.RowID, bot.ID); n != 1 {
			t.Error("the answer was handed over before it was linked and owed")
		}
	}
	r, err := f.comms.RespondToAsk(acme.Ctx, store.NewAnswer{
		Ask: ask.Message.ID, Author: acme.Admin.ID, ClientID: "1", Blocks: []store.Block{store.Text("x")},
	})
	must(t, err)
	if diff := cmp.Diff([]published{posted(acme, r.Message.ID, r.Message.Pos)}, f.queue.take()); diff != "" {
		t.Error(diff)
	}
}

// Holds REQ-014, REQ-070 (without a queue it serves the bus alone).
func TestWithoutAQueueTheBusIsServed(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	instance, err := event.NewInstance(f.IDs.Instance())
	must(t, err)
	emitter, err := event.NewEmitter(event.EmitterOptions{Instance: instance, Bus: f.bus})
	must(t, err)
	c, err := comms.NewComms(comms.Options{Store: f.Store, Emitter: emitter, Bus: f.bus, IDs: f.IDs, Now: f.clock.Now})
	must(t, err)
	acme := f.Tenant(t, "acme")
	channel := acme.Channel(t, "a")
	before := f.bus.Position()
	if _, err := c.PostMessage(acme.Ctx, text(channel, acme.Admin, "one")); err != nil {
		t.Fatal(err)
	}
	if f.bus.Position() == before {
		t.Error("the bus heard nothing")
	}
	if _, err := comms.NewComms(comms.Options{Store: f.Store}); err == nil {
		t.Error("comms without its parts was made")
	}
}

// Holds REQ-015, REQ-039 (a held message is handed over to nobody; its settle hands over one reference per channel).
func TestHeldMessagesAreHandedOverByTheirSettle(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	acme := f.Tenant(t, "acme")
	bot := acme.Agent(t, "bot")
	a, b := acme.Channel(t, "a", bot), acme.Channel(t, "b", bot)
	s := acme.Session(t, bot)
	var last string
	for _, c := range []store.Channel{a, b, a} {
		n := text(c, bot, c.Name+last)
		n.In = s.In("t1")
		r, err := f.comms.PostMessage(acme.Ctx, n)
		must(t, err)
		last = r.Message.ID
	}
	frame := store.Frame{NewMessage: text(a, bot, "frame")}
	frame.In = s.In("t1")
	r, err := f.comms.CommitFrame(acme.Ctx, frame)
	must(t, err)
	last = r.Message.ID
	before := f.bus.Position()
	if _, err := f.comms.UpdateMessage(acme.Ctx, store.Edit{
		Message: last, Author: bot.ID, Blocks: []store.Block{store.Text("y")}, Append: true,
	}); err != nil {
		t.Fatal(err)
	}
	if f.bus.Position() == before {
		t.Error("the edit was told to nobody who shows open turns")
	}
	if got := f.queue.take(); len(got) != 0 {
		t.Errorf("handed over while the turn is open: %v", got)
	}
	touched, err := f.Store.SettleTurn(acme.Ctx, s.Next(), "t1")
	must(t, err)
	f.comms.Announce(acme.Ctx, touched)
	want := []published{}
	for _, tc := range touched {
		want = append(want, posted(acme, tc.Last().ID, tc.Last().Pos))
	}
	if len(want) != 2 || touched[0].Last().ID != last && touched[1].Last().ID != last {
		t.Fatalf("settle touched %v", touched)
	}
	if diff := cmp.Diff(want, f.queue.take()); diff != "" {
		t.Error(diff)
	}
}

func TestReplayIsHandedOverUnderAVersionOfNow(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	acme := f.Tenant(t, "acme")
	channel := acme.Channel(t, "a")
	m := acme.Post(t, acme.Admin, channel, "x")
	f.comms.AnnounceReplay(acme.Ctx, []store.Touched{{Channel: channel.ID, Messages: []store.MessageRef{{ID: m.ID, Pos: m.Pos}}}})
	got := f.queue.take()
	if len(got) != 1 || got[0].Ref.RowID != m.ID || got[0].Ref.Version == m.Pos {
		t.Errorf("handed over %v: the message itself, and not as it was posted at %d", got, m.Pos)
	}
}

func TestTimeToCommitIsMeasured(t *testing.T) {
	t.Parallel()
	reader := sdkmetric.NewManualReader()
	f := newFixture(t, func(o *comms.Options) { o.Meters = sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)) })
	acme := f.Tenant(t, "acme")
	channel := acme.Channel(t, "a")
	for i, n := range []store.NewMessage{text(channel, acme.Admin, "one"), text(channel, acme.Admin, "one"), text(store.Channel{ID: "c_x"}, acme.Admin, "two")} {
		if _, err := f.comms.PostMessage(acme.Ctx, n); (err != nil) != (i == 2) {
			t.Errorf("post %d: %v", i, err)
		}
	}
	var seen metricdata.ResourceMetrics
	must(t, reader.Collect(t.Context(), &seen))
	if len(seen.ScopeMetrics) != 1 || seen.ScopeMetrics[0].Metrics[0].Name != telemetry.HopDuration {
		t.Fatalf("measured %+v", seen.ScopeMetrics)
	}
	hop, ok := seen.ScopeMetrics[0].Metrics[0].Data.(metricdata.Histogram[float64])
	if !ok || hop.DataPoints[0].Count != 2 {
		t.Errorf("measured %+v, want the two that committed", hop)
	}
}
