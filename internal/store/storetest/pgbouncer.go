package storetest

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/rigelbuild/compass-operator/internal/freeport"
)

const (
	envBouncer = "COMPASS_TEST_PGBOUNCER" // the program; default: the one in PATH
	envPooled  = "COMPASS_TEST_POOLED"    // not empty: NewDatabase's rights lead through a PgBouncer
)

// sharedBouncer is the one PgBouncer of this test process that every database is reached through under COMPASS_TEST_POOLED.
// It asks the server for passwords, because databases and their roles come and go.
var sharedBouncer = sync.OnceValues(func() (*Bouncer, error) {
	s, err := started()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	b, end, err := startBouncer(ctx, &Database{App: s.SuperDSN, Super: s.SuperDSN}, 20, []string{
		"auth_user = postgres",
		"auth_query = select rolname, rolpassword from pg_catalog.pg_authid where rolname = $1 and rolcanlogin",
		"server_idle_timeout = 10", // of the databases of tests that have ended
	})
	if b != nil {
		b.lifeline = end
	}
	return b, err
})

// throughPooler returns db with its rights by way of the shared PgBouncer.
func (s *Server) throughPooler(tb testing.TB, db *Database) *Database {
	tb.Helper()
	b, err := sharedBouncer()
	if err != nil {
		tb.Fatalf("start pgbouncer: %v", err)
	}
	for _, dsn := range []*string{&db.App, &db.System, &db.Provision} {
		*dsn = b.Through(tb, *dsn)
	}
	return db
}

// Bouncer is a PgBouncer in transaction mode in front of the server of a database.
type Bouncer struct {
	address  string
	lifeline func() // of the one that lives as long as this process: unheard of, it would be collected, and end it
}

// NewBouncer starts a PgBouncer whose pools have size server connections each. It ends with the test, and with the test
// process. More settings are lines of pgbouncer.ini, such as "max_prepared_statements = 200".
func NewBouncer(tb testing.TB, db *Database, size int, settings ...string) *Bouncer {
	tb.Helper()
	b, stop, err := startBouncer(tb.Context(), db, size, settings)
	if err != nil {
		tb.Fatalf("start pgbouncer: %v", err)
	}
	tb.Cleanup(stop)
	return b
}

// Through returns dsn, a URL, by way of the pooler.
func (b *Bouncer) Through(tb testing.TB, dsn string) string {
	tb.Helper()
	u, err := url.Parse(dsn)
	if err != nil {
		tb.Fatal("the server's address must be a URL")
	}
	u.Host = b.address
	return u.String()
}

func startBouncer(ctx context.Context, db *Database, size int, settings []string) (*Bouncer, func(), error) {
	program, err := findBouncer()
	if err != nil {
		return nil, nil, err
	}
	id, err := unprivileged()
	if err != nil {
		return nil, nil, err
	}
	dir, err := os.MkdirTemp("", "compass-pgb-")
	if err != nil {
		return nil, nil, err
	}
	for range 5 { // a port found free may be taken before PgBouncer binds it
		var b *Bouncer
		var p *process
		if b, p, err = launchBouncer(id, program, dir, db, size, settings); err != nil {
			break
		}
		if err = b.awaitReady(ctx, db, p.exited); err == nil {
			lifeline, err := p.watch(dir)
			return b, func() { _ = lifeline.Close() }, err
		}
	}
	log, _ := os.ReadFile(filepath.Join(dir, "log"))
	return nil, nil, errors.Join(err, fmt.Errorf("%s", log), os.RemoveAll(dir))
}

func findBouncer() (string, error) {
	if p := os.Getenv(envBouncer); p != "" {
		return p, nil
	}
	if p, err := exec.LookPath("pgbouncer"); err == nil {
		return p, nil
	}
	const debian = "/usr/sbin/pgbouncer"
	if _, err := os.Stat(debian); err != nil {
		return "", fmt.Errorf("PgBouncer is not installed (Debian: pgbouncer), and %s names none", envBouncer)
	}
	return debian, nil
}

// launchBouncer writes the passwords in clear: they are those of a throw-away server, in a folder of its own.
func launchBouncer(id identity, program, dir string, db *Database, size int, settings []string) (*Bouncer, *process, error) {
	port, err := freeport.Find()
	if err != nil {
		return nil, nil, err
	}
	var users strings.Builder
	for _, dsn := range []string{db.App, db.System, db.Provision, db.Admin, db.Super} {
		u, err := url.Parse(dsn)
		if err != nil || u.User == nil {
			continue
		}
		password, _ := u.User.Password()
		fmt.Fprintf(&users, "%q %q\n", u.User.Username(), password)
	}
	server, err := url.Parse(db.Super)
	if err != nil {
		return nil, nil, errors.New("the server's address must be a URL")
	}
	ini := fmt.Sprintf(`[databases]
* = host=%s port=%s
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %d
unix_socket_dir =
auth_type = scram-sha-256
auth_file = %s
pool_mode = transaction
default_pool_size = %d
max_client_conn = 500
%s
`, server.Hostname(), server.Port(), port, filepath.Join(dir, "users"), size, strings.Join(settings, "\n"))
	for name, text := range map[string]string{"users": users.String(), "pgbouncer.ini": ini} {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.WriteFile(path, []byte(text), 0o600), id.own(path)); err != nil {
			return nil, nil, err
		}
	}
	if err := id.own(dir); err != nil {
		return nil, nil, err
	}
	p, err := id.start(dir, filepath.Join(dir, "log"), program, filepath.Join(dir, "pgbouncer.ini"))
	return &Bouncer{address: fmt.Sprintf("127.0.0.1:%d", port)}, p, err
}

func (b *Bouncer) awaitReady(ctx context.Context, db *Database, exited <-chan error) error {
	u, err := url.Parse(db.App)
	if err != nil {
		return err
	}
	u.Host = b.address
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		conn, err := pgx.Connect(ctx, u.String())
		if err == nil {
			return conn.Close(ctx)
		}
		select {
		case err := <-exited:
			return fmt.Errorf("pgbouncer exited: %w", err)
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		case <-tick.C:
		}
	}
}
