package e2e

import (
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"sigs.k8s.io/yaml"

	"github.com/rigelbuild/compass-operator/internal/config"
	"github.com/rigelbuild/compass-operator/internal/store/storetest"
	"github.com/rigelbuild/compass-operator/migrations"
)

// putYAML writes a value as a file of YAML.
func putYAML(tb testing.TB, dir, name string, value any) (path string) {
	tb.Helper()
	content, err := yaml.Marshal(value)
	must(tb, err)
	return put(tb, dir, name, string(content))
}

// refuses runs a program that must not boot: it exits with 1, having served nothing, and its last line has all the words.
func refuses(t *testing.T, known *secrets, args []string, words ...string) {
	t.Helper()
	p := launch(t, known, args[0], args...)
	if code := p.code(); code != 1 {
		t.Errorf("exit code = %d: want 1", code)
	}
	records, last := p.lines()
	for _, w := range words {
		if !strings.Contains(last, w) {
			t.Errorf("the last line lacks %q: %s", w, last)
		}
	}
	for _, r := range records {
		if has(r, map[string]any{"msg": "Listening", "for": "Connect API"}) {
			t.Errorf("it served before it was refused: %v", r)
		}
	}
	if out := p.read(p.out); len(out) > 0 {
		t.Errorf("it said it was ready: %s", out)
	}
}

// closedPort is an address on which nobody listens.
func closedPort(tb testing.TB) string {
	tb.Helper()
	var listen net.ListenConfig
	l, err := listen.Listen(tb.Context(), "tcp", "127.0.0.1:0")
	must(tb, err)
	must(tb, l.Close())
	return l.Addr().String()
}

// silent is an address that takes connections and never says a word.
func silent(tb testing.TB) string {
	tb.Helper()
	p := newProxy(tb, closedPort(tb))
	var listen net.ListenConfig
	l, err := listen.Listen(tb.Context(), "tcp", "127.0.0.1:0")
	must(tb, err)
	tb.Cleanup(func() { _ = l.Close() })
	p.hold(down)
	p.open(l.Addr().String())
	return p.address()
}

// Without a Postgres that it can work with, standalone does not boot and says what to do.
//
// Holds REQ-062.
func TestStandaloneRefusesWithoutPostgres(t *testing.T) {
	t.Parallel()
	with := func(change func(u *url.URL)) func(t *testing.T, h *home) {
		return func(t *testing.T, h *home) {
			t.Helper()
			u, err := url.Parse(h.db.Server.AdminDSN)
			must(t, err)
			change(u)
			h.secrets.addPassword(t, "the password", u.String())
			put(t, h.dir, "postgres", u.String())
		}
	}
	for name, tc := range map[string]struct {
		prepare func(t *testing.T, h *home)
		words   []string
	}{
		"nobody listens": {
			with(func(u *url.URL) { u.Host = closedPort(t) }), []string{"Postgres", "refused", "--postgres-file"},
		},
		"wrong password": {
			with(func(u *url.URL) { u.User = url.UserPassword(u.User.Username(), "a-wrong-password-of-this-test") }),
			[]string{"Postgres", "password", "--postgres-file"},
		},
		"no such file": {
			func(t *testing.T, h *home) { t.Helper(); must(t, os.Remove(filepath.Join(h.dir, "postgres"))) }, []string{"no such file"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHome(t)
			tc.prepare(t, h)
			refuses(t, h.secrets, h.args(), tc.words...)
		})
	}
}

// A data folder in which NATS cannot keep its files ends the boot: there is no message without a fabric.
//
// Holds REQ-062, REQ-075.
func TestStandaloneRefusesWithoutNATS(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(t *testing.T, dir string){
		"a file where its folder should be": func(t *testing.T, dir string) {
			t.Helper()
			must(t, os.MkdirAll(dir, 0o700))
			put(t, dir, "nats", "not a folder")
		},
		"a key that is none": func(t *testing.T, dir string) {
			t.Helper()
			must(t, os.MkdirAll(filepath.Join(dir, "nats", "keys"), 0o700))
			put(t, filepath.Join(dir, "nats", "keys"), "operator.seed", "not a seed")
		},
		"its messages are no folder": func(t *testing.T, dir string) {
			t.Helper()
			must(t, os.MkdirAll(filepath.Join(dir, "nats"), 0o700))
			put(t, filepath.Join(dir, "nats"), "js", "not a folder")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHome(t)
			spoil(t, h.data())
			refuses(t, h.secrets, h.args(), "start NATS in "+filepath.Join(h.data(), "nats"))
		})
	}
}

