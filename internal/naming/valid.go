package naming

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// ErrInvalid is matched by every error of this package.
var ErrInvalid = errors.New("invalid name")

const (
	// MaxName is the longest metadata.name of a Compass object, so that every child's name and label value fits 63 bytes.
	MaxName = 40
	// MaxSlug is the longest tenant slug.
	MaxSlug = 48
	// MaxTurn is the longest turn id.
	MaxTurn = 64
	// maxToken bounds every part of a subject that has no stricter rule.
	maxToken = 64
	// maxShown bounds how much of a refused value an error repeats.
	maxShown = 40
)

// SystemSlug is the slug of the bootstrap tenant, the home of platform admins. ValidSlug refuses it to everybody else.
const SystemSlug = "system"

// SharedFleet is the fleet of the Runners that serve every tenant without a fleet of its own.
const SharedFleet = "shared"

// ReservedSlugs returns, sorted, the slugs no tenant may take: each is a token of a subject, a name of ours, or reads as
// "everybody".
func ReservedSlugs() []string {
	return []string{
		"admin", "all", "any", "bcast", "bootstrap", "client", "comms", "compass", "delivery", "dlq", "everyone", "fleet",
		"nats", "none", "platform", "q", "queue", "runner", "runners", "server", "shared", "sys", "system", "tenant", "worker",
	}
}

// ValidTenant refuses what is no tenant id: t_ and 26 of 0-9a-v.
func ValidTenant(s string) error { return validPrefixed("tenant id", TenantPrefix, s) }

// ValidID refuses what is not prefix and 26 of 0-9a-v. Use the …Prefix constants.
func ValidID(prefix, s string) error { return validPrefixed("id", prefix, s) }

// ValidRunnerID refuses what is no Runner id: r- and 26 of 0-9a-v. A hyphen, not the underscore of other ids: the id is
// filled into a permission template by the NATS server, where only [a-z0-9-] is safe (a tag of "*" opened every Runner's
// subject).
func ValidRunnerID(s string) error { return validPrefixed("runner id", RunnerPrefix, s) }

// ValidFleet refuses what names no fleet: SharedFleet or a tenant id.
func ValidFleet(s string) error {
	if s == SharedFleet {
		return nil
	}
	if ValidTenant(s) != nil {
		return refuse("fleet", s, "shared or a tenant id")
	}
	return nil
}

// ValidSlug refuses what no tenant may be called: 1 to 48 of a-z, 0-9 and inner hyphens, and no reserved word.
func ValidSlug(s string) error {
	if !dnsLabel(s, MaxSlug) {
		return refuse("slug", s, "1 to 48 of a-z, 0-9 and -, not first or last")
	}
	if _, found := slices.BinarySearch(ReservedSlugs(), s); found {
		return refuse("slug", s, "anything but a reserved word ("+strings.Join(ReservedSlugs(), ", ")+")")
	}
	return nil
}

// ValidName refuses what cannot be the metadata.name of a CompassServer, CompassTenant or DeliveryStream, and so what
// cannot be the stream token of a subject: 1 to 40 of a-z, 0-9 and inner hyphens, no dots.
func ValidName(s string) error {
	if !dnsLabel(s, MaxName) {
		return refuse("name", s, "1 to 40 of a-z, 0-9 and -, not first or last, no dots")
	}
	return nil
}

// ValidTurn refuses what is no turn id. Runners choose them: 1 to 64 of A-Z, a-z, 0-9, - and _.
func ValidTurn(s string) error {
	if !between(s, 1, MaxTurn) || !every(s, wordByte) {
		return refuse("turn id", s, "1 to 64 of A-Z, a-z, 0-9, - and _")
	}
	return nil
}

// ValidKind refuses what is no event kind: a lower-case letter, then up to 62 of a-z, 0-9 and _.
func ValidKind(s string) error {
	if !between(s, 1, 63) || s[0] < 'a' || s[0] > 'z' || !every(s, kindByte) {
		return refuse("event kind", s, "a letter, then up to 62 of a-z, 0-9 and _")
	}
	return nil
}

// ValidToken refuses what cannot stand between two dots of a subject: 1 to 64 of A-Z, a-z, 0-9, - and _. A lone hyphen is
// refused too: in a dead-letter subject it means "unknown".
func ValidToken(s string) error {
	if !between(s, 1, maxToken) || s == unknown || !every(s, wordByte) {
		return refuse("subject token", s, "1 to 64 of A-Z, a-z, 0-9, - and _, and not - alone")
	}
	return nil
}

func validPrefixed(what, prefix, s string) error {
	rest, ok := strings.CutPrefix(s, prefix)
	if !ok || len(rest) != idChars || !every(rest, idByte) {
		return refuse(what, s, prefix+" and 26 of 0-9a-v")
	}
	return nil
}

func refuse(what, got, allowed string) error {
	shown := got
	if len(shown) > maxShown {
		shown = shown[:maxShown]
		return fmt.Errorf("%w: %s %q… (%d bytes): allowed is %s", ErrInvalid, what, shown, len(got), allowed)
	}
	return fmt.Errorf("%w: %s %q: allowed is %s", ErrInvalid, what, shown, allowed)
}

// refuseSecret is refuse for values that must not be repeated.
func refuseSecret(what, allowed string) error {
	return fmt.Errorf("%w: %s: allowed is %s", ErrInvalid, what, allowed)
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

//nolint:unparam // both ends are said where it is called
func between(s string, low, high int) bool { return len(s) >= low && len(s) <= high }

func every(s string, ok func(byte) bool) bool {
	for i := range len(s) {
		if !ok(s[i]) {
			return false
		}
	}
	return true
}

func lowerOrDigit(c byte) bool { return c >= 'a' && c <= 'z' || c >= '0' && c <= '9' }
func idByte(c byte) bool       { return c >= 'a' && c <= 'v' || c >= '0' && c <= '9' }
func kindByte(c byte) bool     { return lowerOrDigit(c) || c == '_' }
func labelByte(c byte) bool    { return lowerOrDigit(c) || c == '-' }
func wordByte(c byte) bool     { return lowerOrDigit(c) || c >= 'A' && c <= 'Z' || c == '-' || c == '_' }
func secretByte(c byte) bool   { return c >= 'a' && c <= 'z' || c >= '2' && c <= '7' }

func dnsLabel(s string, longest int) bool {
	return between(s, 1, longest) && every(s, labelByte) && s[0] != '-' && s[len(s)-1] != '-'
}
