package admin_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/rigelbuild/compass-operator/internal/naming"
	"github.com/rigelbuild/compass-operator/internal/store/admin"
	"github.com/rigelbuild/compass-operator/internal/store/pg"
	"github.com/rigelbuild/compass-operator/internal/store/storetest"
)

func newAdmin(t *testing.T) *admin.Admin {
	t.Helper()
	return adminOf(t, storetest.Postgres(t).AdminDSN)
}

func adminOf(t *testing.T, dsn string) *admin.Admin {
	t.Helper()
	a, err := admin.New(admin.Options{DSN: dsn, Timeout: 5 * time.Minute}) // the machine may be busy
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func passwords() admin.Passwords {
	return admin.Passwords{App: "app-secret-5566", System: "system-secret-5566", Provision: "provision-secret-5566"}
}

// Holds REQ-203, lesson 15: made by an admin that is no superuser, and made once: a second pass writes nothing.
func TestEnsureIsIdempotent(t *testing.T) {
	t.Parallel()
	db := storetest.NewDatabaseWith(t, nil)
	a := newAdmin(t)
	seen, err := a.Observe(t.Context(), db.Name)
	if err != nil {
		t.Fatal(err)
	}
	if !seen.Exists || seen.DatabaseOwner != db.Roles.Owner || !seen.OwnerGranted || seen.AdminSuperuser || len(seen.Roles) != 5 {
		t.Errorf("Observe = %+v", seen)
	}
	for _, r := range seen.Roles {
		login := r.Name != db.Roles.Owner && r.Name != db.Roles.Tenant
		if r.Login != login || r.Super || r.BypassRLS || r.CreateRole || r.CreateDB || r.Repl {
			t.Errorf("role %+v", r)
		}
	}
	before := xmins(t, db)
	again, err := a.Ensure(t.Context(), admin.Spec{Database: db.Name})
	if err != nil || len(again.Changed) > 0 {
		t.Errorf("a second pass changed %v (%v)", again.Changed, err)
	}
	if diff := cmp.Diff(before, xmins(t, db)); diff != "" {
		t.Errorf("a second pass wrote: %s", diff)
	}
}

// A connection whose network broke in the middle of a batch is given up, with its locks, sooner than a kernel would: its
// defaults take two hours.
func TestLoginsAreGivenUpWithTheirNetwork(t *testing.T) {
	t.Parallel()
	db := storetest.NewDatabaseWith(t, nil)
	for _, dsn := range []string{db.App, db.System, db.Provision} {
		var idle, interval, count, unacked string
		err := storetest.Connect(t, db.Straight(t, dsn)).QueryRow(t.Context(), `select current_setting('tcp_keepalives_idle'),
			current_setting('tcp_keepalives_interval'), current_setting('tcp_keepalives_count'), current_setting('tcp_user_timeout')`).
			Scan(&idle, &interval, &count, &unacked)
		if err != nil || idle != "5" || interval != "1" || count != "5" || unacked != "10000" {
			t.Errorf("idle %s, interval %s, count %s, unacknowledged %s (%v)", idle, interval, count, unacked, err)
		}
	}
}

// xmins shows which transaction last wrote each row of the catalogue that is ours.
func xmins(t *testing.T, db *storetest.Database) []string {
	t.Helper()
	conn := storetest.Connect(t, db.Super)
	rows, err := conn.Query(t.Context(), `
select 'role ' || rolname || ' ' || xmin from pg_authid where rolname like $1
union all select 'database ' || xmin from pg_database where datname = current_database()
union all select 'setting ' || setrole || ' ' || xmin from pg_db_role_setting where setrole in (select oid from pg_roles where rolname like $1)
union all select 'member ' || xmin from pg_auth_members where roleid in (select oid from pg_roles where rolname like $1)
union all select 'acl ' || xmin from pg_default_acl union all select 'schema ' || xmin from pg_namespace where nspname = 'public'
order by 1`, db.Name+`\_%`)
	if err != nil {
		t.Fatal(err)
	}
	out, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(out) < 10 {
		t.Fatalf("%d rows of the catalogue, %v", len(out), err)
	}
	return out
}

// Holds lessons 24, 26, 45 (roles): drift is seen and undone, and only it.
func TestEnsureUndoesDrift(t *testing.T) {
	t.Parallel()
	db := storetest.NewDatabaseWith(t, nil)
	a := newAdmin(t)
	super := storetest.Connect(t, db.Super)
	app, name := pg.Ident(db.Roles.App), pg.Ident(db.Name)
	for _, drift := range []struct{ sql, want string }{
		{`alter role ` + app + ` nologin`, "make role " + db.Roles.App + " login"},
		{`alter role ` + pg.Ident(db.Roles.Owner) + ` login`, "make role " + db.Roles.Owner + " nologin"},
		{`alter role ` + app + ` createrole`, "make role " + db.Roles.App + " nocreaterole"},
		{`alter role ` + app + ` connection limit 3`, "make role " + db.Roles.App + " connection limit -1"},
		{`alter role ` + app + ` valid until '2001-01-01'`, "make role " + db.Roles.App + " valid until 'infinity'"},
		{`alter role ` + app + ` noinherit`, "make role " + db.Roles.App + " inherit"},
		{`alter role ` + app + ` set search_path = evil`, "set search_path of role " + db.Roles.App},
		{`alter role ` + app + ` set statement_timeout = 0`, "set statement_timeout of role " + db.Roles.App},
		{`alter role ` + app + ` set work_mem = '1GB'`, "reset work_mem of role " + db.Roles.App},
		{`alter role ` + app + ` in database ` + name + ` set work_mem = '1GB'`, "reset role " + db.Roles.App + " in database " + db.Name},
		{`grant connect on database ` + name + ` to public`, "close the database to PUBLIC"},
		{`grant usage on schema public to public`, "close schema public to PUBLIC"},
		{`revoke connect on database ` + name + ` from ` + app, "let role " + db.Roles.App + " connect"},
		{`alter default privileges for role ` + pg.Ident(db.Roles.Owner) + ` grant execute on functions to public`, "keep new functions from PUBLIC"},
	} {
		if _, err := super.Exec(t.Context(), drift.sql); err != nil {
			t.Fatal(err)
		}
		seen, err := a.Ensure(t.Context(), admin.Spec{Database: db.Name})
		if err != nil {
			t.Errorf("%s: %v", drift.sql, err)
			continue
		}
		if diff := cmp.Diff([]string{drift.want}, seen.Changed); diff != "" {
			t.Errorf("%s: %s", drift.sql, diff)
		}
	}
}

// Holds T7: a membership among our roles is a way around every policy, and ends; since Postgres 16 one that a superuser
// granted is only his to revoke, and that is said.
func TestEnsureEndsMemberships(t *testing.T) {
	t.Parallel()
	db := storetest.NewDatabaseWith(t, nil)
	ours, super := storetest.Connect(t, db.Admin), storetest.Connect(t, db.Super)
	grant := "grant " + pg.Ident(db.Roles.System) + " to " + pg.Ident(db.Roles.App)
	want := "end membership of " + db.Roles.App + " in " + db.Roles.System
	if _, err := ours.Exec(t.Context(), grant); err != nil {
		t.Fatal(err)
	}
	seen, err := newAdmin(t).Ensure(t.Context(), admin.Spec{Database: db.Name})
	if diff := cmp.Diff([]string{want}, seen.Changed); diff != "" || err != nil {
		t.Errorf("granted by the admin: %s (%v)", diff, err)
	}
	if _, err := super.Exec(t.Context(), grant); err != nil {
		t.Fatal(err)
	}
	seen, err = newAdmin(t).Ensure(t.Context(), admin.Spec{Database: db.Name})
	if seen.ServerVersion >= 160000 || errors.Is(err, admin.ErrBeyondAdmin) {
		if !errors.Is(err, admin.ErrBeyondAdmin) || !strings.Contains(err.Error(), "revoke ") {
			t.Errorf("granted by a superuser: %v, want ErrBeyondAdmin with the REVOKE", err)
		}
	} else if err != nil {
		t.Errorf("granted by a superuser: %v", err)
	}
}

// Whoever may make roles on Postgres 15 may join ours, before we make a database or after: nobody stays in one that reads rows.
func TestEnsureEndsStrangersMemberships(t *testing.T) {
	t.Parallel()
	db := storetest.NewDatabaseWith(t, nil)
	ours, super := storetest.Connect(t, db.Admin), storetest.Connect(t, db.Super)
	stranger := "x" + strings.ToLower(rand.Text()[:12])
	if _, err := super.Exec(t.Context(), `create role `+stranger); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = super.Exec(context.WithoutCancel(t.Context()), `drop role `+stranger) })
	var want []string
	for _, of := range []string{db.Roles.App, db.Roles.Owner, db.Roles.Provision, db.Roles.System, db.Roles.Tenant} {
		if _, err := ours.Exec(t.Context(), `grant `+pg.Ident(of)+` to `+stranger); err != nil {
			t.Fatal(err)
		}
		if of != db.Roles.Owner { // who may migrate is decided by others
			want = append(want, "end membership of "+stranger+" in "+of)
		}
	}
	seen, err := newAdmin(t).Ensure(t.Context(), admin.Spec{Database: db.Name})
	slices.Sort(seen.Changed)
	slices.Sort(want)
	if diff := cmp.Diff(want, seen.Changed); diff != "" || err != nil {
		t.Errorf("%s (%v)", diff, err)
	}
}

