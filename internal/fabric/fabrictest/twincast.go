package fabrictest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/rigelbuild/compass-operator/internal/fabric"
	"github.com/rigelbuild/compass-operator/internal/naming"
)

// hearer is one core subscription: it gets what is sent while it is there, in order, one at a time.
type hearer struct {
	fn func(any)

	mu    sync.Mutex
	inbox []any
	busy  bool
	ended bool

	serial slot // held by the callback that runs
}

// slot is a mutex that a synctest bubble sees through: who waits for it lets the bubble's clock go on.
type slot chan struct{}

func newSlot() slot    { return make(slot, 1) }
func (s slot) lock()   { s <- struct{}{} }
func (s slot) unlock() { <-s }

// push hands one message over. The order of pushes is that of callbacks.
func (h *hearer) push(m any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ended {
		return
	}
	h.inbox = append(h.inbox, m)
	if !h.busy {
		h.busy = true
		go h.drain()
	}
}

func (h *hearer) drain() {
	for {
		h.serial.lock()
		h.mu.Lock()
		if len(h.inbox) == 0 || h.ended {
			h.busy = false
			h.mu.Unlock()
			h.serial.unlock()
			return
		}
		m := h.inbox[0]
		h.inbox = h.inbox[1:]
		h.mu.Unlock()
		h.fn(m)
		h.serial.unlock()
	}
}

func (h *hearer) end() {
	h.mu.Lock()
	h.ended = true
	h.mu.Unlock()
	h.serial.lock() // waits for the callback that runs
	defer h.serial.unlock()
}

// hear adds a subscription. Subjects are exact: the twin needs no wildcards.
func (b *Broker) hear(subject string, fn func(any)) func() {
	h := &hearer{fn: fn, serial: newSlot()}
	b.mu.Lock()
	b.hearers[subject] = append(b.hearers[subject], h)
	b.mu.Unlock()
	return func() {
		b.mu.Lock()
		b.hearers[subject] = slices.DeleteFunc(b.hearers[subject], func(x *hearer) bool { return x == h })
		b.mu.Unlock()
		h.end()
	}
}

// cast gives a message to everybody who hears the subject, and says how many that were.
func (b *Broker) cast(subject string, m any) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.reachable(); err != nil {
		return 0, err
	}
	for _, h := range b.hearers[subject] {
		h.push(m)
	}
	return len(b.hearers[subject]), nil
}

func (f *Twin) send(subject string, err error, m any) error {
	if err != nil {
		return fmt.Errorf("%w: %w", fabric.ErrBadRef, err)
	}
	if err := f.check(); err != nil {
		return err
	}
	_, err = f.b.cast(subject, m)
	return err
}

func (f *Twin) listen(ctx context.Context, subject string, err error, fn func(any)) (fabric.Unsubscribe, error) {
	if err != nil {
		return nil, fmt.Errorf("%w: %w", fabric.ErrBadRef, err)
	}
	if err := f.check(); err != nil {
		return nil, err
	}
	end := f.b.hear(subject, fn)
	return f.until(ctx, end), nil
}

// Broadcast implements fabric.Broadcaster.
func (f *Twin) Broadcast(_ context.Context, tenant, event string, envelope []byte, header map[string]string) error {
	if _, err := naming.BroadcastSubject(tenant, event); err != nil {
		return fmt.Errorf("%w: %w", fabric.ErrBadRef, err)
	}
	subject, err := naming.BroadcastTenantFilter(tenant)
	return f.send(subject, err, fabric.BroadcastMsg{
		Tenant: tenant, Event: event, Envelope: slices.Clone(envelope), Header: maps.Clone(header),
	})
}

// Listen implements fabric.Broadcaster.
func (f *Twin) Listen(ctx context.Context, tenant string, fn func(ctx context.Context, msg fabric.BroadcastMsg)) (fabric.Unsubscribe, error) {
	subject, err := naming.BroadcastTenantFilter(tenant)
	base := context.WithoutCancel(ctx)
	return f.listen(ctx, subject, err, func(m any) { fn(base, m.(fabric.BroadcastMsg)) }) //nolint:forcetypeassert // its own subject
}

// NotifyWorker implements fabric.Notifier.
func (f *Twin) NotifyWorker(_ context.Context, stream string, note fabric.Note) error {
	subject, err := naming.WorkerSubject(stream)
	return f.send(subject, err, note)
}

// HearWorker implements fabric.Notifier.
func (f *Twin) HearWorker(ctx context.Context, stream string, fn func(ctx context.Context, note fabric.Note)) (fabric.Unsubscribe, error) {
	subject, err := naming.WorkerSubject(stream)
	return f.hearNotes(ctx, subject, err, fn)
}

// NotifyClient implements fabric.Notifier.
func (f *Twin) NotifyClient(_ context.Context, connection string, note fabric.Note) error {
	subject, err := naming.ClientSubject(connection)
	return f.send(subject, err, note)
}

// HearClient implements fabric.Notifier.
func (f *Twin) HearClient(ctx context.Context, connection string, fn func(ctx context.Context, note fabric.Note)) (fabric.Unsubscribe, error) {
	subject, err := naming.ClientSubject(connection)
	return f.hearNotes(ctx, subject, err, fn)
}

func (f *Twin) hearNotes(ctx context.Context, subject string, err error, fn func(context.Context, fabric.Note)) (fabric.Unsubscribe, error) {
	base := context.WithoutCancel(ctx)
	return f.listen(ctx, subject, err, func(m any) { fn(base, m.(fabric.Note)) }) //nolint:forcetypeassert // its own subject
}
