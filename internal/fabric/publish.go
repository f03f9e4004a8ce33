package fabric

import (
	"context"
	"fmt"
	"time"

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
	ack, err := js.PublishMsg(ctx, w.message(), stored(name)...)
	if err != nil {
		f.metrics.published(ctx, f.cfg.Now().Sub(began), publishFailed)
		return false, fmt.Errorf("publish %s of tenant %s: %w", ref.Kind, ref.Tenant, interpret(err))
	}
	outcome := publishStored
	if ack.Duplicate {
		outcome = publishDuplicate
	}
	f.metrics.published(ctx, f.cfg.Now().Sub(began), outcome)
	return ack.Duplicate, nil
}

// A broker that starts, or elects a leader, has nobody to take a publish for a moment: it is tried for as long as the client
// library would, but not with its pause of a quarter of a second.
const (
	blipWait  = 20 * time.Millisecond
	blipTries = 25
)

// stored are the options of what must be stored. Naming the stream turns "stored somewhere else" into an error.
func stored(stream string, more ...jetstream.PublishOpt) []jetstream.PublishOpt {
	return append(more, jetstream.WithExpectStream(stream), jetstream.WithRetryWait(blipWait), jetstream.WithRetryAttempts(blipTries))
}
