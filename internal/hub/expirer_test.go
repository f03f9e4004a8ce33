package hub

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/rigelbuild/compass-operator/internal/store"
	"github.com/rigelbuild/compass-operator/internal/store/worldtest"
)

var errDown = errors.New("away")

// weather is a real store whose clock and reach a test decides, and a broker.
type weather struct {
	Expiry
	t *testing.T

	mu       sync.Mutex
	now      time.Time
	postgres bool // reachable
	nats     bool
	ended    []store.TenantID
	settled  int
}

func newWeather(t *testing.T, s Expiry) *weather {
	return &weather{Expiry: s, t: t, now: time.Unix(1_000_000, 0), postgres: true, nats: true}
}

func (w *weather) set(postgres, nats bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.postgres, w.nats = postgres, nats
}

func (w *weather) reach() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.postgres {
		return errDown
	}
	return nil
}

func (w *weather) broker(context.Context) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.nats {
		return errDown
	}
	return nil
}

func (w *weather) PingDatabase(context.Context, int) (time.Time, error) {
	if err := w.reach(); err != nil {
		return time.Time{}, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.now, nil
}

func (w *weather) OverdueRunners(ctx context.Context, database int) ([]string, error) {
	if err := w.reach(); err != nil {
		return nil, err
	}
	return w.Expiry.OverdueRunners(ctx, database)
}

// ExpireRunner gives the probe the age in the database's real time that it has in the test's.
func (w *weather) ExpireRunner(ctx context.Context, e store.Expiry) (bool, error) {
	now, err := w.Expiry.PingDatabase(ctx, e.Database)
	if err != nil {
		return false, err
	}
	w.mu.Lock()
	e.Probe = now.Add(e.Probe.Sub(w.now))
	w.mu.Unlock()
	return w.Expiry.ExpireRunner(ctx, e)
}

func (w *weather) tell(_ context.Context, tenant store.TenantID, e store.Ended) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if e.Was {
		w.ended = append(w.ended, tenant)
	}
	w.settled += len(e.Touched)
}

func (w *weather) told() (ended, settled int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.ended), w.settled
}

func (w *weather) advance(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.now = w.now.Add(d)
}

// pass lets time pass as the expirer lives through it: a probe and a sweep per interval.
func (w *weather) pass(e *Expirer, d time.Duration) {
	for range int(d / e.o.Interval) {
		w.advance(e.o.Interval)
		e.probe(w.t.Context())
		e.sweep(w.t.Context())
	}
}

func (w *weather) expirer(change ...func(*ExpirerOptions)) *Expirer {
	w.t.Helper()
	o := ExpirerOptions{Store: w, NATS: w.broker, Ended: w.tell, After: time.After}
	for _, c := range change {
		c(&o)
	}
	e, err := NewExpirer(o)
	if err != nil {
		w.t.Fatal(err)
	}
	return e
}

// speaking makes sessions of that many agents, each with an open turn that holds a message; each has a Runner of its own.
func speaking(t *testing.T, tenant *worldtest.Tenant, agents int) []*worldtest.Session {
	t.Helper()
	var all []*worldtest.Session
	var members []store.Account
	for i := range agents {
		members = append(members, tenant.Agent(t, fmt.Sprintf("agent-%d", i)))
	}
	channel := tenant.Channel(t, "general", members...)
	for _, agent := range members {
		session := tenant.Session(t, agent)
		m := tenant.Message(agent, channel, "half a sen")
		m.In = session.In("t1")
		if _, _, _, err := tenant.World.Store.AppendMessage(tenant.Ctx, m); err != nil {
			t.Fatal(err)
		}
		all = append(all, session)
	}
	return all
}

const (
	leasesOver = `update compass.runner_leases set expires_at = clock_timestamp()`
	heartbeats = `update compass.runner_leases set expires_at = 'infinity'`
	openTurns  = `select count(*) from compass.turns where settled_by is null`
)

// Holds REQ-230: 60 s without Postgres, NATS or both while 100 turns are open: none of them is settled by lease, neither
// during the outage nor after it, where the Runners come back within a lease (D6). The control: the same Runners, silent
// while everything is well, lose all.
func TestOutageSettlesNothing(t *testing.T) {
	t.Parallel()
	world := worldtest.New(t)
	speaking(t, world.Tenant(t, "acme"), 100)
	w := newWeather(t, world.Store)
	e := w.expirer()
	w.pass(e, 2*DefaultLease)
	for name, outage := range map[string]struct{ postgres, nats bool }{
		"Postgres": {false, true}, "NATS": {true, false}, "both": {false, false},
	} {
		w.set(outage.postgres, outage.nats)
		world.Exec(t, leasesOver) // nobody could renew one
		w.pass(e, time.Minute)
		w.set(true, true)
		w.pass(e, DefaultLease-e.o.Interval) // the Runners are slow to come back
		world.Exec(t, heartbeats)
		w.pass(e, time.Minute)
		if _, settled := w.told(); settled != 0 || world.Count(t, openTurns) != 100 {
			t.Fatalf("outage of %s: %d settled, %d turns open of 100", name, settled, world.Count(t, openTurns))
		}
	}
	world.Exec(t, leasesOver)
	w.pass(e, e.o.Interval)
	if ended, settled := w.told(); ended != 100 || settled != 100 || world.Count(t, openTurns) != 0 {
		t.Errorf("Runners that are silent while all is well: %d sessions ended, %d settled", ended, settled)
	}
	if by := world.Strings(t, `select distinct settled_by from compass.turns`); len(by) != 1 || by[0] != store.SettledByExpiry {
		t.Errorf("settled by %v", by)
	}
}

