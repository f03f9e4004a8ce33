package sim_test

import (
	"context"
	"time"

	"github.com/rigelbuild/compass-operator/internal/store"
	"github.com/rigelbuild/compass-operator/internal/store/storetwin"
)

// move lets a tenant be wanted by the other stream. From its first move on it has an operator, which does again what a
// failover forgot.
func (w *world) move() {
	t := w.tenants[w.s.rng.IntN(len(w.tenants))]
	for _, in := range w.pods {
		if t.wanted.Load() != in.stream && !in.gone {
			w.moveTo(t, in.stream)
			return
		}
	}
}

func (w *world) moveTo(t *tenant, stream string) {
	t.wanted.Store(stream)
	if t.moves {
		return
	}
	t.moves = true
	c := w.db.Client(w.people)
	r := w.random("operator", string(t.id))
	w.people.spawn(func(ctx context.Context) {
		for ctx.Err() == nil {
			try, cancel := context.WithTimeout(ctx, 5*time.Second)
			stream := w.operate(try, c, t)
			cancel()
			if stream != "" { // Servers hear of it a little later
				sleep(ctx, time.Duration(r.Int64N(int64(2*time.Second))))
				t.carried.Store(stream)
			}
			sleep(ctx, time.Second)
		}
	})
}

// operate does what the reconciler of a DeliveryStream does for one tenant (MoveBound). It returns who carries it now.
func (w *world) operate(ctx context.Context, c *storetwin.Client, t *tenant) (stream string) {
	wanted, _ := t.wanted.Load().(string)
	p, err := c.Placement(store.WithTenant(ctx, t.id))
	if err != nil {
		return ""
	}
	if p.Stream == wanted && !p.Draining {
		return p.Stream
	}
	if !p.Draining && c.DrainTenant(ctx, t.id, p.Stream) != nil {
		return p.Stream
	}
	lease, err := c.ReadLease(ctx, p.Stream, 0)
	if err == nil && (!lease.Held && !w.controls.NoBound || lease.Drained[t.id] >= p.Claim) && c.PlaceTenant(ctx, t.id, p.Stream, wanted) == nil {
		w.s.say("MOVED ", string(t.id), " to ", wanted)
		return wanted
	}
	return p.Stream
}
