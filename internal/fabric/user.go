package fabric

import (
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nkeys"

	"github.com/rigelbuild/compass-operator/internal/naming"
)

// Issuer signs users of one role in one account. It is all that a Server needs of a fleet's keys.
type Issuer struct {
	Account string // public key
	Role    Role
	Key     Seed
}

// Issuer returns the issuer of a role.
func (k AccountKeys) Issuer(role Role) Issuer {
	return Issuer{Account: k.Identity.Public(), Role: role, Key: k.Scoped[role]}
}

// User signs a user JWT for the holder of the public key. id fills the role's permissions: a Runner id for RoleRunner, a
// stream for RoleWorker, nothing for the others. It is validated here, because a server would take a wildcard for what it
// says (measured). A ttl of 0 never expires.
func (i Issuer) User(public, id string, ttl time.Duration, now time.Time) (string, error) {
	if !nkeys.IsValidPublicUserKey(public) {
		return "", fmt.Errorf("%w: %q is not a public user key", ErrConfig, public)
	}
	c := jwt.NewUserClaims(public)
	c.Name = strings.Trim(string(i.Role)+" "+id, " ")
	c.IssuerAccount = i.Account
	c.SetScoped(true)
	if ttl > 0 {
		c.Expires = now.Add(ttl).Unix()
	}
	var err error
	switch i.Role {
	case RoleRunner:
		err = naming.ValidRunnerID(id)
		c.Tags.Add(naming.RunnerTag + ":" + id)
	case RoleWorker:
		err = naming.ValidName(id)
		c.Tags.Add(tagStream + ":" + id)
	case RoleServer, RoleTap:
		if id != "" {
			err = fmt.Errorf("%w: role %s takes no id", ErrConfig, i.Role)
		}
	default:
		err = fmt.Errorf("%w: no such role %q", ErrConfig, i.Role)
	}
	if err != nil {
		return "", fmt.Errorf("issue %s: %w", i.Role, err)
	}
	return encodeUser(c, i.Key)
}

// AdminUser signs the operator's own user of an account: SYS and COMPASS alone have one.
func (k AccountKeys) AdminUser(public, account string) (string, error) {
	c := jwt.NewUserClaims(public)
	c.Name = "operator"
	c.IssuerAccount = k.Identity.Public()
	if account != naming.AccountSystem {
		c.Permissions = adminPermissions()
	}
	return encodeUser(c, k.Signing)
}

// backupTime is how long who saves or restores a stream may connect for.
const backupTime = time.Hour

// BackupUser signs a user of COMPASS that can save and restore one DeliveryStream, for an hour, and nothing else.
func (k AccountKeys) BackupUser(public, stream string, now time.Time) (string, error) {
	if err := naming.ValidName(stream); err != nil {
		return "", fmt.Errorf("%w: %w", ErrConfig, err)
	}
	c := jwt.NewUserClaims(public)
	c.Name = "backup " + stream
	c.IssuerAccount = k.Identity.Public()
	c.Expires = now.Add(backupTime).Unix()
	c.Permissions = backupPermissions(stream)
	return encodeUser(c, k.Signing)
}

// StandaloneUser signs a user of COMPASS without limits, for a process that is Server, worker and operator in one.
func (k AccountKeys) StandaloneUser(public string) (string, error) {
	c := jwt.NewUserClaims(public)
	c.Name = "standalone"
	c.IssuerAccount = k.Identity.Public()
	return encodeUser(c, k.Signing)
}

func encodeUser(c *jwt.UserClaims, key Seed) (string, error) {
	kp, err := key.pair()
	if err != nil {
		return "", fmt.Errorf("issue user: %w", err)
	}
	defer kp.Wipe()
	text, err := c.Encode(kp)
	if err != nil {
		return "", fmt.Errorf("issue user: %w", err)
	}
	return text, nil
}

// CredsFile is the text of a NATS credentials file.
func CredsFile(userJWT string, key Seed) ([]byte, error) {
	text, err := jwt.FormatUserConfig(userJWT, key.Text())
	if err != nil {
		return nil, fmt.Errorf("format credentials: %w", err)
	}
	return text, nil
}

// StaticCredentials are those of a JWT that does not change.
func StaticCredentials(userJWT string, key Seed, inbox string) Credentials {
	return Credentials{JWT: func() (string, error) { return userJWT, nil }, Sign: key.Sign, InboxPrefix: inbox}
}

// InboxPrefix is where a user of the role may hear answers.
func InboxPrefix(role Role, id string) string {
	switch role {
	case RoleServer:
		return inboxServer
	case RoleWorker:
		return inboxWorker + id
	case RoleRunner:
		inbox, _ := naming.RunnerInbox(id) // validated when the JWT was issued
		return inbox
	case RoleTap:
	}
	return ""
}

// Where users without a role hear answers: the operator's own, and who saves streams.
const (
	AdminInbox  = inboxAdmin
	BackupInbox = inboxBackup
)
