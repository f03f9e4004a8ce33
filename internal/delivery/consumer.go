package delivery

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	compassv1 "github.com/rigelbuild/compass-operator/api/proto/compass/v1"
	"github.com/rigelbuild/compass-operator/internal/fabric"
	"github.com/rigelbuild/compass-operator/internal/store"
)

// Consumer is the worker of one stream. Run works until its context ends; a Consumer runs once.
type Consumer struct {
	reads    DeliveryReads
	writes   Writes
	dispatch ControlDispatcher
	sessions SessionResolver
	fab      fabric.EventFabric
	leases   Leases
	log      *slog.Logger
	o        Options
	clock    Clock
	in       *instruments
	gauges   metric.Registration

	dirty    *dirty
	later    *later
	tenants  tenants
	rows     rows
	gates    gates
	steers   steers
	wakes    wakes
	outages  outages
	failures failures
	letters  letters
	charged  charged
	suspects suspects
	rejects  rejects
	backlog  backlog
	claims   claims
	watch    watch

	started  time.Time     // before Run does anything
	sweepNow chan struct{} // a reconnect asks for everything
	movesNow chan struct{} // somebody says that a placement changed
}

// NewConsumer puts a worker together and starts nothing. There is no worker without a fabric (REQ-062): one that hears
// nothing would look healthy and deliver by the tick alone.
func NewConsumer(
	st DeliveryReads, dispatch ControlDispatcher, resolver SessionResolver, fab fabric.EventFabric, log *slog.Logger, o Options,
) (*Consumer, error) {
	o, err := o.withDefaults()
	if err == nil && (st == nil || dispatch == nil || resolver == nil || fab == nil || log == nil) {
		err = errors.New("store, dispatcher, resolver, fabric and logger are required")
	}
	if err != nil {
		return nil, fmt.Errorf("make delivery worker: %w", err)
	}
	in, meter, err := newInstruments(o.Meter)
	if err != nil {
		return nil, fmt.Errorf("make delivery worker: %w", err)
	}
	c := &Consumer{
		reads: st, writes: o.Writes, dispatch: dispatch, sessions: resolver, fab: fab, leases: o.Leases,
		log: log.With("stream", o.Stream), o: o, clock: o.Clock, in: in,
		sweepNow: make(chan struct{}, 1), movesNow: make(chan struct{}, 1), letters: newLetters(), suspects: make(suspects, 1),
	}
	c.dirty = newDirty(o.Workers, c.clock.Now)
	c.dirty.limit = c.sideBySide
	c.later = newLater(c.clock, c.dirty.add)
	if c.gauges, err = c.observe(meter); err != nil {
		return nil, fmt.Errorf("make delivery worker: %w", err)
	}
	return c, nil
}

// Run sweeps everything that is owed, then takes references, notes and answers until ctx ends. On the way out it first
// stops taking, then finishes what is being worked, within Options.Drain; what only waits is left to the next start, which
// sweeps it. Nothing is written or sent after Run has returned, so a lease may then be released clean. It returns an error
// only where it could not begin.
func (c *Consumer) Run(ctx context.Context) error {
	c.started = c.clock.Now()
	defer func() { _ = c.gauges.Unregister() }() // fails only where the provider is gone
	work, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	var crew sync.WaitGroup
	for i := range c.o.Workers {
		crew.Go(func() { c.worker(work, i) })
	}
	var loops sync.WaitGroup
	loops.Go(func() { c.later.run(ctx) })
	loops.Go(func() { c.watchdog(ctx) })
	stop, err := c.begin(ctx)
	if err == nil {
		loops.Go(func() { c.recover(ctx) })
		loops.Go(func() { c.announceLoop(ctx) })
		<-ctx.Done()
	}
	stop()
	c.dirty.close()
	loops.Wait()
	c.finish(&crew, cancel)
	return err
}

// begin completes the start-time sweep before the first reference is taken (REQ-055): what a worker before this one had in
// its memory is found again by the cursors, not by references, so from then on a reference is only news.
func (c *Consumer) begin(ctx context.Context) (stop func(), err error) {
	var stops []fabric.Unsubscribe
	stop = func() {
		for i := len(stops) - 1; i >= 0; i-- {
			stops[i]()
		}
	}
	subscribe := func(what string, how func() (fabric.Unsubscribe, error)) {
		if err != nil || ctx.Err() != nil {
			return
		}
		var end fabric.Unsubscribe
		if end, err = how(); err != nil {
			err = fmt.Errorf("listen to %s of stream %s: %w", what, c.o.Stream, err)
			return
		}
		stops = append(stops, end)
	}
	subscribe("states", func() (fabric.Unsubscribe, error) {
		return c.dispatch.States(ctx, c.o.Stream, func(from fabric.RunnerAddr, s *compassv1.RunnerState) { c.onState(ctx, from, s) })
	})
	if err == nil {
		c.drainStarts(ctx)
	}
	if c.o.Notes != nil {
		subscribe("notes", func() (fabric.Unsubscribe, error) { return c.o.Notes.HearWorker(ctx, c.o.Stream, c.onNote) })
	}
	subscribe("outages", func() (fabric.Unsubscribe, error) { return c.fab.OnReconnect(c.onReconnect) })
	subscribe("references", func() (fabric.Unsubscribe, error) {
		return c.fab.SubscribeKind(ctx, fabric.KindMessagePosted, c.onEventRef)
	})
	return stop, err
}

