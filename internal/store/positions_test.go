package store_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/rigelbuild/compass-operator/internal/store"
	"github.com/rigelbuild/compass-operator/internal/store/storetest"
	"github.com/rigelbuild/compass-operator/internal/store/worldtest"
)

// sqlSequence puts a sequence in the place of take_position and of its lock: what everybody would do first. The tests
// below must turn red with it.
const sqlSequence = `
create sequence public.control start 2000000000000000;
grant usage on sequence public.control to public;
create or replace function compass.lock_head(p_tenant text, p_channel text) returns bigint
    language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
begin
    return (select h.last_pos from compass.channel_heads h where h.tenant_id = p_tenant and h.channel_id = p_channel);
end
$$;
create or replace function compass.take_position(p_tenant text, p_channel text, p_k integer default 1, p_deliverable boolean default true)
    returns bigint language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    first bigint := nextval('public.control');
begin
    for i in 2 .. p_k loop
        perform nextval('public.control');
    end loop;
    return first;
end
$$`

// positions is a tenant whose people and agents write in a few channels, and a reader that counts again and again.
type positions struct {
	*worldtest.World
	tenant   *worldtest.Tenant
	person   store.Account
	agents   []store.Account
	channels []store.Channel
}

func newPositions(t *testing.T, setup string) *positions {
	t.Helper()
	db := storetest.NewDatabase(t)
	if setup != "" {
		if _, err := storetest.Connect(t, db.Super).Exec(t.Context(), setup, pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Fatal(err)
		}
	}
	p := &positions{World: worldtest.On(t, db)}
	p.tenant = p.Tenant(t, "acme")
	p.person = p.tenant.Person(t, "ada")
	everybody := []store.Account{p.person}
	for i := range 4 {
		p.agents = append(p.agents, p.tenant.Agent(t, fmt.Sprint("bot", i)))
		everybody = append(everybody, p.agents[i])
	}
	for i := range 3 {
		p.channels = append(p.channels, p.tenant.Channel(t, fmt.Sprint("channel", i), everybody...))
	}
	return p
}

