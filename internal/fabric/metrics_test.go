package fabric_test

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/rigelbuild/compass-operator/internal/fabric"
	"github.com/rigelbuild/compass-operator/internal/fabric/fabrictest"
)

// gauge is the last value of an instrument for the attribute state, if state is not empty; ok is false before the first.
func gauge(t *testing.T, r *metric.ManualReader, name, state string) (value int64, ok bool) {
	t.Helper()
	var rm metricdata.ResourceMetrics
	if err := r.Collect(context.Background(), &rm); err != nil {
		t.Fatal(err)
	}
	for _, sm := range rm.ScopeMetrics {
		for _, m := range sm.Metrics {
			g, isGauge := m.Data.(metricdata.Gauge[int64])
			if !isGauge || m.Name != name {
				continue
			}
			for _, p := range g.DataPoints {
				if got, _ := p.Attributes.Value("state"); state == "" || got.AsString() == state {
					return p.Value, true
				}
			}
		}
	}
	return 0, false
}

// Holds REQ-128 (the fabric's part): what waits, what is unanswered and what was parked are told, and nothing is orphaned.
func TestBacklogIsTold(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	cfg := b.config(t, short())
	reader := metric.NewManualReader()
	cfg.Meter = metric.NewMeterProvider(metric.WithReader(reader))
	f := open(t, cfg)
	release := make(chan struct{})
	if _, err := f.SubscribeKind(t.Context(), fabric.KindMessagePosted, func(_ context.Context, ref fabric.EventRef) error {
		if ref.RowID == "bad" {
			return poison()
		}
		<-release
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	for _, row := range []string{"bad", "held", "m_1", "m_2"} {
		if err := publish(t, f, row); err != nil {
			t.Fatal(err)
		}
	}
	tells := func(name, state string, want int64) {
		t.Helper()
		fabrictest.Eventually(t, name+" "+state, func() bool { got, ok := gauge(t, reader, name, state); return ok && got == want })
	}
	tells(fabric.MetricBacklog, "unanswered", 1)
	tells(fabric.MetricBacklog, "pending", 2)
	tells(fabric.MetricDeadLetters, "", 1)
	close(release)
	tells(fabric.MetricBacklog, "unanswered", 0)
	tells(fabric.MetricBacklog, "pending", 0)
	tells(fabric.MetricOrphans, "", 0)
}

// The alarm of the orphan sweep must read 0. It does not where somebody gave the consumer a limit behind our back: the broker
// then drops what is exhausted out of everybody's sight (measured).
func TestOrphansAreAnAlarm(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	o := short()
	o.AckWait = 100 * time.Millisecond
	maker := open(t, b.config(t, o))
	spec := fabric.StreamSpec{Name: fabrictest.Stream, AckWait: o.AckWait}
	if _, _, err := maker.EnsureConsumer(t.Context(), spec, false); err != nil {
		t.Fatal(err)
	}
	js, err := jetstream.New(b.client(t))
	if err != nil {
		t.Fatal(err)
	}
	c, err := js.Consumer(t.Context(), "CMP_main", "deliver")
	if err != nil {
		t.Fatal(err)
	}
	limited := c.CachedInfo().Config
	limited.MaxDeliver = 1
	if c, err = js.UpdateConsumer(t.Context(), "CMP_main", limited); err != nil {
		t.Fatal(err)
	}
	if err := publish(t, maker, "m_1"); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Next(jetstream.FetchMaxWait(10 * time.Second)); err != nil { // and dies on it
		t.Fatal(err)
	}
	cfg := b.config(t, o)
	reader := metric.NewManualReader()
	cfg.Meter, cfg.Manage, cfg.Inspect = metric.NewMeterProvider(metric.WithReader(reader)), false, 50*time.Millisecond
	f := open(t, cfg)
	if _, err := f.SubscribeKind(t.Context(), fabric.KindMessagePosted, func(context.Context, fabric.EventRef) error { return nil }); err != nil {
		t.Fatal(err)
	}
	fabrictest.Eventually(t, "the alarm reads one", func() bool { n, ok := gauge(t, reader, fabric.MetricOrphans, ""); return ok && n == 1 })
}
