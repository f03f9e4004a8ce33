package fabric_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/rigelbuild/compass-operator/internal/fabric"
)

// Holds REQ-212: credentials stay as they are, to the byte, as long as they are those of the user that is meant; of keys that
// are no more, of somebody else, edited or gone, they are made anew.
func TestKeepCreds(t *testing.T) {
	t.Parallel()
	keys := func() fabric.AccountKeys {
		all, _, err := fabric.CompleteKeys(nil)
		if err != nil {
			t.Fatal(err)
		}
		return all.Compass
	}
	now, is := time.Unix(1e9, 0), keys()
	u := fabric.UserOf{Role: fabric.RoleWorker, ID: "main"}
	made := func(k fabric.AccountKeys, u fabric.UserOf) []byte {
		creds, err := k.UserCreds(u, 0, now)
		if err != nil {
			t.Fatal(err)
		}
		return creds
	}
	whole := made(is, u)
	jwtPart := func(creds []byte) []byte { return creds[:len(creds)-len(seedPart(creds))] }
	for name, c := range map[string]struct {
		have []byte
		kept bool
	}{
		"its own":                           {whole, true},
		"of keys that are no more":          {made(keys(), u), false},
		"of another worker":                 {made(is, fabric.UserOf{Role: fabric.RoleWorker, ID: "busy"}), false},
		"of another role":                   {made(is, fabric.UserOf{Role: fabric.RoleServer}), false},
		"none":                              {nil, false},
		"text":                              {[]byte("text"), false},
		"without a seed":                    {jwtPart(whole), false},
		"the JWT of one and another's seed": {append(bytes.Clone(jwtPart(whole)), seedPart(made(is, fabric.UserOf{Role: fabric.RoleServer}))...), false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := is.KeepCreds(c.have, u, now.Add(time.Hour))
			if err != nil {
				t.Fatal(err)
			}
			if kept := bytes.Equal(got, c.have); kept != c.kept {
				t.Errorf("kept %v, want %v", kept, c.kept)
			}
			if again, err := is.KeepCreds(got, u, now.Add(2*time.Hour)); err != nil || !bytes.Equal(again, got) {
				t.Errorf("and again something else: %v", err)
			}
		})
	}
}

func seedPart(creds []byte) []byte {
	return creds[bytes.Index(creds, []byte("-----BEGIN USER NKEY")):]
}
