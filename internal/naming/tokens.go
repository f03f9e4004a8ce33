package naming

import (
	"crypto/sha256"
	"strings"
)

const (
	sessionPrefix     = "ses_"
	apiTokenPrefix    = "cmp_"
	runnerTokenPrefix = "crt_"
	secretChars       = 52 // 256 bits
)

// Session returns a new session id, ses_<tenant>_<26>. One is made per start of an agent and never used again.
func (g *IDs) Session(tenant string) (string, error) {
	if err := ValidTenant(tenant); err != nil {
		return "", err
	}
	return sessionPrefix + tenant + "_" + g.id(), nil
}

// Token returns a new API token, cmp_<tenant>_<secret>. It is a secret: store TokenHash of it, show it once.
func (g *IDs) Token(tenant string) (string, error) {
	if err := ValidTenant(tenant); err != nil {
		return "", err
	}
	return apiTokenPrefix + tenant + "_" + g.secret(), nil
}

// RunnerToken returns a new enrolment token of a fleet, crt_<fleet>_<secret>. It is a secret.
func (g *IDs) RunnerToken(fleet string) (string, error) {
	if err := ValidFleet(fleet); err != nil {
		return "", err
	}
	return runnerTokenPrefix + fleet + "_" + g.secret(), nil
}

// ParseSession splits a session id. The tenant is a routing hint and never authority: it says in which database and
// under which tenant the whole id must then be found (ruling T5).
func ParseSession(s string) (tenant, id string, err error) {
	tenant, id, ok := splitLast(s, sessionPrefix)
	if !ok || ValidTenant(tenant) != nil || len(id) != idChars || !every(id, idByte) {
		return "", "", refuse("session id", s, "ses_, a tenant id, _ and 26 of 0-9a-v")
	}
	return tenant, id, nil
}

// ParseToken splits an API token. The tenant is a routing hint and never authority (ruling T5). The error does not
// repeat the token.
func ParseToken(s string) (tenant, secret string, err error) {
	tenant, secret, ok := splitLast(s, apiTokenPrefix)
	if !ok || ValidTenant(tenant) != nil || !validSecret(secret) {
		return "", "", refuseSecret("API token", "cmp_, a tenant id, _ and 52 of a-z2-7")
	}
	return tenant, secret, nil
}

// ParseRunnerToken splits an enrolment token. The fleet is a routing hint and never authority (ruling T5). The error
// does not repeat the token.
func ParseRunnerToken(s string) (fleet, secret string, err error) {
	fleet, secret, ok := splitLast(s, runnerTokenPrefix)
	if !ok || ValidFleet(fleet) != nil || !validSecret(secret) {
		return "", "", refuseSecret("Runner token", "crt_, a fleet, _ and 52 of a-z2-7")
	}
	return fleet, secret, nil
}

// TokenHash is what is stored of a token: SHA-256 of its whole text. A token has 256 random bits, so a slow hash would
// only slow the request.
func TokenHash(token string) [32]byte { return sha256.Sum256([]byte(token)) }

// splitLast cuts prefix off and the rest at its last underscore, because a tenant id holds one itself.
func splitLast(s, prefix string) (head, tail string, ok bool) {
	rest, ok := strings.CutPrefix(s, prefix)
	if !ok {
		return "", "", false
	}
	i := strings.LastIndexByte(rest, '_')
	if i < 0 {
		return "", "", false
	}
	return rest[:i], rest[i+1:], true
}

// The last character of a canonical secret holds one bit (256 = 51·5 + 1), so it is a or q: without this check sixteen
// texts would be one secret's bytes.
func validSecret(s string) bool {
	return len(s) == secretChars && every(s, secretByte) && (s[secretChars-1] == 'a' || s[secretChars-1] == 'q')
}
