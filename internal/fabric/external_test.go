package fabric_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"

	"github.com/rigelbuild/compass-operator/internal/fabric"
	"github.com/rigelbuild/compass-operator/internal/fabric/fabrictest"
	"github.com/rigelbuild/compass-operator/internal/naming"
)

// Holds REQ-204, REQ-206 (External). On somebody else's NATS everything works with what they handed over, and what is
// theirs stays as it was, byte for byte.
func TestExternalNATS(t *testing.T) {
	t.Parallel()
	x := newTheirs(t, 1, nil)
	foreign := x.tenant(t, fabrictest.TenantB) // an account that its owner had before
	before := x.lookup(t, foreign.Keys.Identity.Public())
	if seen, err := x.admin.Probe(t.Context(), x.spec()); err != nil || !seen.Ready() {
		t.Fatalf("%+v, %v", seen, err)
	}
	const us = "ns/ours"
	tenant, _, err := fabric.CompleteTenantKeys(nil)
	if err != nil {
		t.Fatal(err)
	}
	spec := fabric.TenantAccountSpec{Tenant: fabrictest.TenantA, Keys: tenant, Runners: true, EventTap: true,
		Limits: fabric.Limits{Connections: 5, Subscriptions: 100, Payload: 64 << 10}}
	write := func(a fabric.Account) fabric.AccountWrite {
		return fabric.AccountWrite{Account: a, Signer: x.ours.Signing[0], Owner: us, Servers: 1}
	}
	for _, a := range []fabric.Account{
		fabric.CompassAccount(x.ours, us), fabric.RunnersAccount(x.ours, us), fabric.TenantAccount(spec, x.ours.Compass, us),
	} {
		if _, wrote, err := x.admin.Ensure(t.Context(), write(a)); err != nil || !wrote {
			t.Fatalf("%s: wrote %v, %v", a.Name, wrote, err)
		}
	}
	key := userKey(t)
	user, err := x.ours.Compass.AdminUser(key.Public(), naming.AccountCompass)
	if err != nil {
		t.Fatal(err)
	}
	admin := x.fabric(t, userOf(user, key, fabric.AdminInbox), nil)
	want := fabric.StreamSpec{Name: "main"}
	fabrictest.Eventually(t, "JetStream serves", func() bool { _, _, err := admin.EnsureStream(t.Context(), want, false); return err == nil })
	if _, _, err := admin.EnsureDeadLetters(t.Context(), want, false); err != nil {
		t.Fatal(err)
	}
	if _, _, err := admin.EnsureConsumer(t.Context(), want, false); err != nil {
		t.Fatal(err)
	}
	carry := func(c *fabric.Config) { c.Stream = "main" }
	server := x.fabric(t, issue(t, x.ours.Compass.Issuer(fabric.RoleServer), ""), carry)
	worker := x.fabric(t, issue(t, x.ours.Compass.Issuer(fabric.RoleWorker), "main"), carry)
	var r rows
	if _, err := worker.SubscribeKind(t.Context(), fabric.KindMessagePosted, r.take); err != nil {
		t.Fatal(err)
	}
	arrives(t, server, &r, "m_1")

	// Theirs carries the mark of somebody else: nothing of ours may touch it, whatever it is asked.
	mine := write(fabric.TenantAccount(foreign, x.ours.Compass, us))
	if _, _, err := x.admin.Ensure(t.Context(), mine); !errors.Is(err, fabric.ErrForeign) {
		t.Errorf("ensure: got %v, want ErrForeign", err)
	}
	if err := x.admin.Remove(t.Context(), mine); !errors.Is(err, fabric.ErrForeign) {
		t.Errorf("remove: got %v, want ErrForeign", err)
	}
	stone := []fabric.Tombstone{mine.Account.Tombstone()}
	if graves, err := x.admin.Bury(t.Context(), fabric.BurySpec{Signer: x.ours.Signing[0], Owner: us}, stone); err != nil || graves[0].Risen {
		t.Errorf("bury: %+v, %v", graves, err)
	}
	if after := x.lookup(t, foreign.Keys.Identity.Public()); after != before {
		t.Error("their account was changed")
	}
}

func userOf(text string, key fabric.Seed, inbox string) user {
	return user{fabric.StaticCredentials(text, key, inbox), text, key}
}

