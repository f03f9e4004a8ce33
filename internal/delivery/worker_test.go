package delivery

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	compassv1 "github.com/rigelbuild/compass-operator/api/proto/compass/v1"
	"github.com/rigelbuild/compass-operator/internal/fabric"
	"github.com/rigelbuild/compass-operator/internal/store"
)

// Lessons U11: one item of each tenant in turn, each tenant's in their order, marked twice worked once.
func TestDirtySetIsFair(t *testing.T) {
	t.Parallel()
	d := newDirty(8, time.Now)
	for _, id := range []string{"1", "2", "3", "2"} {
		d.add(item{tenant: acme, kind: itemChannel, id: id}, whyRead)
	}
	d.add(item{tenant: beta, kind: itemChannel, id: "1"}, whyRead)
	d.add(item{tenant: beta, kind: itemChannel, id: "1"}, whySweep)
	var got []string
	for range 4 {
		w, _ := d.take()
		got = append(got, fmt.Sprintf("%s/%s/%d", w.tenant[len(w.tenant)-1:], w.id, w.why))
	}
	if want := []string{"1/1/1", "2/1/3", "1/2/1", "1/3/1"}; !slices.Equal(got, want) {
		t.Errorf("worked %v, want %v", got, want)
	}
	if d.depth() != 0 {
		t.Errorf("%d left", d.depth())
	}
}

// An item is worked by one worker at a time, and what marks it meanwhile is not lost; a tenant never holds the last worker.
func TestDirtySetOneAtATime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDirty(2, time.Now)
		one, two := item{tenant: acme, id: "1"}, item{tenant: acme, id: "2"}
		d.add(one, whyRead)
		d.add(two, whyRead)
		w, _ := d.take()
		d.add(one, whyTimer)
		got := make(chan work, 2)
		go func() {
			w, _ := d.take()
			got <- w
		}()
		synctest.Wait()
		select {
		case w := <-got:
			t.Errorf("%v was handed out beside %v of the same tenant: nobody is left for the others", w.item, one)
		default:
		}
		d.add(item{tenant: beta, id: "3"}, whyRead)
		if w := <-got; w.tenant != beta {
			t.Errorf("handed out %v, want the other tenant's", w.item)
		}
		d.done(w.item)
		if w, _ := d.take(); w.item != two {
			t.Errorf("next %v, want %v", w.item, two)
		}
		d.done(two)
		if w, _ := d.take(); w.item != one || w.why != whyTimer {
			t.Errorf("then %v because %d, want what was marked while it was worked", w.item, w.why)
		}
		if d.done(one) != true {
			t.Error("acme has nothing left and is said to have")
		}
		d.close()
		if _, ok := d.take(); ok {
			t.Error("a closed set hands out")
		}
	})
}

// A tenant that floods delays another by an item, not by its backlog.
func TestFloodDelaysNobodyElse(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGround(t)
		g.truth.tenant(beta, 2)
		for i := range 200 {
			g.truth.channel(acme, fmt.Sprintf("c%d", i), "bot")
		}
		g.truth.channel(beta, "d", "bee")
		g.truth.start(acme, "bot", "r1")
		bee := g.truth.start(beta, "bee", "r2")
		g.run()
		g.sync(func() { g.truth.onOwed = func() { <-time.After(10 * time.Millisecond) } })
		for i := range 200 {
			if err := g.lane.ref(t, acme, g.truth.post(fmt.Sprintf("c%d", i), "ada").ID); err != nil {
				t.Fatal(err)
			}
		}
		m := g.truth.post("d", "bob")
		if err := g.lane.ref(t, beta, m.ID); err != nil {
			t.Fatal(err)
		}
		pass(25 * time.Millisecond)
		g.expect(bee, "behind 200 channels of another tenant", m)
	})
}

// What wakes at a time: the earliest wish wins, the reasons are joined.
func TestLater(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		fired := map[item]why{}
		l := newLater(SystemClock{}, func(it item, w why) {
			mu.Lock()
			defer mu.Unlock()
			fired[it] |= w
		})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go l.run(ctx)
		a, b := item{id: "a"}, item{id: "b"}
		now := time.Now()
		l.at(a, whyRead, now.Add(time.Minute))
		l.at(a, whyTimer, now.Add(time.Second))
		l.at(b, whyRead, now.Add(2*time.Second))
		l.at(b, whySweep, now.Add(time.Hour))
		l.at(b, whyRead, time.Time{})
		pass(1500 * time.Millisecond)
		mu.Lock()
		if fired[a] != whyRead|whyTimer || fired[b] != 0 {
			t.Errorf("after 1.5 s: %v", fired)
		}
		mu.Unlock()
		pass(time.Second)
		mu.Lock()
		defer mu.Unlock()
		if fired[b] != whyRead|whySweep {
			t.Errorf("after 2.5 s: %v", fired)
		}
	})
}

