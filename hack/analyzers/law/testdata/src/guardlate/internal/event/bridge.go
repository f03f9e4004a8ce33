package event

// DELIVERY-3: the guard is there, behind the emit.
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
	err = b.local.emit(envelope.ref) // want `origin: the bus is told before the own echo was dropped`
	if envelope.producer == b.instance.id {
		return nil
	}
	return err
}

// Again has the guard behind the claim: the echo's digest is taken.
func (b *Bridge) Again(envelope Envelope) error {
	digest, fact := envelope.Digest()
	if !fact {
		return nil
	}
	if !b.claims.take(digest) {
		return nil
	}
	if envelope.producer == b.instance.id { // want `origin: the own echo is dropped before its digest is read`
		return nil
	}
	return b.local.emit(envelope.ref)
}
