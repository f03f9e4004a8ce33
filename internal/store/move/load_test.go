package move_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rigelbuild/compass-operator/internal/naming"
	"github.com/rigelbuild/compass-operator/internal/store"
)

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
