package main

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/rigelbuild/compass-operator/internal/config"
	"github.com/rigelbuild/compass-operator/internal/fabric"
	"github.com/rigelbuild/compass-operator/internal/naming"
	"github.com/rigelbuild/compass-operator/internal/store"
)

// A tenant that gets a fleet of its own, or loses it, restarts no Server: the file is read again when it was replaced.
func TestIssuersAreReadAgain(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "issuers.yaml")
	keys, _, err := fabric.CompleteTenantKeys(nil)
	if err != nil {
		t.Fatal(err)
	}
	issuer := keys.Issuer(fabric.RoleRunner)
	const own = "t_aaaaaaaaaaaaaaaaaaaaaaaaaa"
	publish := func(fleets ...string) {
		t.Helper()
		text := "fleets:\n"
		for _, fleet := range fleets {
			text += fmt.Sprintf("  %s: {account: %s, seed: %s}\n", fleet, issuer.Account, issuer.Key.Text())
		}
		if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil { // as the kubelet does it
			t.Fatal(err)
		}
	}
	publish(naming.SharedFleet)
	access, err := newRunnerAccess(config.Config{Fabric: config.Fabric{IssuerFile: path}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	key, err := fabric.NewUserSeed()
	if err != nil {
		t.Fatal(err)
	}
	enters := func(fleet string) bool {
		t.Helper()
		way, err := access.RunnerAccess(t.Context(), store.Runner{ID: "r-00000000000000000000000000", Fleet: fleet, PublicKey: key.Public()})
		if err != nil {
			t.Fatal(err)
		}
		return way.JWT != ""
	}
	if !enters(naming.SharedFleet) || enters(own) {
		t.Error("before: want the shared fleet alone")
	}
	publish(naming.SharedFleet, own)
	if !enters(naming.SharedFleet) || !enters(own) {
		t.Error("a fleet that was added does not enter")
	}
	publish(naming.SharedFleet)
	if enters(own) {
		t.Error("a fleet that was taken away enters")
	}
}
