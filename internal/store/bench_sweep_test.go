package store_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/rigelbuild/compass-operator/internal/store"
	"github.com/rigelbuild/compass-operator/internal/store/storetest"
	"github.com/rigelbuild/compass-operator/internal/store/worldtest"
)

// BenchmarkStoreSweep counts the buffers that it takes to find and read the 280 messages that an agent in 1,000 channels is
// owed in 10 of them: the sweep of the agent, and the drain of each channel that owes. What exists beside them must not
// matter, so it is counted at 100,000 messages and at 1,000,000.
func BenchmarkStoreSweep(b *testing.B) {
	small, large := sweepBuffers(b, 100_000), sweepBuffers(b, 1_000_000)
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(large), "buffers")
	b.Logf("| sweep: 280 owed in 10 of 1,000 channels | %d buffers among 100,000 messages, %d among 1,000,000 | goal 1,000, flat |", small, large)
	if large > 1000 {
		b.Errorf("%d buffers, goal 1,000", large)
	}
	if float64(large) > 1.2*float64(small) {
		b.Errorf("%d buffers among 1,000,000 messages and %d among 100,000: not flat", large, small)
	}
}

func sweepBuffers(b *testing.B, messages int) int {
	b.Helper()
	w := worldtest.On(b, storetest.NewDatabase(b))
	tenant := w.Tenant(b, "acme")
	person, agent := tenant.Person(b, "ada"), tenant.Agent(b, "bot")
	session := tenant.Session(b, agent)
	crowd(b, w, tenant, crowdOf{person: person, agent: agent, channels: 1000, messages: messages, owing: 10, owed: 280})

	total := explainBuffers(b, w, tenant, store.SQLSessionOwes, []string{"text"}, agent.ID)
	owing, err := w.Store.SessionOwes(tenant.Ctx, agent.ID)
	if err != nil || len(owing) != 10 {
		b.Fatalf("%d channels owe (%v), want 10", len(owing), err)
	}
	rows := 0
	for _, channel := range owing {
		total += explainBuffers(b, w, tenant, store.SQLChannelOwed, []string{"text", "text", "text", "int"}, "main", channel, "{}", "100")
		view, err := w.Store.ChannelOwed(tenant.Ctx, store.ChannelQuery{Stream: "main", Channel: channel, Page: 100})
		if err != nil {
			b.Fatal(err)
		}
		for _, s := range view.Sessions {
			if s.Session == session.ID {
				rows += len(s.Rows)
			}
		}
	}
	if rows != 280 {
		b.Fatalf("read %d owed messages, want 280", rows)
	}
	return total
}

type crowdOf struct {
	person, agent      store.Account
	channels, messages int
	owing, owed        int
}

// crowd fills the tenant with channels and messages of the person's, all acknowledged by the agent but so many in the
// first few channels.
func crowd(tb testing.TB, w *worldtest.World, tenant *worldtest.Tenant, c crowdOf) {
	tb.Helper()
	each, owedEach := c.messages/c.channels, c.owed/c.owing
	for _, sql := range []string{
		`set session_replication_role = replica`,
		fmt.Sprintf(`insert into compass.channels (tenant_id, id, name, created_by)
			select '%[1]s', 'c_' || i, 'channel' || i, '%[2]s' from generate_series(1, %[3]d) i`, tenant.ID, c.person.ID, c.channels),
		fmt.Sprintf(`insert into compass.channel_heads (tenant_id, channel_id, last, last_pos)
			select '%[1]s', 'c_' || i, %[2]d, %[2]d from generate_series(1, %[3]d) i`, tenant.ID, each, c.channels),
		fmt.Sprintf(`insert into compass.channel_members (tenant_id, channel_id, account_id, joined_at)
			select '%[1]s', 'c_' || i, a, 0 from generate_series(1, %[2]d) i, unnest(array['%[3]s', '%[4]s']) a`, tenant.ID, c.channels, c.person.ID, c.agent.ID),
		fmt.Sprintf(`insert into compass.delivery_cursors (tenant_id, agent_id, channel_id, acked)
			select '%[1]s', '%[2]s', 'c_' || i, case when i <= %[3]d then %[4]d else %[5]d end from generate_series(1, %[6]d) i`,
			tenant.ID, c.agent.ID, c.owing, each-owedEach, each, c.channels),
		// Written in the order of time, not channel by channel, as they come in life.
		fmt.Sprintf(`insert into compass.messages (tenant_id, id, channel_id, author_id, seq, rev, pos, blocks, client_id, mentions_routed_at)
			select '%[1]s', 'm_' || i || '_' || n, 'c_' || i, '%[2]s', n, n, n, '[]', 'm_' || i || '_' || n, now()
			  from generate_series(1, %[3]d) n, generate_series(1, %[4]d) i`, tenant.ID, c.person.ID, each, c.channels),
		`set session_replication_role = origin`,
		`vacuum analyze`,
	} {
		w.Exec(tb, sql)
	}
}

// explained is a statement to be explained, under a generic plan.
type explained struct {
	dsn     string // whose role
	tenant  store.TenantID
	options string
	sql     string
	types   []string
	args    []string
}

// explainBuffers runs a statement under the app role and counts the buffers.
func explainBuffers(tb testing.TB, w *worldtest.World, tenant *worldtest.Tenant, sql string, types []string, args ...string) int {
	tb.Helper()
	var plans []struct {
		Plan struct {
			Hit  int `json:"Shared Hit Blocks"`
			Read int `json:"Shared Read Blocks"`
		}
	}
	plan := explain(tb, w, explained{w.Database.App, tenant.ID, "analyze, buffers, timing off, format json", sql, types, args})
	if err := json.Unmarshal([]byte(plan), &plans); err != nil {
		tb.Fatal(err)
	}
	return plans[0].Plan.Hit + plans[0].Plan.Read
}

// explain returns what EXPLAIN says, and undoes what the statement did.
func explain(tb testing.TB, w *worldtest.World, e explained) string {
	tb.Helper()
	conn := storetest.Connect(tb, w.Database.Straight(tb, e.dsn))
	tx, err := conn.Begin(tb.Context())
	if err != nil {
		tb.Fatal(err)
	}
	defer func() { _ = tx.Rollback(tb.Context()) }()
	quoted := make([]string, len(e.args))
	for i, a := range e.args {
		quoted[i] = "'" + a + "'"
	}
	for _, s := range []string{
		`select set_config('compass.tenant_id', '` + string(e.tenant) + `', true)`,
		`set local plan_cache_mode = force_generic_plan`,
		`set local jit = off`,
		`prepare probe (` + strings.Join(e.types, ", ") + `) as ` + e.sql,
	} {
		if _, err := tx.Exec(tb.Context(), s, pgx.QueryExecModeSimpleProtocol); err != nil {
			tb.Fatalf("%v: %s", err, s)
		}
	}
	sql := `explain (` + e.options + `) execute probe (` + strings.Join(quoted, ", ") + `)`
	rows, err := tx.Query(tb.Context(), sql, pgx.QueryExecModeSimpleProtocol)
	if err != nil {
		tb.Fatal(err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		tb.Fatal(err)
	}
	return strings.Join(lines, "\n")
}
