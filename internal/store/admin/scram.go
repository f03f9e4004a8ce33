package admin

import (
	"crypto/hmac"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
)

const (
	scramIterations = 4096 // Postgres's own default
	scramSaltLength = 16
	maxPassword     = 256
)

// errPassword says what a password must be; it never repeats one.
var errPassword = errors.New("a password must be 1 to 256 printable ASCII characters")

// verifier is what the server stores of a password: RFC 5802's StoredKey and ServerKey with a new salt. Computed here, so
// that no statement, log or pg_stat_statements ever contains the password. Only ASCII is taken, which needs no SASLprep.
func verifier(password string) (string, error) {
	if err := validPassword(password); err != nil {
		return "", err
	}
	salt := make([]byte, scramSaltLength)
	_, _ = rand.Read(salt) // never fails
	return verifierWith(password, salt)
}

func verifierWith(password string, salt []byte) (string, error) {
	salted, err := pbkdf2.Key(sha256.New, password, salt, scramIterations, sha256.Size)
	if err != nil {
		return "", err
	}
	stored := sha256.Sum256(mac(salted, "Client Key"))
	b64 := base64.StdEncoding.EncodeToString
	return fmt.Sprintf("SCRAM-SHA-256$%d:%s$%s:%s", scramIterations, b64(salt), b64(stored[:]), b64(mac(salted, "Server Key"))), nil
}

func mac(key []byte, text string) []byte {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(text))
	return h.Sum(nil)
}

func validPassword(password string) error {
	if password == "" || len(password) > maxPassword {
		return errPassword
	}
	for _, c := range []byte(password) {
		if c < 0x20 || c > 0x7e {
			return errPassword
		}
	}
	return nil
}
