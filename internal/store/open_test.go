package store_test

import (
	"testing"

	"github.com/rigelbuild/compass-operator/internal/store"
	"github.com/rigelbuild/compass-operator/internal/store/storetest"
)

func open(t *testing.T, db *storetest.Database, change ...func(*store.Config)) *store.Store {
	t.Helper()
	config := store.Config{Databases: []store.Database{{App: db.App, System: db.System, Provision: db.Provision}}}
	for _, c := range change {
		c(&config)
	}
	s, err := store.Open(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func TestOpenAndPing(t *testing.T) {
	t.Parallel()
	s := open(t, storetest.NewDatabase(t), func(c *store.Config) { c.Bootstrap = true })
	now, err := s.Ping(t.Context())
	if err != nil || now.IsZero() {
		t.Errorf("Ping = %v, %v", now, err)
	}
	if id := s.ResolveTenant(t.Context()); id != store.BootstrapTenantID {
		t.Errorf("tenant of an empty context = %q, want the bootstrap tenant", id)
	}
}
