package fabric_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"

	"github.com/rigelbuild/compass-operator/internal/fabric"
	"github.com/rigelbuild/compass-operator/internal/fabric/fabrictest"
)

// Holds REQ-206 (the NATS part), REQ-241: what is there is read back, and what is right is not written again.
func TestAccountsAreEnsuredAndReadBack(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1, nil)
	c.base(t)
	spec := c.tenant(t, fabrictest.TenantA)
	account := fabric.TenantAccount(spec, c.keys.Compass, owner)
	for range 2 {
		seen, wrote, err := c.sys.Ensure(t.Context(), c.write(account))
		if err != nil || wrote {
			t.Fatalf("an unchanged account: wrote %v, %v", wrote, err)
		}
		if diff := cmp.Diff(fabric.AccountSeen{Answered: 1, Copies: 1}, seen); diff != "" {
			t.Errorf("(-want +got)\n%s", diff)
		}
	}
	spec.Limits.Connections = 7
	spec.EventTap = false
	changed := c.write(fabric.TenantAccount(spec, c.keys.Compass, owner))
	seen, err := c.sys.Observe(t.Context(), changed)
	if err != nil || !slices.Equal(seen.Drift, []string{"imports", "limits"}) {
		t.Errorf("drift %v, %v, want imports and limits", seen.Drift, err)
	}
	if _, wrote, err := c.sys.Ensure(t.Context(), changed); err != nil || !wrote {
		t.Errorf("a changed account: wrote %v, %v", wrote, err)
	}
}

// Ruling O1: the other signing key needs no restart, and nobody is disconnected.
func TestSigningKeyRotationKeepsConnections(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1, nil)
	c.base(t)
	nc, err := c.dialAs(c.standalone(t))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	var lost atomic.Int64
	nc.SetDisconnectErrHandler(func(*nats.Conn, error) { lost.Add(1) })
	w := c.write(fabric.CompassAccount(c.keys, owner))
	w.Signer = c.keys.Signing[1]
	seen, err := c.sys.Observe(t.Context(), w)
	if err != nil || !slices.Equal(seen.Drift, []string{"issuer"}) {
		t.Fatalf("drift %v, %v, want the issuer alone", seen.Drift, err)
	}
	if _, wrote, err := c.sys.Ensure(t.Context(), w); err != nil || !wrote {
		t.Fatalf("wrote %v, %v", wrote, err)
	}
	if err := nc.FlushTimeout(5 * time.Second); err != nil || lost.Load() != 0 {
		t.Errorf("the connection was lost: %v, %d times", err, lost.Load())
	}
	again, err := c.dialAs(c.standalone(t))
	if err != nil {
		t.Fatalf("new connections: %v", err)
	}
	again.Close()
}

// A full resolver stores what a stranger signed and says yes; the issuer shows it, and pushing ours heals it.
func TestStrangersSignatureIsSeen(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1, nil)
	c.base(t)
	stranger, _, err := fabric.CompleteKeys(nil)
	if err != nil {
		t.Fatal(err)
	}
	w := c.write(fabric.RunnersAccount(c.keys, owner))
	bad := w
	bad.Signer = stranger.Signing[0]
	if _, _, err := c.sys.Ensure(t.Context(), bad); err != nil {
		t.Fatalf("the resolver refused a stranger: %v", err)
	}
	seen, wrote, err := c.sys.Ensure(t.Context(), w)
	if err != nil || !wrote || len(seen.Drift) != 0 {
		t.Fatalf("%+v, wrote %v, %v", seen, wrote, err)
	}
}

