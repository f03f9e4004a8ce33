package naming

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"strconv"
	"strings"
)

// unknown stands for a part of a dead-letter subject that could not be told.
const unknown = "-"

// DeadLetter is what the subject of a dead letter says. An empty part, or version 0, is one that could not be told; then
// Row is DeadLetterRow of what arrived, so that the subject still names one message. Recipient may be empty also where
// all else is known: a reference that was refused before its recipients were looked up.
type DeadLetter struct {
	Stream    string // always known
	Tenant    string
	Kind      string
	Row       string // always known
	Recipient string
	Version   int64
	Replay    int64 // 0 for the first time, one more for each replay that failed again
}

// DeadLetterSubject returns compass.dlq.<stream>.<tenant>.<kind>.<row>.<recipient>.<version>.<replay>.
func DeadLetterSubject(d DeadLetter) (string, error) {
	if err := d.valid(); err != nil {
		return "", err
	}
	version := unknown
	if d.Version > 0 {
		version = strconv.FormatInt(d.Version, 10)
	}
	return deadRoot + strings.Join([]string{
		d.Stream, orUnknown(d.Tenant), orUnknown(d.Kind), d.Row, orUnknown(d.Recipient), version,
		strconv.FormatInt(d.Replay, 10),
	}, "."), nil
}

// ParseDeadLetterSubject is the inverse of DeadLetterSubject.
func ParseDeadLetterSubject(s string) (DeadLetter, error) {
	if p, ok := tokens(s, deadRoot, 7); ok {
		d := DeadLetter{
			Stream: p[0], Tenant: orEmpty(p[1]), Kind: orEmpty(p[2]), Row: p[3], Recipient: orEmpty(p[4]),
			Version: numberOrMinus(orEmpty(p[5])), Replay: numberOrMinus(p[6]),
		}
		// Written again it must be the same text: so "007", an empty part or a version of 0 is not another way to say it.
		if again, err := DeadLetterSubject(d); err == nil && again == s {
			return d, nil
		}
	}
	return DeadLetter{}, refuse("dead-letter subject", s,
		"compass.dlq.<stream>.<tenant>.<kind>.<row>.<recipient>.<version>.<replay>")
}

// DeadLetterFilter matches every dead letter of a stream.
func DeadLetterFilter(stream string) (string, error) {
	if err := ValidName(stream); err != nil {
		return "", err
	}
	return deadRoot + stream + ".>", nil
}

// DeadLetterTenantFilter matches the dead letters of one tenant in a stream.
func DeadLetterTenantFilter(stream, tenant string) (string, error) {
	if err := firstError(ValidName(stream), ValidTenant(tenant)); err != nil {
		return "", err
	}
	return deadRoot + stream + "." + tenant + ".>", nil
}

// DeadLetterRow stands for the row of something that could not be read: SHA-256 of where it came from and what it was, in
// 64 hexadecimal digits. The length keeps ("a", "bc") and ("ab", "c") apart.
func DeadLetterRow(subject string, body []byte) string {
	h := sha256.New()
	var n [8]byte
	binary.BigEndian.PutUint64(n[:], uint64(len(subject)))
	h.Write(n[:])
	h.Write([]byte(subject))
	h.Write(body)
	return hex.EncodeToString(h.Sum(nil))
}

func (d DeadLetter) valid() error {
	if err := firstError(
		ValidName(d.Stream), ValidToken(d.Row), optional(ValidTenant, d.Tenant), optional(ValidKind, d.Kind),
		optional(ValidToken, d.Recipient),
	); err != nil {
		return err
	}
	if d.Version < 0 || d.Replay < 0 {
		return refuse("dead letter", strconv.FormatInt(min(d.Version, d.Replay), 10), "a version and a replay of 0 or more")
	}
	if (d.Tenant == "" || d.Kind == "" || d.Version == 0) && !hexDigest(d.Row) {
		return refuse("dead-letter row", d.Row, "the 64 digits of DeadLetterRow where tenant, kind or version is unknown")
	}
	return nil
}

func hexDigest(s string) bool {
	return len(s) == 2*sha256.Size && every(s, func(c byte) bool { return c >= '0' && c <= '9' || c >= 'a' && c <= 'f' })
}

func optional(valid func(string) error, s string) error {
	if s == "" {
		return nil
	}
	return valid(s)
}

func orUnknown(s string) string {
	if s == "" {
		return unknown
	}
	return s
}

func orEmpty(s string) string {
	if s == unknown {
		return ""
	}
	return s
}

// numberOrMinus reads a number; "" is 0, and what is no number is -1, which no part may be.
func numberOrMinus(s string) int64 {
	if s == "" {
		return 0
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return -1
	}
	return n
}
