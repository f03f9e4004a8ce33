package admin

import (
	"errors"
	"strings"
	"testing"
)

// Holds REQ-222: a Postgres that nobody tested is refused before anything is made, with its version and what is needed.
func TestSupported(t *testing.T) {
	t.Parallel()
	for version, want := range map[int]bool{90624: false, 140018: false, 150000: true, 150018: true, 180004: true} {
		if err := supported(version); (err == nil) != want || err != nil && !errors.Is(err, ErrOutdated) {
			t.Errorf("%d: %v, want supported: %v", version, err, want)
		}
	}
	if err := supported(140018); !strings.Contains(err.Error(), "its version is 14, and Compass needs 15") {
		t.Error(err)
	}
}
