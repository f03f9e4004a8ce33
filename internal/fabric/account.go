package fabric

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/jwt/v2"

	"github.com/rigelbuild/compass-operator/internal/naming"
)

// Account is what one NATS account should be. The functions below make them; they are pure, and the same input makes an
// account without drift against what an earlier one signed.
type Account struct {
	Name   string
	Public string // A…, names it on the wire
	claims *jwt.AccountClaims
	grants []grant // imports that need the exporter's word
}

// grant is the exporter's permission for one import, signed when the account is.
type grant struct {
	subject  string
	kind     jwt.ExportType
	exporter string // account
	signer   Seed   // its signing key
}

// Limits bound a tenant's account; zero means none are allowed, -1 no limit.
type Limits struct {
	Connections   int64
	Subscriptions int64
	Payload       int64 // bytes
}

// TenantAccountSpec is what a CompassTenant asks for.
type TenantAccountSpec struct {
	Tenant   string // id
	Keys     AccountKeys
	Limits   Limits
	EventTap bool
	Runners  bool
	// Revoked users, by public key, and when; what they were issued before is refused.
	Revoked map[string]time.Time
}

// ownerTag marks accounts as ours; claims of others are never touched (ruling O3).
func ownerTag(owner string) string { return "compass-owner:" + strings.ToLower(owner) }

// SystemAccount is the account of claims and usage. It is preloaded, never pushed: servers refuse to delete or lose it.
func SystemAccount(k Keys, owner string) Account {
	c := newClaims(naming.AccountSystem, k.System, owner)
	c.Exports = systemExports()
	return Account{Name: naming.AccountSystem, Public: c.Subject, claims: c}
}

// systemExports are those that a server adds to its system account by itself; tools expect to find them declared.
func systemExports() jwt.Exports {
	return jwt.Exports{
		{
			Name: "account-monitoring-services", Subject: "$SYS.REQ.ACCOUNT.*.*", Type: jwt.Service,
			ResponseType: jwt.ResponseTypeStream, AccountTokenPosition: 4,
		},
		{Name: "account-monitoring-streams", Subject: "$SYS.ACCOUNT.*.>", Type: jwt.Stream, AccountTokenPosition: 3},
	}
}

// CompassAccount owns JetStream and exports, privately, what fleets and taps may reach.
func CompassAccount(k Keys, owner string) Account {
	c := newClaims(naming.AccountCompass, k.Compass, owner)
	c.Limits.JetStreamLimits = jwt.JetStreamLimits{
		MemoryStorage: 0, DiskStorage: jwt.NoLimit, Streams: jwt.NoLimit, Consumer: jwt.NoLimit,
	}
	c.Exports = jwt.Exports{
		export("commands", runnerFilter(naming.RunnerCmd), jwt.Stream),
		export("events", runnerFilter(naming.RunnerEvents), jwt.Service),
		export("calls", runnerFilter(naming.RunnerCall), jwt.Service),
		export("states", runnerFilter(naming.RunnerState), jwt.Service),
		export("broadcasts", naming.BroadcastFilter, jwt.Stream),
	}
	return Account{Name: naming.AccountCompass, Public: c.Subject, claims: c}
}

// RunnersAccount is that of the shared fleet.
func RunnersAccount(k Keys, owner string) Account {
	c := newClaims(naming.AccountRunners, k.Runners, owner)
	a := Account{Name: naming.AccountRunners, Public: c.Subject, claims: c}
	a.importFleet(naming.SharedFleet, k.Compass)
	return a
}

// TenantAccount is that of one tenant: no JetStream, and only its own fleet and broadcasts.
func TenantAccount(t TenantAccountSpec, compass AccountKeys, owner string) Account {
	c := newClaims(t.Tenant, t.Keys, owner)
	c.Limits.Conn, c.Limits.Subs, c.Limits.Payload = t.Limits.Connections, t.Limits.Subscriptions, t.Limits.Payload
	c.Limits.LeafNodeConn = 0
	for user, at := range t.Revoked {
		c.RevokeAt(user, at)
	}
	a := Account{Name: t.Tenant, Public: c.Subject, claims: c}
	if t.Runners {
		a.importFleet(t.Tenant, compass)
	}
	if t.EventTap {
		if own, err := naming.BroadcastTenantFilter(t.Tenant); err == nil {
			a.imports("broadcasts", own, own, jwt.Stream, compass)
		}
	}
	return a
}

// WithPayload is the account with another limit of message size, in bytes; -1: no limit.
func (a Account) WithPayload(bytes int64) Account {
	c := *a.claims
	c.Limits.Payload = bytes
	a.claims = &c
	return a
}

// Revoke is the account with one user, by public key, refused if its JWT was issued before that time.
func (a Account) Revoke(user string, before time.Time) Account {
	c := *a.claims
	c.Revocations = maps.Clone(c.Revocations)
	if c.Revocations == nil {
		c.Revocations = jwt.RevocationList{}
	}
	c.Revocations.Revoke(user, before)
	a.claims = &c
	return a
}