// finish waits for the workers, and takes their context away when they need too long.
func (c *Consumer) finish(crew *sync.WaitGroup, cancel context.CancelFunc) {
	done := make(chan struct{})
	go func() {
		crew.Wait()
		close(done)
	}()
	timer := c.clock.NewTimer(c.o.Drain)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C():
		cancel()
		<-done
	}
}

// worker looks at one item after the other until the set is closed.
func (c *Consumer) worker(ctx context.Context, i int) {
	ctx = context.WithValue(ctx, workerKey{}, i)
	for {
		w, ok := c.dirty.take()
		if !ok {
			return
		}
		c.watch.moved(ctx, c.clock.Now())
		c.look(ctx, w)
		c.watch.idle(ctx)
		if c.dirty.done(w.item) {
			c.ranDry(w.tenant)
		}
	}
}

// look works one item under its tenant. A failure is nobody's attempt: the item comes again, a little later each time.
func (c *Consumer) look(ctx context.Context, w work) {
	t := c.tenants.get(w.tenant)
	database := t.inDatabase()
	wait := c.outages.wait(database, c.clock.Now())
	if wait == 0 && (w.kind == itemChannel || w.kind == itemAgent) {
		wait = c.outages.wait(natsIsAway, c.clock.Now())
	}
	if wait > 0 {
		c.later.at(w.item, w.why, c.clock.Now().Add(wait))
		return
	}
	if _, ok := c.leases.Fence(database); !ok {
		return // not ours to serve: when the lease is back, that database is swept
	}
	if w.kind == itemChannel || w.kind == itemAgent {
		if !t.sending.TryRLock() { // its drain is being confirmed
			c.later.at(w.item, w.why, c.clock.Now().Add(retryFirst))
			return
		}
		defer t.sending.RUnlock()
	}
	c.in.wait.Record(ctx, max(c.clock.Now().Sub(w.since), 0).Seconds(), metric.WithAttributes(attribute.String("kind", w.kind.String())))
	ctx = store.WithTenant(ctx, w.tenant)
	err := c.lookAt(ctx, t, w)
	c.outages.note(database, err, c.clock.Now())
	if err == nil {
		c.failures.clear(w.item)
		if w.kind != itemChannel && w.kind != itemAgent { // those say themselves when they are through
			c.swept(t, w.item)
		}
		return
	}
	t.leftOver(w.item)
	count(ctx, c.in.failures, 1, "kind", w.kind.String())
	wait = retryAfter(c.failures.add(w.item))
	c.log.WarnContext(ctx, "Could not look at what is owed", "tenant", w.tenant, "kind", w.kind.String(), "retry", wait, "error", err)
	c.later.at(w.item, w.why, c.clock.Now().Add(wait))
}

func (c *Consumer) lookAt(ctx context.Context, t *tenant, w work) error {
	switch w.kind {
	case itemRows:
		return c.resolveRows(ctx, t)
	case itemChannel:
		return c.drainChannel(ctx, t, w)
	case itemAgent:
		return c.drainAgent(ctx, t, w)
	case itemSession:
		return c.sweepSession(ctx, t, w.id)
	case itemTenant:
		return c.confirmDrain(ctx, t)
	}
	return nil
}

// step bounds one call to Postgres or NATS and shows the watchdog that the worker moves.
func (c *Consumer) step(ctx context.Context, call func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, c.o.StepTimeout)
	defer cancel()
	err := call(ctx)
	c.watch.moved(ctx, c.clock.Now())
	return err
}

// fence is what to prove for the tenant now; an error where the lease or its deadline has passed meanwhile.
func (c *Consumer) fence(t *tenant) (store.Fence, error) {
	fence, ok := c.leases.Fence(t.inDatabase())
	if !ok {
		return store.Fence{}, store.ErrLeaseLost
	}
	return fence, nil
}

// natsIsAway is the entry of outages for the broker: without it there is nothing to look for.
const natsIsAway = -1

// outages keeps a database that is away from holding the workers: one look at a time finds out whether it is back, its
// tenants wait meanwhile, and nobody else does (REQ-239).
type outages struct {
	mu   sync.Mutex
	away map[int]outage
}

type outage struct {
	until time.Time
	fails int
}

func (o *outages) wait(database int, now time.Time) time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	a, ok := o.away[database]
	if !ok {
		return 0
	}
	if wait := a.until.Sub(now); wait > 0 {
		return wait
	}
	a.until = now.Add(retryAfter(a.fails)) // this look is the one that finds out
	o.away[database] = a
	return 0
}

func (o *outages) note(database int, err error, now time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !errors.Is(err, store.ErrUnavailable) && !errors.Is(err, fabric.ErrUnavailable) {
		delete(o.away, database)
		return
	}
	if o.away == nil {
		o.away = map[int]outage{}
	}
	a := o.away[database]
	a.until = now.Add(retryAfter(a.fails))
	a.fails++
	o.away[database] = a
}

// failures counts failed looks in a row, per item.
type failures struct {
	mu sync.Mutex
	n  map[item]int
}

func (f *failures) add(it item) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.n == nil {
		f.n = map[item]int{}
	}
	f.n[it]++
	return f.n[it] - 1
}

func (f *failures) clear(it item) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.n, it)
}
