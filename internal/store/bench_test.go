package store

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rigelbuild/compass-operator/internal/store/storetest"
)

// What tenant scope costs (`make bench-store`): the same statement through the doors, naively in four steps, and on a twin
// of the table that nothing protects, over the same kind of connection and in the same exec mode. The three take turns
// within a round, so that what else the machine does falls on all of them; a figure is the median of the rounds' ratios
// of medians. Round trips are counted by a proxy and are exact.

const (
	benchRounds = 9
	benchRows   = 5000 // in the tables that are read
)

// benchCase is one statement in its two places. Arguments of the open one are led by the tenant.
type benchCase struct {
	name  string
	table string
	sql   string // %s: the table
	open  string // the predicate on the tenant that row-level security says otherwise
	args  func(n int) []any
	goal  map[string]float64 // by ground
}

func benchCases() []benchCase {
	const columns = `m.id, m.channel_id, m.author_id, m.kind, m.seq, m.rev, m.pos, m.blocks, m.client_id`
	return []benchCase{
		{
			name: "read 1", table: "messages",
			sql: `select ` + columns + ` from %s m where m.id = $1`, open: ` and m.tenant_id = $2`,
			args: func(n int) []any { return []any{fmt.Sprintf("m_%d", 1+n%benchRows)} },
			goal: map[string]float64{"direct": 1.5, "pooled": 1.8, "1 ms away": 1.1},
		},
		{
			name: "read 50", table: "messages",
			sql: `select ` + columns + ` from %s m where m.channel_id = $1 and m.pos > $2`, open: ` and m.tenant_id = $3`,
			args: func(n int) []any { return []any{"c_1", int64(n % (benchRows - 100))} },
			goal: map[string]float64{"direct": 1.3, "pooled": 1.4, "1 ms away": 1.1},
		},
		{
			name: "write", table: "messages",
			sql: `insert into %s as m (tenant_id, id, channel_id, author_id, seq, rev, pos, blocks, client_id)
values ('` + string(tenantA) + `', $1, 'c_1', 'a_1', $2, $2, $2, '[]', $1)`,
			args: func(n int) []any { return []any{fmt.Sprintf("w_%d", n), int64(benchRows + n)} },
			goal: map[string]float64{"direct": 1.3, "pooled": 1.5, "1 ms away": 1.1},
		},
	}
}

// statement returns the case's SQL and arguments for the protected table or its open twin.
func (c benchCase) statement(open bool, n int) (sql string, args []any) {
	sql, args = fmt.Sprintf(c.sql, "compass."+c.table), c.args(n)
	if open {
		sql = fmt.Sprintf(c.sql, "bench."+c.table)
		if c.open != "" {
			sql, args = sql+c.open, append(args, tenantA)
		}
	}
	if c.name == "read 50" {
		sql += ` order by m.pos limit 50`
	}
	return sql, args
}

func newBenchStore(b *testing.B) *storetest.Database {
	b.Helper()
	db := storetest.NewDatabase(b)
	super := storetest.Connect(b, db.Super)
	app := db.Roles.App
	for _, sql := range []string{
		`insert into compass.tenants (id, slug) values ('` + string(tenantA) + `', 'a'), ('` + string(tenantB) + `', 'b')`,
		`insert into compass.accounts (tenant_id, id, kind, handle) select t.id, 'a_1', 'person', 'ada' from compass.tenants t`,
		`insert into compass.channels (tenant_id, id, name, created_by) select t.id, 'c_1', 'general', 'a_1' from compass.tenants t`,
		fmt.Sprintf(`insert into compass.messages (tenant_id, id, channel_id, author_id, seq, rev, pos, blocks, client_id)
			select t.id, 'm_' || i, 'c_1', 'a_1', i, i, i, '[{"text":{"text":"hello"}}]', 'm_' || i
			  from compass.tenants t, generate_series(1, %d) i`, benchRows),
		// The twin has the same columns, checks, indexes and parents, and no policy and no trigger.
		`create schema bench`,
		`create table bench.messages (like compass.messages including all)`,
		`alter table bench.messages add foreign key (tenant_id, channel_id) references compass.channels (tenant_id, id),
			add foreign key (tenant_id, author_id) references compass.accounts (tenant_id, id)`,
		`insert into bench.messages select * from compass.messages`,
		`grant usage on schema bench to "` + app + `"`,
		`grant select, insert, update, delete on bench.messages to "` + app + `"`,
		`analyze`,
	} {
		if _, err := super.Exec(b.Context(), sql); err != nil {
			b.Fatal(err)
		}
	}
	return db
}

