package move_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
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

// load writes to one tenant in every way that people, agents and admins do, until it is stopped. A refusal for the time of
// a move is tried again, as clients do, under the same client id.
type load struct {
	*ground
	ctx      context.Context //nolint:containedctx // the tenant's
	admin    store.Account
	channels []store.Channel
	agents   []store.Account

	stop    chan struct{}
	refused atomic.Int64
	mu      sync.Mutex
	told    map[string][]string // what a call has promised, by table
}

func newLoad(ctx context.Context, t *testing.T, g *ground, n store.NewTenant) *load {
	t.Helper()
	l := &load{ground: g, ctx: ctx, admin: n.Admin, stop: make(chan struct{}), told: map[string][]string{}}
	for i := range 3 {
		c, err := g.CreateChannel(ctx, store.Channel{ID: g.ids.Channel(), Name: fmt.Sprint("channel", i), CreatedBy: n.Admin.ID})
		if err != nil {
			t.Fatal(err)
		}
		a, err := g.CreateAccount(ctx, store.Account{ID: g.ids.Account(), Kind: store.KindAgent, Role: store.RoleMember,
			Handle: fmt.Sprint("bot", i), Wake: store.WakeManual}, n.Admin.ID)
		if err != nil {
			t.Fatal(err)
		}
		l.channels, l.agents = append(l.channels, c), append(l.agents, a)
	}
	for _, c := range l.channels {
		for _, a := range l.agents {
			if err := g.AddMember(ctx, store.Member{Channel: c.ID, Account: a.ID, Actor: n.Admin.ID}); err != nil {
				t.Fatal(err)
			}
		}
	}
	return l
}

// again calls until the tenant is not being moved.
func (l *load) again(call func() error) error {
	for {
		err := call()
		if !errors.Is(err, store.ErrFrozen) {
			return err
		}
		l.refused.Add(1)
		select {
		case <-l.ctx.Done():
			return err
		case <-time.After(2 * time.Millisecond):
		}
	}
}

func (l *load) promise(table, id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.told[table] = append(l.told[table], id)
}

// run starts every writer and returns how to stop them.
func (l *load) run(t *testing.T) (end func()) {
	t.Helper()
	var all sync.WaitGroup
	writer := func(write func(n int) error) {
		all.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-l.stop:
					return
				default:
				}
				if err := write(n); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for range 3 {
		writer(l.post)
	}
	for i, agent := range l.agents {
		writer(l.turns(t, agent, i))
	}
	writer(l.account)
	writer(l.channel)
	return sync.OnceFunc(func() {
		close(l.stop)
		all.Wait()
	})
}

func (l *load) post(n int) error {
	id := l.ids.Message()
	m := store.NewMessage{ID: id, Channel: l.channels[n%len(l.channels)].ID, Author: l.admin.ID, ClientID: id, Blocks: []store.Block{store.Text("x")}}
	err := l.again(func() error {
		_, _, _, err := l.AppendMessage(l.ctx, m)
		return err
	})
	if err == nil {
		l.promise("messages", id)
	}
	return err
}

