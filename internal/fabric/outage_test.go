package fabric_test

import (
	"flag"
	"slices"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.opentelemetry.io/otel/sdk/metric"

	"github.com/rigelbuild/compass-operator/internal/fabric"
	"github.com/rigelbuild/compass-operator/internal/fabric/fabrictest"
)

// How long the broker is away: a moment here, a minute and five in make chaos.
var outageFor = flag.Duration("fabric.outage", 2*time.Second, "how long the broker is away")

// Holds REQ-011, REQ-012, REQ-019, REQ-030, REQ-240. Lessons B23, B32, U23: with the default settings and a real broker that is away,
// posters do not wait, what is given up is counted, nothing is buffered behind their back, and the same process recovers
// without help and asks once for the sweep that finds the rest.
func TestOutage(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	cfg := b.config(t, short())
	cfg.Link, cfg.PublishTimeout = fabric.Link{}, 0
	f := open(t, cfg)
	reader := metric.NewManualReader()
	p, err := fabric.NewPublisher(fabric.PublisherConfig{
		Fabric: f, Logger: quietLog(), Meter: metric.NewMeterProvider(metric.WithReader(reader)), Budget: 5 * time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	const n = 500
	post := func() (waits []time.Duration) {
		for i := range n {
			began := time.Now()
			if err := p.Enqueue(t.Context(), fabrictest.Ref(fabrictest.TenantA, "m_"+strconv.Itoa(i))); err != nil {
				t.Fatal(err)
			}
			waits = append(waits, time.Since(began))
		}
		slices.Sort(waits)
		return waits
	}
	var r rows
	if _, err := f.SubscribeKind(t.Context(), fabric.KindMessagePosted, r.take); err != nil {
		t.Fatal(err)
	}
	arrives(t, f, &r, "before")
	var sweeps atomic.Int64
	if _, err := f.OnReconnect(func() {
		sweeps.Add(1)
		post() // what a sweep would find: everything that was committed meanwhile
	}); err != nil {
		t.Fatal(err)
	}
	b.stop()
	over := time.NewTimer(*outageFor)
	fabrictest.Eventually(t, "it is noticed", func() bool { return !f.Connected() })
	used, began := processTime(t), time.Now()
	waits := post()
	fabrictest.EventuallyWithin(t, *outageFor+time.Minute, "all are given up", func() bool { return failures(t, reader) == n })
	<-over.C
	share := float64(processTime(t)-used) / float64(time.Since(began))
	if r.all(1) {
		t.Error("something arrived while the broker was away")
	}
	b.start(t)
	fabrictest.EventuallyWithin(t, 2*time.Minute, "everything arrives", func() bool { return r.all(n) })
	if sweeps.Load() != 1 || r.most() != 1 {
		t.Errorf("%d sweeps, one reference delivered %d times, want once each", sweeps.Load(), r.most())
	}
	if got := failures(t, reader); got != n {
		t.Errorf("counted %d failures, want %d", got, n)
	}
	t.Logf("away for %s: a post waited %s in the worst of %d cases, %s at the 99th percentile; %.1f %% of a processor meanwhile, other tests included",
		*outageFor, waits[n-1], n, waits[n*99/100], share*100)
	if err := p.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// processTime is what this process has used of its processors.
func processTime(tb testing.TB) time.Duration {
	tb.Helper()
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		tb.Fatal(err)
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}
