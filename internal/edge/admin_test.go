package edge_test

import (
	"testing"

	"connectrpc.com/connect"
	"github.com/google/go-cmp/cmp"

	compassv1 "github.com/rigelbuild/compass-operator/api/proto/compass/v1"
	"github.com/rigelbuild/compass-operator/internal/naming"
	"github.com/rigelbuild/compass-operator/internal/store"
)

// A platform admin makes a tenant; its admin can begin at once, and the tenant is carried by the configured stream.
func TestCreateTenant(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	root := f.Platform(t)
	create := func(slug, handle string) (*compassv1.CreateTenantResponse, error) {
		res, err := f.admin(root.Token).CreateTenant(t.Context(), request(&compassv1.CreateTenantRequest{Slug: slug, AdminHandle: handle}))
		if err != nil {
			return nil, err
		}
		return res.Msg, nil
	}
	made, err := create("acme", "")
	must(t, err)
	me, err := f.accounts(made.GetToken()).WhoAmI(t.Context(), request(&compassv1.WhoAmIRequest{}))
	must(t, err)
	if me.Msg.GetTenantSlug() != "acme" || me.Msg.GetAccount().GetHandle() != "admin" || me.Msg.GetAccount().GetRole() != compassv1.Role_ROLE_ADMIN {
		t.Errorf("the new admin is %v", me.Msg)
	}
	status, err := f.admin(made.GetToken()).GetStatus(t.Context(), request(&compassv1.GetStatusRequest{}))
	must(t, err)
	if status.Msg.GetStream() != "main" || status.Msg.GetTenantId() != made.GetTenantId() {
		t.Errorf("status %v", status.Msg)
	}
	_, err = create("acme", "")
	wants(t, "a taken slug", err, connect.CodeAlreadyExists)
	for _, slug := range []string{"", "system", "Acme", "a_b", "runner"} {
		_, err = create(slug, "")
		wants(t, "slug "+slug, err, connect.CodeInvalidArgument)
	}
	_, err = create("other", "@x")
	wants(t, "a handle that is none", err, connect.CodeInvalidArgument)
}

func TestIssueRunnerToken(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	root := f.Platform(t)
	acme := f.Tenant(t, "acme")
	issue := func(fleet string) (string, error) {
		res, err := f.admin(root.Token).IssueRunnerToken(t.Context(), request(&compassv1.IssueRunnerTokenRequest{Fleet: fleet}))
		if err != nil {
			return "", err
		}
		return res.Msg.GetToken(), nil
	}
	for fleet, want := range map[string]string{"": naming.SharedFleet, string(acme.ID): string(acme.ID)} {
		token, err := issue(fleet)
		must(t, err)
		if got, _, err := naming.ParseRunnerToken(token); err != nil || got != want {
			t.Errorf("fleet %q: token of %q, %v", fleet, got, err)
		}
	}
	if n := f.Count(t, `select count(*) from compass.runner_tokens`); n != 2 {
		t.Errorf("%d tokens are kept, want 2", n)
	}
	_, err := issue("everybody")
	wants(t, "a fleet that is none", err, connect.CodeInvalidArgument)
	_, err = issue(f.IDs.Tenant())
	wants(t, "a fleet of nobody", err, connect.CodeNotFound)
}

