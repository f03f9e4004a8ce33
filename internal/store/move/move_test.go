package move_test

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/rigelbuild/compass-operator/internal/store"
	"github.com/rigelbuild/compass-operator/internal/store/move"
	"github.com/rigelbuild/compass-operator/internal/store/storetest"
)

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
