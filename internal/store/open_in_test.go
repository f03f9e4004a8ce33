package store

import (
	"errors"
	"net/url"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/rigelbuild/compass-operator/internal/store/pg"
	"github.com/rigelbuild/compass-operator/internal/store/storetest"
)

// Holds REQ-100, lesson B48: a role that is more than its right is refused, with the name of the right one.
func TestOpenRefusesTheWrongRole(t *testing.T) {
	t.Parallel()
	db := storetest.NewDatabase(t)
	for name, c := range map[string]struct {
		database Database
		want     string
	}{
		"superuser":      {Database{App: db.Super}, "superuser"},
		"admin":          {Database{App: db.Admin}, "may make roles"},
		"system as app":  {Database{App: db.System}, "is not " + db.Roles.App},
		"app as system":  {Database{App: db.App, System: db.App}, "is not " + db.Roles.System},
		"app for all":    {Database{App: db.App, Provision: db.App}, "is not " + db.Roles.Provision},
		"wrong password": {Database{App: withPassword(t, db.App, "wrong")}, "authentication"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := Open(t.Context(), Config{Databases: []Database{c.database}})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("Open = %v, want an error that says %q", err, c.want)
			}
		})
	}
}

// Policies apply by membership, so a member of another of our roles is that role too.
func TestOpenRefusesMembership(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.mustExec(t, "grant "+pg.Ident(f.db.Roles.System)+" to "+pg.Ident(f.db.Roles.App))
	_, err := Open(t.Context(), Config{Databases: []Database{{App: f.db.App}}})
	if err == nil || !strings.Contains(err.Error(), "member") {
		t.Errorf("Open = %v, want it refused for the membership", err)
	}
}

// Holds REQ-242 (range): a schema that is too old, too new or missing says what to do.
func TestOpenRefusesAnUnfitSchema(t *testing.T) {
	t.Parallel()
	empty := storetest.NewDatabaseWith(t, nil)
	if _, err := Open(t.Context(), Config{Databases: []Database{{App: empty.App}}}); !errors.Is(err, ErrSchema) || !strings.Contains(err.Error(), "compass migrate up") {
		t.Errorf("empty database: %v", err)
	}
	f := newFixture(t)
	f.mustExec(t, `insert into compass.schema_migrations values (9998, '9998_expand.sql', '', 1, 0)`)
	if _, err := Open(t.Context(), Config{Databases: []Database{{App: f.db.App}}}); err != nil {
		t.Errorf("after an expand migration of a newer binary: %v, want it open", err)
	}
	f.mustExec(t, `insert into compass.schema_migrations values (9999, '9999_contract.sql', '', 9999, 0)`)
	if _, err := Open(t.Context(), Config{Databases: []Database{{App: f.db.App}}}); !errors.Is(err, ErrSchema) || !strings.Contains(err.Error(), "upgrade the operator") {
		t.Errorf("after a contract migration of a newer binary: %v", err)
	}
	f.mustExec(t, `delete from compass.schema_migrations where version > 1`)
	if _, err := Open(t.Context(), Config{Databases: []Database{{App: f.db.App}}}); !errors.Is(err, ErrSchema) || !strings.Contains(err.Error(), "compass migrate up") {
		t.Errorf("before the migrations of this binary: %v", err)
	}
}

// Lessons B44, U15: no startup settings.
func TestOpenRefusesStartupSettings(t *testing.T) {
	t.Parallel()
	const dsn = "postgres://u:secret@127.0.0.1:1/compass?sslmode=disable&"
	for _, bad := range []string{"statement_timeout=5000", "options=-c%20row_security%3Doff", "search_path=public"} {
		_, err := Open(t.Context(), Config{Databases: []Database{{App: dsn + bad}}})
		if err == nil || !strings.Contains(err.Error(), "at startup") {
			t.Errorf("%s: %v, want it refused", bad, err)
		}
	}
	for _, c := range []Config{{}, {Databases: []Database{{ID: 1, App: dsn}}}, {Databases: []Database{{App: dsn}, {App: dsn}}}, {Databases: []Database{{}}}} {
		if _, err := Open(t.Context(), c); err == nil {
			t.Errorf("%d databases were opened", len(c.Databases))
		}
	}
}

// Holds REQ-224: an error never repeats a password.
func TestErrorsHideThePassword(t *testing.T) {
	t.Parallel()
	for _, dsn := range []string{
		"postgres://u:hunter2@127.0.0.1:1/compass?sslmode=disable", "postgres://u:hunter2@bad host/x", "host=127.0.0.1 port=1 user=u password=hunter2 x",
	} {
		_, err := Open(t.Context(), Config{Databases: []Database{{App: dsn}}})
		if err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("Open = %v", err)
		}
	}
}

func TestExecMode(t *testing.T) {
	t.Parallel()
	direct, tracked, plain := pg.Pooler{}, pg.Pooler{Present: true, Tracked: true}, pg.Pooler{Present: true}
	for _, c := range []struct {
		want   string
		pooler pg.Pooler
		mode   pgx.QueryExecMode
		ok     bool
	}{
		{"", direct, pgx.QueryExecModeCacheStatement, true},
		{"", tracked, pgx.QueryExecModeCacheStatement, true},
		{"", plain, pgx.QueryExecModeCacheDescribe, true},
		{"statement", plain, 0, false},
		{"statement", tracked, pgx.QueryExecModeCacheStatement, true},
		{"describe", plain, pgx.QueryExecModeCacheDescribe, true},
		{"exec", plain, pgx.QueryExecModeExec, true},
		{"simple", direct, 0, false},
	} {
		mode, err := execMode(c.want, c.pooler)
		if (err == nil) != c.ok || c.ok && mode != c.mode {
			t.Errorf("execMode(%q, %+v) = %v, %v", c.want, c.pooler, mode, err)
		}
	}
}

func withPassword(t *testing.T, dsn, password string) string {
	t.Helper()
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword(u.User.Username(), password)
	return u.String()
}

// Holds lesson B47 (O4): a policy that widens keeps the store from opening, whichever right looks; a running migration
// does not.
func TestOpenRefusesAWidenedPolicy(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.mustExec(t, `create policy more on compass.messages to `+pg.Ident(f.db.Roles.App)+` using (true)`)
	for _, d := range []Database{{App: f.db.App}, {App: f.db.App, System: f.db.System}} {
		if _, err := Open(t.Context(), Config{Databases: []Database{d}}); err == nil || !strings.Contains(err.Error(), "messages: policy more") {
			t.Errorf("Open = %v, want it refused for the policy", err)
		}
	}
	tx, err := f.super.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `lock table compass.schema_migrations in exclusive mode`); err != nil {
		t.Fatal(err)
	}
	f.open(t) // skipped: the operator looks again
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
}
