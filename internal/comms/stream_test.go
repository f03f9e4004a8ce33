package comms_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rigelbuild/compass-operator/internal/comms"
	"github.com/rigelbuild/compass-operator/internal/event"
	"github.com/rigelbuild/compass-operator/internal/store"
	"github.com/rigelbuild/compass-operator/internal/store/worldtest"
)

// client is one live stream and what it was told.
type client struct {
	updates chan comms.Update
	ended   chan error
	cancel  context.CancelFunc
}

// whose is where a stream's context says which client it is.
type whose struct{}

func (f *fixture) follow(t *testing.T, tenant *worldtest.Tenant, s comms.Subscriber) *client {
	t.Helper()
	c := &client{updates: make(chan comms.Update, 1000), ended: make(chan error, 1)}
	ctx, cancel := context.WithCancel(context.WithValue(tenant.Ctx, whose{}, c))
	c.cancel = cancel
	s.Send = func(u comms.Update) error {
		select {
		case c.updates <- u:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	var running sync.WaitGroup
	running.Go(func() { c.ended <- f.comms.SubscribeComms(ctx, s) })
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	if u := c.next(t); !u.Heartbeat {
		t.Errorf("the first word was %+v, want a heartbeat", u)
	}
	return c
}

const patience = 20 * time.Second

func (c *client) next(t *testing.T) comms.Update {
	t.Helper()
	select {
	case u := <-c.updates:
		return u
	case err := <-c.ended:
		t.Fatalf("the stream ended: %v", err)
	case <-time.After(patience):
		t.Fatal("nothing was told")
	}
	return comms.Update{}
}

// message is the next update, which must be a message.
func (c *client) message(t *testing.T) (store.Message, int64) {
	t.Helper()
	u := c.next(t)
	if u.Message == nil {
		t.Fatalf("told %+v, want a message", u)
	}
	return *u.Message, u.PrevRev
}

// until fails if something was told before the message probe.
func (c *client) until(t *testing.T, probe string) {
	t.Helper()
	for {
		if m, _ := c.message(t); m.ID != probe {
			t.Errorf("told message %s before %s", m.ID, probe)
		} else {
			return
		}
	}
}

func quick(o *comms.Options) {
	o.Now = time.Now // streams share a look for half a poll
	o.Stream = comms.StreamOptions{Poll: 50 * time.Millisecond, Heartbeat: time.Hour, Coalesce: 10 * time.Millisecond, Page: 3}
}

// slow polls so rarely that only the bus can have woken a stream.
func slow(o *comms.Options) {
	o.Stream = comms.StreamOptions{Poll: time.Hour, Heartbeat: time.Hour, Coalesce: 10 * time.Millisecond}
}

// Holds REQ-016, REQ-235 (resume by rev finds what was missed, edits and settles too, in order, each naming the one before).
func TestResumeFindsEditsAndSettles(t *testing.T) {
	t.Parallel()
	f := newFixture(t, quick)
	acme := f.Tenant(t, "acme")
	ada, bot := acme.Person(t, "ada"), acme.Agent(t, "bot")
	channel := acme.Channel(t, "a", ada, bot)
	s := acme.Session(t, bot)
	n := text(channel, bot, "held")
	n.In = s.In("t1")
	held, err := f.comms.PostMessage(acme.Ctx, n)
	must(t, err)
	seen := acme.Post(t, ada, channel, "seen")
	var missed []string
	for i := range 7 { // more than a page
		missed = append(missed, acme.Post(t, ada, channel, fmt.Sprint(i)).ID)
	}
	touched, err := f.Store.SettleTurn(acme.Ctx, s.Next(), "t1")
	must(t, err)
	missed = append(missed, held.Message.ID)
	c := f.follow(t, acme, comms.Subscriber{Account: ada.ID, Resume: map[string]int64{channel.ID: seen.Rev}})
	prev, got := seen.Rev, []string{}
	for range missed {
		m, before := c.message(t)
		if before != prev || m.Rev <= prev {
			t.Errorf("message of rev %d names %d before it, want %d", m.Rev, before, prev)
		}
		prev, got = m.Rev, append(got, m.ID)
	}
	if diff := cmp.Diff(missed, got); diff != "" {
		t.Error(diff)
	}
	if prev != touched[0].Last().Pos {
		t.Errorf("the settled message was told at rev %d, want its position %d", prev, touched[0].Last().Pos)
	}
}

// A fact wakes the stream at once; people see an open turn grow, agents see it settled.
func TestStreamIsWokenByTheBus(t *testing.T) {
	t.Parallel()
	f := newFixture(t, slow)
	acme := f.Tenant(t, "acme")
	ada, bot, other := acme.Person(t, "ada"), acme.Agent(t, "bot"), acme.Agent(t, "other")
	channel := acme.Channel(t, "a", ada, bot, other)
	resume := map[string]int64{channel.ID: 0}
	person := f.follow(t, acme, comms.Subscriber{Account: ada.ID, Resume: resume})
	agent := f.follow(t, acme, comms.Subscriber{Account: other.ID, Resume: resume})
	first, err := f.comms.PostMessage(acme.Ctx, text(channel, ada, "first"))
	must(t, err)
	person.until(t, first.Message.ID)
	agent.until(t, first.Message.ID)
	s := acme.Session(t, bot)
	n := text(channel, bot, "one")
	n.In = s.In("t1")
	held, err := f.comms.PostMessage(acme.Ctx, n)
	must(t, err)
	if m, prev := person.message(t); m.ID != held.Message.ID || !m.Held() || prev != first.Message.Rev {
		t.Errorf("a person sees %+v after %d", m, prev)
	}
	edited, err := f.comms.UpdateMessage(acme.Ctx, store.Edit{Message: held.Message.ID, Author: bot.ID, Blocks: []store.Block{store.Text("two")}})
	must(t, err)
	if m, prev := person.message(t); m.Rev != edited.Rev || prev != held.Message.Rev {
		t.Errorf("the edit is told at rev %d after %d, want %d after %d", m.Rev, prev, edited.Rev, held.Message.Rev)
	}
	touched, err := f.Store.SettleTurn(acme.Ctx, s.Next(), "t1")
	must(t, err)
	f.comms.Announce(acme.Ctx, touched)
	for name, c := range map[string]*client{"person": person, "agent": agent} {
		if m, _ := c.message(t); m.ID != held.Message.ID || m.Held() {
			t.Errorf("%s sees %+v, want it settled, and an agent nothing before", name, m)
		}
	}
}

// Holds REQ-235 (B2: an ex-member gets nothing, a new one what comes after; nobody is told of channels of others).
func TestStreamFollowsMembership(t *testing.T) {
	t.Parallel()
	f := newFixture(t, quick)
	acme := f.Tenant(t, "acme")
	ada := acme.Person(t, "ada")
	a, b, other := acme.Channel(t, "a", ada), acme.Channel(t, "b"), acme.Channel(t, "c")
	acme.Post(t, acme.Admin, b, "before")
	c := f.follow(t, acme, comms.Subscriber{Account: ada.ID, Resume: map[string]int64{a.ID: 0, b.ID: 0, other.ID: 0}})
	first, err := f.comms.PostMessage(acme.Ctx, text(a, acme.Admin, "first"))
	must(t, err)
	c.until(t, first.Message.ID) // and nothing of b, though it was asked for
	must(t, f.Store.AddMember(acme.Ctx, store.Member{Channel: b.ID, Account: ada.ID, Actor: acme.Admin.ID}))
	if u := c.next(t); u.Channel != b.ID {
		t.Errorf("told %+v, want that b was joined", u)
	}
	second, err := f.comms.PostMessage(acme.Ctx, text(b, acme.Admin, "second"))
	must(t, err)
	c.until(t, second.Message.ID)
	must(t, f.Store.RemoveMember(acme.Ctx, store.Member{Channel: a.ID, Account: ada.ID, Actor: acme.Admin.ID}))
	_, err = f.comms.PostMessage(acme.Ctx, text(a, acme.Admin, "not for ada"))
	must(t, err)
	if u := c.next(t); u.Channel != a.ID {
		t.Errorf("told %+v, want that a was left and nothing of it", u)
	}
	_, err = f.comms.PostMessage(acme.Ctx, text(other, acme.Admin, "never ada's"))
	must(t, err)
	third, err := f.comms.PostMessage(acme.Ctx, text(b, acme.Admin, "third"))
	must(t, err)
	c.until(t, third.Message.ID)
}

// A lost last fact is found by comparing heads; a rev that is none of ours is answered with a resync.
func TestPollFindsALostFact(t *testing.T) {
	t.Parallel()
	f := newFixture(t, quick)
	acme := f.Tenant(t, "acme")
	ada := acme.Person(t, "ada")
	channel := acme.Channel(t, "a", ada)
	c := f.follow(t, acme, comms.Subscriber{Account: ada.ID, Resume: map[string]int64{channel.ID: 1 << 60}})
	if u := c.next(t); u.Resync != channel.ID {
		t.Fatalf("told %+v, want a resync", u)
	}
	m := acme.Post(t, acme.Admin, channel, "told to nobody") // past comms: no fact
	c.until(t, m.ID)
}

// A rev that no head has reached is answered with a resync at once, and the stream goes on from the head.
func TestTokenAheadOfTheHeadIsResynced(t *testing.T) {
	t.Parallel()
	f := newFixture(t, slow)
	acme := f.Tenant(t, "acme")
	channel := acme.Channel(t, "a")
	head := acme.Post(t, acme.Admin, channel, "old")
	c := f.follow(t, acme, comms.Subscriber{Account: acme.Admin.ID, Resume: map[string]int64{channel.ID: head.Rev + 1}})
	if u := c.next(t); u.Resync != channel.ID {
		t.Fatalf("told %+v, want a resync", u)
	}
	fresh, err := f.comms.PostMessage(acme.Ctx, text(channel, acme.Admin, "fresh"))
	must(t, err)
	if m, prev := c.message(t); m.ID != fresh.Message.ID || prev != head.Rev {
		t.Errorf("told %s after %d, want the message after the head %d", m.ID, prev, head.Rev)
	}
}

// A channel that is not in resume starts at its head.
func TestStreamStartsAtTheHead(t *testing.T) {
	t.Parallel()
	f := newFixture(t, quick)
	acme := f.Tenant(t, "acme")
	ada := acme.Person(t, "ada")
	a, b := acme.Channel(t, "a", ada), acme.Channel(t, "b", ada)
	old := acme.Post(t, acme.Admin, a, "old")
	marker := acme.Post(t, acme.Admin, b, "marker")
	c := f.follow(t, acme, comms.Subscriber{Account: ada.ID, Resume: map[string]int64{b.ID: 0}})
	c.until(t, marker.ID)
	fresh, err := f.comms.PostMessage(acme.Ctx, text(a, acme.Admin, "fresh"))
	must(t, err)
	m, prev := c.message(t)
	if m.ID != fresh.Message.ID || prev != old.Rev {
		t.Errorf("told %s after %d, want the message after the head %d", m.ID, prev, old.Rev)
	}
}

func TestStreamEndsWithItsCaller(t *testing.T) {
	t.Parallel()
	f := newFixture(t, quick)
	acme := f.Tenant(t, "acme")
	revoked := errors.New("revoked")
	end := func(c *client) error {
		select {
		case err := <-c.ended:
			return err
		case <-time.After(patience):
			t.Fatal("the stream goes on")
			return nil
		}
	}
	checked := f.follow(t, acme, comms.Subscriber{Account: acme.Admin.ID, Check: func(context.Context) error { return revoked }})
	if err := end(checked); !errors.Is(err, revoked) {
		t.Errorf("ended with %v, want what the check said", err)
	}
	gone := f.follow(t, acme, comms.Subscriber{Account: acme.Admin.ID})
	gone.cancel()
	if err := end(gone); !errors.Is(err, context.Canceled) {
		t.Errorf("ended with %v, want the context's", err)
	}
	closed := f.follow(t, acme, comms.Subscriber{Account: acme.Admin.ID})
	f.bus.Close()
	if err := end(closed); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("ended with %v, want ErrUnavailable: try another Server", err)
	}
	if err := f.comms.SubscribeComms(t.Context(), comms.Subscriber{}); !errors.Is(err, store.ErrNoTenant) {
		t.Errorf("without a tenant: %v, want ErrNoTenant", err)
	}
}

// A stream whose account's access changed asks at once whether it may go on, and one of another account does not.
func TestStreamAsksAgainWhenAccessChanged(t *testing.T) {
	t.Parallel()
	f := newFixture(t, slow)
	acme := f.Tenant(t, "acme")
	ada, eve := acme.Person(t, "ada"), acme.Person(t, "eve")
	revoked := errors.New("revoked")
	no := func(context.Context) error { return revoked }
	adas := f.follow(t, acme, comms.Subscriber{Account: ada.ID, Check: no})
	eves := f.follow(t, acme, comms.Subscriber{Account: eve.ID, Check: no})
	channel := acme.Channel(t, "a", eve)
	f.changed(t, acme, channel.ID) // or nobody would look before the poll
	if u := eves.next(t); u.Channel != channel.ID {
		t.Errorf("told %+v, want that the channel was joined", u)
	}
	f.emitter.Emit(acme.Ctx, event.AccessChanged(string(acme.ID), ada.ID, 1))
	select {
	case err := <-adas.ended:
		if !errors.Is(err, revoked) {
			t.Errorf("ended with %v, want what the check said", err)
		}
	case <-time.After(patience):
		t.Error("the stream goes on")
	}
	m, err := f.comms.PostMessage(acme.Ctx, text(channel, acme.Admin, "eve goes on"))
	must(t, err)
	eves.until(t, m.Message.ID)
}

// However busy the bus keeps a stream, its caller is checked and the client hears a heartbeat when it is told nothing.
func TestBusyStreamPollsInTime(t *testing.T) {
	t.Parallel()
	f := newFixture(t, func(o *comms.Options) {
		o.Stream = comms.StreamOptions{Poll: 30 * time.Millisecond, Heartbeat: time.Millisecond}
		o.Now = time.Now
	})
	acme := f.Tenant(t, "acme")
	ada := acme.Person(t, "ada")
	acme.Channel(t, "mine", ada)
	busy := acme.Channel(t, "busy")
	c := f.follow(t, acme, comms.Subscriber{Account: ada.ID})
	stop := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
				f.comms.Announce(acme.Ctx, []store.Touched{{Channel: busy.ID, Messages: []store.MessageRef{{ID: f.IDs.Message(), Pos: 1}}}})
			}
		}
	}()
	if u := c.next(t); !u.Heartbeat {
		t.Errorf("told %+v, want a heartbeat", u)
	}
	close(stop)
	<-done
}