// turns is a session that posts in a turn, settles and acknowledges.
func (l *load) turns(t *testing.T, agent store.Account, i int) func(n int) error {
	t.Helper()
	tenant, _ := store.TenantFromContext(l.ctx)
	session, err := l.ids.Session(string(tenant))
	if err != nil {
		t.Fatal(err)
	}
	runner := fmt.Sprint("r-", i)
	for _, sql := range []string{
		`insert into compass.runner_leases (runner_id, fleet, incarnation, expires_at) values ('` + runner + `', 'shared', 1, 'infinity')`,
		fmt.Sprintf(`insert into compass.session_bindings (tenant_id, session_id, agent_account_id, runner_id, incarnation, generation, claimed)
			values ('%s', '%s', '%s', '%s', 1, 1, true)`, tenant, session, agent.ID, runner),
	} {
		if _, err := l.supers[0].Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	var event int64
	next := func() store.Event {
		event++
		return store.Event{Session: session, Generation: 1, Runner: runner, N: event}
	}
	return func(n int) error {
		turn, id := fmt.Sprint("turn", n), l.ids.Message()
		m := store.NewMessage{ID: id, Channel: l.channels[n%len(l.channels)].ID, ClientID: id, Blocks: []store.Block{store.Text("x")}, In: &store.InTurn{Event: next(), Turn: turn}}
		err := l.again(func() error {
			_, _, _, err := l.AppendMessage(l.ctx, m)
			return err
		})
		if err != nil {
			return err
		}
		l.promise("messages", id)
		settle := next()
		if err := l.again(func() error { _, err := l.SettleTurn(l.ctx, settle, turn); return err }); err != nil {
			return err
		}
		l.promise("turns", session+"/"+turn)
		return nil
	}
}

func (l *load) account(int) error {
	id := l.ids.Account()
	err := l.again(func() error {
		_, err := l.CreateAccount(l.ctx, store.Account{ID: id, Kind: store.KindPerson, Role: store.RoleMember, Handle: "p" + id[2:], Wake: store.WakeManual}, l.admin.ID)
		return err
	})
	if err != nil {
		return err
	}
	l.promise("accounts", id)
	token := l.ids.TokenID()
	err = l.again(func() error {
		return l.AddToken(l.ctx, store.NewToken{ID: token, Account: id, Hash: naming.TokenHash(token), Actor: l.admin.ID})
	})
	if err == nil {
		l.promise("account_tokens", token)
	}
	return err
}

func (l *load) channel(int) error {
	id := l.ids.Channel()
	err := l.again(func() error {
		_, err := l.CreateChannel(l.ctx, store.Channel{ID: id, Name: id, CreatedBy: l.admin.ID})
		return err
	})
	if err == nil {
		l.promise("channels", id)
	}
	return err
}

// Holds REQ-093 and T4: a tenant moves to another database and back while people post, agents take turns and admins change
// things, some through a process that still has the old route. Every promise is kept, each in the database where the tenant
// lives at last, and nothing of it is left in the other.
func TestMoveUnderLoad(t *testing.T) {
	t.Parallel()
	g := newGround(t)
	ctx, n := g.tenant(t, "acme", 0)
	_, other := g.tenant(t, "other", 0)
	before := g.rows(t, 0, other.ID)
	l := newLoad(ctx, t, g, n)
	end := l.run(t)
	defer end()
	for _, to := range []int{1, 0, 1} {
		if err := g.mover.Move(t.Context(), string(n.ID), to); err != nil {
			t.Error(err)
		}
		l.await(t, 30)
	}
	end()

	if l.refused.Load() == 0 {
		t.Error("nobody was refused, so nothing was written during a move")
	}
	if rest := g.rows(t, 0, n.ID); len(rest) != 0 {
		t.Errorf("left in database 0: %d tables, %v", len(rest), rest)
	}
	placed, frozen := g.home(t, n.ID)
	if placed[0] != "1 main" || placed[1] != "1 main" || frozen[0] != "true" || frozen[1] != "false" {
		t.Errorf("placed %v, frozen %v", placed, frozen)
	}
	l.kept(t, 1)
	if diff := cmp.Diff(before, g.rows(t, 0, other.ID)); diff != "" {
		t.Errorf("another tenant was touched: %s", diff)
	}
	// Positions rise in the order in which messages were made, through all moves.
	if late := g.column(t, 1, `select id from (select id, pos, lag(pos) over (partition by channel_id order by seq) as before
		from compass.messages where session_id is null) m where m.pos <= m.before`); len(late) > 0 {
		t.Errorf("positions repeat or fall: %v", late)
	}
	if open := g.column(t, 1, `select m.id from compass.messages m join compass.turns t on t.session_id = m.session_id and t.id = m.turn_id
		where m.pos is null and t.settled_by is not null`); len(open) > 0 {
		t.Errorf("held for ever: %v", open)
	}
}

// await waits until so many more promises were made, so that there is something to lose.
func (l *load) await(t *testing.T, more int) {
	t.Helper()
	count := func() (n int) {
		l.mu.Lock()
		defer l.mu.Unlock()
		for _, ids := range l.told {
			n += len(ids)
		}
		return n
	}
	deadline, tick := time.After(time.Minute), time.NewTicker(5*time.Millisecond)
	defer tick.Stop()
	for want := count() + more; count() < want && !t.Failed(); {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatal("nothing is written any more")
		}
	}
}

// kept checks every promise in a database.
func (l *load) kept(t *testing.T, database int) {
	t.Helper()
	tenant, _ := store.TenantFromContext(l.ctx)
	for table, promised := range l.told {
		key := "id"
		if table == "turns" {
			key = "session_id || '/' || id"
		}
		there := map[string]bool{}
		for _, id := range l.column(t, database, fmt.Sprintf(`select %s from compass.%s where tenant_id = '%s'`, key, table, tenant)) {
			there[id] = true
		}
		lost := 0
		for _, id := range promised {
			if !there[id] {
				lost++
			}
		}
		if lost > 0 {
			t.Errorf("%s: %d of %d were lost", table, lost, len(promised))
		}
		t.Logf("%s: %d promised and kept", table, len(promised)-lost)
	}
}

