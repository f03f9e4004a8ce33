package fabric

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/nats-io/nkeys"
)

// Role is what a scoped signing key lets its users do; the account fixes it, so whoever holds the key cannot widen it.
type Role string

// The roles, by account.
const (
	RoleServer Role = "server" // COMPASS
	RoleWorker Role = "worker" // COMPASS, of one stream
	RoleRunner Role = "runner" // RUNNERS and a tenant's own account, of one Runner
	RoleTap    Role = "tap"    // a tenant's own account: read its broadcasts
)

// AccountKeys are the keys of one account. Identity names it and signs nothing; Signing signs users that carry their own
// permissions (the operator's); Scoped sign users of one role.
type AccountKeys struct {
	Identity Seed
	Signing  Seed
	Scoped   map[Role]Seed
}

// Keys are all NATS keys of one CompassServer. There are two operator signing keys from birth, because a server learns a
// third only by a restart (ruling O1).
type Keys struct {
	Operator Seed
	Signing  [2]Seed
	System   AccountKeys
	Compass  AccountKeys
	Runners  AccountKeys
	Probe    AccountKeys // with somebody else's NATS alone, whose Operator, System and second Signing key are not ours
}

// The names in a Secret.
const (
	keyOperator = "operator.seed"
	keySigning1 = "operator-signing-1.seed"
	keySigning2 = "operator-signing-2.seed"
	suffixSeed  = ".seed"
)

var (
	compassRoles = []Role{RoleServer, RoleWorker}
	runnersRoles = []Role{RoleRunner}
	tenantRoles  = []Role{RoleRunner, RoleTap}
)

// CompleteKeys reads the keys that data holds and makes those it lacks. The second result is what has to be stored, before
// any of it is used: only then does a crash at any step lead to the same identity. It is nil if nothing was lacking. A
// malformed seed is ErrConfig and never replaced.
func CompleteKeys(data map[string][]byte) (Keys, map[string][]byte, error) {
	c := completer{have: data, added: map[string][]byte{}}
	k := Keys{
		Operator: c.seed(keyOperator, nkeys.PrefixByteOperator),
		Signing:  [2]Seed{c.seed(keySigning1, nkeys.PrefixByteOperator), c.seed(keySigning2, nkeys.PrefixByteOperator)},
		System:   c.account("sys", nil),
		Compass:  c.account("compass", compassRoles),
		Runners:  c.account("runners", runnersRoles),
	}
	return k, c.toStore(), c.err
}

// CompleteTenantKeys does the same for the account of one tenant.
func CompleteTenantKeys(data map[string][]byte) (AccountKeys, map[string][]byte, error) {
	c := completer{have: data, added: map[string][]byte{}}
	k := c.account("account", tenantRoles)
	return k, c.toStore(), c.err
}

type completer struct {
	have, added map[string][]byte
	err         error
}

func (c *completer) toStore() map[string][]byte {
	if c.err != nil || len(c.added) == 0 {
		return nil
	}
	all := maps.Clone(c.added)
	maps.Copy(all, c.have)
	return all
}

func (c *completer) account(name string, roles []Role) AccountKeys {
	k := AccountKeys{
		Identity: c.seed(name+suffixSeed, nkeys.PrefixByteAccount),
		Signing:  c.seed(name+"-signing"+suffixSeed, nkeys.PrefixByteAccount),
	}
	for _, r := range roles {
		if k.Scoped == nil {
			k.Scoped = map[Role]Seed{}
		}
		k.Scoped[r] = c.seed(name+"-"+string(r)+suffixSeed, nkeys.PrefixByteAccount)
	}
	return k
}

func (c *completer) seed(name string, kind nkeys.PrefixByte) Seed {
	if c.err != nil {
		return Seed{}
	}
	if text, ok := c.have[name]; ok {
		s, err := ParseSeed(text)
		if err == nil && !isKind(s, kind) {
			err = fmt.Errorf("%w: a key of another kind", ErrConfig)
		}
		if err != nil {
			c.err = fmt.Errorf("key %s: %w", name, err)
		}
		return s
	}
	s, err := newSeed(kind)
	if err != nil {
		c.err = err
		return Seed{}
	}
	c.added[name] = s.Text()
	return s
}

func isKind(s Seed, kind nkeys.PrefixByte) bool {
	return strings.HasPrefix(s.Public(), kindLetter(kind))
}

func kindLetter(kind nkeys.PrefixByte) string {
	switch kind { //nolint:exhaustive // only what CompleteKeys makes
	case nkeys.PrefixByteOperator:
		return "O"
	case nkeys.PrefixByteAccount:
		return "A"
	}
	return "U"
}

// roles of the keys, sorted.
func (k AccountKeys) roles() []Role { return slices.Sorted(maps.Keys(k.Scoped)) }
