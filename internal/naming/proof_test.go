package naming_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rigelbuild/compass-operator/internal/naming"
)

func TestRunnerProofRoundTrip(t *testing.T) {
	t.Parallel()
	want := naming.RunnerProof{Runner: "r-00000000000000000000000001", Unix: 1790000000, Signature: []byte{0, 255, 62, 63}}
	got, err := naming.ParseRunnerProof(want.Header())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	message := string(want.Message("/compass.v1.RunnerService/Hello"))
	if message != "compass-runner\n/compass.v1.RunnerService/Hello\nr-00000000000000000000000001\n1790000000" {
		t.Errorf("message %q", message)
	}
}

func TestParseRunnerProofRefuses(t *testing.T) {
	t.Parallel()
	good := naming.RunnerProof{Runner: "r-00000000000000000000000001", Unix: 1790000000, Signature: []byte("secret signature")}.Header()
	for name, header := range map[string]string{
		"empty":         "",
		"other scheme":  strings.Replace(good, "Runner ", "Bearer ", 1),
		"no signature":  good[:strings.LastIndexByte(good, '.')],
		"more":          good + ".x",
		"padded":        good + "==",
		"leading zero":  strings.Replace(good, ".179", ".0179", 1),
		"other id":      strings.Replace(good, "r-", "r_", 1),
		"two spaces":    strings.Replace(good, " ", "  ", 1),
		"not base64url": good[:len(good)-1] + "+",
	} {
		_, err := naming.ParseRunnerProof(header)
		if !errors.Is(err, naming.ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", name, err)
		}
		if err != nil && strings.Contains(err.Error(), "1790000000") {
			t.Errorf("%s: the error repeats the header: %v", name, err)
		}
	}
}
