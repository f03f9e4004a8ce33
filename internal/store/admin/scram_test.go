package admin

import (
	"encoding/base64"
	"testing"
)

// The example of RFC 7677 section 3: user "user", password "pencil". Its client proof and server signature follow from
// these two keys.
func TestVerifierIsTheStandards(t *testing.T) {
	t.Parallel()
	salt, err := base64.StdEncoding.DecodeString("W22ZaJ0SNY7soEsUEjb6gQ==")
	if err != nil {
		t.Fatal(err)
	}
	got, err := verifierWith("pencil", salt)
	if err != nil {
		t.Fatal(err)
	}
	const want = "SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==$" +
		"WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=:wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU="
	if got != want {
		t.Errorf("verifier\n%s, want\n%s", got, want)
	}
	one, _ := verifier("pencil")
	two, _ := verifier("pencil")
	if one == two {
		t.Error("two verifiers share a salt")
	}
}
