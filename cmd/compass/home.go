package main

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/rigelbuild/compass-operator/internal/config"
	"github.com/rigelbuild/compass-operator/internal/store/admin"
	"github.com/rigelbuild/compass-operator/internal/store/schema"
	"github.com/rigelbuild/compass-operator/migrations"
)

// home is the folder in which a standalone process keeps what must outlive it: passwords, keys, tokens, NATS's files. What
// is secret is stored before it is used, so that a crash at any step leads to the same identity.
type home string

// secret returns the content of a file, or makes it with generate and stores it first.
func (h home) secret(name string, generate func() ([]byte, error)) ([]byte, error) {
	path := filepath.Join(string(h), name)
	raw, err := os.ReadFile(path)
	if err == nil || !errors.Is(err, os.ErrNotExist) {
		return raw, err
	}
	if raw, err = generate(); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(string(h), 0o700); err != nil {
		return nil, err
	}
	fresh := path + ".new"
	if err := os.WriteFile(fresh, raw, 0o600); err != nil {
		return nil, err
	}
	return raw, os.Rename(fresh, path) // whole or not at all
}

// lock takes the folder for this process, until it is given back or the process ends, however it ends: two processes in one
// folder would be one NATS store with two writers.
func (h home) lock() (unlock func(context.Context) error, err error) {
	if err := os.MkdirAll(string(h), 0o700); err != nil {
		return nil, err
	}
	file, err := os.OpenFile(h.path("lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("another compass standalone works in %s: end it, or name another folder with --data: %w", string(h), err)
	}
	return func(context.Context) error { return file.Close() }, nil
}

func (h home) path(name string) string { return filepath.Join(string(h), name) }

// password makes a random one.
func password() ([]byte, error) { return randomText(24) }

func randomText(size int) ([]byte, error) {
	raw := make([]byte, size)
	_, _ = rand.Read(raw) // never fails: crypto/rand aborts the process instead
	return []byte(base64.RawURLEncoding.EncodeToString(raw)), nil
}

// commandKeys makes the file that config.LoadCommandKeys reads.
func commandKeys() ([]byte, error) {
	seed := make([]byte, 32)
	_, _ = rand.Read(seed)
	return yaml.Marshal(map[string]any{"keys": []map[string]string{
		{"id": "k" + time.Now().UTC().Format("20060102"), "seed": base64.StdEncoding.EncodeToString(seed)},
	}})
}

// database makes the database of a standalone process, or brings it up to date, and returns how to enter it.
func (h home) database(ctx context.Context, adminDSN, name string, log *slog.Logger) (config.Database, error) {
	var words [3]string
	for i, role := range []string{"app", "system", "provision"} {
		word, err := h.secret(role+"-password", password)
		if err != nil {
			return config.Database{}, fmt.Errorf("keep password: %w", err)
		}
		words[i] = strings.TrimSpace(string(word))
	}
	a, err := admin.New(admin.Options{DSN: adminDSN, Log: log})
	if err != nil {
		return config.Database{}, err
	}
	if err := alone(ctx, a, name); err != nil {
		return config.Database{}, err
	}
	if _, err := a.Ensure(ctx, admin.Spec{Database: name, Passwords: admin.Passwords{App: words[0], System: words[1], Provision: words[2]}}); err != nil {
		return config.Database{}, fmt.Errorf("make database %s; check that Postgres runs and that --postgres-file holds the URL of a login "+
			"that may make roles and databases: %w", name, err)
	}
	if err := migrate(ctx, adminDSN, name, log); err != nil {
		return config.Database{}, err
	}
	login := func(role, word string) string { return a.DSN(name, name+"_"+role, word) }
	return config.Database{
		App: login("app", words[0]), System: login("system", words[1]), Provision: login("provision", words[2]), Direct: login("system", words[1]),
	}, nil
}

// lingering is how long Postgres may take to notice that the process before us has ended.
const lingering = 3 * time.Second

// alone refuses a database that another process works in: it would lose its passwords and its lease to us. A folder is locked,
// but another folder can name the same database.
func alone(ctx context.Context, a *admin.Admin, database string) error {
	for deadline := time.Now().Add(lingering); ; {
		n, err := a.Sessions(ctx, database)
		switch {
		case err != nil:
			return fmt.Errorf("look at database %s; check that Postgres runs and that --postgres-file holds the URL of a login "+
				"that may make roles and databases: %w", database, err)
		case n == 0:
			return nil
		case time.Now().After(deadline):
			return fmt.Errorf("another process works in database %s: end it, or name another database with --database", database)
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func migrate(ctx context.Context, adminDSN, database string, log *slog.Logger) error {
	dsn, err := url.Parse(adminDSN)
	if err != nil {
		return errors.New("the Postgres URL cannot be read; write postgres://user:password@host:port/database")
	}
	dsn.Path = "/" + database
	files, err := schema.Load(migrations.FS)
	if err != nil {
		return err
	}
	runner, err := schema.New(schema.Options{DSN: dsn.String(), Migrations: files, Log: log})
	if err != nil {
		return err
	}
	if _, err = runner.Up(ctx); err != nil {
		return fmt.Errorf("migrate %s: %w", database, err)
	}
	return nil
}

func splitPath(path string) (dir, name string) {
	dir, name = filepath.Split(path)
	if dir == "" {
		dir = "."
	}
	return dir, name
}