// Holds REQ-230: a Server that was frozen, before or between its verdict and the act, expires nothing on the strength of
// what it saw before (HealthDB, ExpireRecheck).
func TestFrozenServerExpiresNothing(t *testing.T) {
	t.Parallel()
	world := worldtest.New(t)
	speaking(t, world.Tenant(t, "acme"), 1)
	w := newWeather(t, world.Store)
	e := w.expirer()
	w.pass(e, 2*DefaultLease)
	world.Exec(t, leasesOver)
	w.advance(time.Minute) // frozen
	e.sweep(t.Context())   // thawed between the verdict and the act
	e.probe(t.Context())   // and before its next look
	e.sweep(t.Context())
	if ended, _ := w.told(); ended != 0 {
		t.Error("a frozen Server expired a Runner")
	}
	w.pass(e, DefaultLease)
	if ended, _ := w.told(); ended != 1 {
		t.Errorf("%d sessions ended after one lease of health, want 1", ended)
	}
}

// Holds REQ-239: a tenant that cannot be written now keeps no other one's sessions alive, and is not forgotten.
func TestExpiryGoesOnPastATenant(t *testing.T) {
	t.Parallel()
	world := worldtest.New(t)
	stuck, free := world.Tenant(t, "stuck"), world.Tenant(t, "free")
	speaking(t, stuck, 2)
	speaking(t, free, 2)
	w := newWeather(t, world.Store)
	e := w.expirer()
	w.pass(e, 2*DefaultLease)
	world.Exec(t, `update compass.tenants set frozen = true where id = $1`, stuck.ID)
	world.Exec(t, leasesOver)
	w.pass(e, e.o.Interval)
	if ended, _ := w.told(); ended != 2 || w.ended[0] != free.ID || w.ended[1] != free.ID {
		t.Errorf("ended %v, want two sessions of %s", w.ended, free.ID)
	}
	world.Exec(t, `update compass.tenants set frozen = false`)
	w.pass(e, e.o.Interval)
	if ended, _ := w.told(); ended != 4 {
		t.Errorf("%d sessions ended in all, want 4", ended)
	}
}

func TestMaxTurn(t *testing.T) {
	t.Parallel()
	world := worldtest.New(t)
	speaking(t, world.Tenant(t, "acme"), 2)
	world.Exec(t, `update compass.turns set opened_at_unix_ms = opened_at_unix_ms - 7200000 where agent_id = (select min(agent_id) from compass.turns)`)
	w := newWeather(t, world.Store)
	w.pass(w.expirer(), 2*DefaultLease)
	if _, settled := w.told(); settled != 0 {
		t.Error("a turn without a maximum age was settled")
	}
	w.pass(w.expirer(func(o *ExpirerOptions) { o.MaxTurn = time.Hour }), 2*DefaultLease)
	if ended, settled := w.told(); ended != 0 || settled != 1 {
		t.Errorf("%d sessions ended, %d turns settled, want 0 and 1", ended, settled)
	}
}

// A broker that answers nothing is not well, and delays the next look by no more than an interval.
func TestProbeIsBounded(t *testing.T) {
	t.Parallel()
	world := worldtest.New(t)
	w := newWeather(t, world.Store)
	e := w.expirer(func(o *ExpirerOptions) {
		o.Interval = time.Millisecond
		o.NATS = func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	})
	e.probe(t.Context())
	if _, healthy := e.health[0].judge(); healthy || !e.health[0].since.IsZero() {
		t.Error("a broker that does not answer counts as well")
	}
}

// Run probes and sweeps by the clock that it was given, and ends with its context.
func TestRun(t *testing.T) {
	t.Parallel()
	world := worldtest.New(t)
	speaking(t, world.Tenant(t, "acme"), 1)
	world.Exec(t, leasesOver)
	w := newWeather(t, world.Store)
	ctx, cancel := context.WithCancel(t.Context())
	e := w.expirer(func(o *ExpirerOptions) {
		o.After = func(d time.Duration) <-chan time.Time { // time passes as fast as somebody waits for it
			w.advance(d / 2)
			fired := make(chan time.Time, 1)
			fired <- time.Time{}
			return fired
		}
		tell := o.Ended
		o.Ended = func(ctx context.Context, tenant store.TenantID, e store.Ended) { tell(ctx, tenant, e); cancel() }
	})
	e.Run(ctx)
	if ended, _ := w.told(); ended != 1 {
		t.Errorf("%d sessions ended, want 1", ended)
	}
}