// What only a superuser can undo is said with the statement that undoes it, and keeps nothing else from being undone.
func TestEnsureNamesWhatIsBeyondIt(t *testing.T) {
	t.Parallel()
	db := storetest.NewDatabaseWith(t, nil)
	super := storetest.Connect(t, db.Super)
	app := pg.Ident(db.Roles.App)
	for _, c := range []struct{ drift, undo string }{
		{`alter role ` + app + ` superuser`, `alter role ` + app + ` nosuperuser`},
		{`alter role ` + app + ` bypassrls`, `alter role ` + app + ` nobypassrls`},
		{`alter role ` + app + ` set compass.tenant_id = 'x'`, `alter role ` + app + ` reset "compass"."tenant_id"`},
		{`alter role ` + app + ` in database ` + pg.Ident(db.Name) + ` set compass.tenant_id = 'x'`, ``},
		{`alter database ` + pg.Ident(db.Name) + ` set compass.tenant_id = 'x'`, ``},
	} {
		for _, sql := range []string{c.drift, `alter role ` + app + ` connection limit 3`} {
			if _, err := super.Exec(t.Context(), sql); err != nil {
				t.Fatal(err)
			}
		}
		_, told := newAdmin(t).Ensure(t.Context(), admin.Spec{Database: db.Name})
		if !errors.Is(told, admin.ErrBeyondAdmin) || !strings.Contains(told.Error(), c.undo) {
			t.Errorf("%s: %v, want ErrBeyondAdmin with %q", c.drift, told, c.undo)
			continue
		}
		seen, err := newAdmin(t).Observe(t.Context(), db.Name)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range seen.Roles {
			if r.Name == db.Roles.App && r.ConnectionLimit != -1 && !r.Super { // of a superuser it may change nothing
				t.Errorf("%s kept the admin from the rest", c.drift)
			}
		}
		_, undo, _ := strings.Cut(told.Error(), "run as one: ")
		if _, err := super.Exec(t.Context(), undo, pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Errorf("what it told the superuser to run: %q: %v", undo, err)
		}
		if _, err := newAdmin(t).Ensure(t.Context(), admin.Spec{Database: db.Name}); err != nil {
			t.Errorf("after that: %v", err)
		}
	}
}

