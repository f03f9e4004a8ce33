package comms_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/rigelbuild/compass-operator/internal/comms"
	"github.com/rigelbuild/compass-operator/internal/store"
)

// counting is the store, with a look at what streams read.
type counting struct {
	comms.Store
	before func(ctx context.Context, b store.Burst) error // runs in MessagesBurst

	mu                    sync.Mutex
	bursts, alones, seats int
}

func (c *counting) MessagesBurst(ctx context.Context, b store.Burst) (map[string]store.News, error) {
	c.mu.Lock()
	c.bursts++
	before := c.before
	c.mu.Unlock()
	if before != nil {
		if err := before(ctx, b); err != nil {
			return nil, err
		}
	}
	return c.Store.MessagesBurst(ctx, b)
}

func (c *counting) MessagesAfter(ctx context.Context, d store.Drain) ([]store.Message, error) {
	c.mu.Lock()
	c.alones++
	c.mu.Unlock()
	return c.Store.MessagesAfter(ctx, d)
}

func (c *counting) SeatsOf(ctx context.Context, accounts []string) (map[string][]store.ChannelHead, error) {
	c.mu.Lock()
	c.seats++
	c.mu.Unlock()
	return c.Store.SeatsOf(ctx, accounts)
}

func (c *counting) during(fn func(ctx context.Context, b store.Burst) error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.before = fn
}

// reads returns how many reads there were since the last call.
func (c *counting) reads() (bursts, alones, seats int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	bursts, alones, seats = c.bursts, c.alones, c.seats
	c.bursts, c.alones, c.seats = 0, 0, 0
	return bursts, alones, seats
}

// counted makes a fixture whose streams are woken by the bus alone, and whose reads are counted. Its clock stands still
// until it is advanced.
func counted(t *testing.T) (*fixture, *counting) {
	t.Helper()
	c := &counting{}
	f := newFixture(t, slow, func(o *comms.Options) { c.Store, o.Store = o.Store, c })
	return f, c
}

// Holds REQ-235 (B3: a burst in a channel is read once, and a change of a channel looked at once, whatever the number of
// streams).
func TestOneReadWhateverTheNumberOfStreams(t *testing.T) {
	t.Parallel()
	f, c := counted(t)
	acme := f.Tenant(t, "acme")
	var people []store.Account
	for i := range 6 {
		people = append(people, acme.Person(t, fmt.Sprintf("p%d", i)))
	}
	channel, other := acme.Channel(t, "a", people...), acme.Channel(t, "b")
	var clients []*client
	for i := range 40 {
		clients = append(clients, f.follow(t, acme, comms.Subscriber{Account: people[i%len(people)].ID}))
	}
	c.reads()
	for i := range 5 {
		m, err := f.comms.PostMessage(acme.Ctx, text(channel, people[0], fmt.Sprint(i)))
		must(t, err)
		for _, cl := range clients {
			cl.until(t, m.Message.ID)
		}
		if bursts, alones, _ := c.reads(); bursts != 1 || alones != 0 {
			t.Errorf("a message was read %d times together and %d times alone by 40 streams, want once", bursts, alones)
		}
	}
	// Nobody here is in the other channel: nothing is read.
	_, err := f.comms.PostMessage(acme.Ctx, text(other, acme.Admin, "elsewhere"))
	must(t, err)
	must(t, f.Store.AddMember(acme.Ctx, store.Member{Channel: other.ID, Account: people[1].ID, Actor: acme.Admin.ID}))
	f.changed(t, acme, other.ID)
	for i, cl := range clients {
		if i%len(people) == 1 {
			if u := cl.next(t); u.Channel != other.ID {
				t.Errorf("told %+v, want that the channel was joined", u)
			}
		}
	}
	if bursts, alones, seats := c.reads(); bursts != 0 || alones != 0 || seats != 1 {
		t.Errorf("a joined channel cost %d, %d and %d reads, want one look at heads", bursts, alones, seats)
	}
}