// lookup is what the first server holds of an account.
func (c *cluster) lookup(t *testing.T, public string) string {
	t.Helper()
	msg, err := c.systemConn(t).Request("$SYS.REQ.ACCOUNT."+public+".CLAIMS.LOOKUP", nil, 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	return string(msg.Data)
}

// writes counts what is pushed or deleted from now on.
func (c *cluster) writes(t *testing.T) func() int {
	t.Helper()
	nc := c.systemConn(t)
	sub, err := nc.SubscribeSync("$SYS.REQ.CLAIMS.*")
	if err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	return func() int {
		t.Helper()
		if err := nc.Flush(); err != nil {
			t.Fatal(err)
		}
		n, _, err := sub.Pending()
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
}

// Lab finding 5: a server that slept through a deletion brings the account back everywhere, with its users. The tombstone
// finds it.
func TestDeletedAccountsStayDeleted(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3, nil)
	c.base(t)
	spec := c.tenant(t, fabrictest.TenantA)
	tap := issue(t, spec.Keys.Issuer(fabric.RoleTap), "")
	w := c.write(fabric.TenantAccount(spec, c.keys.Compass, owner))
	c.stop(1)
	two := w
	two.Servers = 2
	fabrictest.Eventually(t, "the two that are awake delete it", func() bool { return c.sys.Remove(t.Context(), two) == nil })
	unreadable := fabric.Tombstone{Account: "no key", Name: "unreadable"}
	stones := []fabric.Tombstone{w.Account.Tombstone()}
	bury := fabric.BurySpec{Signer: c.keys.Signing[0], Owner: owner}
	graves, err := c.sys.Bury(t.Context(), bury, stones)
	if err != nil || graves[0].Risen || graves[0].Answered != 2 {
		t.Fatalf("while it sleeps: %+v, %v", graves, err)
	}
	c.start(t, 1)
	fabrictest.Eventually(t, "it rises", func() bool {
		seen, err := c.sys.Observe(t.Context(), w)
		return err == nil && seen.Copies > 0
	})
	// One that cannot be looked for stands in nobody's way.
	risen := false
	fabrictest.Eventually(t, "it is buried again, on every server", func() bool {
		graves, err = c.sys.Bury(t.Context(), bury, append([]fabric.Tombstone{unreadable}, stones...))
		if err == nil || len(graves) != 1 {
			return false
		}
		risen = risen || graves[0].Risen
		return !graves[0].Risen && graves[0].Answered == 3
	})
	if !risen {
		t.Error("no grave was said to have risen")
	}
	if nc, err := c.dialAs(tap); err == nil {
		nc.Close()
		t.Error("a user of the account connected")
	}
	count := c.writes(t)
	if _, err := c.sys.Bury(t.Context(), bury, stones); err != nil || count() != 0 {
		t.Errorf("a quiet grave: wrote %d times, %v", count(), err)
	}
}

// Status says which servers know which key (ruling O1).
func TestTrust(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 2, nil)
	got, err := c.sys.Trust(t.Context(), 2)
	if err != nil {
		t.Fatal(err)
	}
	signing := []string{c.keys.Signing[0].Public(), c.keys.Signing[1].Public()}
	slices.Sort(signing)
	want := []fabric.ServerTrust{
		{Server: "n0", Operator: c.keys.Operator.Public(), Signing: signing},
		{Server: "n1", Operator: c.keys.Operator.Public(), Signing: signing},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if _, err := c.sys.Trust(t.Context(), 3); !errors.Is(err, fabric.ErrUnavailable) {
		t.Errorf("a server too few: got %v, want ErrUnavailable", err)
	}
}

// Lessons operator 31: a resolver stores an account whose imports the exporter never granted, and says yes.
func TestRefusedImportsAreSeen(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1, nil)
	c.base(t)
	spec := c.tenant(t, fabrictest.TenantA)
	stranger, _, err := fabric.CompleteKeys(nil)
	if err != nil {
		t.Fatal(err)
	}
	forged := c.keys.Compass // their account, signed for by somebody else
	forged.Signing = stranger.Compass.Signing
	bad := c.write(fabric.TenantAccount(spec, forged, owner))
	if _, _, err := c.sys.Ensure(t.Context(), bad); err != nil {
		return // refused at once is as good
	}
	load := func() { // a server judges imports when it needs the account
		t.Helper()
		nc, err := c.dialAs(issue(t, spec.Keys.Issuer(fabric.RoleTap), ""))
		if err != nil {
			t.Fatal(err)
		}
		nc.Close()
	}
	if refused, err := c.sys.RefusedImports(t.Context(), bad); err != nil || len(refused) > 0 {
		t.Errorf("not used yet: %v, %v, want nothing known", refused, err)
	}
	load()
	all := []string{"broadcasts", "calls", "commands", "events", "states"}
	refused, err := c.sys.RefusedImports(t.Context(), bad)
	if diff := cmp.Diff(all, refused); err != nil || diff != "" {
		t.Errorf("imports without the exporter's word (-want +got)\n%s%v", diff, err)
	}
	good := c.write(fabric.TenantAccount(spec, c.keys.Compass, owner))
	if _, wrote, err := c.sys.Ensure(t.Context(), good); err != nil || !wrote {
		t.Errorf("the drift must be seen: wrote %v, %v", wrote, err)
	}
	if refused, err := c.sys.RefusedImports(t.Context(), good); err != nil || len(refused) > 0 {
		t.Errorf("%v are refused, %v", refused, err)
	}
}