// Holds lessons 35–37, 42: a password is set where it does not work, never nulled, and never written in clear.
func TestPasswords(t *testing.T) {
	t.Parallel()
	db := storetest.NewDatabaseWith(t, nil)
	a := newAdmin(t)
	pass := passwords()
	first, err := a.Ensure(t.Context(), admin.Spec{Database: db.Name, Passwords: pass})
	if err != nil || len(first.Changed) != 3 {
		t.Fatalf("new passwords: %v, %v", first.Changed, err)
	}
	again, err := a.Ensure(t.Context(), admin.Spec{Database: db.Name, Passwords: pass})
	if err != nil || len(again.Changed) != 0 {
		t.Errorf("the same passwords: %v, %v", again.Changed, err)
	}
	if _, err := a.Ensure(t.Context(), admin.Spec{Database: db.Name}); err != nil {
		t.Fatal(err)
	}
	for role, password := range map[string]string{db.Roles.App: pass.App, db.Roles.System: pass.System, db.Roles.Provision: pass.Provision} {
		if err := login(t, a.DSN(db.Name, role, password)); err != nil {
			t.Errorf("login of %s: %v", role, err)
		}
	}
	if err := login(t, db.App); pg.Code(err) != "28P01" {
		t.Errorf("the old password still works: %v", err)
	}
	if log := storetest.Postgres(t).Log; log != "" {
		text, err := os.ReadFile(log)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(text), "alter role") {
			t.Error("the log shows no alter role, so it proves nothing")
		}
		for _, secret := range []string{pass.App, pass.System, pass.Provision} {
			if strings.Contains(string(text), secret) {
				t.Errorf("the server's log has a password in clear")
			}
		}
	}
	if s := fmt.Sprintf("%v %+v %#v", pass, admin.Spec{Passwords: pass}, admin.Spec{Passwords: pass}); strings.Contains(s, "5566") {
		t.Errorf("printing shows a password: %s", s)
	}
	for _, bad := range []string{"ünsafe", "new\nline", strings.Repeat("x", 257), "nul\x00"} {
		_, err := a.Ensure(t.Context(), admin.Spec{Database: db.Name, Passwords: admin.Passwords{App: bad}})
		if err == nil || strings.Contains(err.Error(), bad) {
			t.Errorf("password %q: %v", bad, err)
		}
	}
}

