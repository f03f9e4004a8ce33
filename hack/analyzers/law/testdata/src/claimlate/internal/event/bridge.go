package event

// DELIVERY-4: of two copies side by side both find the digest free.
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
	err = b.local.emit(envelope.ref) // want `digest: the bus is told before the digest was claimed`
	if !b.claims.take(digest) {
		return nil
	}
	return err
}
