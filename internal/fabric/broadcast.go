package fabric

import (
	"context"
	"fmt"

	"github.com/nats-io/nats.go"

	"github.com/rigelbuild/compass-operator/internal/naming"
)

var (
	_ Broadcaster = (*Fabric)(nil)
	_ Notifier    = (*Fabric)(nil)
)

// headerEvent names the event of a note; a broadcast has it in its subject.
const headerEvent = "Compass-Event"

// Broadcast see Broadcaster.
func (f *Fabric) Broadcast(ctx context.Context, tenant, event string, envelope []byte, header map[string]string) error {
	subject, err := naming.BroadcastSubject(tenant, event)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrBadRef, err)
	}
	return f.cast(ctx, subject, envelope, headerOf(header))
}

// Listen see Broadcaster.
func (f *Fabric) Listen(ctx context.Context, tenant string, fn func(ctx context.Context, msg BroadcastMsg)) (Unsubscribe, error) {
	subject, err := naming.BroadcastTenantFilter(tenant)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrBadRef, err)
	}
	return f.hear(ctx, subject, func(ctx context.Context, msg *nats.Msg) {
		tenant, event, err := naming.ParseBroadcastSubject(msg.Subject)
		if err != nil { // nobody of ours sends it
			f.cfg.Logger.Warn("Broadcast on a malformed subject", "subject", msg.Subject)
			return
		}
		fn(ctx, BroadcastMsg{Tenant: tenant, Event: event, Envelope: msg.Data, Header: plain(msg.Header)})
	})
}

// NotifyWorker see Notifier.
func (f *Fabric) NotifyWorker(ctx context.Context, stream string, note Note) error {
	return f.notify(ctx, naming.WorkerSubject, stream, note)
}

// HearWorker see Notifier.
func (f *Fabric) HearWorker(ctx context.Context, stream string, fn func(ctx context.Context, note Note)) (Unsubscribe, error) {
	return f.hearNotes(ctx, naming.WorkerSubject, stream, fn)
}

// NotifyClient see Notifier.
func (f *Fabric) NotifyClient(ctx context.Context, connection string, note Note) error {
	return f.notify(ctx, naming.ClientSubject, connection, note)
}

// HearClient see Notifier.
func (f *Fabric) HearClient(ctx context.Context, connection string, fn func(ctx context.Context, note Note)) (Unsubscribe, error) {
	return f.hearNotes(ctx, naming.ClientSubject, connection, fn)
}

func (f *Fabric) notify(ctx context.Context, subjectOf func(string) (string, error), to string, note Note) error {
	subject, err := subjectOf(to)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrBadRef, err)
	}
	if err := naming.ValidKind(note.Event); err != nil {
		return fmt.Errorf("%w: %w", ErrBadRef, err)
	}
	h := headerOf(note.Header)
	h.Set(headerEvent, note.Event)
	return f.cast(ctx, subject, note.Envelope, h)
}

func (f *Fabric) hearNotes(
	ctx context.Context, subjectOf func(string) (string, error), to string, fn func(ctx context.Context, note Note),
) (Unsubscribe, error) {
	subject, err := subjectOf(to)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrBadRef, err)
	}
	return f.hear(ctx, subject, func(ctx context.Context, msg *nats.Msg) {
		h := plain(msg.Header)
		event := h[headerEvent]
		delete(h, headerEvent)
		fn(ctx, Note{Event: event, Envelope: msg.Data, Header: h})
	})
}

// cast sends at most once.
func (f *Fabric) cast(ctx context.Context, subject string, body []byte, header nats.Header) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("send to %s: %w", subject, err)
	}
	if err := f.link.send(&nats.Msg{Subject: subject, Data: body, Header: header}); err != nil {
		return fmt.Errorf("send to %s: %w", subject, err)
	}
	return nil
}

// hear subscribes fn until ctx ends, the returned function is called, or Close.
func (f *Fabric) hear(ctx context.Context, subject string, fn func(context.Context, *nats.Msg)) (Unsubscribe, error) {
	base := context.WithoutCancel(ctx)
	stop, err := f.link.subscribe(ctx, subject, "", func(msg *nats.Msg) { fn(base, msg) })
	if err != nil {
		return nil, err
	}
	return f.registerWith(ctx, stop)
}

func headerOf(h map[string]string) nats.Header {
	out := nats.Header{}
	for k, v := range h {
		out.Set(k, v)
	}
	return out
}

func plain(h nats.Header) map[string]string {
	out := make(map[string]string, len(h))
	for k := range h {
		out[k] = h.Get(k)
	}
	return out
}
