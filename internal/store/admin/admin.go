package admin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/rigelbuild/compass-operator/internal/naming"
	"github.com/rigelbuild/compass-operator/internal/store/pg"
)

// ErrForeign says: something of the wanted name is there and not ours; it is left as it is.
var ErrForeign = errors.New("exists and belongs to somebody else")

// ErrBeyondAdmin says: the catalogue is not as it must be and only a superuser can put it right; the message has the statement.
var ErrBeyondAdmin = errors.New("needs a superuser")

// ErrAbsent says: there is no database to look into, and none may be made.
var ErrAbsent = errors.New("does not exist")

// ErrOutdated says: the server is older than MinServerVersion.
var ErrOutdated = errors.New("this Postgres is too old")

// ErrUnreadable says: the DSN is none that pgx takes. It does not say why, because the cause would quote it.
var ErrUnreadable = errors.New("the admin's DSN cannot be read")

const defaultTimeout = 30 * time.Second

// Options say how to reach the server.
type Options struct {
	// DSN is the admin's URL (postgres://…) to a database that is always there, direct and not through a pooler (required).
	DSN string
	// Timeout bounds each call. Default 30 s.
	Timeout time.Duration
	// Dry: Ensure writes nothing; Observation.Changed is what it would do, of a database that is there.
	Dry bool
	// Log gets one line per change. Default: none.
	Log *slog.Logger
}

// Admin works on one server. It holds no connection between calls.
type Admin struct {
	o   Options
	url *url.URL
}

// New checks the options; it connects to nothing.
func New(o Options) (*Admin, error) {
	u, err := url.Parse(o.DSN)
	if err != nil || u.Host == "" && u.Query().Get("host") == "" {
		return nil, errors.New("the admin's DSN must be a URL (postgres://…)") // the text itself holds a password
	}
	if o.Timeout == 0 {
		o.Timeout = defaultTimeout
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Admin{o: o, url: u}, nil
}

// Spec is what there shall be.
type Spec struct {
	Database string
	// Passwords of the three logins. An empty one is left as it is (operator lesson 37).
	Passwords Passwords
	// MustExist: a database that is not there is ErrAbsent, and is not made.
	MustExist bool
}

// Passwords are those of the logins of one database; no other database shares them (T7).
type Passwords struct{ App, System, Provision string }

// String shows that there are passwords, never which.
func (Passwords) String() string { return "[redacted]" }

// GoString is String.
func (p Passwords) GoString() string { return p.String() }

// DSN returns the URL of a login of a database on this server, with the admin's host and TLS settings.
func (a *Admin) DSN(database, role, password string) string {
	u := *a.url
	u.User, u.Path = url.UserPassword(role, password), "/"+database
	return u.String()
}

// adminDSN returns the admin's own URL to a database.
func (a *Admin) adminDSN(database string) string {
	u := *a.url
	u.Path = "/" + database
	return u.String()
}

// connect opens one direct connection to a database, "" for the admin's own. Names of the system are not searched for in
// anybody's schema (operator lesson 41).
func (a *Admin) connect(ctx context.Context, database string) (*pgx.Conn, error) {
	dsn := a.o.DSN
	if database != "" {
		dsn = a.adminDSN(database)
	}
	config, err := pgx.ParseConfig(dsn)
	if err != nil {
		return nil, ErrUnreadable
	}
	config.RuntimeParams["search_path"] = "pg_catalog"
	return pg.ConnectDirect(ctx, config)
}

// Ensure makes roles, database and privileges as spec says, writes only differences, and returns what it then sees.
func (a *Admin) Ensure(ctx context.Context, spec Spec) (Observation, error) {
	ctx, cancel := context.WithTimeout(ctx, a.o.Timeout)
	defer cancel()
	roles, err := naming.RolesOf(spec.Database)
	if err != nil {
		return Observation{}, fmt.Errorf("ensure database: %w", err)
	}
	conn, err := a.connect(ctx, "")
	if err != nil {
		return Observation{}, fmt.Errorf("ensure database %s: %w", spec.Database, err)
	}
	defer conn.Close(ctx)
	var changed []string
	var beyond []error // what needs a superuser keeps nothing else from being put right
	for _, step := range []func(context.Context, *pgx.Conn, Spec, naming.Roles) ([]string, error){
		a.ensureRoles, a.ensureDatabase, a.ensurePrivileges, a.ensurePasswords,
	} {
		did, err := step(ctx, conn, spec, roles)
		changed = append(changed, did...)
		if errors.Is(err, ErrBeyondAdmin) {
			beyond = append(beyond, err)
			continue
		}
		if err != nil {
			return Observation{Changed: changed}, fmt.Errorf("ensure database %s: %w", spec.Database, err)
		}
	}
	for _, c := range changed {
		if a.o.Dry {
			break
		}
		a.o.Log.InfoContext(ctx, "Changed the database", "database", spec.Database, "change", c)
	}
	seen, err := observe(ctx, conn, spec.Database, roles)
	seen.Changed = changed
	if err = errors.Join(append(beyond, pg.Interpret(err))...); err != nil {
		err = fmt.Errorf("ensure database %s: %w", spec.Database, err)
	}
	return seen, err
}
