package store_test

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rigelbuild/compass-operator/internal/naming"
	"github.com/rigelbuild/compass-operator/internal/store"
	"github.com/rigelbuild/compass-operator/internal/store/worldtest"
)

// Holds REQ-094 (an account is stamped with its tenant).
func TestAccountsBelongToTheirTenant(t *testing.T) {
	t.Parallel()
	w := worldtest.New(t)
	acme, rival := w.Tenant(t, "acme"), w.Tenant(t, "rival")
	bot := acme.Agent(t, "bot")
	rival.Agent(t, "bot") // handles are the tenant's own
	if got := w.Strings(t, `select tenant_id from compass.accounts where id = $1`, bot.ID); got[0] != string(acme.ID) {
		t.Errorf("account stamped with %s, want %s", got[0], acme.ID)
	}
	if _, err := w.Store.AccountByID(rival.Ctx, bot.ID); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("foreign account: %v, want ErrNotFound", err)
	}
	taken := store.Account{ID: w.IDs.Account(), Kind: store.KindPerson, Role: store.RoleMember, Handle: "bot", Wake: store.WakeManual}
	if _, err := w.Store.CreateAccount(acme.Ctx, taken, "test"); !errors.Is(err, store.ErrConflict) {
		t.Errorf("taken handle: %v, want ErrConflict", err)
	}
	first, next, err := w.Store.ListAccounts(acme.Ctx, store.Page{Limit: 1})
	if err != nil || len(first) != 1 || next != first[0].ID {
		t.Fatalf("first page %v, next %q, %v", first, next, err)
	}
	second, next, err := w.Store.ListAccounts(acme.Ctx, store.Page{After: next, Limit: 1})
	if err != nil || len(second) != 1 || next != "" || second[0].ID != bot.ID {
		t.Errorf("second page %v, next %q, %v", second, next, err)
	}
}

func TestTenantKeepsAnAdmin(t *testing.T) {
	t.Parallel()
	w := worldtest.New(t)
	acme := w.Tenant(t, "acme")
	if _, err := w.Store.SetRole(acme.Ctx, acme.Admin.ID, store.RoleMember, "test"); !errors.Is(err, store.ErrPrecondition) {
		t.Errorf("last admin demoted: %v, want ErrPrecondition", err)
	}
	if _, err := w.Store.DeleteAccount(acme.Ctx, acme.Admin.ID, "test"); !errors.Is(err, store.ErrPrecondition) {
		t.Errorf("last admin deleted: %v, want ErrPrecondition", err)
	}
	if _, err := w.Store.SetRole(acme.Ctx, w.IDs.Account(), store.RoleAdmin, "test"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("unknown account: %v, want ErrNotFound", err)
	}
	for range 5 { // two admins who end each other: one stays
		ada := acme.Person(t, w.IDs.Account()[2:])
		if a, err := w.Store.SetRole(acme.Ctx, ada.ID, store.RoleAdmin, "test"); err != nil || a.Role != store.RoleAdmin {
			t.Fatalf("%+v, %v", a, err)
		}
		errs := make([]error, 2)
		var wg sync.WaitGroup
		wg.Go(func() { _, errs[0] = w.Store.SetRole(acme.Ctx, ada.ID, store.RoleMember, "test") })
		wg.Go(func() { _, errs[1] = w.Store.DeleteAccount(acme.Ctx, acme.Admin.ID, "test") })
		wg.Wait()
		if n := w.Count(t, `select count(*) from compass.accounts where role = 'admin' and deleted_at_unix_ms is null
			and tenant_id = $1`, acme.ID); n != 1 {
			t.Fatalf("%d admins are left, errors %v", n, errs)
		}
		if errs[1] == nil {
			acme.Admin = ada
		}
	}
}

// Holds REQ-089, REQ-238 (a token is found by its hash under the tenant that its prefix names, and nowhere else).
func TestTokens(t *testing.T) {
	t.Parallel()
	w := worldtest.New(t)
	acme, rival := w.Tenant(t, "acme"), w.Tenant(t, "rival")
	bot := acme.Agent(t, "bot")
	id, token := acme.TokenOf(t, bot)
	caller, err := w.Store.Authenticate(acme.Ctx, naming.TokenHash(token))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(store.Caller{Tenant: acme.ID, Slug: "acme", Account: bot}, caller); diff != "" {
		t.Error(diff)
	}
	if caller.Admin() || caller.Platform() {
		t.Error("a member is taken for an admin")
	}
	nobody := func(name string, c *worldtest.Tenant, token string) {
		t.Helper()
		if _, err := w.Store.Authenticate(c.Ctx, naming.TokenHash(token)); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("%s: %v, want ErrNotFound", name, err)
		}
	}
	nobody("under another tenant", rival, token)
	nobody("unknown", acme, token+"x")
	if err := w.Store.RevokeToken(rival.Ctx, id, "test"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("another tenant revokes: %v, want ErrNotFound", err)
	}
	for range 2 {
		if err := w.Store.RevokeToken(acme.Ctx, id, "test"); err != nil {
			t.Error(err)
		}
	}
	nobody("revoked", acme, token)
	_, token = acme.TokenOf(t, bot)
	if _, err := w.Store.DeleteAccount(acme.Ctx, bot.ID, "test"); err != nil {
		t.Fatal(err)
	}
	nobody("of a deleted account", acme, token)
	if err := w.Store.AddToken(acme.Ctx, store.NewToken{ID: w.IDs.TokenID(), Account: bot.ID}); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("token for a deleted account: %v, want ErrNotFound", err)
	}
	if n := w.Count(t, `select count(*) from compass.account_tokens where encode(hash, 'escape') like '%cmp_%'`); n != 0 {
		t.Error("a token is stored, not its hash")
	}
	audit := w.Strings(t, `select action from compass.audit_log where tenant_id = $1 order by id`, acme.ID)
	want := []string{"tenant.create", "account.create", "token.issue", "token.revoke", "token.issue", "account.delete"}
	if diff := cmp.Diff(want, audit); diff != "" {
		t.Error(diff)
	}
}

