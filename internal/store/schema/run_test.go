package schema_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/rigelbuild/compass-operator/internal/store/pg"
	"github.com/rigelbuild/compass-operator/internal/store/schema"
	"github.com/rigelbuild/compass-operator/internal/store/storetest"
)

func files(pairs ...string) fs.FS {
	out := fstest.MapFS{}
	for i := 0; i < len(pairs); i += 2 {
		out[pairs[i]] = &fstest.MapFile{Data: []byte(pairs[i+1])}
	}
	return out
}

func mustLoad(t *testing.T, f fs.FS) []schema.Migration {
	t.Helper()
	all, err := schema.Load(f)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

const foundation = "create schema compass;\ngrant usage on schema compass to ${app};"

// The constants of version.go are those of the files.
func TestMaxIsTheNewestFile(t *testing.T) {
	t.Parallel()
	all := load(t)
	if newest := all[len(all)-1]; newest.Version != schema.Max {
		t.Errorf("schema.Max is %d and the newest file is %s", schema.Max, newest.Name)
	}
	if schema.Min > schema.Max {
		t.Errorf("schema.Min %d is above schema.Max %d", schema.Min, schema.Max)
	}
}

// Holds REQ-094, REQ-242: each file leaves an audited state, on a fresh database and on one that is on its way.
func TestEachFileLeavesAnAuditedState(t *testing.T) {
	t.Parallel()
	db := storetest.NewDatabaseWith(t, nil)
	all := load(t)
	for i := range all {
		r := runnerOf(t, schema.Options{DSN: db.Admin, Migrations: all[:i+1]})
		st, err := r.Up(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if st.Version != all[i].Version || len(st.Pending) != 0 {
			t.Errorf("after %s: %+v", all[i].Name, st)
		}
		audit, err := r.Audit(t.Context())
		if err != nil || audit.Skipped || len(audit.Findings) > 0 {
			t.Errorf("after %s: %+v, %v", all[i].Name, audit, err)
		}
	}
}

// Holds REQ-092, REQ-242: six runners that meet at the lock apply each file once.
func TestSixAtOnce(t *testing.T) {
	t.Parallel()
	db := storetest.NewDatabaseWith(t, nil)
	super := storetest.Connect(t, db.Super)
	all := mustLoad(t, files(
		"0001_a.sql", foundation+"create table compass.ran (file text);",
		"0002_b.sql", "insert into compass.ran values ('b')",
		"0003_c.sql", "insert into compass.ran values ('c')"))

	gate, err := super.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := gate.Exec(t.Context(), `select pg_advisory_xact_lock(hashtextextended('compass.migrate', 0))`); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	errs := make([]error, 6)
	for i := range errs {
		wg.Go(func() {
			r, err := schema.New(schema.Options{DSN: db.Admin, Migrations: all})
			if err == nil {
				_, err = r.Up(t.Context())
			}
			errs[i] = err
		})
	}
	watch := storetest.Connect(t, db.Super)
	await(t, watch, `select count(*) = 6 from pg_locks where locktype = 'advisory' and not granted
		and database = (select oid from pg_database where datname = current_database())`)
	if err := gate.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
	var ran string
	if err := super.QueryRow(t.Context(), `select string_agg(file, ',' order by file) from compass.ran`).Scan(&ran); err != nil || ran != "b,c" {
		t.Errorf("ran %q (%v), want each file once", ran, err)
	}
}

// Whoever may connect can take the number of an advisory lock and keep it. From the second file on no runner asks for it.
func TestNobodyElsesLockKeepsARunnerWaiting(t *testing.T) {
	t.Parallel()
	db := storetest.NewDatabaseWith(t, nil)
	up := func(texts ...string) error {
		r, err := schema.New(schema.Options{DSN: db.Admin, Migrations: mustLoad(t, files(texts...)), Wait: time.Second})
		if err == nil {
			_, err = r.Up(t.Context())
		}
		return err
	}
	first := []string{"0001_a.sql", foundation}
	if err := up(first...); err != nil {
		t.Fatal(err)
	}
	anybody := storetest.Connect(t, db.Super)
	if _, err := anybody.Exec(t.Context(), `select pg_advisory_lock(hashtextextended('compass.migrate', 0))`); err != nil {
		t.Fatal(err)
	}
	if err := up(append(first, "0002_b.sql", "create table compass.b (id text)")...); err != nil {
		t.Error(err)
	}
}

// A database that was not made for Compass, and a login that may not migrate one that was, are told apart, with the cure.
func TestNotOursToMigrate(t *testing.T) {
	t.Parallel()
	db := storetest.NewDatabase(t)
	super, other := storetest.Connect(t, db.Super), "x"+strings.ToLower(rand.Text()[:12])
	if _, err := super.Exec(t.Context(), `create database `+other); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = super.Exec(context.WithoutCancel(t.Context()), `drop database `+other+` with (force)`) })
	for name, c := range map[string]struct{ dsn, want string }{
		"another database":          {strings.Replace(db.Admin, "/"+db.Name, "/"+other, 1), "was not made for Compass: name the right one"},
		"a login without the right": {db.App, "may not act as " + db.Roles.Owner + ", which owns the schema: use the admin"},
	} {
		r := runnerOf(t, schema.Options{DSN: c.dsn, Migrations: load(t)})
		_, up := r.Up(t.Context())
		_, status := r.Status(t.Context())
		_, plan := r.Plan(t.Context())
		for verb, err := range map[string]error{"up": up, "status": status, "plan": plan} {
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s, %s: %v, want it to say %q", name, verb, err, c.want)
			}
		}
	}
}

