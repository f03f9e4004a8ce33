// Package outside holds what no caller can write. Every marked line must be refused by the compiler, with those words.
package outside

import (
	"context"

	"github.com/rigelbuild/compass-operator/internal/event"
)

// DELIVERY-1: nobody but the factory makes an envelope, or picks its producer or digest.
var (
	_ = event.Envelope{producer: "i_forged"} // want: unexported field producer
	_ = event.Envelope{digest: nil}          // want: unexported field digest
	_ = event.Instance{id: "i_forged"}       // want: unexported field id
)

func _(e event.Envelope) {
	var _ event.Digest = e.Digest() // want: multiple-value
}

// DELIVERY-2: no fact is undeclared or without a version, and no call chooses a transport.
var (
	_ = event.Fact{ref: event.Ref{Kind: "message_burnt"}} // want: unexported field ref
	_ = event.MessageVisible("t", "c", "m")               // want: not enough arguments
)

func _(ctx context.Context, e *event.Emitter, b *event.Bus, f event.Fact) {
	e.Emit(ctx, f, event.LaneLocal) // want: too many arguments
	b.emit(f.Ref())                 // want: unexported method emit
}