// Holds REQ-235 (B2: what streams share does not share membership. Who was removed before the message is told nothing,
// though his stream asks beside those that are told).
func TestSharedReadsKeepMembership(t *testing.T) {
	t.Parallel()
	f, _ := counted(t)
	acme := f.Tenant(t, "acme")
	ada, eve, bot := acme.Person(t, "ada"), acme.Person(t, "eve"), acme.Agent(t, "bot")
	channel, lobby := acme.Channel(t, "a", ada, eve, bot), acme.Channel(t, "lobby", eve, bot)
	stay, left := f.follow(t, acme, comms.Subscriber{Account: ada.ID}), f.follow(t, acme, comms.Subscriber{Account: eve.ID})
	agent := f.follow(t, acme, comms.Subscriber{Account: bot.ID})
	must(t, f.Store.RemoveMember(acme.Ctx, store.Member{Channel: channel.ID, Account: eve.ID, Actor: acme.Admin.ID}))
	// Nobody tells that eve left: her stream still thinks that she is in the channel, and is woken by what is posted.
	s := acme.Session(t, acme.Agent(t, "writer"))
	must(t, f.Store.AddMember(acme.Ctx, store.Member{Channel: channel.ID, Account: s.Agent.ID, Actor: acme.Admin.ID}))
	n := text(channel, s.Agent, "open")
	n.In = s.In("t1")
	held, err := f.comms.PostMessage(acme.Ctx, n)
	must(t, err)
	stay.until(t, held.Message.ID)
	secret, err := f.comms.PostMessage(acme.Ctx, text(channel, acme.Admin, "secret"))
	must(t, err)
	stay.until(t, secret.Message.ID)
	agent.until(t, secret.Message.ID) // and not the text of the open turn
	probe, err := f.comms.PostMessage(acme.Ctx, text(lobby, acme.Admin, "probe"))
	must(t, err)
	left.until(t, probe.Message.ID)
	agent.until(t, probe.Message.ID)
}

// Who reads for all may go: the others are told all the same. What ends the read ends them all, with its error.
func TestSharedReadOutlivesItsReader(t *testing.T) {
	t.Parallel()
	f, c := counted(t)
	acme := f.Tenant(t, "acme")
	bot := acme.Agent(t, "bot")
	channel := acme.Channel(t, "a", bot)
	session := acme.Session(t, bot)
	n := text(channel, bot, "open")
	n.In = session.In("t1")
	m, err := f.comms.PostMessage(acme.Ctx, n)
	must(t, err)
	var clients []*client
	for range 3 {
		clients = append(clients, f.follow(t, acme, comms.Subscriber{Account: acme.Admin.ID}))
	}
	reading, proceed := make(chan *client, 1), make(chan struct{})
	c.during(func(ctx context.Context, _ store.Burst) error {
		reader, _ := ctx.Value(whose{}).(*client)
		reading <- reader
		<-proceed
		return ctx.Err()
	})
	// An edit: what becomes visible is read by the herald, before they wake.
	_, err = f.comms.UpdateMessage(acme.Ctx, store.Edit{Message: m.Message.ID, Author: bot.ID, Blocks: []store.Block{store.Text("edited")}})
	must(t, err)
	reader := <-reading
	late := f.follow(t, acme, comms.Subscriber{Account: acme.Admin.ID}) // it comes while the read is under way
	reader.cancel()
	close(proceed)
	var rest []*client
	for _, cl := range clients {
		if cl != reader {
			cl.until(t, m.Message.ID)
			rest = append(rest, cl)
		}
	}

	broken := errors.New("broken")
	c.during(func(context.Context, store.Burst) error { return broken })
	_, err = f.comms.PostMessage(acme.Ctx, text(channel, acme.Admin, "two"))
	must(t, err)
	for _, cl := range append(rest, late) {
		select {
		case err := <-cl.ended:
			if !errors.Is(err, broken) {
				t.Errorf("ended with %v, want what the read said", err)
			}
		case <-time.After(patience):
			t.Fatal("the stream goes on without what it could not read")
		}
	}
}

