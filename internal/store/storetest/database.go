package storetest

import (
	"context"
	"fmt"
	"io/fs"
	"net/url"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/rigelbuild/compass-operator/internal/naming"
	"github.com/rigelbuild/compass-operator/internal/store/admin"
	"github.com/rigelbuild/compass-operator/internal/store/pg"
	"github.com/rigelbuild/compass-operator/internal/store/schema"
	"github.com/rigelbuild/compass-operator/migrations"
)

// Database is a fresh Compass database, made and migrated the way the operator does it, with the URL of each right.
type Database struct {
	Server *Server
	Name   string
	Roles  naming.Roles

	// App, System and Provision may lead through a pooler (COMPASS_TEST_POOLED); a probe that needs a session of its own
	// goes Straight.
	App       string
	System    string
	Provision string
	// Direct is System's to the server itself, for leases.
	Direct string
	// Admin is the operator's URL to this database: it made it and may act as its owner.
	Admin string
	// Super is a superuser's, for probes.
	Super string
}

const cleanupTimeout = 30 * time.Second

// NewDatabase returns a database with the real migrations and no row: one that another test has done with, emptied, or a
// new one. Whatever a test changes of it is the test's own affair; dropped when the test ends, if the server stays.
func NewDatabase(tb testing.TB) *Database {
	tb.Helper()
	s := Postgres(tb)
	return s.spareDatabase(tb, func() *Database { return s.migrated(tb) })
}

// NewDatabaseWith makes a database with other migrations; nil leaves it empty.
func NewDatabaseWith(tb testing.TB, files fs.FS) *Database {
	tb.Helper()
	return Postgres(tb).with(tb, files)
}

func (s *Server) migrated(tb testing.TB) *Database {
	tb.Helper()
	return s.with(tb, migrations.FS)
}

func (s *Server) with(tb testing.TB, files fs.FS) *Database {
	tb.Helper()
	db := s.newDatabase(tb, "t"+randomName())
	if files != nil {
		db.Migrate(tb, files)
	}
	return db
}

// NewDatabaseNamed makes an empty database of that name.
func NewDatabaseNamed(tb testing.TB, name string) *Database {
	tb.Helper()
	return Postgres(tb).newDatabase(tb, name)
}

// NewDatabaseUnmade only chooses a name, and drops what the test makes of it.
func NewDatabaseUnmade(tb testing.TB) *Database {
	tb.Helper()
	return Postgres(tb).unmade(tb, "t"+randomName())
}

func (s *Server) newDatabase(tb testing.TB, name string) *Database {
	tb.Helper()
	db := s.unmade(tb, name)
	a, err := admin.New(admin.Options{DSN: s.AdminDSN, Timeout: startTimeout}) // a test machine may be busy
	if err != nil {
		tb.Fatal(err)
	}
	pass := admin.Passwords{App: randomName(), System: randomName(), Provision: randomName()}
	if _, err := a.Ensure(tb.Context(), admin.Spec{Database: name, Passwords: pass}); err != nil {
		tb.Fatalf("make database: %v", err)
	}
	db.App, db.System = a.DSN(name, db.Roles.App, pass.App), a.DSN(name, db.Roles.System, pass.System)
	db.Provision = a.DSN(name, db.Roles.Provision, pass.Provision)
	db.Direct = db.System
	return db
}

func (s *Server) unmade(tb testing.TB, name string) *Database {
	tb.Helper()
	roles, err := naming.RolesOf(name)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { s.drop(tb, name, roles) })
	return &Database{Server: s, Name: name, Roles: roles,
		Admin: must(WithDatabase(s.AdminDSN, name))(tb), Super: must(WithDatabase(s.SuperDSN, name))(tb)}
}

// Straight returns dsn, a URL of this database, without the pooler that it may lead through.
func (db *Database) Straight(tb testing.TB, dsn string) string {
	tb.Helper()
	u, err := url.Parse(dsn)
	if err != nil {
		tb.Fatal("the database's address must be a URL")
	}
	server, err := url.Parse(db.Super)
	if err != nil {
		tb.Fatal("the server's address must be a URL")
	}
	u.Host = server.Host
	return u.String()
}

// Migrate brings the database to the newest of files.
func (db *Database) Migrate(tb testing.TB, files fs.FS) {
	tb.Helper()
	all, err := schema.Load(files)
	if err != nil {
		tb.Fatal(err)
	}
	r, err := schema.New(schema.Options{DSN: db.Admin, Migrations: all})
	if err != nil {
		tb.Fatal(err)
	}
	if _, err := r.Up(tb.Context()); err != nil {
		tb.Fatalf("migrate: %v", err)
	}
}

// Connect opens a connection that is closed when the test ends. Use it for probes, not for what the store does.
func Connect(tb testing.TB, dsn string) *pgx.Conn {
	tb.Helper()
	conn, err := pgx.Connect(tb.Context(), dsn)
	if err != nil {
		tb.Fatalf("connect: %v", err)
	}
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout) //nolint:usetesting // the test's own context has ended by then
		defer cancel()
		_ = conn.Close(ctx)
	})
	return conn
}

// drop leaves a server given from outside as it was. Our own goes as a whole, and a drop costs it a checkpoint each.
func (s *Server) drop(tb testing.TB, name string, roles naming.Roles) {
	tb.Helper()
	if s.Log != "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout) //nolint:usetesting // the test's own context has ended by then
	defer cancel()
	conn, err := pgx.Connect(ctx, s.SuperDSN)
	if err != nil {
		tb.Errorf("drop database %s: %v", name, err)
		return
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, fmt.Sprintf("drop database if exists %s with (force)", pg.Ident(name))); err != nil {
		tb.Errorf("drop database %s: %v", name, err)
	}
	for _, r := range []string{roles.App, roles.System, roles.Provision, roles.Tenant, roles.Owner} {
		if _, err := conn.Exec(ctx, "drop role if exists "+pg.Ident(r)); err != nil {
			tb.Errorf("drop role %s: %v", r, err)
		}
	}
}

func must(s string, err error) func(testing.TB) string {
	return func(tb testing.TB) string {
		tb.Helper()
		if err != nil {
			tb.Fatal(err)
		}
		return s
	}
}