// Locked is the account with every user refused: what deletion begins with, and ends with where nothing can be deleted.
func (a Account) Locked(at time.Time) Account {
	a = a.Revoke(jwt.All, at)
	a.claims.Limits.Conn = 0
	return a
}

func bareClaims(name, public, owner string) *jwt.AccountClaims {
	c := jwt.NewAccountClaims(public)
	c.Name = name
	c.Tags.Add(ownerTag(owner))
	return c
}

func newClaims(name string, k AccountKeys, owner string) *jwt.AccountClaims {
	c := bareClaims(name, k.Identity.Public(), owner)
	c.SigningKeys.Add(k.Signing.Public())
	for _, role := range k.roles() {
		scope := jwt.NewUserScope()
		scope.Key, scope.Role = k.Scoped[role].Public(), string(role)
		scope.Template.Permissions = permissionsOf(role)
		c.SigningKeys.AddScopedSigner(scope)
	}
	return c
}

func export(name, subject string, kind jwt.ExportType) *jwt.Export {
	e := &jwt.Export{Name: name, Subject: jwt.Subject(subject), Type: kind, TokenReq: true}
	if kind == jwt.Service {
		e.ResponseType = jwt.ResponseTypeSingleton
	}
	return e
}

// importFleet lets Runners see the source's names; the import adds the fleet (ruling R1).
func (a *Account) importFleet(fleet string, compass AccountKeys) {
	for _, leg := range []struct {
		name string
		leg  naming.RunnerLeg
		kind jwt.ExportType
	}{
		{"commands", naming.RunnerCmd, jwt.Stream},
		{"events", naming.RunnerEvents, jwt.Service},
		{"calls", naming.RunnerCall, jwt.Service},
		{"states", naming.RunnerState, jwt.Service},
	} {
		far, err1 := naming.RunnerFleetFilter(fleet, leg.leg)
		near, err2 := naming.RunnerOwnFilter(leg.leg)
		if err1 == nil && err2 == nil { // fleets are validated where tenants are made
			a.imports(leg.name, far, numbered(near), leg.kind, compass)
		}
	}
}

// numbered turns the wildcards of a near side into references to those of the far side.
func numbered(pattern string) string {
	tokens := strings.Split(pattern, ".")
	n := 0
	for i, t := range tokens {
		if t == "*" {
			n++
			tokens[i] = fmt.Sprintf("$%d", n)
		}
	}
	return strings.Join(tokens, ".")
}

func (a *Account) imports(name, far, near string, kind jwt.ExportType, compass AccountKeys) {
	imp := &jwt.Import{Name: name, Subject: jwt.Subject(far), Account: compass.Identity.Public(), Type: kind}
	if near != far {
		imp.LocalSubject = jwt.RenamingSubject(near)
	}
	a.claims.Imports.Add(imp)
	a.grants = append(a.grants, grant{far, kind, compass.Identity.Public(), compass.Signing})
}

// Sign makes the JWT, signed by an operator signing key; imports get the exporter's permission.
func (a Account) Sign(signer Seed) (string, error) {
	c := *a.claims
	c.Imports = slices.Clone(c.Imports)
	for i, g := range a.grants {
		token, err := g.sign(a.Public)
		if err != nil {
			return "", fmt.Errorf("sign account %s: %w", a.Name, err)
		}
		imp := *c.Imports[i]
		imp.Token = token
		c.Imports[i] = &imp
	}
	kp, err := signer.pair()
	if err != nil {
		return "", err
	}
	defer kp.Wipe()
	text, err := c.Encode(kp)
	if err != nil {
		return "", fmt.Errorf("sign account %s: %w", a.Name, err)
	}
	return text, nil
}

func (g grant) sign(importer string) (string, error) {
	c := jwt.NewActivationClaims(importer)
	c.ImportSubject, c.ImportType, c.IssuerAccount = jwt.Subject(g.subject), g.kind, g.exporter
	kp, err := g.signer.pair()
	if err != nil {
		return "", err
	}
	defer kp.Wipe()
	return c.Encode(kp)
}

// OperatorJWT names the operator, both signing keys and the system account. Users and accounts must be signed by signing
// keys; the identity key signs this alone.
func OperatorJWT(k Keys, name string) (string, error) {
	c := jwt.NewOperatorClaims(k.Operator.Public())
	c.Name = name
	c.SigningKeys.Add(k.Signing[0].Public(), k.Signing[1].Public())
	c.SystemAccount = k.System.Identity.Public()
	c.StrictSigningKeyUsage = true
	kp, err := k.Operator.pair()
	if err != nil {
		return "", err
	}
	defer kp.Wipe()
	text, err := c.Encode(kp)
	if err != nil {
		return "", fmt.Errorf("sign operator: %w", err)
	}
	return text, nil
}