// write has four people's clients and four sessions write until ctx ends or each has done rounds, and returns when all
// are done. A session opens a turn, posts in two channels, edits, settles, and then tries to edit once more.
func (p *positions) write(ctx context.Context, t *testing.T, rounds int) {
	t.Helper()
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range rounds {
				if ctx.Err() != nil {
					return
				}
				if _, _, _, err := p.Store.AppendMessage(p.tenant.Ctx, p.tenant.Message(p.person, p.somewhere(), "hello")); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for _, agent := range p.agents {
		s := p.tenant.Session(t, agent)
		all.Go(func() {
			for round := range rounds {
				if ctx.Err() != nil {
					return
				}
				if err := p.turn(s, fmt.Sprint("turn", round)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
}

func (p *positions) somewhere() store.Channel { return p.channels[rand.IntN(len(p.channels))] }

func (p *positions) turn(s *worldtest.Session, turn string) error {
	ctx := p.tenant.Ctx
	var posted store.Message
	for range 2 {
		n := p.tenant.Message(s.Agent, p.somewhere(), "thinking")
		n.In = s.In(turn)
		m, _, _, err := p.Store.AppendMessage(ctx, n)
		if err != nil {
			return err
		}
		posted = m
	}
	edit := store.Edit{Message: posted.ID, Blocks: []store.Block{store.Text("done")}, In: s.In(turn)}
	if _, err := p.Store.EditMessage(ctx, edit); err != nil {
		return err
	}
	if _, err := p.Store.SettleTurn(ctx, s.Next(), turn); err != nil {
		return err
	}
	late := store.Edit{Message: posted.ID, Author: s.Agent.ID, Blocks: []store.Block{store.Text("too late")}}
	if _, err := p.Store.EditMessage(ctx, late); !errors.Is(err, store.ErrPrecondition) {
		return fmt.Errorf("an edit after the settle: %w", err)
	}
	return nil
}

// reader remembers, per channel, everything at or below the highest position it has seen, and says what is not as it was.
type reader struct {
	conn   *pgx.Conn
	seen   map[string]map[string]string // channel → message → what it was
	max    map[string]int64
	checks int
	wrong  []string
}

func (p *positions) reader(t *testing.T) *reader {
	t.Helper()
	return &reader{conn: storetest.Connect(t, p.Database.Super), seen: map[string]map[string]string{}, max: map[string]int64{}}
}

func (r *reader) look(t *testing.T) {
	t.Helper()
	type row struct {
		Channel, ID string
		Pos         int64
		Content     string
	}
	rows, err := r.conn.Query(t.Context(), `select channel_id, id, pos, md5(messages::text) from compass.messages where pos is not null`)
	if err != nil {
		t.Fatal(err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[row])
	if err != nil {
		t.Fatal(err)
	}
	high := map[string]int64{}
	for _, m := range all {
		r.checks++
		if r.seen[m.Channel] == nil {
			r.seen[m.Channel] = map[string]string{}
		}
		was, known := r.seen[m.Channel][m.ID]
		switch {
		case !known && m.Pos <= r.max[m.Channel]:
			r.wrong = append(r.wrong, fmt.Sprintf("message %s came late at %d, behind %d", m.ID, m.Pos, r.max[m.Channel]))
		case known && was != m.Content:
			r.wrong = append(r.wrong, fmt.Sprintf("message %s changed after it had its position", m.ID))
		}
		r.seen[m.Channel][m.ID] = m.Content
		high[m.Channel] = max(high[m.Channel], m.Pos)
	}
	r.max = high
}

// Holds REQ-225: under posts, edits and settles nothing appears late and nothing that has a position changes; a sequence in
// the place of take_position turns this red.
func TestNothingAppearsLate(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		setup  string
		rounds int
		late   bool
	}{
		"as it is": {"", 40, false},
		// The control goes on until something is late, and is bounded only so that it ends.
		"with a sequence": {sqlSequence, 100_000, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPositions(t, c.setup)
			r := p.reader(t)
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			written := make(chan struct{})
			go func() {
				defer close(written)
				p.write(ctx, t, c.rounds)
			}()
			for done := false; !done; {
				select {
				case <-written:
					done = true
				default:
				}
				r.look(t)
				if c.late && len(r.wrong) > 0 {
					cancel()
				}
			}
			switch {
			case c.late && len(r.wrong) == 0:
				t.Errorf("nothing was late in %d checks: this test proves nothing", r.checks)
			case !c.late && len(r.wrong) > 0:
				t.Errorf("%d wrong in %d checks: %v", len(r.wrong), r.checks, r.wrong[:min(3, len(r.wrong))])
			}
			t.Logf("%d checks, %d wrong", r.checks, len(r.wrong))
		})
	}
}

// numbers is one of everything that is drawn from the database's clock and must never be given out twice.
type numbers struct{ Position, Generation, Command, Claim, Epoch, Number int64 }

func (n numbers) all() []int64 {
	return []int64{n.Position, n.Generation, n.Command, n.Claim, n.Epoch, n.Number}
}

// draw takes one of each, as the product does.
func (p *positions) draw(t *testing.T, holder string) numbers {
	t.Helper()
	ctx := p.tenant.Ctx
	m, _, _, err := p.Store.AppendMessage(ctx, p.tenant.Message(p.person, p.channels[0], holder))
	check(t, err)
	session, err := p.IDs.Session(string(p.tenant.ID))
	check(t, err)
	started, err := p.Store.StartSession(ctx, store.NewSession{Session: session, Agent: p.agents[0].ID, Replace: true})
	check(t, err)
	command, _, err := p.Store.Steer(ctx, session, holder)
	check(t, err)
	row, err := p.Store.TenantBySlug(t.Context(), p.tenant.Slug)
	check(t, err)
	check(t, p.Store.PlaceTenant(t.Context(), p.tenant.ID, row.Stream, holder))
	row, err = p.Store.TenantBySlug(t.Context(), p.tenant.Slug)
	check(t, err)
	lease, err := p.Store.NewLease(store.LeaseOptions{Stream: "main", Holder: "pod"})
	check(t, err)
	check(t, lease.Acquire(t.Context(), 0))
	fence, _ := lease.Fence()
	check(t, lease.Release(t.Context()))
	number, err := p.Store.Number(ctx)
	check(t, err)
	return numbers{Position: m.Pos, Generation: started.Binding.Generation, Command: command.N, Claim: row.Claim, Epoch: fence.Epoch, Number: number}
}

// Holds REQ-225, REQ-228 (D9, F2): across a failover that loses the newest commits no position, generation, command number,
// claim or epoch is given out again, although everything that remembered the newest is gone; and a clock that is behind by
// less than a minute does not matter.
func TestFailoverRepeatsNoNumber(t *testing.T) {
	t.Parallel()
	f := storetest.NewFailover(t)
	db := f.NewDatabase(t)
	p := &positions{World: worldtest.On(t, db)}
	p.tenant = p.Tenant(t, "acme")
	p.person = p.tenant.Person(t, "ada")
	p.agents = []store.Account{p.tenant.Agent(t, "bot")}
	p.channels = []store.Channel{p.tenant.Channel(t, "general", p.person, p.agents[0])}
	p.Exec(t, `insert into compass.runner_leases (runner_id, fleet, incarnation, expires_at) values ('r-1', 'shared', 1, 'infinity')`)
	kept := p.draw(t, "kept")
	f.Detach(t)
	var lost []numbers
	for i := range 3 {
		lost = append(lost, p.draw(t, fmt.Sprint("lost", i)))
	}
	f.Promote(t)

	moved := *db
	for _, dsn := range []*string{&moved.App, &moved.System, &moved.Provision, &moved.Direct, &moved.Super} {
		*dsn = f.Moved(t, *dsn)
	}
	after := &positions{World: worldtest.On(t, &moved), tenant: p.tenant, person: p.person, agents: p.agents, channels: p.channels}
	if n := after.Count(t, `select count(*) from compass.messages`); n != 1 {
		t.Fatalf("%d messages survived, want the one from before the standby was cut off", n)
	}
	next := after.draw(t, "after")
	for i, n := range next.all() {
		for _, old := range append(lost, kept) {
			if n <= old.all()[i] {
				t.Errorf("after the failover %+v is not above %+v", next, old)
			}
		}
	}
	newest := lost[len(lost)-1]
	if ahead := time.Duration(next.Number-newest.Number) * time.Microsecond; ahead < 55*time.Second {
		t.Errorf("a promotion put the numbers %s ahead, want a minute, so that a clock may be behind", ahead)
	}
	if !slices.IsSorted([]int64{kept.Position, newest.Position, next.Position}) {
		t.Errorf("positions %d, %d, %d do not rise", kept.Position, newest.Position, next.Position)
	}
}
