package fabric

import (
	"crypto/hmac"
	"crypto/sha256"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nkeys"
)

// UserOf names a derived user; see AccountKeys.UserSeed.
type UserOf struct {
	Role   Role
	ID     string // as for Issuer.User
	Number int    // of the rotation
}

// UserSeed is the key of one of our own users, derived from the key that signs it: whoever holds that could make any user
// anyway. The same role, id and number make the same key, so credentials that were deleted come back as the user they were,
// and need not be stored to be had again. A rotation counts number up; the user of the number before can then be named, and
// revoked. Runners are not made here: theirs never leaves them.
func (k AccountKeys) UserSeed(u UserOf) (Seed, error) {
	from, ok := k.Scoped[u.Role]
	if !ok {
		return Seed{}, fmt.Errorf("%w: no key of role %q", ErrConfig, u.Role)
	}
	_, raw, err := nkeys.DecodeSeed([]byte(from.text))
	if err != nil {
		return Seed{}, fmt.Errorf("%w: not an nkey seed", ErrConfig)
	}
	mac := hmac.New(sha256.New, raw)
	mac.Write([]byte("compass user\x00" + string(u.Role) + "\x00" + u.ID + "\x00" + strconv.Itoa(u.Number)))
	kp, err := nkeys.FromRawSeed(nkeys.PrefixByteUser, mac.Sum(nil))
	if err != nil {
		return Seed{}, fmt.Errorf("derive user key: %w", err)
	}
	defer kp.Wipe()
	text, err := kp.Seed()
	if err != nil {
		return Seed{}, fmt.Errorf("derive user key: %w", err)
	}
	return Seed{string(text)}, nil
}

// KeepCreds returns the credentials file that there is, if it is of that user as these keys make it, and else one that is:
// where there is none, where somebody edited it, and where it is of an installation whose keys were lost.
func (k AccountKeys) KeepCreds(have []byte, u UserOf, now time.Time) ([]byte, error) {
	seed, err := k.UserSeed(u)
	if err != nil {
		return nil, err
	}
	if k.made(have, seed, u.Role) {
		return have, nil
	}
	return k.UserCreds(u, 0, now)
}

// made reports whether a credentials file holds the seed and a JWT for it of these keys.
func (k AccountKeys) made(creds []byte, seed Seed, role Role) bool {
	text, err := jwt.ParseDecoratedJWT(creds)
	if err != nil {
		return false
	}
	user, err := jwt.DecodeUserClaims(text)
	if err != nil {
		return false
	}
	is, err := jwt.ParseDecoratedUserNKey(creds)
	if err != nil {
		return false
	}
	defer is.Wipe()
	public, err := is.PublicKey()
	return err == nil && public == seed.Public() && user.Subject == public && user.Issuer == k.Scoped[role].Public() &&
		user.IssuerAccount == k.Identity.Public()
}

// UserCreds is the text of the credentials file of such a user. A ttl of 0 never expires.
func (k AccountKeys) UserCreds(u UserOf, ttl time.Duration, now time.Time) ([]byte, error) {
	seed, err := k.UserSeed(u)
	if err != nil {
		return nil, err
	}
	user, err := k.Issuer(u.Role).User(seed.Public(), u.ID, ttl, now)
	if err != nil {
		return nil, err
	}
	return CredsFile(user, seed)
}
