package comms_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/rigelbuild/compass-operator/internal/comms"
	"github.com/rigelbuild/compass-operator/internal/event"
	"github.com/rigelbuild/compass-operator/internal/fabric"
	"github.com/rigelbuild/compass-operator/internal/store"
	"github.com/rigelbuild/compass-operator/internal/store/worldtest"
)

// fixture is comms on real Postgres with the real bus and emitter, and a queue that remembers.
type fixture struct {
	*worldtest.World
	comms   *comms.Comms
	bus     *event.Bus
	emitter *event.Emitter
	queue   *queue
	clock   *clock
}

func newFixture(t *testing.T, change ...func(*comms.Options)) *fixture {
	t.Helper()
	w := worldtest.New(t)
	bus, err := event.NewBus(event.BusOptions{Epoch: "test"})
	must(t, err)
	t.Cleanup(bus.Close)
	instance, err := event.NewInstance(w.IDs.Instance())
	must(t, err)
	f := &fixture{World: w, bus: bus, queue: &queue{}, clock: &clock{now: time.Now()}}
	f.emitter, err = event.NewEmitter(event.EmitterOptions{Instance: instance, Bus: bus, Queue: f.queue, Lost: f.queue.noteLost})
	must(t, err)
	o := comms.Options{Store: w.Store, Emitter: f.emitter, Bus: bus, IDs: w.IDs, Now: f.clock.Now}
	for _, c := range change {
		c(&o)
	}
	f.comms, err = comms.NewComms(o)
	must(t, err)
	return f
}

// queue is the queue lane as the fabric sees it: the logical subject and the three fields of a reference.
type queue struct {
	mu       sync.Mutex
	refs     []published
	before   func(event.Ref) // runs before a reference is taken
	err      error
	lostSeen []error
}

type published struct {
	Subject string
	Ref     fabric.EventRef
}

func (q *queue) Enqueue(_ context.Context, r event.Ref) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.before != nil {
		q.before(r)
	}
	if q.err != nil {
		return q.err
	}
	subject, err := fabric.CommsSubject(r.Tenant, fabric.EventKind(r.Kind))
	q.refs = append(q.refs, published{subject, fabric.EventRef{
		Tenant: r.Tenant, Kind: fabric.EventKind(r.Kind), RowID: r.RowID, Version: r.Version,
	}})
	return err
}

func (q *queue) noteLost(_ context.Context, _ event.Name, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.lostSeen = append(q.lostSeen, err)
}

// take returns what was handed over since the last take.
func (q *queue) take() []published {
	q.mu.Lock()
	defer q.mu.Unlock()
	out := q.refs
	q.refs = nil
	return out
}

// posted is the reference that is expected for a message.
func posted(tenant *worldtest.Tenant, id string, version int64) published {
	return published{
		Subject: "compass." + string(tenant.ID) + ".comms.message_posted",
		Ref:     fabric.EventRef{Tenant: string(tenant.ID), Kind: fabric.KindMessagePosted, RowID: id, Version: version},
	}
}

type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// text is a post of that text.
func text(channel store.Channel, author store.Account, client string) store.NewMessage {
	return store.NewMessage{Channel: channel.ID, Author: author.ID, ClientID: client, Blocks: []store.Block{store.Text(client)}}
}

var errDown = errors.New("the queue takes nothing")

// changed tells that a channel changed, as the edge does.
func (f *fixture) changed(t *testing.T, tenant *worldtest.Tenant, channel string) {
	t.Helper()
	n, err := f.Store.Number(tenant.Ctx)
	must(t, err)
	f.emitter.Emit(tenant.Ctx, event.ChannelChanged(string(tenant.ID), channel, n))
}