// Holds REQ-242 (O5): a runner that freezes in the middle loses its turn, and finds nothing to do when it wakes.
func TestFrozenRunnerDoesNothingWhenItWakes(t *testing.T) {
	t.Parallel()
	db := storetest.NewDatabaseWith(t, files("0001_a.sql", foundation+"create table compass.ran (file text);"))
	super := storetest.Connect(t, db.Super)
	proxy := storetest.NewProxy(t, db.Admin, 0)
	first := "0001_a.sql"
	slow := mustLoad(t, files(first, foundation+"create table compass.ran (file text);",
		"0002_b.sql", "insert into compass.ran values ('b'); select pg_sleep(600)"))
	frozen := make(chan error, 1)
	go func() {
		r, err := schema.New(schema.Options{DSN: proxy.Through(t, db.Admin), Migrations: slow})
		if err == nil {
			_, err = r.Up(t.Context())
		}
		frozen <- err
	}()
	await(t, super, `select exists (select from pg_stat_activity where datname = current_database() and wait_event = 'PgSleep')`)
	// The server ends it, as its time limit would; the runner itself is not told.
	proxy.Pause(true)
	if _, err := super.Exec(t.Context(), `select pg_terminate_backend(pid) from pg_stat_activity
		where datname = current_database() and wait_event = 'PgSleep'`); err != nil {
		t.Fatal(err)
	}
	quick := mustLoad(t, files(first, foundation+"create table compass.ran (file text);",
		"0002_b.sql", "insert into compass.ran values ('b')"))
	if _, err := runnerOf(t, schema.Options{DSN: db.Admin, Migrations: quick}).Up(t.Context()); err != nil {
		t.Fatal(err)
	}
	proxy.Pause(false)
	if err := <-frozen; err == nil {
		t.Error("the frozen runner thinks that it succeeded")
	}
	var ran int
	if err := super.QueryRow(t.Context(), `select count(*) from compass.ran`).Scan(&ran); err != nil || ran != 1 {
		t.Errorf("the file ran %d times (%v)", ran, err)
	}
}

// A failed file leaves the version before it, and says which statement it was.
func TestFailedFileIsNamed(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		sql       string
		statement int
		line      int
	}{
		"at parsing":     {"create table compass.t (id int);\n\n-- why\nselect 1;\nselec 2;", 3, 5},
		"at analysis":    {"create table compass.t (id int);\nselect 'ü;', nothing from compass.t;", 2, 2},
		"while running":  {"create table compass.t (id int);\ninsert into compass.t\n values (1 / 0);", 2, 2},
		"inside a block": {"create table compass.t (id int);\ndo $$ begin\n raise 'no; no'; end $$;\nselect 1;", 2, 2},
		"at the commit": {"create table compass.t (id int primary key deferrable initially deferred);\n" +
			"insert into compass.t values (1), (1);", 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := storetest.NewDatabaseWith(t, nil)
			r := runnerOf(t, schema.Options{DSN: db.Admin, Migrations: mustLoad(t, files("0001_a.sql", foundation, "0002_bad.sql", c.sql, "0003_c.sql", "select 1"))})
			_, err := r.Up(t.Context())
			failed, ok := errors.AsType[*schema.FileError](err)
			if !ok {
				t.Fatalf("Up = %v, want a FileError", err)
			}
			if failed.File != "0002_bad.sql" || failed.Statement != c.statement || failed.Line != c.line {
				t.Errorf("%v: statement %d line %d, want %d and %d", failed, failed.Statement, failed.Line, c.statement, c.line)
			}
			st, err := r.Status(t.Context())
			if err != nil || st.Version != 1 || len(st.Pending) != 2 {
				t.Errorf("Status = %+v, %v; want version 1 and two files pending", st, err)
			}
			var left bool
			super := storetest.Connect(t, db.Super)
			if err := super.QueryRow(t.Context(), `select to_regclass('compass.t') is not null`).Scan(&left); err != nil || left {
				t.Errorf("the failed file left a table (%v)", err)
			}
		})
	}
}

