package event

import "context"

// Receive is how it is done.
func (b *Bridge) Receive(r Received) error {
	envelope, err := Decode(r.Envelope)
	if err != nil {
		return err
	}
	if envelope.producer == b.instance.id {
		return nil
	}
	digest, fact := envelope.Digest()
	if !fact {
		return nil
	}
	if !b.claims.take(digest) {
		return nil
	}
	return b.emit(envelope, digest)
}

func (b *Bridge) emit(envelope Envelope, digest Digest) error {
	if err := b.local.emit(envelope.ref); err != nil {
		b.claims.release(digest)
		return err
	}
	return nil
}

type broker interface {
	Broadcast(ctx context.Context, tenant, event string, envelope []byte, header map[string]string) error
}

// Emitter decides, so it has no echo to drop.
type Emitter struct {
	bus    *Bus
	broker broker
}

func (e *Emitter) Emit(ctx context.Context, f Fact) {
	_ = e.bus.emit(f.ref)
	_ = e.broker.Broadcast(ctx, f.ref.Tenant, string(f.ref.Kind), nil, nil)
}

// Interest hands over what it heard.
type Interest struct{ bridge *Bridge }

func (i *Interest) Hear(r Received) error { return i.bridge.Receive(r) }