// Lessons operator 33. Ruling O3: two CompassServers on one NATS must not take each other's accounts.
func TestForeignAccountsAreNotTouched(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1, nil)
	c.base(t)
	spec := c.tenant(t, fabrictest.TenantA)
	theirs := c.write(fabric.TenantAccount(spec, c.keys.Compass, "other/server"))
	theirs.Owner = "other/server"
	if _, _, err := c.sys.Ensure(t.Context(), theirs); !errors.Is(err, fabric.ErrForeign) {
		t.Errorf("ensure: got %v, want ErrForeign", err)
	}
	if err := c.sys.Remove(t.Context(), theirs); !errors.Is(err, fabric.ErrForeign) {
		t.Errorf("remove: got %v, want ErrForeign", err)
	}
	theirs.Adopt = true
	if _, wrote, err := c.sys.Ensure(t.Context(), theirs); err != nil || !wrote {
		t.Errorf("adopt: wrote %v, %v", wrote, err)
	}
}

// Holds REQ-212 (revocation proved by a refused connection).
func TestRevocationAndDeletionRefuseConnections(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1, nil)
	c.base(t)
	spec := c.tenant(t, fabrictest.TenantA)
	tap := issue(t, spec.Keys.Issuer(fabric.RoleTap), "")
	nc, err := c.dialAs(tap)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	spec.Revoked = map[string]time.Time{tap.key.Public(): time.Now().Add(time.Second)}
	if _, _, err := c.sys.Ensure(t.Context(), c.write(fabric.TenantAccount(spec, c.keys.Compass, owner))); err != nil {
		t.Fatal(err)
	}
	fabrictest.Eventually(t, "the live connection is dropped", nc.IsClosed)
	if _, err := c.dialAs(tap); !errors.Is(err, nats.ErrAuthorization) && !errors.Is(err, nats.ErrAuthRevoked) {
		t.Errorf("revoked: got %v, want a refusal", err)
	}
	other := issue(t, spec.Keys.Issuer(fabric.RoleTap), "")
	still, err := c.dialAs(other)
	if err != nil {
		t.Fatalf("another user of the account: %v", err)
	}
	defer still.Close()
	w := c.write(fabric.TenantAccount(spec, c.keys.Compass, owner))
	for range 2 { // the second time there is nothing to do
		if err := c.sys.Remove(t.Context(), w); err != nil {
			t.Fatalf("remove: %v", err)
		}
	}
	fabrictest.Eventually(t, "its connections are dropped", still.IsClosed)
	if _, err := c.dialAs(other); err == nil {
		t.Error("a user of a deleted account connected")
	}
}

// Lessons operator 30. A cluster: every server counts, one that is away is an error, one that lost its memory heals, and what was deleted
// while a server slept is deleted again when it returns.
func TestEveryServerCounts(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3, nil)
	c.base(t)
	spec := c.tenant(t, fabrictest.TenantA)
	w := c.write(fabric.TenantAccount(spec, c.keys.Compass, owner))

	c.stop(2)
	if _, err := c.sys.Observe(t.Context(), w); !errors.Is(err, fabric.ErrUnavailable) {
		t.Errorf("with a server away: got %v, want ErrUnavailable", err)
	}
	if err := os.RemoveAll(c.confs[2].JWTDir); err != nil {
		t.Fatal(err)
	}
	c.start(t, 2)
	fabrictest.Eventually(t, "the wiped server holds it again", func() bool {
		seen, _, err := c.sys.Ensure(t.Context(), w)
		return err == nil && seen.Copies == 3 && len(seen.Drift) == 0
	})
	for i := range 3 {
		c.stop(i)
	}
	for i := range 3 {
		if err := os.RemoveAll(c.confs[i].JWTDir); err != nil {
			t.Fatal(err)
		}
		c.start(t, i)
	}
	fabrictest.Eventually(t, "after all were wiped, all hold it again", func() bool {
		seen, _, err := c.sys.Ensure(t.Context(), w)
		return err == nil && seen.Copies == 3 && len(seen.Drift) == 0
	})

	c.stop(1)
	two := w
	two.Servers = 2
	fabrictest.Eventually(t, "the two others delete it", func() bool { return c.sys.Remove(t.Context(), two) == nil })
	c.start(t, 1) // brings its old copy along, and the others may take it back
	fabrictest.Eventually(t, "the old copy is seen and removed everywhere", func() bool {
		if err := c.sys.Remove(t.Context(), w); err != nil {
			return false
		}
		seen, err := c.sys.Observe(t.Context(), w)
		return err == nil && seen.Answered == 3 && seen.Copies == 0
	})
}

