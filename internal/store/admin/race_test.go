package admin_test

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/rigelbuild/compass-operator/internal/naming"
	"github.com/rigelbuild/compass-operator/internal/store/admin"
	"github.com/rigelbuild/compass-operator/internal/store/pg"
	"github.com/rigelbuild/compass-operator/internal/store/storetest"
)

// Somebody who does not take our lock changes a role at the very moment: Postgres refuses the one that comes second
// ("tuple concurrently updated"), which is no reason to fail.
func TestEnsureRetriesWhatRaced(t *testing.T) {
	t.Parallel()
	db := storetest.NewDatabaseWith(t, nil)
	super, watch := storetest.Connect(t, db.Super), storetest.Connect(t, db.Super)
	set := func(to string) string { return `alter role ` + pg.Ident(db.Roles.App) + ` set work_mem = '` + to + `'` }
	if _, err := super.Exec(t.Context(), set("64MB")); err != nil {
		t.Fatal(err)
	}
	tx, err := super.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), set("128MB")); err != nil {
		t.Fatal(err)
	}
	type result struct {
		changed []string
		err     error
	}
	ensured := make(chan result, 1)
	a := newAdmin(t)
	go func() {
		seen, err := a.Ensure(t.Context(), admin.Spec{Database: db.Name})
		ensured <- result{seen.Changed, err}
	}()
	tick, deadline := time.NewTicker(5*time.Millisecond), time.After(time.Minute)
	defer tick.Stop()
	for waiting := false; !waiting; {
		select {
		case <-tick.C:
		case r := <-ensured:
			t.Fatalf("it did not meet the other: %+v", r)
		case <-deadline:
			t.Fatal("it never came to the role")
		}
		err := watch.QueryRow(t.Context(), `select exists (select from pg_stat_activity where wait_event_type = 'Lock'
			and query like 'alter role%' and query like '%' || $1 || '%')`, db.Roles.App).Scan(&waiting)
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if r := <-ensured; r.err != nil || len(r.changed) != 1 {
		t.Errorf("Ensure = %v, %v; want work_mem reset", r.changed, r.err)
	}
}

// Holds lesson 38, item 2 of the store's issue: whatever a name or a password is made of, it is refused or it works. The
// seed is printed, so that what fails can be tried again.
func TestFuzzedNamesAndPasswords(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // made-up input
	const nasty = `abz09-_."'\/%@:#?$;&=+* ` + "\t\nÄ\x00"
	text := func(most int) string {
		var b strings.Builder
		from := nasty
		if random.IntN(4) > 0 { // most are of printable ASCII
			from = nasty[:strings.IndexByte(nasty, '\t')]
		}
		for range 1 + random.IntN(most) {
			if random.IntN(2) == 0 {
				b.WriteByte(from[random.IntN(len(from))])
			} else {
				b.WriteByte(byte(0x20 + random.IntN(0x5f)))
			}
		}
		return b.String()
	}
	// Names: one that is allowed is one that Postgres gives back as it is, roles and all; every other is refused before
	// anything is sent.
	super := storetest.Connect(t, storetest.Postgres(t).SuperDSN)
	for range 2000 {
		name := text(70)
		if random.IntN(3) == 0 {
			name = strings.ToLower(strings.Map(func(r rune) rune {
				if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '-' || r == '_' {
					return r
				}
				return 'x'
			}, name))
		}
		roles, err := naming.RolesOf(name)
		if err != nil {
			continue
		}
		for _, n := range []string{name, roles.Owner, roles.App, roles.System, roles.Provision, roles.Tenant} {
			var back string
			if err := super.QueryRow(t.Context(), "select "+pg.Ident(n)+" from (select 1 as "+pg.Ident(n)+") x", pgx.QueryExecModeSimpleProtocol).Scan(&back); err != nil {
				t.Fatalf("%q is allowed and cannot be said: %v", n, err)
			}
			if len(n) > 63 || strings.ContainsAny(n, "\"'\\;\x00 ") {
				t.Fatalf("%q is allowed", n)
			}
		}
	}
	db := storetest.NewDatabaseWith(t, nil)
	a := newAdmin(t)
	worked := 0
	for range 40 {
		password := text(40)
		_, err := a.Ensure(t.Context(), admin.Spec{Database: db.Name, Passwords: admin.Passwords{App: password}})
		if err != nil {
			if strings.ContainsFunc(password, func(r rune) bool { return r < 0x20 || r > 0x7e }) {
				continue
			}
			t.Errorf("password %q is refused: %v", password, err)
			continue
		}
		worked++
		if err := login(t, a.DSN(db.Name, db.Roles.App, password)); err != nil {
			t.Errorf("password %q was set and does not work: %v", password, err)
		}
	}
	if worked < 10 {
		t.Errorf("only %d passwords were allowed", worked)
	}
}

