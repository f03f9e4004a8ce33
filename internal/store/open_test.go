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

// Holds REQ-239: another database that is away, or was made wrong by whoever administers it, keeps no process from starting,
// nor its tenants' neighbours from being made; database 0 may not be wrong.
func TestOpenWithAnotherDatabaseThatIsWrong(t *testing.T) {
	t.Parallel()
	zero, wrong := storetest.NewDatabase(t), storetest.NewDatabase(t)
	databases := []store.Database{
		{App: zero.App, System: zero.System, Provision: zero.Provision},
		{ID: 7, App: wrong.Super, System: wrong.Super, Provision: wrong.Super}, // a superuser is none of our roles
		{ID: 8, App: "postgres://a:b@127.0.0.1:1/x?sslmode=disable"},
	}
	s, err := store.Open(t.Context(), store.Config{Databases: databases})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	if _, err := s.BootstrapTenant(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := s.PingDatabase(t.Context(), 7); err == nil {
		t.Error("a database that is wrong is used")
	}
	databases[0] = store.Database{App: wrong.Super}
	if other, err := store.Open(t.Context(), store.Config{Databases: databases[:1]}); err == nil {
		other.Close()
		t.Error("database 0 may be wrong")
	}
}