// Shutdown: what runs is finished, within a bound; what waits is left; nothing is sent after Run has returned (lessons B4,
// U13), and no attempt is burnt.
func TestShutdown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGround(t)
		g.truth.channel(acme, "c", "bot")
		bot := g.truth.start(acme, "bot", "r1")
		g.run()
		g.sync(func() { g.truth.onOwed = func() { <-time.After(3 * time.Second) } })
		m := g.truth.post("c", "ada")
		g.ref(m)
		begun := time.Now()
		if err := g.stop(); err != nil {
			t.Fatal(err)
		}
		if d := time.Since(begun); d > 4*time.Second {
			t.Errorf("stopped after %v", d)
		}
		g.expect(bot, "what was being worked", m)
		sent := len(g.box.sent())
		pass(10 * time.Minute)
		if n := len(g.box.sent()) - sent; n != 0 || g.lane.handle != nil {
			t.Errorf("%d commands after the end, still listening: %v", n, g.lane.handle != nil)
		}
		if len(g.truth.attempts) != 0 {
			t.Errorf("attempts %v", g.truth.attempts)
		}
	})
}

// A step that hangs is cut off by its deadline on the way out, too.
func TestShutdownIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGround(t)
		g.truth.channel(acme, "c", "bot")
		g.truth.start(acme, "bot", "r1")
		g.run(func(o *Options) { o.StepTimeout, o.Drain = time.Hour, 2*time.Second })
		g.sync(func() { g.truth.onWrite = func(ctx context.Context, _ string) { <-ctx.Done() } })
		g.ref(g.truth.post("c", "ada", "bot"))
		begun := time.Now()
		if err := g.stop(); err != nil {
			t.Fatal(err)
		}
		if d := time.Since(begun); d != 2*time.Second {
			t.Errorf("stopped after %v, want the bound", d)
		}
	})
}

// Lessons B40: a worker whose loop hangs is told of, once, so that its process exits and its lease ends.
func TestWatchdog(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGround(t)
		g.truth.channel(acme, "c", "bot")
		g.truth.start(acme, "bot", "r1")
		told := make(chan string, 2)
		g.run(func(o *Options) { o.StallAfter, o.Stall = 15*time.Second, func(what string) { told <- what } })
		pass(10 * time.Minute)
		if len(told) != 0 {
			t.Errorf("an idle worker is said to hang: %s", <-told)
		}
		hang := make(chan struct{})
		g.sync(func() { g.truth.onOwed = func() { <-hang } })
		g.ref(g.truth.post("c", "ada"))
		pass(20 * time.Second)
		if len(told) != 1 {
			t.Error("nobody was told of a worker that hangs")
		}
		close(hang)
	})
}