// Dead letters are listed, replayed and purged by the tenant's admin, and by a platform admin that names the tenant; the
// latter is in that tenant's audit log, call by call.
func TestDeadLettersAndAudit(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	root := f.Platform(t)
	acme, rival := f.Tenant(t, "acme"), f.Tenant(t, "rival")
	bot := acme.Agent(t, "bot")
	channel := acme.Channel(t, "a", bot)
	one, two := acme.Post(t, acme.Admin, channel, "one"), acme.Post(t, acme.Admin, channel, "two")
	f.Exec(t, `insert into compass.dead_letters (tenant_id, message_id, recipient_id, channel_id, pos, attempts, reason, first_unix_ms)
		select tenant_id, id, $1, channel_id, pos, 5, 'Rejected', 1 from compass.messages`, bot.ID)
	mine, theirs, platforms := f.admin(acme.Token), f.admin(rival.Token), f.admin(root.Token)

	first, err := mine.ListDeadLetters(t.Context(), request(&compassv1.ListDeadLettersRequest{PageSize: 1}))
	must(t, err)
	second, err := mine.ListDeadLetters(t.Context(), request(&compassv1.ListDeadLettersRequest{PageToken: first.Msg.GetNextPageToken()}))
	must(t, err)
	if len(first.Msg.GetDeadLetters()) != 1 || len(second.Msg.GetDeadLetters()) != 1 || second.Msg.GetNextPageToken() != "" {
		t.Errorf("pages %v and %v", first.Msg, second.Msg)
	}
	for _, named := range []string{"acme", string(acme.ID)} {
		_, err = theirs.ListDeadLetters(t.Context(), request(&compassv1.ListDeadLettersRequest{Tenant: named}))
		wants(t, "another tenant's admin names "+named, err, connect.CodeNotFound)
	}
	if n := f.Count(t, `select count(*) from compass.audit_log where action like '/compass%'`); n != 0 {
		t.Errorf("%d refused calls are audited as if they had happened", n)
	}
	f.queue.take()
	filter := &compassv1.DeadLetterFilter{MessageId: one.ID}
	dry, err := platforms.ReplayDeadLetters(t.Context(), request(&compassv1.ReplayDeadLettersRequest{Tenant: "acme", DryRun: true}))
	must(t, err)
	if dry.Msg.GetCount() != 2 || len(f.queue.take()) != 0 {
		t.Errorf("dry run: %v, and something was handed over", dry.Msg)
	}
	replayed, err := platforms.ReplayDeadLetters(t.Context(), request(&compassv1.ReplayDeadLettersRequest{Tenant: string(acme.ID), Filter: filter}))
	must(t, err)
	refs := f.queue.take()
	if replayed.Msg.GetCount() != 1 || len(refs) != 1 || refs[0].RowID != one.ID || refs[0].Tenant != string(acme.ID) {
		t.Errorf("replayed %v, handed over %v", replayed.Msg, refs)
	}
	purged, err := mine.PurgeDeadLetters(t.Context(), request(&compassv1.PurgeDeadLettersRequest{Filter: &compassv1.DeadLetterFilter{MessageId: two.ID}}))
	must(t, err)
	if purged.Msg.GetCount() != 1 {
		t.Errorf("purged %v", purged.Msg)
	}
	_, err = mine.PurgeDeadLetters(t.Context(), request(&compassv1.PurgeDeadLettersRequest{Filter: &compassv1.DeadLetterFilter{MessageId: "\x00"}}))
	wants(t, "a filter that is none", err, connect.CodeInvalidArgument)
	audit := f.Strings(t, `select action from compass.audit_log where tenant_id = $1 and action not like '%.create' and actor = any ($2) order by id`,
		acme.ID, []string{root.Admin.ID, acme.Admin.ID})
	want := []string{
		"/compass.v1.AdminService/ReplayDeadLetters", "/compass.v1.AdminService/ReplayDeadLetters", "deadletter.replay", "deadletter.purge",
	}
	if diff := cmp.Diff(want, audit); diff != "" {
		t.Error(diff)
	}
	_, err = platforms.GetStatus(t.Context(), request(&compassv1.GetStatusRequest{Tenant: "nobody"}))
	wants(t, "a platform admin names nobody", err, connect.CodeNotFound)
}

func TestFigures(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	root := f.Platform(t)
	acme := f.Tenant(t, "acme")
	bot := acme.Agent(t, "bot")
	channel := acme.Channel(t, "a", bot)
	acme.Post(t, acme.Admin, channel, "owed")
	s := acme.Session(t, bot)
	n := acme.Message(bot, channel, "held")
	n.In = s.In("t1")
	held, _, _, err := f.Store.AppendMessage(acme.Ctx, n)
	must(t, err)
	admin := f.admin(root.Token)
	owed, err := admin.ListOwed(t.Context(), request(&compassv1.ListOwedRequest{Tenant: "acme"}))
	must(t, err)
	if o := owed.Msg.GetOwed(); len(o) != 1 || o[0].GetAgentId() != bot.ID || o[0].GetCount() != 1 {
		t.Errorf("owed %v", owed.Msg)
	}
	list, err := admin.ListHeld(t.Context(), request(&compassv1.ListHeldRequest{Tenant: "acme"}))
	must(t, err)
	if h := list.Msg.GetHeld(); len(h) != 1 || h[0].GetId() != held.ID || h[0].GetTurnId() != "t1" || len(h[0].GetBlocks()) != 0 {
		t.Errorf("held %v: want it without content", list.Msg)
	}
	status, err := admin.GetStatus(t.Context(), request(&compassv1.GetStatusRequest{Tenant: "acme"}))
	must(t, err)
	if g := status.Msg; g.GetSlug() != "acme" || g.GetMessages() != 2 || g.GetOwed() != 1 || g.GetHeld() != 1 || g.GetLiveSessions() != 1 {
		t.Errorf("status %v", g)
	}
	own, err := admin.GetStatus(t.Context(), request(&compassv1.GetStatusRequest{}))
	must(t, err)
	if own.Msg.GetTenantId() != string(store.BootstrapTenantID) {
		t.Errorf("a platform admin's own tenant is %v", own.Msg)
	}
}
