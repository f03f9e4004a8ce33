package schema_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/rigelbuild/compass-operator/internal/store/storetest"
)

// column is one of a table, as the catalogue has it.
type column struct {
	Name, Type string
	Required   bool
}

const (
	columnsOf = `
select a.attname::text, pg_catalog.format_type(a.atttypid, a.atttypmod), a.attnotnull
  from pg_catalog.pg_attribute a
 where a.attrelid = $1::regclass and a.attnum > 0 and not a.attisdropped and a.attname = any ($2)
 order by pg_catalog.array_position($2, a.attname::text)`
	tables = `
select c.relname::text from pg_catalog.pg_class c
 where c.relkind in ('r', 'p') and c.relnamespace = 'compass'::regnamespace order by c.relname`
	secured = `
select c.relname::text from pg_catalog.pg_class c
 where c.relrowsecurity and c.relkind in ('r', 'p') and c.relnamespace = 'compass'::regnamespace order by 1`
	referenced = `
select f.conname::text from pg_catalog.pg_constraint f
 where f.contype = 'f' and f.conrelid = $1::regclass and f.confrelid = $2::regclass`
)

// Holds REQ-084: who is a tenant is a row with a name for people, a name for machines, and a time.
func TestTenantsTable(t *testing.T) {
	t.Parallel()
	super := storetest.Connect(t, storetest.NewDatabase(t).Super)
	got := list(t, super, pgx.RowToStructByPos[column], columnsOf, "compass.tenants",
		[]string{"id", "slug", "display_name", "created_at_unix_ms"})
	want := []column{
		{"id", "text", true}, {"slug", "text", true}, {"display_name", "text", true}, {"created_at_unix_ms", "bigint", true},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// Holds REQ-085: an account is of a tenant that exists, and every row says itself whose it is, so that no policy needs a join.
func TestEveryRowSaysWhoseItIs(t *testing.T) {
	t.Parallel()
	super := storetest.Connect(t, storetest.NewDatabase(t).Super)
	if keys := list(t, super, pgx.RowTo[string], referenced, "compass.accounts", "compass.tenants"); len(keys) != 1 {
		t.Errorf("accounts refer to tenants by %v, want one foreign key", keys)
	}
	for _, table := range list(t, super, pgx.RowTo[string], secured) {
		key := "tenant_id"
		if table == "tenants" {
			key = "id"
		}
		got := list(t, super, pgx.RowToStructByPos[column], columnsOf, "compass."+table, []string{key})
		if diff := cmp.Diff([]column{{key, "text", true}}, got); diff != "" {
			t.Errorf("%s: %s", table, diff)
		}
	}
}

// Holds REQ-018: no table keeps what is to be published. These are all there are, and what is owed is worked out from messages and
// cursors; a table that is added is named here by somebody who asked whether it is an outbox.
func TestNoOutbox(t *testing.T) {
	t.Parallel()
	super := storetest.Connect(t, storetest.NewDatabase(t).Super)
	want := []string{
		"account_tokens", "accounts", "agent_placements", "asks", "audit_log", "channel_heads", "channel_members", "channels",
		"dead_letters", "delivery_attempts", "delivery_cursors", "delivery_leases", "messages", "owed_mentions", "pins", "placements",
		"runner_leases", "runner_tokens", "runners", "schema_migrations", "session_bindings", "session_commands", "sql_logins",
		"tenants", "turns",
	}
	if diff := cmp.Diff(want, list(t, super, pgx.RowTo[string], tables)); diff != "" {
		t.Error(diff)
	}
}

func list[T any](t *testing.T, conn *pgx.Conn, as pgx.RowToFunc[T], sql string, args ...any) []T {
	t.Helper()
	rows, err := conn.Query(t.Context(), sql, args...)
	if err != nil {
		t.Fatal(err)
	}
	found, err := pgx.CollectRows(rows, as)
	if err != nil {
		t.Fatal(err)
	}
	return found
}
