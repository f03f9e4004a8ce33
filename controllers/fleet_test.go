package controllers_test

import (
	"crypto/rand"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/rigelbuild/compass-operator/api/v1alpha1"
	"github.com/rigelbuild/compass-operator/internal/config"
	"github.com/rigelbuild/compass-operator/internal/fabric"
	"github.com/rigelbuild/compass-operator/internal/naming"
	"github.com/rigelbuild/compass-operator/internal/store"
)

// issuers are those that the Servers of main read.
func (g *ground) issuers(t *testing.T) map[string]config.FleetIssuer {
	t.Helper()
	path := filepath.Join(t.TempDir(), "issuers.yaml")
	if err := os.WriteFile(path, g.secret(t, "main-issuer")["issuers.yaml"], 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := config.LoadIssuers(path)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// Holds REQ-206: a fleet of the tenant's own. The published token enrols one Runner of it, whom a Server lets into the tenant's
// account with the key that it was told; then another token is published. Without the fleet there is neither.
func TestOwnFleet(t *testing.T) {
	t.Parallel()
	th := newThread(t, v1alpha1.DeletionPolicyRetain)
	acme := &v1alpha1.CompassTenant{}
	edit := func(change func()) {
		t.Helper()
		th.update(t, acme, "acme", change)
		th.settle(t, th.tenant, th.server)
		th.mustBeReady(t, th.tenant, th.server)
	}
	edit(func() { acme.Spec.NATS.Runners = true })
	th.get(t, acme, "acme")
	published, fleet := th.secret(t, "acme-nats"), acme.Status.TenantID
	token := string(published["token"])
	if acme.Status.Secrets.NATS != "acme-nats" || token == "" || len(published["url"]) == 0 || len(published["nats.creds"]) != 0 {
		t.Fatalf("%d keys in %q", len(published), acme.Status.Secrets.NATS)
	}
	key, err := fabric.NewUserSeed()
	if err != nil {
		t.Fatal(err)
	}
	ids := naming.IDs{Now: time.Now, Rand: rand.Reader}
	runner, err := th.open(t, "main-databases").EnrollRunner(t.Context(), store.Enrolment{
		TokenHash: naming.TokenHash(token), PublicKey: key.Public(), ID: ids.Runner(),
	})
	if err != nil || runner.Fleet != fleet {
		t.Fatalf("enrolled in fleet %q, %v; want %s", runner.Fleet, err, fleet)
	}
	issuer := th.issuers(t)[fleet]
	if issuer.Account != acme.Status.Account {
		t.Fatalf("Servers let its Runners into account %q, want %s", issuer.Account, acme.Status.Account)
	}
	signer, err := fabric.ParseSeed([]byte(issuer.Seed))
	if err != nil {
		t.Fatal(err)
	}
	user, err := fabric.Issuer{Account: issuer.Account, Role: fabric.RoleRunner, Key: signer}.User(key.Public(), runner.ID, time.Hour, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	creds, err := fabric.CredsFile(user, key)
	if err != nil {
		t.Fatal(err)
	}
	if err := th.enter(t, creds, fabric.InboxPrefix(fabric.RoleRunner, runner.ID)); err != nil {
		t.Errorf("the Runner does not enter NATS: %v", err)
	}
	th.settle(t, th.tenant)
	if next := string(th.secret(t, "acme-nats")["token"]); next == token || next == "" {
		t.Errorf("a used token is published still, or none: replaced %v", next != token)
	}
	edit(func() { acme.Spec.NATS.EventTap = true })
	if both := th.secret(t, "acme-nats"); len(both["token"]) == 0 || len(both["nats.creds"]) == 0 {
		t.Error("of tap and fleet one is not published")
	}
	edit(func() { acme.Spec.NATS.Runners = false })
	if left := th.secret(t, "acme-nats"); len(left["token"]) > 0 || len(left["nats.creds"]) == 0 {
		t.Error("the token is published without a fleet, or the tap went with it")
	}
	if _, ok := th.issuers(t)[fleet]; ok || len(th.issuers(t)) != 1 {
		t.Error("Servers let Runners into the account of a tenant without a fleet")
	}
	edit(func() { acme.Spec.NATS.EventTap = false })
	if th.secret(t, "acme-nats") != nil {
		t.Error("with neither a Secret is published")
	}
}
