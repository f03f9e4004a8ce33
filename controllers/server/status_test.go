package server

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rigelbuild/compass-operator/controllers/backend"
	"github.com/rigelbuild/compass-operator/internal/fabric"
)

// Holds REQ-241: the status tells which key signs, and of one that not every server trusts how many do.
func TestSigningKeys(t *testing.T) {
	t.Parallel()
	keys, _, err := fabric.CompleteKeys(nil)
	if err != nil {
		t.Fatal(err)
	}
	first, second := keys.Signing[0].Public(), keys.Signing[1].Public()
	got := signingKeys(keys.Signing[:], backend.NATSSeen{Servers: 3, Trusted: map[string]int{first: 3, second: 2}})
	want := map[string]string{first: "current", second: "next, trusted by 2 of 3 servers"}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if got := signingKeys([]fabric.Seed{keys.Signing[0], {}}, backend.NATSSeen{Servers: 1, Trusted: map[string]int{first: 1}}); len(got) != 1 {
		t.Errorf("of somebody else's operator: %v", got)
	}
}
