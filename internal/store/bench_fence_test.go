package store

import (
	"context"
	"testing"
	"time"

	"github.com/rigelbuild/compass-operator/internal/store/storetest"
)

// fenceGoal is what the fence may take of the throughput of the smallest batch.
const fenceGoal = 0.20

// BenchmarkStoreFence says what assert_writer costs a worker: the smallest batch with it and without it, in turns. More than a
// fifth of the throughput, or a round trip, fails it.
func BenchmarkStoreFence(b *testing.B) {
	const ops = 300
	db := newBenchStore(b)
	super := storetest.Connect(b, db.Super)
	if _, err := super.Exec(b.Context(), `insert into compass.placements (tenant_id, stream) select t.id, 'main' from compass.tenants t
		on conflict (tenant_id) do update set stream = 'main'`); err != nil {
		b.Fatal(err)
	}
	proxy := storetest.NewProxy(b, db.App, 0)
	direct := benchWriter(b, db.App, db)
	ctx := WithTenant(b.Context(), tenantA)
	forms := func(f *benchFence) []func(context.Context) error {
		return []func(context.Context) error{
			func(ctx context.Context) error { return f.open.do(ctx, rename("ada")) },
			func(ctx context.Context) error { return f.store.writerDo(ctx, f.fence, rename("ada")) },
		}
	}
	both := forms(direct)
	var ratios []float64
	for round := range benchRounds + 1 {
		var times [2][]time.Duration
		for range ops {
			for i, form := range both {
				begun := time.Now()
				if err := form(ctx); err != nil {
					b.Fatal(err)
				}
				times[i] = append(times[i], time.Since(begun))
			}
		}
		if round > 0 { // the first is for the plans
			ratios = append(ratios, float64(median(times[1]))/float64(median(times[0])))
		}
	}
	cost := 1 - 1/median(ratios)
	through := benchWriter(b, proxy.Through(b, db.App), db)
	var trips []int
	for _, form := range forms(through) {
		for range 20 {
			proxy.Reset()
			if err := form(ctx); err != nil {
				b.Fatal(err)
			}
		}
		trips = append(trips, proxy.Trips())
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(cost, "of-throughput")
	b.ReportMetric(float64(trips[1]-trips[0]), "round-trips")
	b.Logf("| fence, smallest batch | %.2f of the throughput | goal %.2f |", cost, fenceGoal)
	if cost > fenceGoal {
		b.Errorf("the fence costs %.2f of the throughput, goal %.2f", cost, fenceGoal)
	}
	if trips[0] != trips[1] {
		b.Errorf("with the fence a batch is %d round trips and without it %d", trips[1], trips[0])
	}
}

// benchFence is a store as a worker has it, with the lease, and one as a Server has.
type benchFence struct {
	store, open *Store
	fence       Fence
}

func benchWriter(b *testing.B, app string, db *storetest.Database) *benchFence {
	b.Helper()
	open := func(c Config) *Store {
		s, err := Open(b.Context(), c)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(s.Close)
		return s
	}
	f := &benchFence{
		open:  open(Config{Databases: []Database{{App: app}}, MaxConns: 1}),
		store: open(Config{Databases: []Database{{App: app, System: db.System, Direct: db.Direct}}, MaxConns: 1, Fenced: true}),
	}
	lease, err := f.store.NewLease(LeaseOptions{Stream: "main", Holder: "bench", TTL: time.Hour})
	if err != nil {
		b.Fatal(err)
	}
	if err := lease.Acquire(b.Context(), 0); err != nil { // the same pod's: each takes it from the one before
		b.Fatal(err)
	}
	f.fence, _ = lease.Fence()
	return f
}