func TestChangedHistoryIsRefused(t *testing.T) {
	t.Parallel()
	db := storetest.NewDatabaseWith(t, files("0001_a.sql", foundation, "0003_c.sql", "select 3"))
	if _, err := storetest.Connect(t, db.Super).Exec(t.Context(), `update compass.schema_migrations set sha256 = 'x' where version = 3`); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		files fs.FS
		says  string
	}{
		"a broken digest": {files("0001_a.sql", foundation, "0003_c.sql", "select 3"), "0003_c.sql was applied with another text (x… there"},
		"another text":    {files("0001_a.sql", foundation+" ", "0003_c.sql", "select 3"), "0001_a.sql was applied with another text"},
		"passed over":     {files("0001_a.sql", foundation, "0002_b.sql", "select 2", "0003_c.sql", "select 3"), "0002_b.sql was never applied"},
		"older is fine":   {files("0001_a.sql", foundation), ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := runnerOf(t, schema.Options{DSN: db.Admin, Migrations: mustLoad(t, c.files)})
			_, statusErr := r.Status(t.Context())
			_, upErr := r.Up(t.Context())
			_, planErr := r.Plan(t.Context())
			for _, err := range []error{statusErr, upErr, planErr} {
				if c.says == "" {
					if err != nil {
						t.Error(err)
					}
				} else if !errors.Is(err, pg.ErrSchema) || !strings.Contains(err.Error(), c.says) {
					t.Errorf("%v, want %q", err, c.says)
				}
			}
		})
	}
}

// Readers never queue behind a migration for longer than its lock timeout; it comes back when they are done.
func TestMigrationGivesWayToReaders(t *testing.T) {
	t.Parallel()
	first := foundation + "create table compass.busy (id int);"
	db := storetest.NewDatabaseWith(t, files("0001_a.sql", first))
	super := storetest.Connect(t, db.Super)
	reader, err := super.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := reader.Exec(t.Context(), `select count(*) from compass.busy`); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		r, err := schema.New(schema.Options{DSN: db.Admin, LockTimeout: 50 * time.Millisecond,
			Migrations: mustLoad(t, files("0001_a.sql", first, "0002_b.sql", "alter table compass.busy add column more int"))})
		if err == nil {
			_, err = r.Up(t.Context())
		}
		done <- err
	}()
	watch := storetest.Connect(t, db.Super)
	const waiting = `select count(*) %s 0 from pg_locks where not granted and relation = 'compass.busy'::regclass`
	await(t, watch, fmt.Sprintf(waiting, ">"))
	await(t, watch, fmt.Sprintf(waiting, "=")) // it left the queue
	if err := reader.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestPlanShowsTheRoles(t *testing.T) {
	t.Parallel()
	db := storetest.NewDatabaseWith(t, nil)
	r := runnerOf(t, schema.Options{DSN: db.Admin, Migrations: mustLoad(t, files("0001_a.sql", foundation))})
	plan, err := r.Plan(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := "create schema compass;\ngrant usage on schema compass to \"" + db.Roles.App + "\";"
	if len(plan) != 1 || plan[0].Rendered != want {
		t.Errorf("Plan = %+v", plan)
	}
	if st, err := r.Status(t.Context()); err != nil || st.Version != 0 || st.Latest != 1 {
		t.Errorf("planning changed something: %+v, %v", st, err)
	}
}

func TestLoadRefuses(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		files fs.FS
		says  string
	}{
		"a bad name":          {files("1_a.sql", ""), "NNNN_name.sql"},
		"upper case":          {files("0001_A.sql", ""), "NNNN_name.sql"},
		"one number twice":    {files("0001_a.sql", "", "0001_b.sql", ""), "same number"},
		"unknown placeholder": {files("0001_a.sql", "select ${nobody}, ${app}"), "${nobody}"},
		"commit":              {files("0001_a.sql", "select 1;\n-- x\ncommit;"), "line 3: commit"},
		"begin":               {files("0001_a.sql", "/* ; */ BEGIN; select 1"), "line 1: begin"},
		"serves the future":   {files("0001_a.sql", "-- compass:serves 0002\nselect 1"), "newer than the file"},
	} {
		if _, err := schema.Load(c.files); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %q", name, err, c.says)
		}
	}
}

func TestServes(t *testing.T) {
	t.Parallel()
	all := mustLoad(t, files("0001_a.sql", "select 1", "0002_b.sql", "-- compass:serves 0001\nselect 1", "0003_c.sql", "select 1"))
	var got []int
	for _, m := range all {
		got = append(got, m.Serves)
	}
	if diff := cmp.Diff([]int{1, 1, 3}, got); diff != "" {
		t.Error(diff)
	}
	for _, c := range []struct {
		version, serves int
		fits            bool
	}{
		{schema.Max, schema.Max, true}, {schema.Max + 1, schema.Max, true}, {schema.Max + 1, schema.Max + 1, false},
		{schema.Min - 1, 1, false}, {schema.Min, 1, true}, {0, 0, false},
	} {
		if err := schema.Fits(c.version, c.serves); (err == nil) != c.fits || err != nil && !errors.Is(err, pg.ErrSchema) {
			t.Errorf("Fits(%d, %d) = %v, want fit %v", c.version, c.serves, err, c.fits)
		}
	}
}

// await polls until a query says true.
func await(t *testing.T, conn *pgx.Conn, sql string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		var ok bool
		if err := conn.QueryRow(ctx, sql).Scan(&ok); err != nil {
			t.Fatalf("wait for %s: %v", sql, err)
		}
		if ok {
			return
		}
		<-tick.C
	}
}
