package store

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/rigelbuild/compass-operator/internal/store/storetest"
)

// BenchmarkStoreFence says what assert_writer costs a worker: the smallest batch with it and without it, in turns. The goal is
// a fifth of the throughput; a round trip fails it.
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
	run := func(form func(context.Context) error, n int) time.Duration {
		begun := time.Now()
		for range n {
			if err := form(ctx); err != nil {
				b.Fatal(err)
			}
		}
		return time.Since(begun)
	}
	both := forms(direct)
	var ratios []float64
	for range benchRounds {
		unfenced, with := run(both[0], ops), run(both[1], ops)
		ratios = append(ratios, float64(with)/float64(unfenced))
	}
	slices.Sort(ratios)
	cost := 1 - 1/ratios[benchRounds/2]
	through := benchWriter(b, proxy.Through(b, db.App), db)
	var trips []int
	for _, form := range forms(through) {
		run(form, 20)
		proxy.Reset()
		run(form, 1)
		trips = append(trips, proxy.Trips())
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(cost, "of-throughput")
	b.ReportMetric(float64(trips[1]-trips[0]), "round-trips")
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
		store: open(Config{Databases: []Database{{App: app, System: db.System, Direct: db.System}}, MaxConns: 1, Fenced: true}),
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