// A lowered payload limit closes a connection for good as far as the client library is concerned; the fabric dials again.
func TestClosedConnectionIsDialedAnew(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1, nil)
	c.base(t)
	f := c.fabric(t, issue(t, c.keys.Compass.Issuer(fabric.RoleServer), ""), nil)
	var sweeps atomic.Int64
	if _, err := f.OnReconnect(func() { sweeps.Add(1) }); err != nil {
		t.Fatal(err)
	}
	heard := make(chan fabric.BroadcastMsg, 16)
	if _, err := f.Listen(t.Context(), fabrictest.TenantA, func(_ context.Context, m fabric.BroadcastMsg) {
		select {
		case heard <- m:
		default:
		}
	}); err != nil {
		t.Fatal(err)
	}
	w := c.write(fabric.CompassAccount(c.keys, owner).WithPayload(1024))
	if _, _, err := c.sys.Ensure(t.Context(), w); err != nil {
		t.Fatal(err)
	}
	_ = f.Broadcast(t.Context(), fabrictest.TenantA, "presence", make([]byte, 4096), nil) // closes the connection
	fabrictest.Eventually(t, "the hook fires after a new connection", func() bool { return sweeps.Load() == 1 })
	fabrictest.Eventually(t, "the old subscription hears on it", func() bool {
		_ = f.Broadcast(t.Context(), fabrictest.TenantA, "presence", []byte("x"), nil)
		return len(heard) > 0
	})
}

// Without deletion rights an account is locked out, and that is said.
func TestResolverWithoutDeletion(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1, func(conf string) string { return strings.Replace(conf, "allow_delete: true", "allow_delete: false", 1) })
	c.base(t)
	spec := c.tenant(t, fabrictest.TenantA)
	tap := issue(t, spec.Keys.Issuer(fabric.RoleTap), "")
	if err := c.sys.Remove(t.Context(), c.write(fabric.TenantAccount(spec, c.keys.Compass, owner))); !errors.Is(err, fabric.ErrNoDelete) {
		t.Fatalf("got %v, want ErrNoDelete", err)
	}
	if _, err := c.dialAs(tap); err == nil {
		t.Error("a user of a locked account connected")
	}
}

var accountCount = flag.Int("fabric.accounts", 100, "accounts that are ensured though they are right")

// Holds REQ-206. Reconciling what is right costs reads alone, however many accounts there are.
func TestUnchangedAccountsAreOnlyRead(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1, nil)
	c.base(t)
	n := *accountCount
	accounts := make([]fabric.AccountWrite, n)
	for i := range accounts {
		keys, _, err := fabric.CompleteTenantKeys(nil)
		if err != nil {
			t.Fatal(err)
		}
		spec := fabric.TenantAccountSpec{Tenant: fmt.Sprintf("t_%026d", i), Keys: keys, EventTap: true, Runners: true}
		accounts[i] = c.write(fabric.TenantAccount(spec, c.keys.Compass, owner))
		if _, wrote, err := c.sys.Ensure(t.Context(), accounts[i]); err != nil || !wrote {
			t.Fatalf("wrote %v, %v", wrote, err)
		}
	}
	count := c.writes(t)
	began := time.Now()
	for _, w := range accounts {
		if _, wrote, err := c.sys.Ensure(t.Context(), w); err != nil || wrote {
			t.Fatalf("%s: wrote %v, %v", w.Account.Name, wrote, err)
		}
	}
	took := time.Since(began)
	if wrote := count(); wrote != 0 {
		t.Errorf("%d accounts that are right: %d writes", n, wrote)
	}
	t.Logf("%d unchanged accounts ensured in %s, reads alone", n, took)
}
