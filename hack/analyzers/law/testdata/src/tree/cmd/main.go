package main

import (
	"context"

	"tree/internal/event"
	"tree/internal/fabric"
)

// queue is the adapter of the emitter's queue lane.
type queue struct{ publisher *fabric.Publisher }

func (q queue) Enqueue(ctx context.Context, ref event.Ref) error {
	return q.publisher.Enqueue(ctx, fabric.EventRef{RowID: ref.RowID})
}

// noise broadcasts something else.
type noise struct{}

func (noise) Broadcast() {}

func main() { noise{}.Broadcast() }
