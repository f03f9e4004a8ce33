package lane

import (
	"context"

	"tree/internal/event"
	"tree/internal/fabric"
	"tree/internal/naming"
)

// DELIVERY-2: everybody who publishes by himself.
type broker interface {
	Broadcast(ctx context.Context, tenant, event string, envelope []byte, header map[string]string) error
}

func around(ctx context.Context, f *fabric.Fabric, b broker) {
	_ = f.Broadcast(ctx, "t", "e", nil, nil) // want `a broadcast outside the emitter`
	_ = b.Broadcast(ctx, "t", "e", nil, nil) // want `a broadcast outside the emitter`
	later := f.Broadcast                     // want `a broadcast outside the emitter`
	_ = later(ctx, "t", "e", nil, nil)
}

func refs(ctx context.Context, f *fabric.Fabric, p *fabric.Publisher) {
	_ = f.Publish(ctx, "s", fabric.EventRef{}) // want `a reference outside the emitter`
	_ = p.Enqueue(ctx, fabric.EventRef{})      // want `a reference outside the emitter`
	_, _ = naming.BroadcastSubject("t", "e")   // want `a subject of a lane outside the fabric`
}

type hidden struct{ p *fabric.Publisher }

// Enqueue has the adapter's name and takes no fact of the catalogue.
func (h hidden) Enqueue(ctx context.Context, row string) error {
	return h.p.Enqueue(ctx, fabric.EventRef{RowID: row}) // want `a reference outside the emitter`
}

var _ = event.Fact{}
