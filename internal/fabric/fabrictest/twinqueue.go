package fabrictest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rigelbuild/compass-operator/internal/fabric"
	"github.com/rigelbuild/compass-operator/internal/fabric/internal/counting"
	"github.com/rigelbuild/compass-operator/internal/naming"
)

// queue is one stream: what is stored, what was published lately, who consumes, and what was parked.
type queue struct {
	seq       uint64
	items     []*item
	published map[string]time.Time
	consumers map[string]int // by tenant, "" for all: how many lanes
	dead      []fabric.DeadLetter
	deadSeq   uint64
}

// item is one stored message. It is due when a lane may take it (again).
type item struct {
	seq       uint64
	wire      fabric.Wire
	stored    time.Time
	due       time.Time
	delivered int
}

func newQueue() *queue {
	return &queue{published: map[string]time.Time{}, consumers: map[string]int{}}
}

func (q *queue) store(w fabric.Wire, now time.Time) (duplicate bool) {
	if ids := w.Header[fabric.HeaderMsgID]; len(ids) > 0 {
		id := ids[0]
		if at, ok := q.published[id]; ok && now.Sub(at) < fabric.DefaultDuplicateWindow {
			return true
		}
		q.published[id] = now
	}
	q.seq++
	q.items = append(q.items, &item{seq: q.seq, wire: w, stored: now})
	return false
}

func (q *queue) drop(seq uint64) {
	q.items = slices.DeleteFunc(q.items, func(i *item) bool { return i.seq == seq })
}

// next is the first item that a lane may take now; else the time at which one will be due, zero for none.
func (q *queue) next(tenant string, now time.Time) (*item, time.Time) {
	var soonest time.Time
	for _, i := range q.items {
		if tenant != "" && !strings.Contains(i.wire.Subject, "."+tenant+".") {
			continue
		}
		if !i.due.After(now) {
			return i, time.Time{}
		}
		if soonest.IsZero() || i.due.Before(soonest) {
			soonest = i.due
		}
	}
	return nil, soonest
}

// Publish implements fabric.EventFabric.
func (f *Twin) Publish(ctx context.Context, subject string, ref fabric.EventRef) error {
	if err := f.check(); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%w: %w", fabric.ErrUnavailable, err)
	}
	want, err := fabric.CommsSubject(ref.Tenant, ref.Kind)
	if err != nil {
		return err
	}
	if want != subject {
		return fmt.Errorf("%w: subject %q is not the reference's", fabric.ErrBadRef, subject)
	}
	stream, ok := f.o.StreamOf(ref.Tenant)
	if !ok {
		return fabric.ErrNoStream
	}
	_, err = f.put(stream, ref, 0)
	return err
}

func (f *Twin) put(stream string, ref fabric.EventRef, replay int) (duplicate bool, err error) {
	w, err := fabric.EncodeRef(ref, stream, f.id, replay)
	if err != nil {
		return false, err
	}
	f.b.mu.Lock()
	defer f.b.mu.Unlock()
	if err := f.b.reachable(); err != nil {
		return false, err
	}
	q := f.b.queues[stream]
	if q == nil {
		return false, fmt.Errorf("%w: no stream %q", fabric.ErrUnavailable, stream)
	}
	duplicate = q.store(w, time.Now())
	f.b.bump()
	return duplicate, nil
}

// reachable is nil while the broker is up and no failure is ordered. Called under mu.
func (b *Broker) reachable() error {
	if b.away {
		return fabric.ErrUnavailable
	}
	if len(b.refuse) > 0 {
		err := b.refuse[0]
		b.refuse = b.refuse[1:]
		return err
	}
	return nil
}

// SubscribeKind implements fabric.EventFabric.
func (f *Twin) SubscribeKind(ctx context.Context, kind fabric.EventKind, fn fabric.Handler) (fabric.Unsubscribe, error) {
	if err := naming.ValidKind(string(kind)); err != nil {
		return nil, fmt.Errorf("%w: %w", fabric.ErrBadRef, err)
	}
	if err := f.check(); err != nil {
		return nil, err
	}
	f.mu.Lock()
	taken := f.lane
	f.lane = true
	f.mu.Unlock()
	if taken {
		return nil, fabric.ErrOverlap
	}
	free := func() { f.mu.Lock(); f.lane = false; f.mu.Unlock() }
	end, err := f.consume(ctx, kind, "", fn, free)
	if err != nil {
		free()
	}
	return end, err
}

// Subscribe implements fabric.EventFabric.
func (f *Twin) Subscribe(ctx context.Context, subject string, fn fabric.Handler) (fabric.Unsubscribe, error) {
	tenant, kind, err := naming.ParseCommsSubject(subject)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", fabric.ErrBadRef, err)
	}
	if err := f.check(); err != nil {
		return nil, err
	}
	return f.consume(ctx, fabric.EventKind(kind), tenant, fn, func() {})
}

