package naming

import (
	"crypto/sha256"
	"hash/fnv"
	"math"
	"slices"
	"strings"
)

const (
	// DatabaseZero is the id of the shared database, where routing truth lives (ruling X1). Others have a DatabaseNumber.
	DatabaseZero = 0
	// Schema holds every object of ours.
	Schema = "compass"
	// TenantGUC is the setting that row-level security reads (REQ-097).
	TenantGUC = "compass.tenant_id"
	// MaxDatabase is the longest database name whose role names Postgres keeps whole: it cuts identifiers at 63 bytes
	// without an error, and two cut names may be one.
	MaxDatabase = maxIdentifier - len(provisionSuffix)

	maxIdentifier   = 63
	provisionSuffix = "_provision" // the longest
	loginPrefix     = "ct_"
	loginChars      = 20
)

// Roles are the roles of one database, named after it because roles are cluster-wide (ruling T7).
type Roles struct {
	Owner     string // no login; owns the objects
	App       string // one tenant at a time
	System    string // named background loops only
	Provision string // the operator
	Tenant    string // no login; the group of the tenants' own logins
}

// RolesOf returns the role names of a database.
func RolesOf(database string) (Roles, error) {
	if err := ValidDatabase(database); err != nil {
		return Roles{}, err
	}
	return Roles{
		Owner: database + "_owner", App: database + "_app", System: database + "_system",
		Provision: database + provisionSuffix, Tenant: database + "_tenant",
	}, nil
}

// ValidDatabase refuses a database name that is not 1 to 53 of a-z, 0-9, _ and - after a letter, that Postgres reserves,
// or that is its own.
func ValidDatabase(s string) error {
	ok := between(s, 1, MaxDatabase) && s[0] >= 'a' && s[0] <= 'z' &&
		every(s, func(c byte) bool { return kindByte(c) || c == '-' })
	if !ok {
		return refuse("database name", s, "a lower-case letter, then up to 52 of a-z, 0-9, _ and -")
	}
	if strings.HasPrefix(s, "pg_") || slices.Contains([]string{"postgres", "template0", "template1"}, s) {
		return refuse("database name", s, "anything but pg_…, postgres, template0 and template1, which are Postgres's own")
	}
	return nil
}

// DatabaseNumber is that of the database of its own that a tenant may have in its server: derived from its slug, so that no
// crash forgets it and none is given to another tenant later. Two slugs with one number would meet at the Secret of that
// number, which the second does not get.
func DatabaseNumber(slug string) int {
	h := fnv.New32a()
	_, _ = h.Write([]byte(slug)) // never fails
	return int(h.Sum32()%(math.MaxInt32-1)) + 1
}

// TenantLogin is the login of a tenant's own tools in one database: ct_ and 20 characters that tell a reader of pg_roles
// nothing. The database is part of it because a tenant that moves has a login in both for a while.
func TenantLogin(database, tenant string) (string, error) {
	if err := firstError(ValidDatabase(database), ValidTenant(tenant)); err != nil {
		return "", err
	}
	sum := sha256.Sum256([]byte("compass tenant login\x00" + database + "\x00" + tenant))
	return loginPrefix + secretEncoding.EncodeToString(sum[:])[:loginChars], nil
}

// ValidTenantLogin refuses what TenantLogin cannot have made.
func ValidTenantLogin(s string) error {
	rest, ok := strings.CutPrefix(s, loginPrefix)
	if !ok || len(rest) != loginChars || !every(rest, secretByte) {
		return refuse("tenant login", s, "ct_ and 20 of a-z2-7")
	}
	return nil
}
