package event

// DELIVERY-3, DELIVERY-4: both steps are there, and not always taken.
func (b *Bridge) Receive(r Received) error {
	envelope, err := Decode(r.Envelope)
	if err != nil {
		return err
	}
	digest, _ := envelope.Digest()
	if envelope.producer == b.instance.id && r.Event != "" {
		return nil
	}
	if r.Event != "" {
		if !b.claims.take(digest) {
			return nil
		}
	}
	return b.local.emit(envelope.ref) // want `origin: the bus is told` `digest: the bus is told`
}
