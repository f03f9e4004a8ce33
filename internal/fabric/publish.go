package fabric

import (
	"context"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/rigelbuild/compass-operator/internal/naming"
)

// Publish see EventFabric.
func (f *Fabric) Publish(ctx context.Context, subject string, ref EventRef) error {
	if err := ref.check(subject); err != nil {
		return err
	}
	stream, ok := f.cfg.StreamOf(ref.Tenant)
	if !ok {
		return fmt.Errorf("publish %s of tenant %s: %w", ref.Kind, ref.Tenant, ErrNoStream)
	}
	_, err := f.put(ctx, stream, ref, 0)
	return err
}

// put stores one reference in the stream and reports whether the broker had it already.
func (f *Fabric) put(ctx context.Context, stream string, ref EventRef, replay int) (duplicate bool, err error) {
	w, err := EncodeRef(ref, stream, f.cfg.Instance, replay)
	if err != nil {
		return false, err
	}
	name, err := naming.StreamName(stream)
	if err != nil {
		return false, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	js, err := f.jetStream()
	if err != nil {
		return false, err
	}
	ctx, cancel := context.WithTimeout(ctx, f.cfg.PublishTimeout)
	defer cancel()
	began := f.cfg.Now()
	// Naming the stream turns "stored somewhere else" into an error.
	ack, err := js.PublishMsg(ctx, w.message(), jetstream.WithExpectStream(name))
	if err != nil {
		f.metrics.published(ctx, f.cfg.Now().Sub(began), "failed")
		return false, fmt.Errorf("publish %s of tenant %s: %w", ref.Kind, ref.Tenant, interpret(err))
	}
	f.metrics.published(ctx, f.cfg.Now().Sub(began), publishOutcome(ack.Duplicate))
	return ack.Duplicate, nil
}

func publishOutcome(duplicate bool) string {
	if duplicate {
		return "duplicate"
	}
	return "stored"
}