// Two numbers that lead to one database are seen before anything is touched: to empty the one would lose the tenant.
func TestMoveWithinOneDatabase(t *testing.T) {
	t.Parallel()
	g := newGround(t)
	ctx, n := g.tenant(t, "acme", 0)
	same, err := move.New(move.Options{Databases: map[int]string{0: g.databases[0].Admin, 1: g.databases[0].Admin}, Routes: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	before := g.rows(t, 0, n.ID)
	if err := same.Move(t.Context(), string(n.ID), 1); !errors.Is(err, move.ErrSameDatabase) {
		t.Errorf("%v, want ErrSameDatabase", err)
	}
	if diff := cmp.Diff(before, g.rows(t, 0, n.ID)); diff != "" {
		t.Errorf("touched: %s", diff)
	}
	if _, err := g.CreateChannel(ctx, store.Channel{ID: g.ids.Channel(), Name: "goes on", CreatedBy: n.Admin.ID}); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}

// What began before the freeze is waited for; what does not end in time keeps its tenant, which goes on where it was.
func TestMoveWaitsForWhatBegan(t *testing.T) {
	t.Parallel()
	g := newGround(t)
	ctx, n := g.tenant(t, "acme", 0)
	hasty, err := move.New(move.Options{Databases: map[int]string{0: g.databases[0].Admin, 1: g.databases[1].Admin}, Quiet: 100 * time.Millisecond, Routes: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	writer := storetest.Connect(t, g.databases[0].Straight(t, g.databases[0].App))
	tx, err := writer.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, sql := range []string{
		`select set_config('compass.tenant_id', '` + string(n.ID) + `', true)`,
		`insert into compass.accounts (tenant_id, id, kind, handle) values ('` + string(n.ID) + `', 'a_slow', 'person', 'slow')`,
	} {
		if _, err := tx.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	if err := hasty.Move(t.Context(), string(n.ID), 1); !errors.Is(err, store.ErrTimeout) {
		t.Fatalf("a move past an open transaction: %v, want ErrTimeout", err)
	}
	if _, err := g.CreateChannel(ctx, store.Channel{ID: g.ids.Channel(), Name: "goes on", CreatedBy: n.Admin.ID}); err != nil {
		t.Errorf("after a move that gave up: %v", err)
	}
	moved := make(chan error, 1)
	go func() { moved <- g.mover.Move(t.Context(), string(n.ID), 1) }()
	frozen := time.NewTicker(2 * time.Millisecond)
	defer frozen.Stop()
	for range frozen.C {
		if g.column(t, 0, `select frozen::text from compass.tenants where slug = 'acme'`)[0] == "true" {
			break
		}
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-moved; err != nil {
		t.Fatal(err)
	}
	g.ForgetRoute(n.ID) // nobody waits for the time of stale routes here
	if _, err := g.AccountByID(ctx, "a_slow"); err != nil {
		t.Errorf("what was written by a transaction from before the freeze: %v", err)
	}
}

// Whatever an earlier try left, the next one finishes, and a move that has happened is no change.
func TestMoveIsFinishedByTheNext(t *testing.T) {
	t.Parallel()
	g := newGround(t)
	ctx, n := g.tenant(t, "acme", 0)
	// Half a copy in the target, and the tenant frozen: a mover died while it copied.
	for _, sql := range []string{
		`insert into compass.tenants (id, slug, frozen) values ('` + string(n.ID) + `', 'acme', false)`,
		`insert into compass.accounts (tenant_id, id, kind, handle) values ('` + string(n.ID) + `', 'a_stale', 'person', 'stale')`,
		`update compass.tenants set frozen = true`,
		`insert into compass.placements (tenant_id, database_id, stream, claim) values ('` + string(n.ID) + `', 1, 'old', 1)`,
	} {
		if _, err := g.supers[1].Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := g.supers[0].Exec(t.Context(), `update compass.tenants set frozen = true where id = $1`, n.ID); err != nil {
		t.Fatal(err)
	}
	want := g.rows(t, 0, n.ID)
	if err := g.mover.Move(t.Context(), string(n.ID), 1); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, g.rows(t, 1, n.ID)); diff != "" {
		t.Errorf("moved: %s", diff)
	}
	// After the flip a mover died before it thawed and emptied.
	for i, sql := range []string{
		`set session_replication_role = replica; insert into compass.accounts (tenant_id, id, kind, handle) values ('` + string(n.ID) + `', 'a_left', 'person', 'left')`,
		`update compass.tenants set frozen = true where id = '` + string(n.ID) + `'`,
	} {
		if _, err := g.supers[i].Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Fatal(err)
		}
	}
	g.ForgetRoute(n.ID)
	for range 2 {
		if err := g.mover.Move(t.Context(), string(n.ID), 1); err != nil {
			t.Fatal(err)
		}
	}
	if rest := g.rows(t, 0, n.ID); len(rest) != 0 {
		t.Errorf("left in database 0: %v", rest)
	}
	// Numbers of its own go on after those that came with the rows.
	for range 3 {
		if err := g.Audit(ctx, "a", "x", nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := g.mover.Move(t.Context(), "t_00000000000000000000000009", 1); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("an unknown tenant: %v, want ErrNotFound", err)
	}
	if _, err := g.supers[1].Exec(t.Context(), `insert into compass.schema_migrations values (9999, 'x', 'y', 1, 1)`); err != nil {
		t.Fatal(err)
	}
	if err := g.mover.Move(t.Context(), string(n.ID), 0); !errors.Is(err, store.ErrSchema) {
		t.Errorf("between two versions: %v, want ErrSchema", err)
	}
	if _, err := g.AccountByID(ctx, n.Admin.ID); err != nil {
		t.Error(err)
	}
}
