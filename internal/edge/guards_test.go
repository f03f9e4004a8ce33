package edge_test

import (
	"context"
	"encoding/hex"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	compassv1 "github.com/rigelbuild/compass-operator/api/proto/compass/v1"
	"github.com/rigelbuild/compass-operator/internal/comms"
	"github.com/rigelbuild/compass-operator/internal/edge"
	"github.com/rigelbuild/compass-operator/internal/event"
	"github.com/rigelbuild/compass-operator/internal/naming"
	"github.com/rigelbuild/compass-operator/internal/store"
)

// Holds REQ-089 (a platform admin may name another tenant in every procedure that takes one, and each such call is in that
// tenant's audit log under its own name; a call on his own tenant is not).
func TestEveryCallOnAnotherTenantIsAudited(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	root, acme := f.Platform(t), f.Tenant(t, "acme")
	audited := func() []string {
		return f.Strings(t, `select action from compass.audit_log where tenant_id = $1 and actor = $2 and action like '/compass%' order by id`,
			acme.ID, root.Admin.ID)
	}
	var want []string
	for _, procedure := range slices.Sorted(maps.Keys(procedures(t))) {
		m := procedures(t)[procedure]
		if m.Input().Fields().ByName("tenant") == nil {
			continue
		}
		if answer := f.raw(t, root.Token, procedure, []byte(`{"tenant":"acme"}`)); strings.Contains(answer, `"code"`) {
			t.Errorf("%s on another tenant: %s", procedure, answer)
		}
		f.raw(t, root.Token, procedure, []byte(`{}`))
		want = append(want, procedure)
	}
	got := audited()
	if len(want) < 6 || !slices.Equal(got, want) {
		t.Errorf("audited %v, want %v", got, want)
	}
}

// deaf is a store whose audit log cannot be written, and that says whether anything else was asked.
type deaf struct {
	edge.Store
	read bool
}

var errDeaf = errors.New("the audit log is away")

func (d *deaf) Audit(context.Context, string, string, map[string]string) error { return errDeaf }

func (d *deaf) TenantStatus(ctx context.Context) (store.Status, error) {
	d.read = true
	return d.Store.TenantStatus(ctx)
}

// What cannot be audited does not happen: nothing of the other tenant is read.
func TestUnauditedIsRefused(t *testing.T) {
	t.Parallel()
	d := &deaf{}
	f := newFixture(t, func(p *parts) { d.Store, p.Store = p.Store, d })
	root := f.Platform(t)
	f.Tenant(t, "acme")
	_, err := f.admin(root.Token).GetStatus(t.Context(), request(&compassv1.GetStatusRequest{Tenant: "acme"}))
	wants(t, "a call that cannot be audited", err, connect.CodeInternal)
	if d.read {
		t.Error("another tenant was looked at without a word in its log")
	}
	_, err = f.admin(root.Token).IssueRunnerToken(t.Context(), request(&compassv1.IssueRunnerTokenRequest{}))
	wants(t, "a token that cannot be audited", err, connect.CodeInternal)
	if n := f.Count(t, `select count(*) from compass.runner_tokens`); n != 0 {
		t.Errorf("%d Runner tokens were issued unaudited", n)
	}
}

// stumbling is comms whose streams end as they are told to.
type stumbling struct {
	edge.Comms
	end func(ctx context.Context) error
}

func (s stumbling) SubscribeComms(ctx context.Context, _ comms.Subscriber) error { return s.end(ctx) }

// A stream that panics or fails ends as Internal, without the cause, which is in the log; and it has no deadline but its
// client's.
func TestStreamsAreGuardedToo(t *testing.T) {
	t.Parallel()
	var end func(context.Context) error
	f := newFixture(t, func(p *parts) { p.Comms = stumbling{p.Comms, func(ctx context.Context) error { return end(ctx) }} })
	acme := f.Tenant(t, "acme")
	for name, c := range map[string]struct {
		end  func(context.Context) error
		code connect.Code
	}{
		"a panic":  {func(context.Context) error { panic("hunter2") }, connect.CodeInternal},
		"an error": {func(context.Context) error { return errors.New("hunter2") }, connect.CodeInternal},
		"a deadline of ours": {func(ctx context.Context) error {
			if _, bounded := ctx.Deadline(); bounded {
				return context.DeadlineExceeded
			}
			return store.ErrUnavailable
		}, connect.CodeUnavailable},
	} {
		end = c.end
		stream, err := f.messages(acme.Token).SubscribeComms(t.Context(), request(&compassv1.SubscribeCommsRequest{}))
		must(t, err)
		if stream.Receive() {
			t.Errorf("%s: told %v", name, stream.Msg())
		}
		wants(t, name, stream.Err(), c.code)
		if strings.Contains(stream.Err().Error(), "hunter2") {
			t.Errorf("%s: the client reads %q", name, stream.Err())
		}
	}
	if n := strings.Count(f.log.String(), "hunter2"); n < 2 {
		t.Errorf("the log has %d of 2 failures: %s", n, f.log)
	}
}

// Of a token only the hash is kept, and it is the hash of the whole token: nothing that Postgres holds lets anybody in.
func TestOnlyTheHashOfATokenIsKept(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	acme := f.Tenant(t, "acme")
	ada := acme.Person(t, "ada")
	issued, err := f.accounts(acme.Token).IssueToken(t.Context(), request(&compassv1.IssueTokenRequest{AccountId: ada.ID}))
	must(t, err)
	token := issued.Msg.GetToken()
	_, secret, err := naming.ParseToken(token)
	must(t, err)
	kept := snapshot(t, f, acme.ID)
	hash := naming.TokenHash(token)
	if strings.Contains(kept, secret) || !strings.Contains(kept, hex.EncodeToString(hash[:])) {
		t.Error("the token, or not its hash, is in Postgres")
	}
	for _, half := range []string{"cmp_" + string(acme.ID) + "_" + hex.EncodeToString(hash[:]), secret, token[:len(token)-1], token + "0"} {
		_, err := f.accounts(half).WhoAmI(t.Context(), request(&compassv1.WhoAmIRequest{}))
		wants(t, "a token that is none", err, connect.CodeUnauthenticated)
	}
}

// Whoever may do less than before has his streams asked again at once: each of the three changes is told, by his account.
func TestChangesOfAccessAreTold(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	acme := f.Tenant(t, "acme")
	ada, eve, bob := acme.Person(t, "ada"), acme.Person(t, "eve"), acme.Person(t, "bob")
	id, _ := acme.TokenOf(t, ada)
	sub, err := f.bus.Subscribe(event.SubscribeOptions{Tenant: string(acme.ID), Names: []event.Name{event.NameAccessChanged}})
	must(t, err)
	defer sub.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	accounts := f.accounts(acme.Token)
	for _, change := range []struct {
		whose string
		call  func() error
	}{
		{ada.ID, func() error {
			_, err := accounts.RevokeToken(ctx, request(&compassv1.RevokeTokenRequest{TokenId: id}))
			return err
		}},
		{eve.ID, func() error {
			_, err := accounts.SetRole(ctx, request(&compassv1.SetRoleRequest{AccountId: eve.ID, Role: compassv1.Role_ROLE_ADMIN}))
			return err
		}},
		{bob.ID, func() error {
			_, err := accounts.DeleteAccount(ctx, request(&compassv1.DeleteAccountRequest{AccountId: bob.ID}))
			return err
		}},
	} {
		must(t, change.call())
		if told, err := sub.Next(ctx); err != nil || told.RowID != change.whose {
			t.Errorf("told %+v, %v: want that the access of %s changed", told, err, change.whose)
		}
	}
}
