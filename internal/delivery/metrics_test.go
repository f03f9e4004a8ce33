package delivery

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/rigelbuild/compass-operator/internal/store"
)

// counted is a backlog that a test decides.
type counted struct{ store.Backlog }

func (c counted) StreamBacklog(_ context.Context, q store.SweepQuery) (store.Backlog, error) {
	if q.Part != 0 {
		return store.Backlog{}, nil
	}
	return c.Backlog, nil
}

// What a person on call looks at: the worker's figures, under the names that the dashboards use, and no label that grows
// with tenants, channels or sessions.
func TestMetrics(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		reader := metric.NewManualReader()
		provider := metric.NewMeterProvider(metric.WithReader(reader))
		g := newGround(t)
		g.truth.channel(acme, "c", "bot")
		g.truth.start(acme, "bot", "r1")
		g.box.ackEach = false
		g.run(func(o *Options) {
			o.Meter = provider
			o.Backlog = counted{store.Backlog{Owed: 7, Pending: 2, Held: 3, OldestHeldMs: 4500, DeadLetters: 1}}
		})
		g.ref(g.truth.post("c", "ada"))
		pass(2*time.Minute + 30*time.Second)
		var all metricdata.ResourceMetrics
		if err := reader.Collect(t.Context(), &all); err != nil {
			t.Fatal(err)
		}
		got := map[string]float64{}
		for _, scope := range all.ScopeMetrics {
			for _, m := range scope.Metrics {
				got[m.Name] = figure(t, m)
			}
		}
		for name, want := range map[string]float64{
			// Sent once, and once more by the floor: what was taken and of which nothing was heard since is asked for.
			MetricHints: 1, MetricSent: 2, MetricInFlight: 1, MetricChains: 1, MetricEpoch: 500, MetricDirty: 0,
			MetricOwed: 7, MetricPending: 2, MetricHeld: 3, MetricOldestHeld: 4.5, MetricParked: 1,
		} {
			if v, ok := got[name]; !ok || v != want {
				t.Errorf("%s = %v (%v), want %v", name, v, ok, want)
			}
		}
		if age, ok := got[MetricTickAge]; !ok || age > 60 {
			t.Errorf("age of the tick %v (%v), want less than the half minute since", age, ok)
		}
		if got[MetricWait] == 0 || got[MetricAge] == 0 || got[MetricSweep] == 0 {
			t.Errorf("waits %v, ages %v, sweeps %v", got[MetricWait], got[MetricAge], got[MetricSweep])
		}
	})
}

// figure is a metric's sum or newest value, or how often a histogram was recorded.
func figure(t *testing.T, m metricdata.Metrics) float64 {
	t.Helper()
	total := 0.0
	attributes := 0
	switch d := m.Data.(type) {
	case metricdata.Sum[int64]:
		for _, p := range d.DataPoints {
			total, attributes = total+float64(p.Value), max(attributes, p.Attributes.Len())
		}
	case metricdata.Gauge[int64]:
		for _, p := range d.DataPoints {
			total, attributes = total+float64(p.Value), max(attributes, p.Attributes.Len())
		}
	case metricdata.Gauge[float64]:
		for _, p := range d.DataPoints {
			total, attributes = total+p.Value, max(attributes, p.Attributes.Len())
		}
	case metricdata.Histogram[float64]:
		for _, p := range d.DataPoints {
			total, attributes = total+float64(p.Count), max(attributes, p.Attributes.Len())
		}
	default:
		t.Errorf("%s has an unknown form", m.Name)
	}
	if attributes > 1 {
		t.Errorf("%s has %d attributes", m.Name, attributes)
	}
	return total
}
