package move_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rigelbuild/compass-operator/internal/store"
)

// Holds REQ-093, REQ-207 (store side): a tenant is made in the database that it shall live in, and database 0 knows the way
// and nothing else of it.
func TestTenantOfAnotherDatabase(t *testing.T) {
	t.Parallel()
	g := newGround(t)
	ctx, n := g.tenant(t, "acme", 1)
	if _, err := g.AccountByID(ctx, n.Admin.ID); err != nil {
		t.Error(err)
	}
	if rest := g.rows(t, 0, n.ID); len(rest) != 0 {
		t.Errorf("database 0 has of it %v", rest)
	}
	placed, frozen := g.home(t, n.ID)
	if diff := cmp.Diff([]string{"1 main", "1 main"}, placed); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"true", "false"}, frozen); diff != "" {
		t.Error("frozen where it does not live: " + diff)
	}
	if err := g.CreateTenant(t.Context(), store.NewTenant{ID: store.TenantID(g.ids.Tenant()), Slug: "acme", Actor: "x"}); !errors.Is(err, store.ErrConflict) {
		t.Errorf("the same slug in another database: %v, want ErrConflict", err)
	}
	// What a stream is told of it reaches the database where it is drained.
	if err := g.DrainTenant(t.Context(), n.ID, "main"); err != nil {
		t.Fatal(err)
	}
	moved, err := g.MovedTenants(t.Context(), 1, "main", -1)
	if err != nil || len(moved) != 1 || !moved[0].Draining {
		t.Errorf("draining: %+v (%v)", moved, err)
	}
	// And so is what its worker answers.
	lease, err := g.NewLease(store.LeaseOptions{Stream: "main", Holder: "pod-1", Database: 1})
	if err != nil {
		t.Fatal(err)
	}
	if err := lease.Acquire(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	fence, _ := lease.Fence()
	if err := g.ConfirmDrain(ctx, fence, moved[0].Claim); err != nil {
		t.Fatal(err)
	}
	for database, said := range map[int]int64{0: 0, 1: moved[0].Claim} {
		seen, err := g.ReadLease(t.Context(), "main", database)
		if err != nil || seen.Held != (database == 1) || seen.Drained[n.ID] != said {
			t.Errorf("the lease in database %d: %+v (%v)", database, seen, err)
		}
	}
	if err := lease.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := g.PlaceTenant(t.Context(), n.ID, "main", "other"); err != nil {
		t.Fatal(err)
	}
	place, err := g.Placement(ctx)
	if err != nil || place.Stream != "other" || place.Draining {
		t.Errorf("placed: %+v (%v)", place, err)
	}
	if err := g.PlaceTenant(t.Context(), n.ID, "other", ""); err != nil {
		t.Fatal(err)
	}
	if err := g.PurgeTenant(t.Context(), n.ID); err != nil {
		t.Fatal(err)
	}
	if placed, frozen := g.home(t, n.ID); strings.Join(append(placed, frozen...), "") != "" {
		t.Errorf("left after the purge: placed %v, frozen %v", placed, frozen)
	}
}

// A tenant that a crash left half made is finished by the next pass, under the id that its slug has.
func TestHalfMadeTenantIsFinished(t *testing.T) {
	t.Parallel()
	g := newGround(t)
	id := store.TenantID(g.ids.Tenant())
	if _, err := g.supers[0].Exec(t.Context(), `insert into compass.tenants (id, slug, frozen) values ($1, 'acme', true)`, id); err != nil {
		t.Fatal(err)
	}
	row, err := g.EnsureTenant(t.Context(), store.TenantRow{ID: store.TenantID(g.ids.Tenant()), Slug: "acme", Limits: []byte(`{}`), Database: 1})
	if err != nil || row.ID != id || row.Database != 1 {
		t.Errorf("%+v, %v; want %s in database 1", row, err, id)
	}
	row.DisplayName = "Acme"
	if _, err := g.EnsureTenant(t.Context(), row); err != nil {
		t.Fatal(err)
	}
	if names := g.column(t, 1, `select display_name from compass.tenants where slug = 'acme'`); !slices.Equal(names, []string{"Acme"}) {
		t.Errorf("named %v where it lives", names)
	}
	whole, err := g.EnsureTenant(t.Context(), store.TenantRow{ID: store.TenantID(g.ids.Tenant()), Slug: "beta", Limits: []byte(`{}`), Database: 1})
	if err != nil {
		t.Fatal(err)
	}
	if _, frozen := g.home(t, whole.ID); frozen[0] != "true" || frozen[1] != "false" {
		t.Errorf("frozen %v: a writer with a stale route would not be told", frozen)
	}
}
