package controllers_test

import (
	"bytes"
	"log/slog"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/rigelbuild/compass-operator/api/v1alpha1"
	"github.com/rigelbuild/compass-operator/controllers/backend"
	"github.com/rigelbuild/compass-operator/internal/fabric"
	"github.com/rigelbuild/compass-operator/internal/naming"
)

// tapped is a thread whose tenant has a tap.
func tapped(t *testing.T, policy v1alpha1.DeletionPolicy) (th thread, acme *v1alpha1.CompassTenant, enters func() bool) {
	t.Helper()
	th, acme = newThread(t, policy), &v1alpha1.CompassTenant{}
	th.update(t, acme, "acme", func() { acme.Spec.NATS.EventTap = true })
	th.settle(t, th.tenant)
	th.mustBeReady(t, th.tenant)
	th.get(t, acme, "acme")
	tap := th.secret(t, "acme-nats")["nats.creds"]
	return th, acme, func() bool { t.Helper(); return th.enter(t, tap, fabric.InboxPrefix(fabric.RoleTap, "")) == nil }
}

// system is the system account of the server's NATS, and the keys that open it.
func (th thread) system(t *testing.T) (*fabric.Accounts, fabric.Keys) {
	t.Helper()
	keys, _, err := fabric.CompleteKeys(th.secret(t, "main-keys"))
	if err != nil {
		t.Fatal(err)
	}
	seed, err := fabric.NewUserSeed()
	if err != nil {
		t.Fatal(err)
	}
	user, err := keys.System.AdminUser(seed.Public(), naming.AccountSystem)
	if err != nil {
		t.Fatal(err)
	}
	var urls []string
	for _, s := range th.nats {
		urls = append(urls, s.URL())
	}
	sys, err := fabric.OpenAccounts(t.Context(), fabric.Config{
		Name: "test", URLs: urls, Credentials: fabric.StaticCredentials(user, seed, fabric.AdminInbox), Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(sys.Close)
	return sys, keys
}

func (th thread) owner() string {
	return backend.Owner(client.ObjectKey{Namespace: th.namespace, Name: "main"})
}

// push puts an account onto the server, whatever the operator thinks of it.
func (th thread) push(t *testing.T, sys *fabric.Accounts, keys fabric.Keys, account fabric.Account) {
	t.Helper()
	w := fabric.AccountWrite{Account: account, Signer: keys.Signing[0], Owner: th.owner(), Servers: 1}
	if _, wrote, err := sys.Ensure(t.Context(), w); err != nil || !wrote {
		t.Fatalf("pushed %v, %v", wrote, err)
	}
}

// copies of an account that the server holds.
func (th thread) copies(t *testing.T, sys *fabric.Accounts, account fabric.Account) int {
	t.Helper()
	seen, err := sys.Observe(t.Context(), fabric.AccountWrite{Account: account, Servers: 1})
	if err != nil {
		t.Fatal(err)
	}
	return seen.Copies
}

// A NATS server that slept while a tenant was deleted brings its account back, with every
// user that it had. The operator deletes it again, and stops looking one day.
func TestDeletedAccountStaysDeleted(t *testing.T) {
	t.Parallel()
	th, acme, enters := tapped(t, v1alpha1.DeletionPolicyDelete)
	own, _, err := fabric.CompleteTenantKeys(th.secret(t, "acme-keys"))
	if err != nil {
		t.Fatal(err)
	}
	sys, keys := th.system(t)
	th.removeObject(t, th.stream)
	th.removeObject(t, th.tenant)
	if !th.isGone(t, th.tenant) || enters() {
		t.Fatal("the tenant or its account is left")
	}
	account := fabric.TenantAccount(fabric.TenantAccountSpec{Tenant: acme.Status.TenantID, Keys: own, EventTap: true}, keys.Compass, th.owner())
	th.push(t, sys, keys, account)
	if n := th.copies(t, sys, account); n != 1 {
		t.Fatalf("%d copies rose", n)
	}
	th.settle(t, th.server)
	th.mustBeReady(t, th.server)
	if n := th.copies(t, sys, account); n != 0 || enters() {
		t.Errorf("%d copies of a deleted account, want none", n)
	}
	if n := len(th.secret(t, "main-graves")); n != 1 {
		t.Errorf("%d graves, want 1", n)
	}
	th.later(31 * 24 * time.Hour)
	th.settle(t, th.server)
	if n := len(th.secret(t, "main-graves")); n != 0 {
		t.Errorf("%d graves after a month, want none", n)
	}
}

// A tenant that is made again with the keys it had is no grave.
func TestRestoredKeysAreNoGrave(t *testing.T) {
	t.Parallel()
	th, _, _ := tapped(t, v1alpha1.DeletionPolicyDelete)
	kept := &corev1.Secret{}
	th.get(t, kept, "acme-keys")
	th.removeObject(t, th.stream)
	th.removeObject(t, th.tenant)
	again := &corev1.Secret{}
	again.Namespace, again.Name, again.Labels, again.Data = kept.Namespace, kept.Name, kept.Labels, kept.Data
	delete(again.Data, "token")
	th.create(t, again)
	acme := th.newTenant(t, "acme", "main")
	th.settle(t, acme)
	th.settle(t, th.server)
	if n := len(th.secret(t, "main-graves")); n != 0 {
		t.Errorf("%d graves, want none", n)
	}
	sys, keys := th.system(t)
	own, _, err := fabric.CompleteTenantKeys(again.Data)
	if err != nil {
		t.Fatal(err)
	}
	if n := th.copies(t, sys, fabric.TenantAccount(fabric.TenantAccountSpec{Keys: own}, keys.Compass, th.owner())); n != 1 {
		t.Errorf("%d copies of the account, want 1", n)
	}
}

// Lessons operator 31: a resolver stores an account whose imports the exporter does not grant, and says yes.
func TestRefusedImportsAreSaid(t *testing.T) {
	t.Parallel()
	th, _, enters := tapped(t, v1alpha1.DeletionPolicyRetain)
	sys, keys := th.system(t)
	stranger, _, err := fabric.CompleteKeys(nil)
	if err != nil {
		t.Fatal(err)
	}
	forged := keys
	forged.Compass.Signing, forged.Compass.Scoped = stranger.Compass.Signing, stranger.Compass.Scoped
	th.push(t, sys, keys, fabric.CompassAccount(forged, th.owner()))
	enters() // a server judges imports when it needs the account
	th.settle(t, th.tenant)
	th.says(t, th.tenant, v1alpha1.ConditionAccountReady, is("False", "FabricUnfit"), "does not serve its imports broadcasts:")
	th.settle(t, th.server)
	th.settle(t, th.tenant)
	th.mustBeReady(t, th.server, th.tenant)
}

// Holds REQ-212: credentials that were deleted come back as the user they were, of Servers and of workers, and so do those that
// are of an installation before, whose keys were lost: nobody else would ever replace them.
func TestDeletedCredentialsAreTheSameUser(t *testing.T) {
	t.Parallel()
	th := newThread(t, v1alpha1.DeletionPolicyRetain)
	seed := func(secret string) []byte {
		t.Helper()
		_, key, _ := bytes.Cut(th.secret(t, secret)["nats.creds"], []byte("BEGIN USER NKEY SEED"))
		return key
	}
	for _, secret := range []string{"main-server", "main-compass-delivery"} {
		before := seed(secret)
		th.delete(t, &corev1.Secret{}, secret)
		th.settle(t, th.server, th.stream)
		if after := seed(secret); len(before) == 0 || !bytes.Equal(before, after) {
			t.Errorf("Secret %s holds another user", secret)
		}
		lost, _, err := fabric.CompleteKeys(nil)
		if err != nil {
			t.Fatal(err)
		}
		creds, err := lost.Compass.UserCreds(fabric.UserOf{Role: fabric.RoleWorker, ID: "main"}, 0, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		o := &corev1.Secret{}
		th.update(t, o, secret, func() { o.Data["nats.creds"] = creds })
		th.settle(t, th.server, th.stream)
		if after := seed(secret); !bytes.Equal(before, after) {
			t.Errorf("Secret %s holds the user of keys that are no more", secret)
		}
	}
}
