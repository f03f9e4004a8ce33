package move_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/rigelbuild/compass-operator/internal/naming"
	"github.com/rigelbuild/compass-operator/internal/store"
	"github.com/rigelbuild/compass-operator/internal/store/move"
	"github.com/rigelbuild/compass-operator/internal/store/storetest"
)

// ground is two databases, a store on both, and tenants that live in one of them.
type ground struct {
	*store.Store
	ids       *naming.IDs
	databases []*storetest.Database
	supers    []*pgx.Conn
	mover     *move.Mover
}

func newGround(t *testing.T) *ground {
	t.Helper()
	g := &ground{ids: &naming.IDs{Now: time.Now, Rand: rand.Reader}, databases: []*storetest.Database{storetest.NewDatabase(t), storetest.NewDatabase(t)}}
	var config store.Config
	options := move.Options{Databases: map[int]string{}, Routes: time.Millisecond}
	for i, db := range g.databases {
		config.Databases = append(config.Databases, store.Database{ID: i, App: db.App, System: db.System, Provision: db.Provision, Direct: db.Direct})
		g.supers = append(g.supers, storetest.Connect(t, db.Super))
		options.Databases[i] = db.Admin
	}
	config.Limits = func(store.TenantID) store.Limits {
		return store.Limits{StatementTimeout: time.Minute, Transactions: 32}
	}
	var err error
	if g.Store, err = store.Open(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.Close)
	if g.mover, err = move.New(options); err != nil {
		t.Fatal(err)
	}
	return g
}

// tenant makes a tenant in a database, with its admin.
func (g *ground) tenant(t *testing.T, slug string, database int) (context.Context, store.NewTenant) {
	t.Helper()
	n := store.NewTenant{ID: store.TenantID(g.ids.Tenant()), Slug: slug, Stream: "main", Database: database, Actor: "test"}
	n.Admin = store.Account{ID: g.ids.Account(), Handle: "admin"}
	n.Token = store.NewToken{ID: g.ids.TokenID(), Hash: naming.TokenHash(slug)}
	if err := g.CreateTenant(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	return store.WithTenant(t.Context(), n.ID), n
}

// rows is everything that a tenant has in a database, by table.
func (g *ground) rows(t *testing.T, database int, tenant store.TenantID) map[string][]string {
	t.Helper()
	out := map[string][]string{}
	for _, table := range g.column(t, database, `select c.relname::text from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attname = 'tenant_id'
		where c.relnamespace = 'compass'::regnamespace and c.relkind = 'r' and c.relname <> 'placements' order by 1`) {
		sql := fmt.Sprintf(`select to_jsonb(x)::text from compass.%s x where tenant_id = '%s' order by 1`, table, tenant)
		if found := g.column(t, database, sql); len(found) > 0 {
			out[table] = found
		}
	}
	return out
}

func (g *ground) column(t *testing.T, database int, sql string) []string {
	t.Helper()
	rows, err := g.supers[database].Query(t.Context(), sql)
	if err != nil {
		t.Fatal(err)
	}
	out, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// home tells where the placements say that a tenant lives, by both databases, and where its row is frozen.
func (g *ground) home(t *testing.T, tenant store.TenantID) (placed, frozen []string) {
	t.Helper()
	for i := range g.databases {
		placed = append(placed, strings.Join(g.column(t, i, fmt.Sprintf(`select database_id || ' ' || coalesce(stream, '') from compass.placements where tenant_id = '%s'`, tenant)), ""))
		frozen = append(frozen, strings.Join(g.column(t, i, fmt.Sprintf(`select frozen::text from compass.tenants where id = '%s'`, tenant)), ""))
	}
	return placed, frozen
}