// until is the migrations up to one of them.
func until(t *testing.T, last string) fs.FS {
	t.Helper()
	files := fstest.MapFS{}
	names, err := fs.Glob(migrations.FS, "*.sql")
	must(t, err)
	for _, name := range names {
		if name <= last+"~" {
			content, err := fs.ReadFile(migrations.FS, name)
			must(t, err)
			files[name] = &fstest.MapFile{Data: content}
		}
	}
	return files
}

// A process that is told of a database or a broker which it cannot work with exits within its boot window.
//
// Holds REQ-062, REQ-075.
func TestProcessesRefuseWhatTheyCannotWorkWith(t *testing.T) {
	t.Parallel()
	old, empty := func(t *testing.T) *storetest.Database { return storetest.NewDatabaseWith(t, until(t, "0006")) },
		func(t *testing.T) *storetest.Database { return storetest.NewDatabaseWith(t, nil) }
	for name, tc := range map[string]struct {
		program string
		db      func(t *testing.T) *storetest.Database
		nats    func(tb testing.TB) string
		words   []string
	}{
		"server, older schema":   {"server", old, silent, []string{"schema", "0006", "compass migrate up"}},
		"delivery, older schema": {"delivery", old, silent, []string{"schema", "0006", "compass migrate up"}},
		"server, no schema":      {"server", empty, silent, []string{"schema", "compass migrate up"}},
		"server, Postgres away":  {"server", away, silent, []string{"Postgres", "store.databasesFile"}},
		"server, silent NATS":    {"server", migrated, silent, []string{"NATS", "fabric.urls"}},
		"server, NATS away":      {"server", migrated, closedPort, []string{"NATS", "fabric.urls"}},
		"delivery, silent NATS":  {"delivery", migrated, silent, []string{"NATS", "fabric.urls"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			known := &secrets{}
			c := settings(t, known, tc.db(t), "nats://"+tc.nats(t))
			must(t, c.Fabric.BootWait.UnmarshalJSON([]byte(`"1s"`)))
			refuses(t, known, []string{tc.program, "--config", putYAML(t, t.TempDir(), "config.yaml", c)}, tc.words...)
		})
	}
}

func migrated(t *testing.T) *storetest.Database {
	t.Helper()
	return storetest.NewDatabase(t)
}

// away is a database on a server that does not run.
func away(t *testing.T) *storetest.Database {
	t.Helper()
	db := storetest.NewDatabaseUnmade(t)
	db.App = "postgres://" + db.Roles.App + ":nobody@" + closedPort(t) + "/" + db.Name
	db.System, db.Provision = db.App, db.App
	return db
}

// settings are a configuration for a Server or a worker on a database and a broker.
func settings(tb testing.TB, known *secrets, db *storetest.Database, nats string) config.Config {
	tb.Helper()
	dir := tb.TempDir()
	for what, dsn := range map[string]string{"the app password": db.App, "the system password": db.System, "the provision password": db.Provision} {
		known.addPassword(tb, what, dsn)
	}
	const seed = "dGhpcyBpcyBhIHNlZWQgb2YgMzIgYnl0ZXMsIG9rYXk="
	known.add("the command key", seed)
	return config.Config{
		Log:       config.Log{Level: "debug"},
		Telemetry: config.Telemetry{Listen: "127.0.0.1:0"},
		Store: config.Store{DatabasesFile: putYAML(tb, dir, "databases.yaml", map[string]any{
			"databases": []config.Database{{App: db.App, System: db.System, Provision: db.Provision, Direct: db.System}},
		})},
		Fabric: config.Fabric{URLs: []string{nats}, CommandKeysFile: putYAML(tb, dir, "command-keys.yaml", map[string]any{
			"keys": []map[string]string{{"id": "k1", "seed": seed}},
		})},
		Server:   config.Server{Listen: "127.0.0.1:0"},
		Delivery: config.Delivery{Stream: "main"},
	}
}
