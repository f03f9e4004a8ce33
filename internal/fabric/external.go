package fabric

import (
	"bytes"
	"fmt"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nkeys"
)

// ParseOperatorSigner reads the seed of an operator signing key, as somebody else's NATS gives it to us. White space around
// it is forgiven; the error does not repeat it.
func ParseOperatorSigner(text []byte) (Seed, error) {
	s, err := ParseSeed(bytes.TrimSpace(text))
	if err == nil && !isKind(s, nkeys.PrefixByteOperator) {
		err = fmt.Errorf("%w: a key of another kind, its seed must begin with SO", ErrConfig)
	}
	if err != nil {
		return Seed{}, fmt.Errorf("operator signing key: %w", err)
	}
	return s, nil
}

// ParseCreds reads the text of a NATS credentials file. The error does not repeat it.
func ParseCreds(text []byte, inbox string) (Credentials, error) {
	user, err := jwt.ParseDecoratedJWT(text)
	if err != nil || user == "" {
		return Credentials{}, fmt.Errorf("credentials: %w: no user JWT in them", ErrConfig)
	}
	if _, err := jwt.DecodeUserClaims(user); err != nil {
		return Credentials{}, fmt.Errorf("credentials: %w: the JWT is not a user's", ErrConfig)
	}
	kp, err := jwt.ParseDecoratedUserNKey(text)
	if err != nil {
		return Credentials{}, fmt.Errorf("credentials: %w: no user seed in them", ErrConfig)
	}
	defer kp.Wipe()
	seed, err := kp.Seed()
	if err != nil {
		return Credentials{}, fmt.Errorf("credentials: %w: no user seed in them", ErrConfig)
	}
	return StaticCredentials(user, Seed{string(seed)}, inbox), nil
}

// CompleteExternalKeys is CompleteKeys for somebody else's NATS: its operator and system account are theirs, signer is what
// they gave us, and only our own accounts have keys here. Keys.Probe is for Accounts.Probe.
func CompleteExternalKeys(data map[string][]byte, signer Seed) (Keys, map[string][]byte, error) {
	c := completer{have: data, added: map[string][]byte{}}
	k := Keys{
		Signing: [2]Seed{signer},
		Compass: c.account("compass", compassRoles),
		Runners: c.account("runners", runnersRoles),
		Probe:   c.account("probe", nil),
	}
	return k, c.toStore(), c.err
}