// Holds REQ-046, REQ-074: references, settles, states, ticks and reconnects at once, on real goroutines; each message arrives once.
func TestConcurrentTriggers(t *testing.T) {
	t.Parallel()
	g := &ground{t: t, truth: newTruth(), shelf: &shelf{}}
	g.truth.tenant(acme, 1)
	g.box = newBox(g.truth)
	g.fresh()
	g.truth.channel(acme, "c", "bot", "author")
	g.truth.channel(acme, "d", "bot")
	bot := g.truth.start(acme, "bot", "r1")
	c, err := NewConsumer(g.truth, g.box, g.truth, g.lane, slog.New(slog.DiscardHandler), Options{
		Stream: "main", Writes: g.truth, Leases: g.rights, DeadLetters: g.shelf, OpenProof: unsigned,
		FloorTick: 20 * time.Millisecond, Parts: 2, Placements: 5 * time.Millisecond, AckWait: 20 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ran := make(chan error, 1)
	go func() { ran <- c.Run(ctx) }()
	for g.listening() == nil {
		c.dirty.depth()
	}
	const posts = 150
	var crew sync.WaitGroup
	for i := range 3 {
		crew.Go(func() {
			for n := range posts / 3 {
				var m store.Message
				switch {
				case i == 0:
					m = g.truth.settle(g.truth.hold("c", "author").ID)
				case n%5 == 0:
					m = g.truth.post("d", "ada", "bot")
				default:
					m = g.truth.post("d", "ada")
				}
				if err := c.onEventRef(ctx, fabric.EventRef{Tenant: string(acme), Kind: fabric.KindMessagePosted, RowID: m.ID}); err != nil {
					t.Error(err)
				}
				c.onReconnect()
				c.onState(ctx, addr("r1"), &compassv1.RunnerState{TenantId: string(acme), SessionId: bot.Session, Generation: bot.Generation,
					Channels: []*compassv1.ChannelState{{ChannelId: "d", Held: 0, Refused: n%7 == 0}}})
			}
		})
	}
	crew.Wait()
	deadline := time.After(20 * time.Second)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for len(g.box.of(bot.Session)) < posts {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("%d of %d arrived", len(g.box.of(bot.Session)), posts)
		}
	}
	cancel()
	if err := <-ran; err != nil {
		t.Error(err)
	}
	seen := map[string]bool{}
	for _, id := range g.box.of(bot.Session) {
		if seen[id] {
			t.Errorf("%s arrived twice", id)
		}
		seen[id] = true
	}
}

func (g *ground) listening() fabric.Handler {
	g.lane.mu.Lock()
	defer g.lane.mu.Unlock()
	return g.lane.handle
}

// fakeLease is one database's lease whose answers a test decides.
type fakeLease struct {
	mu       sync.Mutex
	db       int
	fence    store.Fence
	held     bool
	renewErr error
	acquire  error
	acquired int
	released bool
}

func (l *fakeLease) Database() int { return l.db }
func (l *fakeLease) Fence() (store.Fence, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.fence, l.held
}
func (l *fakeLease) Careful() bool { return false }
func (l *fakeLease) Acquire(context.Context, int64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.acquire != nil {
		return l.acquire
	}
	l.held = true
	l.acquired++
	l.fence.Epoch++
	return nil
}

func (l *fakeLease) Renew(context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if errors.Is(l.renewErr, store.ErrLeaseLost) {
		l.held = false
	}
	return l.renewErr
}

func (l *fakeLease) Raise(context.Context, int64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held = false
	return store.ErrLeaseLost
}

func (l *fakeLease) Release(context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held, l.released = false, true
	return nil
}

func (l *fakeLease) set(change func(*fakeLease)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change(l)
}

// Holds REQ-209 (the fence's life): database 0's lease is the process's, another's only its tenants'.
func TestLeaseSet(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		zero, one := &fakeLease{db: 0, acquire: store.HeldError{Remaining: 3 * time.Second}}, &fakeLease{db: 1, acquire: store.ErrUnavailable}
		set, err := NewLeaseSet(LeaseOptions{Leases: []Lease{zero, one}, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			<-time.After(3 * time.Second)
			zero.set(func(l *fakeLease) { l.acquire = nil })
		}()
		begun := time.Now()
		if err := set.Acquire(t.Context()); err != nil {
			t.Fatal(err)
		}
		if d := time.Since(begun); d < 3*time.Second || d > 4*time.Second {
			t.Errorf("held after %v, want soon after it was free", d)
		}
		if got := set.Held(); !slices.Equal(got, []int{0}) {
			t.Errorf("held %v: a database that is away does not stop the others", got)
		}
		ran := make(chan error, 1)
		go func() { ran <- set.Run(t.Context()) }()
		one.set(func(l *fakeLease) { l.acquire = nil })
		if db := <-set.Regained(); db != 1 {
			t.Errorf("regained %d", db)
		}
		one.set(func(l *fakeLease) { l.renewErr = store.ErrLeaseLost })
		pass(2500 * time.Millisecond)
		one.set(func(l *fakeLease) { l.renewErr = nil })
		if db := <-set.Regained(); db != 1 {
			t.Errorf("regained %d", db)
		}
		zero.set(func(l *fakeLease) { l.renewErr = store.ErrUnavailable })
		pass(time.Minute)
		select {
		case err := <-ran:
			t.Fatalf("gave up before the deadline: %v", err)
		default:
		}
		begun = time.Now()
		if err := set.Raise(t.Context(), 0, 7); !errors.Is(err, store.ErrLeaseLost) {
			t.Error(err)
		}
		if err := <-ran; !errors.Is(err, store.ErrLeaseLost) {
			t.Errorf("ran to %v, want ErrLeaseLost", err)
		}
		if d := time.Since(begun); d > 2*time.Second {
			t.Errorf("noticed after %v", d)
		}
		if err := set.Release(t.Context()); err != nil || !zero.released || !one.released {
			t.Errorf("released %v, %v (%v)", zero.released, one.released, err)
		}
	})
}

// What waiting does not cure ends the boot: a lease behind a pooler. What may pass is waited for.
func TestAcquireWaitsForWhatMayPass(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		zero := &fakeLease{db: 0, acquire: store.ErrUnavailable}
		set, err := NewLeaseSet(LeaseOptions{Leases: []Lease{zero}, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		pooled := errors.New("a pooler answers here")
		done := make(chan error, 1)
		go func() { done <- set.Acquire(t.Context()) }()
		pass(time.Minute)
		zero.set(func(l *fakeLease) { l.acquire = store.ErrTimeout })
		pass(time.Minute)
		select {
		case err := <-done:
			t.Fatalf("did not wait: %v", err)
		default:
		}
		zero.set(func(l *fakeLease) { l.acquire = pooled })
		if err := <-done; !errors.Is(err, pooled) {
			t.Errorf("ended with %v", err)
		}
	})
}

// hangingLease is that of a database that takes connections and answers nothing.
type hangingLease struct{ *fakeLease }

func (hangingLease) Acquire(ctx context.Context, _ int64) error {
	<-ctx.Done()
	return ctx.Err()
}

// Holds REQ-239: databases of tenants that hang hold a start up for less than a renewal of database 0's lease, however many.
func TestAcquireWaitsForNoOtherDatabase(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		leases := []Lease{&fakeLease{db: 0}}
		for id := range 5 {
			leases = append(leases, hangingLease{&fakeLease{db: id + 1}})
		}
		set, err := NewLeaseSet(LeaseOptions{Leases: leases, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		if err := set.Acquire(t.Context()); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took >= store.DefaultLeaseRenew {
			t.Errorf("%v, while the lease of database 0 is renewed every %v", took, store.DefaultLeaseRenew)
		}
	})
}
