package fabric

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rigelbuild/compass-operator/internal/fabric/internal/counting"
	"github.com/rigelbuild/compass-operator/internal/naming"
)

// SubscribeKind see EventFabric. One fabric consumes one kind: the durable consumer gets every kind of the stream, and
// what nobody handles parks as ReasonUnknownKind.
func (f *Fabric) SubscribeKind(ctx context.Context, kind EventKind, fn Handler) (Unsubscribe, error) {
	if err := naming.ValidKind(string(kind)); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrBadRef, err)
	}
	if err := f.takeLane(); err != nil {
		return nil, fmt.Errorf("subscribe to %s: %w", kind, err)
	}
	end, err := f.consume(ctx, kind, "", fn, f.freeLane)
	if err != nil {
		f.freeLane()
		return nil, err
	}
	return end, nil
}

func (f *Fabric) takeLane() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.closed:
		return ErrClosed
	case f.lane:
		return ErrOverlap
	}
	f.lane = true
	return nil
}

func (f *Fabric) freeLane() {
	f.mu.Lock()
	f.lane = false
	f.mu.Unlock()
}

// Subscribe see EventFabric. It has a durable consumer of its own, which only Manage can make.
func (f *Fabric) Subscribe(ctx context.Context, subject string, fn Handler) (Unsubscribe, error) {
	tenant, kind, err := naming.ParseCommsSubject(subject)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrBadRef, err)
	}
	return f.consume(ctx, EventKind(kind), tenant, fn, func() {})
}

// consume starts a lane. What can never work is told at once; what may come (broker, stream) is waited for behind it.
// ended is called when the lane is over, not if it never began.
func (f *Fabric) consume(ctx context.Context, kind EventKind, tenant string, fn Handler, ended func()) (Unsubscribe, error) {
	switch {
	case f.cfg.Stream == "":
		return nil, fmt.Errorf("%w: no Stream to subscribe to", ErrConfig)
	case fn == nil:
		return nil, fmt.Errorf("%w: a subscription needs a function", ErrConfig)
	}
	l, err := f.newLane(kind, tenant, fn)
	if err != nil {
		return nil, err
	}
	if err := l.ready(ctx); err != nil && hopelessLane(err) {
		return nil, fmt.Errorf("subscribe to %s of stream %s: %w", kind, f.cfg.Stream, err)
	}
	lctx, cancel := context.WithCancel(ctx)
	go l.run(lctx)
	return f.registerWith(ctx, func() { cancel(); <-l.done; l.forget(); ended() })
}

func hopelessLane(err error) bool {
	for _, e := range []error{ErrOverlap, ErrConfig, ErrForeign, ErrImmutable, ErrClosed} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// lane is one subscription of the queue: it keeps the consumer there, takes references one by one and answers them.
type lane struct {
	f      *Fabric
	kind   EventKind
	tenant string // empty: every tenant
	fn     Handler
	rules  counting.Rules
	done   chan struct{}
	poke   chan struct{} // something looks wrong: inspect now

	known   map[uint64]*counting.Record
	ackWait time.Duration

	lostOne bool // the consumer was there and went: tell OnReconnect when it is back
	orphans int64
}

func (f *Fabric) newLane(kind EventKind, tenant string, fn Handler) (*lane, error) {
	l := &lane{
		f: f, kind: kind, tenant: tenant, fn: fn,
		rules: counting.Rules{MaxDeliver: f.cfg.MaxDeliver, Backoff: f.cfg.Backoff},
		done:  make(chan struct{}), poke: make(chan struct{}, 1),
		known: map[uint64]*counting.Record{}, ackWait: f.cfg.Spec.AckWait,
	}
	_, err := l.provisioner()
	return l, err
}

// provisioner is that of the fabric's stream; a lane of one tenant asks for a consumer of its own.
func (l *lane) provisioner() (*provisioner, error) {
	p, err := l.f.provisioner(l.f.cfg.Spec)
	if err != nil || l.tenant == "" {
		return p, err
	}
	p.durable.FilterSubject, err = naming.QueueSubject(l.f.cfg.Stream, l.tenant, string(l.kind))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrBadRef, err)
	}
	p.durable.Durable = naming.Durable + "-" + l.tenant + "-" + string(l.kind)
	return p, nil
}

// forget removes the consumer of a lane of one tenant: it holds no reference, and left behind it would refuse a
// SubscribeKind.
func (l *lane) forget() {
	if l.tenant == "" || !l.f.cfg.Manage {
		return
	}
	p, err := l.provisioner()
	if err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), l.f.cfg.PublishTimeout)
	defer cancel()
	if err := interpret(p.js.DeleteConsumer(ctx, p.queue.Name, p.durable.Durable)); err != nil && !errors.Is(err, ErrAbsent) {
		l.f.cfg.Logger.Warn("Consumer of one tenant could not be removed", "consumer", p.durable.Durable, "error", err)
	}
}
