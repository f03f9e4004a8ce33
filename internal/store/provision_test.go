package store_test

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/jackc/pgx/v5"

	"github.com/rigelbuild/compass-operator/internal/naming"
	"github.com/rigelbuild/compass-operator/internal/store"
	"github.com/rigelbuild/compass-operator/internal/store/storetest"
)

func openForProvision(t *testing.T) (*store.Store, *storetest.Database) {
	t.Helper()
	db := storetest.NewDatabase(t)
	s, err := store.Open(t.Context(), store.Config{Databases: []store.Database{{App: db.App, System: db.System, Provision: db.Provision, Direct: db.Direct}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	if _, err := s.BootstrapTenant(t.Context()); err != nil {
		t.Fatal(err)
	}
	return s, db
}

const (
	idA = store.TenantID("t_0000000000000000000000000a")
	idB = store.TenantID("t_0000000000000000000000000b")
)

// Holds REQ-206: the row is the truth of a tenant, found again by slug; an id that was minted twice is stored once.
func TestEnsureTenant(t *testing.T) {
	t.Parallel()
	s, _ := openForProvision(t)
	first := store.TenantRow{ID: idA, Slug: "acme", DisplayName: "Acme", Limits: json.RawMessage(`{"messages":{"burst":7,"perSecond":2}}`)}
	made, err := s.EnsureTenant(t.Context(), first)
	if err != nil || made.ID != idA || made.Stream != "" {
		t.Fatalf("made %+v, %v", made, err)
	}
	again := first
	again.ID, again.DisplayName = idB, "Acme Inc."
	seen, err := s.EnsureTenant(t.Context(), again)
	if err != nil || seen.ID != idA || seen.DisplayName != "Acme Inc." {
		t.Fatalf("found again as %+v, %v; want the id of the row and the new name", seen, err)
	}
	if n, err := s.CountTenants(t.Context()); n != 1 || err != nil {
		t.Errorf("%d tenants, %v; want 1: the bootstrap tenant is not counted", n, err)
	}
	limits, err := s.TenantLimits(store.WithTenant(t.Context(), idA))
	if err != nil || limits.Messages.Burst != 7 || limits.Messages.PerSecond != 2 {
		t.Errorf("limits %+v, %v", limits, err)
	}
}

// Holds REQ-208: a tenant changes hands by comparison, so of two claimers one gets it; every change of hands raises the
// claim.
func TestPlaceTenant(t *testing.T) {
	t.Parallel()
	s, _ := openForProvision(t)
	if _, err := s.EnsureTenant(t.Context(), store.TenantRow{ID: idA, Slug: "acme", Limits: json.RawMessage(`{}`)}); err != nil {
		t.Fatal(err)
	}
	if err := s.PlaceTenant(t.Context(), idA, "", "one"); err != nil {
		t.Fatal(err)
	}
	if err := s.PlaceTenant(t.Context(), idA, "", "two"); !errors.Is(err, store.ErrConflict) {
		t.Errorf("the second claimer: %v, want ErrConflict", err)
	}
	if err := s.DrainTenant(t.Context(), idA, "one"); err != nil {
		t.Fatal(err)
	}
	before, _ := s.TenantBySlug(t.Context(), "acme")
	if err := s.PlaceTenant(t.Context(), idA, "one", "two"); err != nil {
		t.Fatal(err)
	}
	after, _ := s.TenantBySlug(t.Context(), "acme")
	if before.Stream != "one" || !before.Draining || after.Stream != "two" || after.Draining || after.Claim <= before.Claim {
		t.Errorf("before %+v, after %+v; want another stream, a higher claim, and no draining", before, after)
	}
	rows, err := s.Tenants(t.Context())
	if diff := cmp.Diff([]store.TenantRow{after}, rows, cmpopts.EquateEmpty()); diff != "" || err != nil {
		t.Errorf("%v\n%s", err, diff)
	}
}

// Holds REQ-211: a purge takes everything of one tenant, nothing of another, and none that a stream still carries.
func TestPurgeTenant(t *testing.T) {
	t.Parallel()
	s, db := openForProvision(t)
	super := storetest.Connect(t, db.Super)
	for id, slug := range map[store.TenantID]string{idA: "acme", idB: "beta"} {
		if _, err := s.EnsureTenant(t.Context(), store.TenantRow{ID: id, Slug: slug, Limits: json.RawMessage(`{}`)}); err != nil {
			t.Fatal(err)
		}
		fill(t, super, string(id))
	}
	if err := s.PlaceTenant(t.Context(), idA, "", "one"); err != nil {
		t.Fatal(err)
	}
	if err := s.PurgeTenant(t.Context(), idA); !errors.Is(err, store.ErrPrecondition) {
		t.Errorf("purge of a tenant that a stream carries: %v, want ErrPrecondition", err)
	}
	if err := s.PlaceTenant(t.Context(), idA, "one", ""); err != nil {
		t.Fatal(err)
	}
	for range 2 { // absent is success
		if err := s.PurgeTenant(t.Context(), idA); err != nil {
			t.Fatal(err)
		}
	}
	rows, err := super.Query(t.Context(), `select table_name::text from information_schema.columns where table_schema = 'compass' and column_name = 'tenant_id'`)
	if err != nil {
		t.Fatal(err)
	}
	var tables []string
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			t.Fatal(err)
		}
		tables = append(tables, name)
	}
	for _, table := range tables {
		var a, b int
		sql := `select count(*) filter (where tenant_id = $1), count(*) filter (where tenant_id = $2) from compass.` + table
		if err := super.QueryRow(t.Context(), sql, string(idA), string(idB)).Scan(&a, &b); err != nil {
			t.Fatal(err)
		}
		if a != 0 || b == 0 {
			t.Errorf("%s: %d rows of the purged tenant, %d of the other; want 0 and some", table, a, b)
		}
	}
}

// Holds REQ-234: a token that was used cannot enrol another Runner, and the operator is told.
func TestEnsureRunnerToken(t *testing.T) {
	t.Parallel()
	s, _ := openForProvision(t)
	hash := naming.TokenHash("crt_shared_x")
	for range 2 {
		if usable, err := s.EnsureRunnerToken(t.Context(), hash, naming.SharedFleet); !usable || err != nil {
			t.Fatalf("usable %v, %v", usable, err)
		}
	}
	if _, err := s.EnrollRunner(t.Context(), store.Enrolment{TokenHash: hash, PublicKey: "U1", ID: "r-1"}); err != nil {
		t.Fatal(err)
	}
	if usable, err := s.EnsureRunnerToken(t.Context(), hash, naming.SharedFleet); usable || err != nil {
		t.Errorf("after its use: usable %v, %v; want false", usable, err)
	}
}

// Holds REQ-208: who writes for a stream, and whom it has let go of, as the database tells.
func TestReadLease(t *testing.T) {
	t.Parallel()
	s, db := openForProvision(t)
	seen, err := s.ReadLease(t.Context(), "main", 0)
	if err != nil || seen.Held {
		t.Fatalf("%+v, %v", seen, err)
	}
	lease, err := s.NewLease(store.LeaseOptions{Stream: "main", Holder: "pod-1"})
	if err != nil {
		t.Fatal(err)
	}
	if err := lease.Acquire(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	super := storetest.Connect(t, db.Super)
	if _, err := super.Exec(t.Context(), `select compass.confirm_drain('main', $1, 7)`, string(idA)); err != nil {
		t.Fatal(err)
	}
	seen, err = s.ReadLease(t.Context(), "main", 0)
	if err != nil || !seen.Held || seen.Holder != "pod-1" || seen.Epoch == 0 || seen.Drained[idA] != 7 {
		t.Errorf("%+v, %v", seen, err)
	}
	if err := lease.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if seen, err := s.ReadLease(t.Context(), "main", 0); err != nil || seen.Held {
		t.Errorf("after the goodbye: %+v, %v", seen, err)
	}
}

// fill puts a row of one tenant into every table that a life fills.
func fill(t *testing.T, super *pgx.Conn, tenant string) {
	t.Helper()
	for _, sql := range []string{
		`insert into compass.accounts (tenant_id, id, kind, handle) values ($1, 'a_1', 'person', 'ada'), ($1, 'a_2', 'agent', 'bot')`,
		`insert into compass.account_tokens (tenant_id, id, account_id, hash) values ($1, 'k_1', 'a_1', 'x')`,
		`insert into compass.audit_log (tenant_id, actor, action) values ($1, 'a_1', 'x')`,
		`insert into compass.channels (tenant_id, id, name, created_by) values ($1, 'c_1', 'general', 'a_1')`,
		`insert into compass.channel_heads (tenant_id, channel_id) values ($1, 'c_1')`,
		`insert into compass.channel_members (tenant_id, channel_id, account_id, joined_at) values ($1, 'c_1', 'a_2', 0)`,
		`insert into compass.delivery_cursors (tenant_id, agent_id, channel_id, acked) values ($1, 'a_2', 'c_1', 0)`,
		`insert into compass.turns (tenant_id, session_id, id, agent_id) values ($1, 's', 't', 'a_2')`,
		`insert into compass.messages (tenant_id, id, channel_id, author_id, session_id, turn_id, seq, rev, blocks, client_id)
		 values ($1, 'm_1', 'c_1', 'a_2', 's', 't', 1, 1, '[]', 'x'), ($1, 'm_2', 'c_1', 'a_2', 's', 't', 2, 2, '[]', 'y')`,
		`insert into compass.owed_mentions (tenant_id, agent_id, message_id, channel_id, pos, kind) values ($1, 'a_2', 'm_1', 'c_1', 1, 'mention')`,
		`insert into compass.asks (tenant_id, message_id, channel_id, asker_id, answer_id) values ($1, 'm_1', 'c_1', 'a_2', 'm_2')`,
		`insert into compass.pins (tenant_id, channel_id, message_id) values ($1, 'c_1', 'm_1')`,
		`insert into compass.agent_placements (tenant_id, agent_id, runner_id, session_id, generation) values ($1, 'a_2', 'r', 's', 1)`,
		`insert into compass.session_bindings (tenant_id, session_id, agent_account_id, runner_id, incarnation, generation) values ($1, 's', 'a_2', 'r', 1, 1)`,
		`insert into compass.session_commands (tenant_id, session_id, n, prev, kind) values ($1, 's', 1, 0, 'steer')`,
		`insert into compass.dead_letters (tenant_id, message_id, recipient_id, channel_id, pos, attempts, reason, first_unix_ms)
		 values ($1, 'm_1', 'a_2', 'c_1', 1, 1, 'x', 1)`,
		`insert into compass.delivery_attempts (tenant_id, message_id, recipient_id, n) values ($1, 'm_1', 'a_2', 1)`,
		`insert into compass.sql_logins (tenant_id, role_name) values ($1, 'ct_' || right($1, 4))`,
	} {
		if _, err := super.Exec(t.Context(), sql, tenant); err != nil {
			t.Fatalf("%v: %s", err, sql)
		}
	}
}
