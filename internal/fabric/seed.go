package fabric

import (
	"fmt"
	"log/slog"

	"github.com/nats-io/nkeys"
)

// Seed is the private half of an nkey. It shows itself to nobody: whatever prints, logs or formats it gets a placeholder.
type Seed struct{ text string }

// ParseSeed reads the text form (S…). The error does not repeat it.
func ParseSeed(text []byte) (Seed, error) {
	kp, err := nkeys.FromSeed(text)
	if err != nil {
		return Seed{}, fmt.Errorf("%w: not an nkey seed", ErrConfig)
	}
	kp.Wipe()
	return Seed{string(text)}, nil
}

// newSeed makes a seed of one kind: operator, account or user.
func newSeed(kind nkeys.PrefixByte) (Seed, error) {
	kp, err := nkeys.CreatePair(kind)
	if err != nil {
		return Seed{}, fmt.Errorf("make key: %w", err)
	}
	defer kp.Wipe()
	text, err := kp.Seed()
	if err != nil {
		return Seed{}, fmt.Errorf("make key: %w", err)
	}
	return Seed{string(text)}, nil
}

// NewUserSeed makes the key of one user. Runners make theirs with it and never send it anywhere.
func NewUserSeed() (Seed, error) { return newSeed(nkeys.PrefixByteUser) }

// Text is the secret itself, for the Secret or file that keeps it.
func (s Seed) Text() []byte { return []byte(s.text) }

// IsZero reports whether there is no seed.
func (s Seed) IsZero() bool { return s.text == "" }

// Public is the public half (O…, A…, U…), empty for no seed.
func (s Seed) Public() string {
	kp, err := s.pair()
	if err != nil {
		return ""
	}
	defer kp.Wipe()
	pub, err := kp.PublicKey()
	if err != nil {
		return ""
	}
	return pub
}

// Sign signs with the key, as NATS and enrolment want it.
func (s Seed) Sign(data []byte) ([]byte, error) {
	kp, err := s.pair()
	if err != nil {
		return nil, err
	}
	defer kp.Wipe()
	sig, err := kp.Sign(data)
	if err != nil {
		return nil, fmt.Errorf("sign: %w", err)
	}
	return sig, nil
}

// VerifyKey reports whether the holder of the public nkey signed data.
func VerifyKey(public string, data, signature []byte) bool {
	kp, err := nkeys.FromPublicKey(public)
	return err == nil && kp.Verify(data, signature) == nil
}

func (s Seed) pair() (nkeys.KeyPair, error) {
	kp, err := nkeys.FromSeed([]byte(s.text))
	if err != nil {
		return nil, fmt.Errorf("%w: not an nkey seed", ErrConfig)
	}
	return kp, nil
}

const hiddenSeed = "(seed)"

func (Seed) String() string               { return hiddenSeed }
func (Seed) GoString() string             { return hiddenSeed }
func (Seed) Format(f fmt.State, _ rune)   { _, _ = f.Write([]byte(hiddenSeed)) }
func (Seed) LogValue() slog.Value         { return slog.StringValue(hiddenSeed) }
func (Seed) MarshalText() ([]byte, error) { return []byte(hiddenSeed), nil }