// BenchmarkStoreDoors prints the table; it fails where a goal is missed or a round trip is too many.
func BenchmarkStoreDoors(b *testing.B) {
	db := newBenchStore(b)
	pooler := storetest.NewBouncer(b, db, 4)
	for _, ground := range []struct {
		name string
		dsn  string
		ops  int
	}{
		{"direct", db.App, 200},
		{"pooled", pooler.Through(b, db.App), 200},
		{"1 ms away", storetest.NewProxy(b, db.App, time.Millisecond).Through(b, db.App), 60},
	} {
		for _, c := range benchCases() {
			b.Run(ground.name+"/"+c.name, func(b *testing.B) {
				proxy := storetest.NewProxy(b, ground.dsn, 0)
				trips := newMeasured(b, proxy.Through(b, ground.dsn), c).trips(b, proxy)
				scoped, naive := newMeasured(b, ground.dsn, c).ratios(b, ground.ops)
				b.ReportMetric(0, "ns/op")
				b.ReportMetric(scoped, "scoped/open")
				b.ReportMetric(naive, "naive/open")
				goal := c.goal[ground.name]
				b.Logf("| %s | %s | %.2f | %.1f | %.2f | %d, %d, %d |", ground.name, c.name, scoped, goal, naive, trips[0], trips[1], trips[2])
				if scoped > goal {
					b.Errorf("%s, %s: %.2f of an unprotected table, goal %.1f", ground.name, c.name, scoped, goal)
				}
				if trips != [3]int{1, 1, 4} {
					b.Errorf("%s, %s: round trips open %d, scoped %d, naive %d; want 1, 1, 4", ground.name, c.name, trips[0], trips[1], trips[2])
				}
			})
		}
	}
}

// measured runs one case over one kind of connection in three forms.
type measured struct {
	benchCase
	store *Store
	raw   *pgxpool.Pool // for the open and the naive form: same settings, same exec mode
	n     int
}

func newMeasured(b *testing.B, dsn string, c benchCase) *measured {
	b.Helper()
	open := func() *Store {
		s, err := Open(b.Context(), Config{Databases: []Database{{App: dsn}}})
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(s.Close)
		return s
	}
	// A store of its own lends the raw forms its pool, so that all settings are the same.
	m := &measured{benchCase: c, store: open(), raw: open().databases[0].app.open}
	m.n = benchOffset
	benchOffset += 100_000
	return m
}

// benchOffset keeps the rows of one measurement apart from those of the others.
var benchOffset int

func (m *measured) forms() []func(ctx context.Context) error {
	read := m.name != "write"
	collect := func(rows pgx.Rows, err error) error {
		if err != nil {
			return err
		}
		_, err = pgx.CollectRows(rows, pgx.RowToMap)
		return err
	}
	return []func(ctx context.Context) error{
		func(ctx context.Context) error {
			sql, args := m.statement(true, m.n)
			if read {
				return collect(m.raw.Query(ctx, sql, args...))
			}
			_, err := m.raw.Exec(ctx, sql, args...)
			return err
		},
		func(ctx context.Context) error {
			sql, args := m.statement(false, m.n)
			if read {
				_, err := query(ctx, m.store, pgx.RowToMap, sql, args...)
				return err
			}
			_, err := m.store.exec(ctx, sql, args...)
			return err
		},
		func(ctx context.Context) error {
			sql, args := m.statement(false, m.n+1) // rows of its own where it writes
			tx, err := m.raw.Begin(ctx)
			if err != nil {
				return err
			}
			defer func() { _ = tx.Rollback(ctx) }()
			if _, err := tx.Exec(ctx, sqlScope, tenantA, "5000"); err != nil {
				return err
			}
			if read {
				err = collect(tx.Query(ctx, sql, args...))
			} else {
				_, err = tx.Exec(ctx, sql, args...)
			}
			if err != nil {
				return err
			}
			return tx.Commit(ctx)
		},
	}
}

// warm has every connection know the statements.
func (m *measured) warm(b *testing.B) {
	b.Helper()
	for range 20 {
		m.n += 2
		for _, form := range m.forms() {
			if err := form(WithTenant(b.Context(), tenantA)); err != nil {
				b.Fatal(err)
			}
		}
	}
}

// trips counts the round trips of open, scoped and naive.
func (m *measured) trips(b *testing.B, proxy *storetest.Proxy) (trips [3]int) {
	b.Helper()
	m.warm(b)
	for i, form := range m.forms() {
		m.n += 2
		proxy.Reset()
		if err := form(WithTenant(b.Context(), tenantA)); err != nil {
			b.Fatal(err)
		}
		trips[i] = proxy.Trips()
	}
	return trips
}

// ratios of scoped and naive to open.
func (m *measured) ratios(b *testing.B, ops int) (scoped, naive float64) {
	b.Helper()
	m.warm(b)
	ctx := WithTenant(b.Context(), tenantA)
	forms := m.forms()
	var all [2][]float64
	for range benchRounds {
		times := make([][]time.Duration, len(forms))
		for op := range ops {
			m.n += 2
			for i := range forms {
				i = (i + op) % len(forms) // nobody always follows the naive one, which waits most and leaves the caches cold
				start := time.Now()
				if err := forms[i](ctx); err != nil {
					b.Fatal(err)
				}
				times[i] = append(times[i], time.Since(start))
			}
		}
		for i := range all {
			all[i] = append(all[i], float64(median(times[i+1]))/float64(median(times[0])))
		}
	}
	return median(all[0]), median(all[1])
}

func median[T time.Duration | float64](all []T) T {
	sorted := slices.Clone(all)
	slices.Sort(sorted)
	return sorted[len(sorted)/2]
}