// A client that takes nothing for a while is told all of it afterwards, in order, though the others read on without it.
func TestSlowClientCatchesUp(t *testing.T) {
	t.Parallel()
	f, c := counted(t)
	acme := f.Tenant(t, "acme")
	channel := acme.Channel(t, "a")
	quickOne := f.follow(t, acme, comms.Subscriber{Account: acme.Admin.ID})

	ctx, cancel := context.WithCancel(acme.Ctx)
	proceed, told, ended := make(chan struct{}), make(chan comms.Update, 2000), make(chan error, 1)
	go func() {
		ended <- f.comms.SubscribeComms(ctx, comms.Subscriber{Account: acme.Admin.ID, Send: func(u comms.Update) error {
			told <- u
			if u.Heartbeat {
				return nil
			}
			select {
			case <-proceed:
			case <-ctx.Done():
			}
			return ctx.Err()
		}})
	}()
	<-told // the heartbeat
	first, err := f.comms.PostMessage(acme.Ctx, text(channel, acme.Admin, "first"))
	must(t, err)
	quickOne.until(t, first.Message.ID)
	var ids []string
	for i := range 150 { // more than a page
		m, err := f.comms.PostMessage(acme.Ctx, text(channel, acme.Admin, fmt.Sprint(i)))
		must(t, err)
		ids = append(ids, m.Message.ID)
		quickOne.until(t, m.Message.ID)
	}
	f.clock.advance(2 * time.Second) // what was shared is forgotten, and the next piece begins far from the slow one
	m, err := f.comms.PostMessage(acme.Ctx, text(channel, acme.Admin, "last"))
	must(t, err)
	ids = append(ids, m.Message.ID)
	quickOne.until(t, m.Message.ID)
	c.reads()
	close(proceed)
	if u := <-told; u.Message.ID != first.Message.ID {
		t.Errorf("told %+v, want the first", u)
	}
	prev := first.Message.Rev
	for _, id := range ids {
		u := <-told
		if u.Message == nil || u.Message.ID != id || u.PrevRev != prev {
			t.Fatalf("told %+v, want %s after %d", u, id, prev)
		}
		prev = u.Message.Rev
	}
	if _, alones, _ := c.reads(); alones == 0 {
		t.Error("it read with the others, which were elsewhere")
	}
	cancel()
	<-ended //nolint:errcheck // it was cancelled
}

// A stream that resumes far back reads alone, so that no page of an old channel is read and kept for everybody, and reads
// with the others once it has caught up.
func TestStreamThatIsBehindReadsAlone(t *testing.T) {
	t.Parallel()
	f, c := counted(t)
	acme := f.Tenant(t, "acme")
	channel := acme.Channel(t, "a")
	var old []store.Message
	for i := range 3 {
		old = append(old, acme.Post(t, acme.Admin, channel, fmt.Sprint(i)))
	}
	cl := f.follow(t, acme, comms.Subscriber{Account: acme.Admin.ID, Resume: map[string]int64{channel.ID: 0}})
	for _, m := range old {
		cl.until(t, m.ID)
	}
	if bursts, alones, _ := c.reads(); bursts != 0 || alones != 1 {
		t.Errorf("what lay behind cost %d reads together and %d alone, want one alone", bursts, alones)
	}
	m, err := f.comms.PostMessage(acme.Ctx, text(channel, acme.Admin, "new"))
	must(t, err)
	cl.until(t, m.Message.ID)
	if bursts, alones, _ := c.reads(); bursts != 1 || alones != 0 {
		t.Errorf("then a message cost %d reads together and %d alone, want one together", bursts, alones)
	}
}

// A stream that learns late that it joined a channel is told what was posted since the join, and nothing from before it.
func TestStreamIsToldWhatCameSinceItJoined(t *testing.T) {
	t.Parallel()
	f, _ := counted(t)
	acme := f.Tenant(t, "acme")
	ada := acme.Person(t, "ada")
	channel := acme.Channel(t, "a")
	before := acme.Post(t, acme.Admin, channel, "before")
	cl := f.follow(t, acme, comms.Subscriber{Account: ada.ID})
	must(t, f.Store.AddMember(acme.Ctx, store.Member{Channel: channel.ID, Account: ada.ID, Actor: acme.Admin.ID}))
	since := acme.Post(t, acme.Admin, channel, "since")
	f.changed(t, acme, channel.ID)
	if u := cl.next(t); u.Channel != channel.ID {
		t.Errorf("told %+v, want that the channel was joined", u)
	}
	if m, prev := cl.message(t); m.ID != since.ID || prev < before.Rev {
		t.Errorf("told %s after %d, want %s after a rev from %d on", m.ID, prev, since.ID, before.Rev)
	}
}

// A head that lies before what was told: a failover lost it. The client must read the channel again.
func TestHeadThatWentBackIsResynced(t *testing.T) {
	t.Parallel()
	f := newFixture(t, quick)
	acme := f.Tenant(t, "acme")
	channel := acme.Channel(t, "a")
	c := f.follow(t, acme, comms.Subscriber{Account: acme.Admin.ID})
	m, err := f.comms.PostMessage(acme.Ctx, text(channel, acme.Admin, "lost"))
	must(t, err)
	c.until(t, m.Message.ID)
	f.Exec(t, `delete from compass.messages where id = $1`, m.Message.ID)
	f.Exec(t, `update compass.channel_heads set last = last - 1, last_pos = last_pos - 1 where channel_id = $1`, channel.ID)
	if u := c.next(t); u.Resync != channel.ID {
		t.Fatalf("told %+v, want a resync", u)
	}
	again, err := f.comms.PostMessage(acme.Ctx, text(channel, acme.Admin, "again"))
	must(t, err)
	if u, prev := c.message(t); u.ID != again.Message.ID || prev != m.Message.Rev-1 {
		t.Errorf("told %s after %d, want %s after the head %d", u.ID, prev, again.Message.ID, m.Message.Rev-1)
	}
}

