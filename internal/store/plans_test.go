package store_test

import (
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rigelbuild/compass-operator/internal/store"
	"github.com/rigelbuild/compass-operator/internal/store/storetest"
	"github.com/rigelbuild/compass-operator/internal/store/worldtest"
)

var update = flag.Bool("update", false, "write the plans that are seen into testdata/plans")

// The plans of the hot statements under row-level security, as the role that runs them, with a generic plan, are golden: a
// predicate that fell off its index shows here, not in production. A version of Postgres prints and chooses in its own
// way, so each has its own files; a new version begins with -update and a reader's eye.
func TestPlansOfHotStatements(t *testing.T) {
	t.Parallel()
	marked := hotConstants(t)
	w := worldtest.On(t, storetest.NewDatabase(t))
	tenant := w.Tenant(t, "acme")
	fillForPlans(t, w)
	folder := filepath.Join("testdata", "plans", w.Strings(t, `select current_setting('server_version_num')::int / 10000 || ''`)[0])

	for name, types := range map[string][]string{
		"sqlChannelOwed":   {"text", "text", "text", "int"},
		"sqlContent":       {"text", "text[]", "text[]"},
		"sqlSweepChannels": {"text", "int", "int", "text", "int"},
		"sqlSessionOwes":   {"text"},
		"sqlAgentOwed":     {"text", "text", "int"},
		"sqlRowTargets":    {"text[]", "bigint"},
		"sqlAuthenticate":  {"bytea"},
		"sqlMessagesAfter": {"text", "text[]", "bigint[]", "int"},
		"sqlAck":           {"text", "bigint", "text", "text", "bigint"},
		"sqlBurst":         {"text[]", "text[]", "bigint[]", "int"},
	} {
		delete(marked, name)
		args := make([]string, len(types))
		for i, typ := range types {
			args[i] = map[string]string{"text": "c_1", "int": "1", "bigint": "1", "bytea": "x"}[typ]
			if strings.HasSuffix(typ, "[]") {
				args[i] = "{1}"
			}
		}
		dsn := w.Database.App
		if name == "sqlSweepChannels" { // the one that looks across tenants
			dsn = w.Database.System
		}
		got := explain(t, w, explained{dsn: dsn, tenant: tenant.ID, options: "costs off", sql: store.HotStatements[name], types: types, args: args}) + "\n"
		path := filepath.Join(folder, name+".golden")
		if *update {
			if err := os.MkdirAll(folder, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Errorf("%s: %v: run with -update, and read what it writes", name, err)
			continue
		}
		if diff := cmp.Diff(string(want), got); diff != "" {
			t.Errorf("the plan of %s is another one (see -update):\n%s", name, diff)
		}
	}
	for name := range marked {
		t.Errorf("%s is marked compass:hot and has no golden plan", name)
	}
}

// fillForPlans gives forty tenants a life, so that no table is small enough to be read whole.
func fillForPlans(t *testing.T, w *worldtest.World) {
	t.Helper()
	for _, sql := range []string{
		`set session_replication_role = replica`, // rows need no parents in the order of their making
		`insert into compass.tenants (id, slug) select 't_' || i, 'slug' || i from generate_series(1, 39) i`,
		`insert into compass.placements (tenant_id, stream, claim) select id, 'stream' || (length(id) % 3), 1 from compass.tenants on conflict do nothing`,
		`insert into compass.accounts (tenant_id, id, kind, handle, wake) select t.id, 'a_' || i, 'agent', 'bot' || i, case when i % 5 = 0 then 'on_owed' else 'manual' end
			from compass.tenants t, generate_series(1, 25) i`,
		`insert into compass.account_tokens (tenant_id, id, account_id, hash) select a.tenant_id, 'k' || a.id || i, a.id, sha256((a.tenant_id || a.id || i)::bytea)
			from compass.accounts a, generate_series(1, 3) i`,
		`insert into compass.channels (tenant_id, id, name, created_by) select t.id, 'c_' || i, 'channel' || i, 'a_1' from compass.tenants t, generate_series(1, 25) i`,
		`insert into compass.channel_heads (tenant_id, channel_id, last, last_pos) select tenant_id, id, 30, 30 from compass.channels`,
		`insert into compass.channel_members (tenant_id, channel_id, account_id, joined_at)
			select c.tenant_id, c.id, a.id, 0 from compass.channels c join compass.accounts a on a.tenant_id = c.tenant_id and a.id like 'a\_%'`,
		`insert into compass.delivery_cursors (tenant_id, agent_id, channel_id, acked)
			select m.tenant_id, m.account_id, m.channel_id, case when m.channel_id = 'c_1' then 20 else 30 end from compass.channel_members m`,
		`insert into compass.messages (tenant_id, id, channel_id, author_id, seq, rev, pos, blocks, client_id, mentions_routed_at)
			select c.tenant_id, 'm_' || c.id || '_' || n, c.id, 'a_1', n, n, n, '[]', c.id || '_' || n, now() from generate_series(1, 30) n, compass.channels c`,
		`insert into compass.owed_mentions (tenant_id, agent_id, message_id, channel_id, pos, kind, done)
			select m.tenant_id, 'a_2', m.id, m.channel_id, m.pos, 'mention', m.pos < 28 from compass.messages m where m.pos > 20`,
		`insert into compass.dead_letters (tenant_id, message_id, recipient_id, channel_id, pos, attempts, reason, first_unix_ms)
			select m.tenant_id, m.id, 'a_3', m.channel_id, m.pos, 5, 'x', 0 from compass.messages m where m.pos = 5`,
		`insert into compass.delivery_attempts (tenant_id, message_id, recipient_id, n)
			select m.tenant_id, m.id, 'a_4', 1 from compass.messages m where m.pos = 6`,
		`insert into compass.asks (tenant_id, message_id, channel_id, asker_id, answer_id)
			select m.tenant_id, m.id, m.channel_id, 'a_1', 'm_' || m.channel_id || '_8' from compass.messages m where m.pos = 7`,
		`insert into compass.runner_leases (runner_id, fleet, incarnation, expires_at) select 'r-' || i, 'shared', 1, 'infinity' from generate_series(1, 50) i`,
		`insert into compass.session_bindings (tenant_id, session_id, agent_account_id, runner_id, incarnation, generation, live, claimed)
			select a.tenant_id, 's_' || a.id || i, a.id, 'r-' || (abs(hashtext(a.tenant_id || a.id)) % 50 + 1), 1, i, i = 4, true
			  from compass.accounts a, generate_series(1, 4) i where a.kind = 'agent'`,
		`insert into compass.session_commands (tenant_id, session_id, n, prev, kind, message_id, pos)
			select b.tenant_id, b.session_id, 1, 0, 'mention', 'm_c_1_30', 30 from compass.session_bindings b where b.live`,
		`set session_replication_role = origin`,
		`analyze`, // and no vacuum: what it finds all-visible, and so an index-only scan, is not the same each time
	} {
		w.Exec(t, sql)
	}
}

var hotConstant = regexp.MustCompile(`(?m)^\s*//compass:hot.*\n\s*(?:const )?(sql\w+) =`)

// hotConstants finds the constants that are marked in the source.
func hotConstants(t *testing.T) map[string]bool {
	t.Helper()
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]bool{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range hotConstant.FindAllStringSubmatch(string(text), -1) {
			out[m[1]] = true
		}
	}
	if len(out) < 8 {
		t.Fatalf("only %d statements are marked compass:hot: %v", len(out), out)
	}
	return out
}
