package event

// DELIVERY-3: a subject equals no instance, so this guard drops nothing.
func (b *Bridge) Receive(r Received) error {
	envelope, err := Decode(r.Envelope)
	if err != nil {
		return err
	}
	if r.Event == b.instance.id { // want `origin: an instance is compared with the envelope`
		return nil
	}
	digest, fact := envelope.Digest()
	if !fact {
		return nil
	}
	if !b.claims.take(digest) {
		return nil
	}
	return b.local.emit(envelope.ref) // want `origin: the bus is told before the own echo was dropped`
}