func TestDeletedAccountEndsWhatItHas(t *testing.T) {
	t.Parallel()
	w := worldtest.New(t)
	acme := w.Tenant(t, "acme")
	bot := acme.Agent(t, "bot")
	channel := acme.Channel(t, "a", bot)
	n := acme.Message(acme.Admin, channel, "")
	n.Blocks = []store.Block{store.Mention("bot")}
	if _, _, _, err := w.Store.AppendMessage(acme.Ctx, n); err != nil {
		t.Fatal(err)
	}
	s := acme.Session(t, bot)
	held := acme.Message(bot, channel, "last words")
	held.In = s.In("t1")
	m, _, _, err := w.Store.AppendMessage(acme.Ctx, held)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []map[string][]string{{channel.ID: {m.ID}}, {}} {
		touched, err := w.Store.DeleteAccount(acme.Ctx, bot.ID, "test")
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, ids(touched)); diff != "" {
			t.Errorf("deletion %d made deliverable: %s", i, diff)
		}
	}
	for what, n := range map[string]int{
		"owed":     len(owedRows(t, w)),
		"members":  w.Count(t, `select count(*) from compass.channel_members where account_id = $1`, bot.ID),
		"sessions": w.Count(t, `select count(*) from compass.session_bindings where live`),
	} {
		if n != 0 {
			t.Errorf("%d %s are left", n, what)
		}
	}
	if _, err := w.Store.DeleteAccount(acme.Ctx, w.IDs.Account(), "test"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("unknown account: %v, want ErrNotFound", err)
	}
}

func TestTenants(t *testing.T) {
	t.Parallel()
	w := worldtest.New(t)
	acme := w.Tenant(t, "acme")
	taken := store.NewTenant{ID: store.TenantID(w.IDs.Tenant()), Slug: "acme", Admin: store.Account{ID: w.IDs.Account(), Handle: "admin"}}
	taken.Token = store.NewToken{ID: w.IDs.TokenID()}
	if err := w.Store.CreateTenant(t.Context(), taken); !errors.Is(err, store.ErrConflict) {
		t.Errorf("taken slug: %v, want ErrConflict", err)
	}
	if n := w.Count(t, `select count(*) from compass.tenants where id = $1`, taken.ID); n != 0 {
		t.Error("a refused tenant is there")
	}
	for _, by := range []string{"acme", string(acme.ID)} {
		found, err := w.Store.FindTenant(t.Context(), by)
		if err != nil || found != (store.Tenant{ID: acme.ID, Slug: "acme"}) {
			t.Errorf("find %s: %+v, %v", by, found, err)
		}
	}
	if _, err := w.Store.FindTenant(t.Context(), "nobody"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("unknown tenant: %v, want ErrNotFound", err)
	}
	root := w.Platform(t)
	caller, err := w.Store.Authenticate(root.Ctx, naming.TokenHash(root.Token))
	if err != nil || !caller.Platform() {
		t.Errorf("platform admin: %+v, %v", caller, err)
	}
	again, _ := w.IDs.Token(string(root.ID)) // a second token for the same handle
	fresh := store.NewToken{ID: w.IDs.TokenID(), Hash: naming.TokenHash(again)}
	if err := w.Store.EnsureAdmin(t.Context(), root.ID, store.Account{ID: w.IDs.Account(), Handle: "root"}, fresh); err != nil {
		t.Fatal(err)
	}
	if caller, err := w.Store.Authenticate(root.Ctx, fresh.Hash); err != nil || caller.Account.ID != root.Admin.ID {
		t.Errorf("second token speaks for %s, %v; want %s", caller.Account.ID, err, root.Admin.ID)
	}
}

func TestLimitsAreReadWithDefaults(t *testing.T) {
	t.Parallel()
	w := worldtest.New(t)
	acme := w.Tenant(t, "acme")
	read := func(limits string) store.TenantLimits {
		w.Exec(t, `update compass.tenants set limits = $2::jsonb where id = $1`, acme.ID, limits)
		got, err := w.Store.TenantLimits(acme.Ctx)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	standard := store.TenantLimits{Messages: store.DefaultMessageLimits, Database: store.DefaultLimits}
	if diff := cmp.Diff(standard, read(`{}`)); diff != "" {
		t.Error(diff)
	}
	want := store.TenantLimits{
		Messages: store.MessageLimits{PerSecond: 2.5, Burst: 5, MaxBytes: 1024},
		Database: store.Limits{StatementTimeout: 2 * time.Second, Transactions: 3},
	}
	got := read(`{"messages":{"perSecond":2.5,"burst":5,"maxBytes":1024},"database":{"statementTimeout":"2s","transactions":3}}`)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	w.Exec(t, `update compass.tenants set limits = '{"messages":"many"}' where id = $1`, acme.ID)
	if _, err := w.Store.TenantLimits(acme.Ctx); err == nil {
		t.Error("limits that cannot be read were taken")
	}
}
