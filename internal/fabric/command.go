package fabric

import (
	"crypto/ed25519"
	"fmt"
	"maps"
	"sync"

	"google.golang.org/protobuf/proto"

	compassv1 "github.com/rigelbuild/compass-operator/api/proto/compass/v1"
)

// Signer is the key that commands are signed with. Runners hold the public keys by id, two of them during a rotation.
type Signer struct {
	KeyID string
	Key   ed25519.PrivateKey
}

// Sign wraps a command. The signature covers the body, which names the Runner, so it is worth nothing to another.
func (s Signer) Sign(command *compassv1.Command) (*compassv1.SessionsResponse, error) {
	body, err := proto.Marshal(command)
	if err != nil {
		return nil, fmt.Errorf("sign command: %w", err)
	}
	out := &compassv1.SessionsResponse{Body: body}
	return out, s.seal(out)
}

func (s Signer) seal(c *compassv1.SessionsResponse) error {
	if s.KeyID == "" || len(s.Key) != ed25519.PrivateKeySize {
		return fmt.Errorf("sign command: %w: no command key", ErrConfig)
	}
	c.KeyId, c.Signature = s.KeyID, ed25519.Sign(s.Key, c.GetBody())
	return nil
}

// CommandKeys are the public keys that commands may be signed with, by id. Safe for concurrent use; Set replaces all of
// them, as a rotation does.
type CommandKeys struct {
	mu   sync.RWMutex
	keys map[string]ed25519.PublicKey
}

// NewCommandKeys holds a copy of keys.
func NewCommandKeys(keys map[string]ed25519.PublicKey) *CommandKeys {
	return &CommandKeys{keys: maps.Clone(keys)}
}

// Set replaces the keys.
func (k *CommandKeys) Set(keys map[string]ed25519.PublicKey) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.keys = maps.Clone(keys)
}

// Open returns the command inside, if a known key signed it; ErrSignature otherwise. Workers open proofs of a higher fence
// with it, Runners their commands.
func (k *CommandKeys) Open(signed *compassv1.SessionsResponse) (*compassv1.Command, error) {
	k.mu.RLock()
	key, ok := k.keys[signed.GetKeyId()]
	k.mu.RUnlock()
	if !ok || len(key) != ed25519.PublicKeySize || !ed25519.Verify(key, signed.GetBody(), signed.GetSignature()) {
		return nil, fmt.Errorf("open command of key %q: %w", signed.GetKeyId(), ErrSignature)
	}
	var c compassv1.Command
	if err := proto.Unmarshal(signed.GetBody(), &c); err != nil {
		return nil, fmt.Errorf("open command: %w: %w", ErrBadRef, err)
	}
	return &c, nil
}