// Holds lesson 38 and item 2 of the store's issue: passwords of every printable kind work and stay quoted.
func TestHostilePasswordsWork(t *testing.T) {
	t.Parallel()
	db := storetest.NewDatabaseWith(t, nil)
	a := newAdmin(t)
	for _, password := range []string{`%@:/#?'\ x`, `a'; drop role x; --`, `$1 $$ \\ "`, " lead and trail ", "SCRAM-SHA-256$4096:x$y:z", strings.Repeat("z", 256)} {
		if _, err := a.Ensure(t.Context(), admin.Spec{Database: db.Name, Passwords: admin.Passwords{App: password}}); err != nil {
			t.Errorf("%q: %v", password, err)
			continue
		}
		if err := login(t, a.DSN(db.Name, db.Roles.App, password)); err != nil {
			t.Errorf("%q: login: %v", password, err)
		}
	}
}

// Holds T7: names that are allowed work whatever is in them; two databases of one server share no role and no login.
func TestDatabasesOfOneServerAreApart(t *testing.T) {
	t.Parallel()
	a := newAdmin(t)
	one, two := storetest.NewDatabaseNamed(t, "a-b_1-"+strings.Repeat("x", naming.MaxDatabase-6)), storetest.NewDatabaseNamed(t, "t-select_from")
	if err := login(t, one.App); err != nil {
		t.Errorf("the longest name: %v", err)
	}
	for _, dsn := range []string{one.App, one.System, one.Provision} {
		other, err := storetest.WithDatabase(dsn, two.Name)
		if err != nil {
			t.Fatal(err)
		}
		if err := login(t, other); pg.Code(err) != "42501" {
			t.Errorf("a login of %s in %s: %v, want it refused", one.Name, two.Name, err)
		}
	}
	for _, bad := range []string{"", "postgres", "pg_x", "A", `a"b`, "a'; --", strings.Repeat("x", naming.MaxDatabase+1), "a b", "ä", "a\x00"} {
		if _, err := a.Ensure(t.Context(), admin.Spec{Database: bad}); !errors.Is(err, naming.ErrInvalid) {
			t.Errorf("database %q: %v, want it refused", bad, err)
		}
	}
}

// A database of that name that is somebody else's is left as it is.
func TestForeignDatabaseIsNotTakenOver(t *testing.T) {
	t.Parallel()
	db := storetest.NewDatabaseWith(t, nil)
	super := storetest.Connect(t, db.Super)
	if _, err := super.Exec(t.Context(), "alter database "+pg.Ident(db.Name)+" owner to postgres"); err != nil {
		t.Fatal(err)
	}
	if _, err := newAdmin(t).Ensure(t.Context(), admin.Spec{Database: db.Name}); !errors.Is(err, admin.ErrForeign) {
		t.Errorf("Ensure = %v, want ErrForeign", err)
	}
}

// Holds item 2 of the store's issue: many operators at once, from nothing, and in the middle of drift.
func TestEnsureAtOnce(t *testing.T) {
	t.Parallel()
	db := storetest.NewDatabaseUnmade(t)
	var wg sync.WaitGroup
	errs := make([]error, 8)
	for i := range errs {
		wg.Go(func() {
			a, err := admin.New(admin.Options{DSN: storetest.Postgres(t).AdminDSN, Timeout: 5 * time.Minute})
			if err == nil {
				_, err = a.Ensure(t.Context(), admin.Spec{Database: db.Name, Passwords: passwords()})
			}
			errs[i] = err
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
}

// Holds REQ-211 (database side): what is removed is gone, twice is as good as once, and nobody else's is touched.
func TestRemove(t *testing.T) {
	t.Parallel()
	db, other := storetest.NewDatabase(t), storetest.NewDatabaseWith(t, nil)
	a := newAdmin(t)
	busy := storetest.Connect(t, db.App)
	for range 2 {
		if err := a.Remove(t.Context(), db.Name); err != nil {
			t.Fatal(err)
		}
	}
	if err := busy.Ping(t.Context()); err == nil {
		t.Error("a connection outlived its database")
	}
	seen, err := a.Observe(t.Context(), db.Name)
	if err != nil || seen.Exists || len(seen.Roles) > 0 {
		t.Errorf("left: %+v, %v", seen, err)
	}
	if err := login(t, other.App); err != nil {
		t.Errorf("another database: %v", err)
	}
}

func login(t *testing.T, dsn string) error {
	t.Helper()
	ctx := t.Context()
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	return conn.Close(context.WithoutCancel(ctx))
}