func (f *Twin) consume(
	ctx context.Context, kind fabric.EventKind, tenant string, fn fabric.Handler, ended func(),
) (fabric.Unsubscribe, error) {
	if f.o.Stream == "" || fn == nil {
		return nil, fmt.Errorf("%w: a subscription needs a Stream and a function", fabric.ErrConfig)
	}
	f.b.mu.Lock()
	q := f.b.queues[f.o.Stream]
	for other := range q.consumers {
		if other != tenant && (other == "" || tenant == "") {
			f.b.mu.Unlock()
			return nil, fabric.ErrOverlap
		}
	}
	q.consumers[tenant]++
	f.b.mu.Unlock()
	l := &twinLane{
		f: f, kind: kind, tenant: tenant, fn: fn, known: map[uint64]*counting.Record{},
		rules: counting.Rules{MaxDeliver: f.o.MaxDeliver, Backoff: f.o.Backoff},
	}
	lctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { l.run(lctx) })
	return f.until(ctx, func() { cancel(); wg.Wait(); l.leave(q); ended() }), nil
}

// twinLane takes references one by one, as the real lane does.
type twinLane struct {
	f      *Twin
	kind   fabric.EventKind
	tenant string
	fn     fabric.Handler
	rules  counting.Rules
	known  map[uint64]*counting.Record
}

// leave ends the lane's claim. A durable of every tenant outlives its lanes, as on the broker, but keeps nobody out here.
func (l *twinLane) leave(q *queue) {
	l.f.b.mu.Lock()
	defer l.f.b.mu.Unlock()
	if q.consumers[l.tenant]--; q.consumers[l.tenant] <= 0 {
		delete(q.consumers, l.tenant)
	}
}

func (l *twinLane) run(ctx context.Context) {
	for ctx.Err() == nil {
		it, q, wait, changed := l.take()
		if it != nil {
			l.work(ctx, q, it)
			continue
		}
		var timer <-chan time.Time
		if wait > 0 {
			timer = time.After(wait)
		}
		select {
		case <-ctx.Done():
		case <-changed:
		case <-timer:
		}
	}
}

// take claims the next item, or says how long to wait for one.
func (l *twinLane) take() (*item, *queue, time.Duration, <-chan struct{}) {
	b := l.f.b
	b.mu.Lock()
	defer b.mu.Unlock()
	q := b.queues[l.f.o.Stream]
	if b.away {
		return nil, q, 0, b.changed
	}
	now := time.Now()
	it, soonest := q.next(l.tenant, now)
	if it == nil {
		wait := time.Duration(0)
		if !soonest.IsZero() {
			wait = max(soonest.Sub(now), time.Nanosecond)
		}
		return nil, q, wait, b.changed
	}
	it.delivered++
	it.due = now.Add(l.f.o.AckWait)
	claimed := *it
	return &claimed, q, 0, b.changed
}

// work judges one delivery and answers it. An answer during an outage is lost.
func (l *twinLane) work(ctx context.Context, q *queue, it *item) {
	v := l.judge(ctx, it)
	b := l.f.b
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.away {
		return
	}
	if v.Outcome == counting.Park {
		q.park(l.f.o.Stream, it, v, l.rules.Attempts(it.delivered, l.known[it.seq]))
	}
	switch v.Outcome {
	case counting.Ack, counting.Park:
		delete(l.known, it.seq)
		q.drop(it.seq)
	case counting.Retry, counting.Nak:
		rec := l.known[it.seq]
		if rec == nil {
			rec = &counting.Record{}
			l.known[it.seq] = rec
		}
		if v.Outcome == counting.Retry {
			rec.Excused++
		}
		for _, stored := range q.items {
			if stored.seq == it.seq {
				stored.due = time.Now().Add(v.Delay)
			}
		}
	}
	b.bump()
}

func (l *twinLane) judge(ctx context.Context, it *item) counting.Verdict {
	if v, ask := l.rules.OnEntry(it.delivered, l.known[it.seq]); !ask {
		return v
	}
	ref, _, err := fabric.DecodeRef(l.f.o.Stream, it.wire)
	if err != nil {
		return counting.Verdict{Outcome: counting.Park, Reason: counting.ReasonUndecodable, Err: err}
	}
	if ref.Kind != l.kind {
		return counting.Verdict{Outcome: counting.Park, Reason: counting.ReasonUnknownKind, Err: fabric.ErrBadRef}
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.f.o.AckWait)
	defer cancel()
	return l.rules.OnReturn(it.delivered, l.known[it.seq], counting.Guard(func() error { return l.fn(ctx, ref) }))
}

func (q *queue) park(stream string, it *item, v counting.Verdict, attempts int) {
	letter := fabric.DeadLetter{
		OriginalSubject: it.wire.Subject, Body: it.wire.Body, Attempts: attempts, Reason: v.Reason,
		FirstSeen: it.stored, LastSeen: time.Now(), Error: v.Err.Error(),
	}
	letter.Ref, letter.Replay, _ = fabric.DecodeRef(stream, it.wire)
	_ = q.announce(stream, letter)
}
