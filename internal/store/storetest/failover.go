package storetest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// Failover is a server of its own with an asynchronous standby: what is lost when the one dies before the other heard.
type Failover struct {
	Primary *Server
	standby *Server
}

// NewFailover starts both. They end with the test, and with the test process.
func NewFailover(tb testing.TB) *Failover {
	tb.Helper()
	f := &Failover{Primary: &Server{}, standby: &Server{}}
	ctx, cancel := context.WithTimeout(tb.Context(), startTimeout)
	defer cancel()
	if err := f.Primary.launch(ctx); err != nil {
		tb.Fatalf("start the primary: %v", err)
	}
	tb.Cleanup(func() { _ = f.Primary.lifeline.Close() })
	if err := f.Primary.makeAdmin(ctx); err != nil {
		tb.Fatal(err)
	}
	if err := f.standby.follow(ctx, f.Primary); err != nil {
		tb.Fatalf("start the standby: %v", err)
	}
	tb.Cleanup(func() { _ = f.standby.lifeline.Close() })
	return f
}

// NewDatabase makes a database with the real migrations on the primary.
func (f *Failover) NewDatabase(tb testing.TB) *Database { return f.Primary.migrated(tb) }

// follow copies the primary and starts on the copy, as its standby.
func (s *Server) follow(ctx context.Context, primary *Server) error {
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
	if err := backup(ctx, id, primary, filepath.Join(dir, "data")); err != nil {
		return errors.Join(fmt.Errorf("copy the primary: %w", err), os.RemoveAll(dir))
	}
	u, err := url.Parse(primary.SuperDSN)
	if err != nil {
		return errors.New("the server's address must be a URL")
	}
	password, _ := u.User.Password()
	if err := s.run(ctx, id, programs(), dir, password); err != nil {
		return err
	}
	s.lifeline, err = s.running.watch(dir)
	return err
}

// backup copies the cluster of a running server and makes the copy its standby, as pg_basebackup does, which not every
// build of Postgres has.
func backup(ctx context.Context, id identity, primary *Server, data string) error {
	conn, err := pgx.Connect(ctx, primary.SuperDSN)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, `select pg_backup_start('standby', true)`); err != nil {
		return err
	}
	from := filepath.Join(filepath.Dir(primary.Log), "data")
	if err := copyTree(id, from, data); err != nil {
		return err
	}
	var label string
	if err := conn.QueryRow(ctx, `select labelfile from pg_backup_stop(false)`).Scan(&label); err != nil {
		return err
	}
	u, err := url.Parse(primary.SuperDSN)
	if err != nil {
		return errors.New("the server's address must be a URL")
	}
	password, _ := u.User.Password()
	for name, text := range map[string]string{
		"backup_label":   label,
		"standby.signal": "",
		"postgresql.auto.conf": fmt.Sprintf("primary_conninfo = 'host=%s port=%s user=%s password=%s sslmode=disable'\n",
			u.Hostname(), u.Port(), u.User.Username(), password),
	} {
		path := filepath.Join(data, name)
		if err := errors.Join(os.WriteFile(path, []byte(text), 0o600), id.own(path)); err != nil {
			return err
		}
	}
	return nil
}

// copyTree copies a cluster's files, of which some may vanish meanwhile. What of them is torn, the log of changes mends.
func copyTree(id identity, from, to string) error {
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		target := filepath.Join(to, rel)
		if d.IsDir() {
			return errors.Join(os.Mkdir(target, 0o700), id.own(target))
		}
		if rel == "postmaster.pid" || rel == "postmaster.opts" {
			return nil
		}
		text, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		return errors.Join(os.WriteFile(target, text, 0o600), id.own(target))
	})
}

// Detach makes the standby hear nothing more of the primary, once it has all that was committed so far: what is committed
// from now on will be lost.
func (f *Failover) Detach(tb testing.TB) {
	tb.Helper()
	primary, standby := Connect(tb, f.Primary.SuperDSN), Connect(tb, f.standby.SuperDSN)
	var lsn string
	if err := primary.QueryRow(tb.Context(), `select pg_current_wal_lsn()::text`).Scan(&lsn); err != nil {
		tb.Fatal(err)
	}
	await(tb, standby, fmt.Sprintf(`select pg_last_wal_replay_lsn() >= '%s'`, lsn))
	for _, sql := range []string{`alter system set primary_conninfo = ''`, `select pg_reload_conf()`} {
		if _, err := standby.Exec(tb.Context(), sql); err != nil {
			tb.Fatal(err)
		}
	}
	await(tb, standby, `select count(*) = 0 from pg_stat_wal_receiver`)
}

// Promote kills the primary and makes the standby the server. Nothing that the primary said after Detach is known there.
func (f *Failover) Promote(tb testing.TB) {
	tb.Helper()
	standby := Connect(tb, f.standby.SuperDSN)
	if err := syscall.Kill(-f.Primary.running.pid, syscall.SIGKILL); err != nil {
		tb.Fatal(err)
	}
	<-f.Primary.running.exited //nolint:errcheck // that it ended is what matters: it was killed
	if _, err := standby.Exec(tb.Context(), `select pg_promote(wait => true)`); err != nil {
		tb.Fatal(err)
	}
	await(tb, standby, `select not pg_is_in_recovery()`)
}

// Moved returns dsn, a URL of the primary's, at the server that it became.
func (f *Failover) Moved(tb testing.TB, dsn string) string {
	tb.Helper()
	u, err := url.Parse(dsn)
	if err != nil {
		tb.Fatal("the server's address must be a URL")
	}
	to, err := url.Parse(f.standby.SuperDSN)
	if err != nil {
		tb.Fatal("the server's address must be a URL")
	}
	u.Host = to.Host
	return u.String()
}

// await polls until a query says true.
func await(tb testing.TB, conn *pgx.Conn, sql string) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), time.Minute)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for ok := false; !ok; <-tick.C {
		if err := conn.QueryRow(ctx, sql).Scan(&ok); err != nil {
			tb.Fatalf("wait for %s: %v", sql, err)
		}
	}
}
