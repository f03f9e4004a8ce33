package fabric

import "crypto/ed25519"

// Signer is the key that commands are signed with. Runners hold the public keys by id, two of them during a rotation.
type Signer struct {
	KeyID string
	Key   ed25519.PrivateKey
}
