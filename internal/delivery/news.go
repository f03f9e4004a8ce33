package delivery

import (
	"context"
	"log/slog"
	"time"

	"github.com/rigelbuild/compass-operator/internal/event"
	"github.com/rigelbuild/compass-operator/internal/fabric"
)

// noteTime bounds one hint to a worker: the request that it follows waits for it.
const noteTime = 500 * time.Millisecond

// News stands before a Server's emitter and tells the worker of the tenant's stream, beside everybody else, what makes it
// look again: a session that began, a channel whose members changed, a cursor that moved. The worker subscribes to no
// tenant's broadcasts, so it reads nothing of tenants that are another's; a hint that is lost costs a tick.
type News struct {
	// Emitter tells the fact as the catalogue says; it comes first.
	Emitter interface {
		Emit(ctx context.Context, f event.Fact)
	}
	Notifier interface {
		NotifyWorker(ctx context.Context, stream string, note fabric.Note) error
	}
	// StreamOf says who carries the tenant; see fabric.Config.StreamOf.
	StreamOf func(tenant string) (stream string, ok bool)
	Log      *slog.Logger
}

// Emit implements the emitter of comms, hub and edge.
func (n News) Emit(ctx context.Context, f event.Fact) {
	n.Emitter.Emit(ctx, f)
	hint, ok := hintOf(f.Ref())
	if !ok {
		return
	}
	stream, carried := n.StreamOf(hint.Tenant)
	if !carried {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), noteTime)
	defer cancel()
	if err := n.Notifier.NotifyWorker(ctx, stream, hint.Note()); err != nil {
		n.Log.DebugContext(ctx, "Worker was not told; its tick finds it", "event", f.Ref().Kind, "error", err)
	}
}

// hintOf says what a worker does about a fact, if anything.
func hintOf(r event.Ref) (Hint, bool) {
	switch r.Kind { //nolint:exhaustive // the others concern people, or travel as references
	case event.NameBindingChanged:
		return Hint{Tenant: r.Tenant, Agent: r.RowID}, true
	case event.NameChannelChanged:
		return Hint{Tenant: r.Tenant, Channel: r.RowID}, true
	case event.NameCursorMoved:
		return Hint{Tenant: r.Tenant, Channel: r.Scope}, true
	case event.NamePlacementChanged:
		return Hint{Tenant: r.Tenant}, true
	}
	return Hint{}, false
}