// A foreign admin, with CREATEROLE and CREATEDB on the same server as operators of other products have it, cannot get at a
// database of ours; what it prepares beforehand is not taken over.
func TestForeignAdmin(t *testing.T) {
	t.Parallel()
	db := storetest.NewDatabase(t)
	super := storetest.Connect(t, db.Super)
	name := "foreign_" + db.Name
	if _, err := super.Exec(t.Context(), `create role `+pg.Ident(name)+` login createrole createdb password 'pw'`); err != nil {
		t.Fatal(err)
	}
	var version int
	if err := super.QueryRow(t.Context(), `select current_setting('server_version_num')::int`).Scan(&version); err != nil {
		t.Fatal(err)
	}
	ours, err := storetest.WithUser(db.Super, name, "pw", db.Name)
	if err != nil {
		t.Fatal(err)
	}
	if err := login(t, ours); pg.Code(err) != "42501" {
		t.Errorf("it connects to the database: %v", err)
	}
	dsn, err := storetest.WithUser(db.Super, name, "pw", "postgres")
	if err != nil {
		t.Fatal(err)
	}
	conn := storetest.Connect(t, dsn)
	app, system, owner, database := pg.Ident(db.Roles.App), pg.Ident(db.Roles.System), pg.Ident(db.Roles.Owner), pg.Ident(db.Name)
	for _, p := range []struct {
		name, sql string
		since16   bool // refused since Postgres 16 alone; before, CREATEROLE is as strong as every role that is not a superuser's
	}{
		{"drop the database", `drop database ` + database, false},
		{"rename it", `alter database ` + database + ` rename to stolen`, false},
		{"own it", `alter database ` + database + ` owner to ` + pg.Ident(name), false},
		{"let itself in", `grant connect on database ` + database + ` to ` + pg.Ident(name), false},
		{"set its scope", `alter database ` + database + ` set compass.tenant_id = 'x'`, false},
		{"copy it", `create database stolen template ` + database, false},
		{"its claim", `comment on database ` + database + ` is 'mine'`, false},
		{"become app", `set local role ` + app, false},
		{"bypass", `alter role ` + app + ` bypassrls`, false},
		{"a superuser", `alter role ` + app + ` superuser`, false},
		{"join app", `grant ` + app + ` to ` + pg.Ident(name), true},
		{"join system", `grant ` + system + ` to ` + pg.Ident(name), true},
		{"join the owner", `grant ` + owner + ` to ` + pg.Ident(name), true},
		{"app in system", `grant ` + system + ` to ` + app, true},
		{"app's password", `alter role ` + app + ` password 'known'`, true},
		{"app's settings", `alter role ` + app + ` set search_path = evil`, true},
		{"drop app", `drop role ` + app, false},
	} {
		tx, err := conn.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		_, err = tx.Exec(t.Context(), p.sql, pgx.QueryExecModeSimpleProtocol)
		refused := err != nil
		if want := !p.since16 || version >= 160000; refused != want {
			t.Errorf("%s: %v, want refused %v", p.name, err, want)
		}
		_ = tx.Rollback(t.Context())
	}
	// A database and roles that it made under a name of ours, before us.
	trap := "t" + name[8:]
	for _, sql := range []string{
		`create database ` + pg.Ident(trap),
		`create role ` + pg.Ident(trap+"_app") + ` login createrole createdb password 'known'`,
	} {
		if _, err := conn.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Fatal(err)
		}
	}
	_, err = newAdmin(t).Ensure(t.Context(), admin.Spec{Database: trap, Passwords: passwords()})
	if err == nil {
		t.Error("a database that somebody else had made was taken over")
	}
}

// Whoever may connect to the admin's database can hold the number that keeps changes of roles apart. They wait for it once.
func TestEnsureGoesOnWithoutANumberThatSomebodyKeeps(t *testing.T) {
	t.Parallel()
	db := storetest.NewDatabaseWith(t, nil)
	super := storetest.Connect(t, db.Super)
	for _, sql := range []string{
		`alter role ` + pg.Ident(db.Roles.App) + ` set work_mem = '64MB'`,
		`select pg_advisory_lock(hashtextextended('compass.roles', 0))`,
	} {
		if _, err := super.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	if seen, err := adminOf(t, db.Admin).Ensure(t.Context(), admin.Spec{Database: db.Name}); err != nil || len(seen.Changed) != 1 {
		t.Errorf("Ensure = %v, %v; want work_mem reset", seen.Changed, err)
	}
}