// A read that panics ends the streams that wait for it: in the one that read it is the panic that the edge survives.
func TestSharedReadThatPanicsEndsItsStreams(t *testing.T) {
	t.Parallel()
	f, c := counted(t)
	acme := f.Tenant(t, "acme")
	channel := acme.Channel(t, "a")
	c.during(func(context.Context, store.Burst) error { panic("boom") })
	began, over := make(chan struct{}, 3), make(chan any, 3)
	ctx, cancel := context.WithCancel(acme.Ctx)
	defer cancel()
	for range 3 {
		go func() {
			defer func() { over <- recover() }()
			_ = f.comms.SubscribeComms(ctx, comms.Subscriber{Account: acme.Admin.ID, Send: func(comms.Update) error {
				began <- struct{}{}
				return nil
			}})
		}()
	}
	for range 3 {
		<-began
	}
	_, err := f.comms.PostMessage(acme.Ctx, text(channel, acme.Admin, "one"))
	must(t, err)
	for range 3 {
		select {
		case <-over:
		case <-time.After(patience):
			t.Fatal("a stream waits for a read that is over")
		}
	}
}

// What becomes visible is read for all streams before they wake, by none of them: here in the name of one that has ended.
func TestHeraldReadsBeforeStreamsWake(t *testing.T) {
	t.Parallel()
	f, c := counted(t)
	acme := f.Tenant(t, "acme")
	channel := acme.Channel(t, "a")
	gone := f.follow(t, acme, comms.Subscriber{Account: acme.Admin.ID})
	stays := f.follow(t, acme, comms.Subscriber{Account: acme.Admin.ID})
	gone.cancel()
	<-gone.ended //nolint:errcheck // it was cancelled
	type read struct {
		by    any
		after int64
	}
	reads := make(chan read, 10)
	c.during(func(ctx context.Context, b store.Burst) error {
		reads <- read{ctx.Value(whose{}), b.After[channel.ID]}
		return ctx.Err()
	})
	var last int64
	for i := range 3 {
		m, err := f.comms.PostMessage(acme.Ctx, text(channel, acme.Admin, fmt.Sprint(i)))
		must(t, err)
		stays.until(t, m.Message.ID)
		r := <-reads
		if r.by != gone {
			t.Error("a stream read what was to be there when it woke")
		}
		if i > 0 && r.after != last {
			t.Errorf("read on after %d, want %d", r.after, last)
		}
		last = m.Message.Rev
		f.clock.advance(2 * time.Second) // what was read is forgotten, and where the next read begins is not
	}
}

// While the herald reads no stream wakes, of another channel neither: it would read what the herald reads next.
func TestStreamsStayBehindTheHerald(t *testing.T) {
	t.Parallel()
	f, c := counted(t)
	acme := f.Tenant(t, "acme")
	ada := acme.Person(t, "ada")
	busy, quiet := acme.Channel(t, "busy"), acme.Channel(t, "quiet", ada)
	f.follow(t, acme, comms.Subscriber{Account: acme.Admin.ID})
	adas := f.follow(t, acme, comms.Subscriber{Account: ada.ID})
	reading, proceed := make(chan struct{}), make(chan struct{})
	c.during(func(_ context.Context, b store.Burst) error {
		if _, ok := b.After[busy.ID]; ok {
			close(reading)
			<-proceed
		}
		return nil
	})
	_, err := f.comms.PostMessage(acme.Ctx, text(busy, acme.Admin, "the herald reads this"))
	must(t, err)
	<-reading
	m, err := f.comms.PostMessage(acme.Ctx, text(quiet, acme.Admin, "and this afterwards"))
	must(t, err)
	select {
	case u := <-adas.updates:
		t.Errorf("told %+v while the herald reads", u)
	case <-time.After(100 * time.Millisecond): // without the herald she is told within a few
	}
	close(proceed)
	adas.until(t, m.Message.ID)
}
