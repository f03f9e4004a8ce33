package event

// DELIVERY-3: no guard.
func (b *Bridge) Receive(r Received) error {
	envelope, err := Decode(r.Envelope)
	if err != nil {
		return err
	}
	digest, fact := envelope.Digest()
	if !fact {
		return nil
	}
	if !b.claims.take(digest) {
		return nil
	}
	return b.tell(envelope) // want `origin: the bus is told before the own echo was dropped`
}

func (b *Bridge) tell(e Envelope) error { return b.local.emit(e.ref) }
