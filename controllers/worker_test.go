package controllers_test

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"

	"github.com/rigelbuild/compass-operator/api/v1alpha1"
	"github.com/rigelbuild/compass-operator/controllers/backend"
	"github.com/rigelbuild/compass-operator/internal/fabric"
	"github.com/rigelbuild/compass-operator/internal/kube"
	"github.com/rigelbuild/compass-operator/internal/store"
	"github.com/rigelbuild/compass-operator/internal/store/storetest"
)

// writer is a delivery worker in what the operator sees of it: it opens Postgres and NATS with what it was given, and holds
// the stream's lease.
type writer struct {
	store *store.Store
	lease *store.Lease
}

func (w *writer) stop() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	_ = w.lease.Release(ctx) // it may be gone with its database
	w.store.Close()
}

// work starts or stops the worker of a Deployment, with the Secret that its pod mounts and nothing else, and reports
// whether its pod is ready. Like a real one it waits for what is not there yet.
func (g *ground) work(t *testing.T, dep *appsv1.Deployment, stream string, run bool) bool {
	t.Helper()
	w := g.writers[stream]
	switch {
	case w == nil && run:
		var err error
		if g.writers[stream], err = g.startWriter(t, dep, stream); err != nil {
			delete(g.writers, stream)
			t.Logf("worker %s waits: %v", stream, err)
			return false
		}
	case w != nil && !run:
		w.stop()
		delete(g.writers, stream)
	}
	return true
}

func (g *ground) startWriter(t *testing.T, dep *appsv1.Deployment, stream string) (*writer, error) {
	t.Helper()
	secret := g.secret(t, dep.Name)
	databases, err := backend.ParseDatabases(secret[backend.KeyDatabases])
	if err != nil {
		t.Fatal(err)
	}
	var config store.Config
	for _, d := range databases {
		if d.Provision != "" {
			t.Error("the worker may make tenants")
		}
		config.Databases = append(config.Databases, store.Database{ID: d.ID, App: d.App, System: d.System, Direct: d.Direct})
	}
	if err := g.enter(t, secret[backend.KeyCreds], fabric.InboxPrefix(fabric.RoleWorker, stream)); err != nil {
		return nil, err
	}
	s, err := store.Open(t.Context(), config)
	if err != nil {
		return nil, err
	}
	lease, err := s.NewLease(store.LeaseOptions{Stream: stream, Holder: dep.Name + "-0", TTL: time.Hour})
	if err == nil {
		err = lease.Acquire(t.Context(), 0)
	}
	if err != nil {
		s.Close()
		return nil, err
	}
	return &writer{store: s, lease: lease}, nil
}

// open opens the store as a Server does, with a published Secret.
func (g *ground) open(t *testing.T, secret string) *store.Store {
	t.Helper()
	databases, err := backend.ParseDatabases(g.secret(t, secret)[backend.KeyDatabases])
	if err != nil {
		t.Fatal(err)
	}
	var config store.Config
	for _, d := range databases {
		config.Databases = append(config.Databases, store.Database{ID: d.ID, App: d.App, System: d.System, Provision: d.Provision, Direct: d.Direct})
	}
	s, err := store.Open(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// enter sees that a credentials file opens the only NATS of this ground.
func (g *ground) enter(t *testing.T, creds []byte, inbox string) error {
	t.Helper()
	file := filepath.Join(t.TempDir(), "nats.creds")
	if err := os.WriteFile(file, creds, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, server := range g.nats {
		f, err := fabric.Open(t.Context(), fabric.Config{
			Name: "test", URLs: []string{server.URL()}, Credentials: fabric.Credentials{File: file, InboxPrefix: inbox},
			Logger: slog.New(slog.DiscardHandler), Link: fabric.Link{Window: time.Second},
		})
		if err != nil {
			return err
		}
		if err := f.Close(t.Context()); err != nil {
			return err
		}
	}
	return nil
}

// confirmDrain is what a worker says when it has let go of a tenant.
func (g *ground) confirmDrain(t *testing.T, server, stream, tenant string, claim int64) {
	t.Helper()
	o := &v1alpha1.CompassServer{}
	g.get(t, o, server)
	dsn, err := storetest.WithDatabase(g.postgres.SuperDSN, o.Spec.Database.Name)
	if err != nil {
		t.Fatal(err)
	}
	conn := storetest.Connect(t, dsn)
	if _, err := conn.Exec(t.Context(), "select compass.confirm_drain($1, $2, $3)", stream, tenant, claim); err != nil {
		t.Fatal(err)
	}
}

// place is where the systems of the server main are.
func (g *ground) place(t *testing.T) backend.Place {
	t.Helper()
	o := &v1alpha1.CompassServer{}
	g.get(t, o, "main")
	at, err := backend.Resolve(t.Context(), kube.Children{Client: g.api, Live: g.api}, o)
	if err != nil {
		t.Fatal(err)
	}
	return at
}