// Deletion purges: an account of the same key must not find the streams of the old one.
func TestRemovedAccountLeavesNoStreams(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1, nil)
	c.base(t)
	c.makeStream(t, "main")
	account := fabric.CompassAccount(c.keys, owner)
	if err := c.sys.Remove(t.Context(), c.write(account)); err != nil {
		t.Fatal(err)
	}
	c.ensure(t, account)
	op := c.fabric(t, c.admin(t), nil)
	fabrictest.Eventually(t, "JetStream answers that there is none", func() bool {
		queue, dead, _, err := op.ObserveStream(t.Context(), fabric.StreamSpec{Name: "main"})
		return err == nil && !queue.Exists && !dead.Exists
	})
}

// Lessons operator 28, 29. Holds REQ-212: credentials that were deleted come back as the same user; a rotation overlaps, and the
// old user is refused once it is revoked.
func TestDerivedUsers(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1, nil)
	c.base(t)
	keys := c.keys.Compass
	first := fabric.UserOf{Role: fabric.RoleWorker, ID: "main"}
	next := first
	next.Number = 1
	seen := map[string]fabric.UserOf{}
	for _, u := range []fabric.UserOf{first, next, {Role: fabric.RoleWorker, ID: "second"}, {Role: fabric.RoleServer}} {
		a, err1 := keys.UserSeed(u)
		b, err2 := keys.UserSeed(u)
		if err1 != nil || err2 != nil || a.Public() != b.Public() {
			t.Fatalf("%+v: not the same key twice, %v %v", u, err1, err2)
		}
		if other, taken := seen[a.Public()]; taken {
			t.Errorf("%+v and %+v have one key", u, other)
		}
		seen[a.Public()] = u
	}
	if _, err := keys.UserSeed(fabric.UserOf{Role: fabric.RoleTap}); !errors.Is(err, fabric.ErrConfig) {
		t.Errorf("a role that the account has not: got %v, want ErrConfig", err)
	}
	dial := func(u fabric.UserOf) (*nats.Conn, error) {
		t.Helper()
		text, err := keys.UserCreds(u, 0, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		creds, err := fabric.ParseCreds(text, fabric.InboxPrefix(u.Role, u.ID))
		if err != nil {
			t.Fatal(err)
		}
		return c.dialAs(user{creds: creds})
	}
	var live []*nats.Conn
	for _, u := range []fabric.UserOf{first, next} { // the overlap
		nc, err := dial(u)
		if err != nil {
			t.Fatalf("%+v: %v", u, err)
		}
		defer nc.Close()
		live = append(live, nc)
	}
	old, err := keys.UserSeed(first)
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	w := c.write(fabric.CompassAccount(c.keys, owner).Revoke(old.Public(), time.Now().Add(time.Second)))
	if _, _, err := c.sys.Ensure(t.Context(), w); err != nil {
		t.Fatal(err)
	}
	fabrictest.Eventually(t, "the old user's connection is dropped", live[0].IsClosed)
	if nc, err := dial(first); err == nil {
		nc.Close()
		t.Error("the old user connected")
	}
	t.Logf("revoked and refused %s after the request", time.Since(began))
	if err := live[1].Flush(); err != nil {
		t.Errorf("the new user: %v", err)
	}
}
