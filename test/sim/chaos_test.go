package sim_test

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/rigelbuild/compass-operator/internal/store"
)

// chaos is how long faults come, calm how long afterwards everything may take: sessions that expire, leases of workers that
// said no goodbye, and one tick.
const (
	chaos = 12 * time.Second
	calm  = 2*runnerLease + 2*floorTick + 4*time.Second + 2*store.DefaultLeaseTTL
)

// blow is one thing that goes wrong. It returns at once.
type blow struct {
	name string
	do   func(w *world)
}

func blows() []blow {
	return []blow{
		{"kill worker", func(w *world) { w.killWorker() }},
		{"pause worker", func(w *world) { w.pauseWorker() }},
		{"kill server", func(w *world) { w.killServer() }},
		{"pause server", func(w *world) {
			if s := w.serving[w.s.rng.IntN(servers)]; s != nil {
				s.paused = time.Now().Add(w.s.between(time.Second, 8*time.Second))
			}
		}},
		{"kill runner", func(w *world) { w.killRunner() }},
		{"cut runner", func(w *world) {
			if r := w.hosting[w.s.rng.IntN(runners)]; r != nil {
				r.cut = time.Now().Add(w.s.between(time.Second, 9*time.Second))
			}
		}},
		{"postgres away", func(w *world) {
			w.db.GoAway()
			w.later(w.s.between(500*time.Millisecond, 7*time.Second), "postgres is back", w.db.ComeBack)
		}},
		{"nats away", func(w *world) {
			if w.natsAway.Load() {
				return
			}
			back := w.broker.GoAway()
			w.natsAway.Store(true)
			w.later(w.s.between(500*time.Millisecond, 7*time.Second), "nats is back", func() { w.natsAway.Store(false); back() })
		}},
		{"failover", func(w *world) {
			forgot := w.db.Failover(w.s.rng.IntN(30), -w.s.between(0, 400*time.Millisecond))
			w.forgot = time.Now()
			w.s.say(fmt.Sprint("FORGOT ", forgot))
		}},
		{"lose stream", func(w *world) { w.broker.Lose(w.somePod().stream) }},
		{"move", func(w *world) { w.move() }},
		{"suspend", func(w *world) { w.suspend() }},
		{"leave and join", func(w *world) { w.leaveAndJoin() }},
		{"poison", func(w *world) { w.plant() }},
		{"replay", func(w *world) { w.replay() }},
	}
}

// later does something when its time has come, as a step.
func (w *world) later(d time.Duration, what string, fn func()) {
	w.air.ends.Go(func() {
		if sleep(w.air.ctx, d) && w.s.park(w.air.ctx, w.air, what, flight) != dead {
			fn()
		}
	})
}

func (w *world) killWorker() {
	in := w.somePod()
	p := in.worker
	if !p.alive() {
		return
	}
	p.kill()
	w.restart(in, p, w.s.between(100*time.Millisecond, 3*time.Second))
}

// pauseWorker freezes it past its lease, while another one takes over.
func (w *world) pauseWorker() {
	in := w.somePod()
	p := in.worker
	if !p.alive() {
		return
	}
	if p.ambush = w.s.rng.IntN(2) == 0; !p.ambush {
		p.paused = time.Now().Add(w.s.between(5*time.Second, 11*time.Second))
	}
	w.startWorker(in, fmt.Sprint("pod", w.workers))
}

// suspend takes the worker of one stream away for good; its tenants are wanted by the other stream, and nobody gives the word.
func (w *world) suspend() {
	for _, in := range w.pods {
		if in.gone {
			return
		}
	}
	in := w.somePod()
	in.gone = true
	if in.worker.alive() {
		in.worker.kill()
	}
	for _, t := range w.tenants {
		if t.wanted.Load() == in.stream {
			for _, other := range w.pods {
				if other != in {
					w.moveTo(t, other.stream)
				}
			}
		}
	}
}

func (w *world) killServer() {
	i := w.s.rng.IntN(servers)
	s := w.serving[i]
	if s == nil || !s.alive() {
		return
	}
	s.kill()
	w.later(w.s.between(100*time.Millisecond, 3*time.Second), "restart server", func() { w.must(w.startServer(i)) })
}

func (w *world) killRunner() {
	i := w.s.rng.IntN(runners)
	r := w.hosting[i]
	if r == nil || !r.alive() {
		return
	}
	r.kill()
	w.later(w.s.between(100*time.Millisecond, 6*time.Second), "restart runner", func() { w.must(w.startRunner(i)) })
}

func (w *world) must(err error) {
	if err != nil {
		panic(err)
	}
}

// leaveAndJoin takes an agent out of a channel and lets it in again.
func (w *world) leaveAndJoin() {
	t := w.tenants[w.s.rng.IntN(len(w.tenants))]
	m := store.Member{Channel: t.channels[0], Account: t.agents[w.s.rng.IntN(len(t.agents))].ID, Actor: t.admin}
	pause := w.s.between(time.Millisecond, 3*time.Second)
	c := w.db.Client(w.people)
	w.people.spawn(func(ctx context.Context) {
		ctx = store.WithTenant(ctx, t.id)
		w.insist(ctx, func(ctx context.Context) error { return c.RemoveMember(ctx, m) })
		sleep(ctx, pause)
		w.insist(ctx, func(ctx context.Context) error { return c.AddMember(ctx, m) })
	})
}

// insist repeats a call until it works.
func (w *world) insist(ctx context.Context, call func(ctx context.Context) error) {
	for ctx.Err() == nil {
		try, cancel := context.WithTimeout(ctx, 5*time.Second)
		err := call(try)
		cancel()
		if err == nil || !sleep(ctx, 300*time.Millisecond) {
			return
		}
	}
}

// plant makes a person's newest message one that kills whoever reads it.
func (w *world) plant() {
	h := w.db.History()
	for _, m := range slices.Backward(h.Messages) {
		if !m.Held() {
			w.poison[m.ID] = true
			return
		}
	}
}

// replay gives dead letters another chance; nobody dies of them any more.
func (w *world) replay() {
	if len(w.poison) == 0 {
		return
	}
	for _, t := range w.tenants {
		c := w.db.Client(w.people)
		w.people.spawn(func(ctx context.Context) {
			w.insist(store.WithTenant(ctx, t.id), func(ctx context.Context) error {
				_, err := c.ReplayDeadLetters(ctx, store.DeadLetterFilter{}, "person", false)
				return err
			})
		})
	}
}
