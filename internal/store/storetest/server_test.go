package storetest_test

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/rigelbuild/compass-operator/internal/store/storetest"
)

func TestPostgresIsOnePerProcess(t *testing.T) {
	t.Parallel()
	s := storetest.Postgres(t)
	if again := storetest.Postgres(t); again != s {
		t.Fatal("a second server was started")
	}
	conn, err := pgx.Connect(t.Context(), s.AdminDSN)
	if err != nil {
		t.Fatalf("connect as admin: %v", err)
	}
	defer conn.Close(t.Context())
	var super, createRole, createDB bool
	err = conn.QueryRow(t.Context(),
		"select rolsuper, rolcreaterole, rolcreatedb from pg_roles where rolname = current_user").Scan(&super, &createRole, &createDB)
	if err != nil {
		t.Fatal(err)
	}
	if super || !createRole || !createDB {
		t.Errorf("admin: superuser=%v createrole=%v createdb=%v, want false, true, true", super, createRole, createDB)
	}
}

const envChild = "COMPASS_TEST_POSTGRES_CHILD"

// A test process that is killed takes its server and the server's folder with it.
func TestServerDiesWithItsProcess(t *testing.T) {
	if os.Getenv(envChild) != "" { // this is the child: start a server, say where, and wait to be killed
		s := storetest.Postgres(t)
		fmt.Println("child:", s.SuperDSN, filepath.Dir(s.Log))
		select {}
	}
	t.Parallel()
	cmd := exec.Command(os.Args[0], "-test.run=^TestServerDiesWithItsProcess$")
	cmd.Env = append(slices.DeleteFunc(os.Environ(), func(e string) bool { return strings.HasPrefix(e, "COMPASS_TEST_POSTGRES=") }), envChild+"=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	var dsn, dir string
	for dsn == "" && lines.Scan() {
		if rest, ok := strings.CutPrefix(lines.Text(), "child: "); ok {
			dsn, dir, _ = strings.Cut(rest, " ")
		}
	}
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatalf("the child's server: %v", err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	eventually(t, "the server is gone", func() bool { return conn.Ping(t.Context()) != nil })
	eventually(t, "its folder is gone", func() bool { _, err := os.Stat(dir); return errors.Is(err, fs.ErrNotExist) })
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(time.Minute)
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("waited in vain: %s", what)
		}
	}
}
