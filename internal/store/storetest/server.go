package storetest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
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
	envServer  = "COMPASS_TEST_POSTGRES"
	envBin     = "COMPASS_TEST_POSTGRES_BIN"
	envSet     = "COMPASS_TEST_POSTGRES_SETTINGS"
	defaultBin = "/usr/lib/postgresql/15/bin"

	startTimeout = 2 * time.Minute
)

// Server is a running Postgres that tests may do anything to.
type Server struct {
	// SuperDSN is the superuser's URL, to the database postgres.
	SuperDSN string
	// AdminDSN is the URL of a role with CREATEROLE and CREATEDB that is no superuser, to the database postgres: what
	// the operator is given.
	AdminDSN string
	// Log is the path of the server's log, "" where the server is not ours.
	Log string

	running  *process  // nil where the server is not ours
	lifeline io.Closer // never closed by us: its end tells the watcher that this process is gone
	spares   spares
}

// started holds the one server of this test process; sync.OnceValues makes it the first time it is asked for.
var started = sync.OnceValues(startServer)

// Postgres returns the server of this test process, started at the first call.
func Postgres(tb testing.TB) *Server {
	tb.Helper()
	s, err := started()
	if err != nil {
		tb.Fatalf("start postgres: %v", err)
	}
	return s
}

func startServer() (*Server, error) {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	s := &Server{SuperDSN: os.Getenv(envServer)}
	if s.SuperDSN == "" {
		if err := s.launch(ctx); err != nil {
			return nil, err
		}
	}
	return s, s.makeAdmin(ctx)
}

// launch makes a cluster of its own in a temporary folder and starts it. Durability is off: a test's database lives as
// long as the test.
func (s *Server) launch(ctx context.Context) error {
	bin := programs()
	dir, err := os.MkdirTemp("", "compass-pg-")
	if err != nil {
		return err
	}
	id, err := unprivileged()
	if err != nil {
		return err
	}
	if err := errors.Join(id.own(dir), os.Chmod(dir, 0o700)); err != nil {
		return err
	}
	password := strings.ToLower(rand.Text())
	data := filepath.Join(dir, "data")
	if err := initCluster(ctx, id, bin, dir, data, password); err != nil {
		return errors.Join(err, os.RemoveAll(dir))
	}
	if err := s.run(ctx, id, bin, dir, password); err != nil {
		return err
	}
	s.lifeline, err = s.running.watch(dir)
	return err
}

func programs() string {
	if bin := os.Getenv(envBin); bin != "" {
		return bin
	}
	return defaultBin
}

// run starts a server on the cluster in dir.
func (s *Server) run(ctx context.Context, id identity, bin, dir, password string) error {
	data := filepath.Join(dir, "data")
	s.Log = filepath.Join(dir, "log")
	for range 5 { // a port found free may be taken before Postgres binds it
		port, err := freeport.Find()
		if err != nil {
			return err
		}
		u := url.URL{Scheme: "postgres", User: url.UserPassword("postgres", password),
			Host: fmt.Sprintf("127.0.0.1:%d", port), Path: "/postgres", RawQuery: "sslmode=disable"}
		s.SuperDSN = u.String()
		running, err := id.start(dir, s.Log, filepath.Join(bin, "postgres"), serverArgs(dir, data, port)...)
		if err != nil {
			return err
		}
		if err = s.awaitReady(ctx, running.exited); err == nil {
			s.running = running
			return nil
		}
		if ctx.Err() != nil {
			return err
		}
	}
	tail, _ := os.ReadFile(s.Log)
	return fmt.Errorf("postgres did not start: %s", tail)
}

func initCluster(ctx context.Context, id identity, bin, dir, data, password string) error {
	pwfile := filepath.Join(dir, "password")
	if err := errors.Join(os.WriteFile(pwfile, []byte(password+"\n"), 0o600), id.own(pwfile)); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, filepath.Join(bin, "initdb"), "-D", data, "-U", "postgres", "--pwfile", pwfile,
		"-A", "scram-sha-256", "-E", "UTF8", "--locale", "C", "--no-sync")
	cmd.Dir = dir
	cmd.Env = []string{"PATH=/usr/bin:/bin", "LC_ALL=C"}
	id.apply(cmd)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w: %s", err, out)
	}
	return os.Remove(pwfile)
}

// serverArgs: log_statement=ddl, so that a test can look for secrets in the log the way an operator's auditor would.
func serverArgs(dir, data string, port int) []string {
	settings := []string{
		"listen_addresses=127.0.0.1", fmt.Sprintf("port=%d", port), "unix_socket_directories=" + dir,
		"fsync=off", "synchronous_commit=off", "full_page_writes=off", "max_connections=400", "shared_buffers=64MB",
		"log_statement=ddl", "log_line_prefix=%m [%p] %u@%d ", "max_wal_size=1GB", "jit=off",
		"autovacuum=off", // it would visit every test's database; who needs statistics says ANALYZE
	}
	settings = append(settings, strings.Fields(os.Getenv(envSet))...) // a later one wins
	args := []string{"-D", data}
	for _, set := range settings {
		args = append(args, "-c", set)
	}
	return args
}

func (s *Server) awaitReady(ctx context.Context, exited <-chan error) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		conn, err := pgx.Connect(ctx, s.SuperDSN)
		if err == nil {
			return conn.Close(ctx)
		}
		select {
		case err := <-exited:
			return fmt.Errorf("postgres exited: %w", err)
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		case <-tick.C:
		}
	}
}

// makeAdmin makes the role that the operator is given: it may make roles and databases, and is no superuser.
func (s *Server) makeAdmin(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, s.SuperDSN)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer conn.Close(ctx)
	name, password := "compass_test_admin_"+randomName(), randomName()
	_, err = conn.Exec(ctx, fmt.Sprintf("create role %s login createrole createdb password '%s'", name, password))
	if err != nil {
		return fmt.Errorf("create admin: %w", err)
	}
	s.AdminDSN, err = WithUser(s.SuperDSN, name, password, "postgres")
	return err
}

// randomName returns twelve characters [a-z2-7].
func randomName() string { return strings.ToLower(rand.Text())[:12] }

// WithUser returns dsn, a URL, for another user, password and database of the same server.
func WithUser(dsn, user, password, database string) (string, error) {
	u, err := url.Parse(dsn)
	if err != nil || u.Scheme == "" {
		return "", errors.New("the server's address must be a URL (postgres://…)") // the text itself holds a password
	}
	u.User, u.Path = url.UserPassword(user, password), "/"+database
	return u.String(), nil
}

// WithDatabase returns dsn, a URL, for another database of the same server.
func WithDatabase(dsn, database string) (string, error) {
	u, err := url.Parse(dsn)
	if err != nil || u.Scheme == "" {
		return "", errors.New("the server's address must be a URL (postgres://…)")
	}
	u.Path = "/" + database
	return u.String(), nil
}
