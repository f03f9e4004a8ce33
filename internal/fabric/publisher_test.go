package fabric_test

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/rigelbuild/compass-operator/internal/fabric"
	"github.com/rigelbuild/compass-operator/internal/fabric/fabrictest"
	"github.com/rigelbuild/compass-operator/internal/telemetry"
)

// gate is a publish side that works, fails or hangs as told.
type gate struct {
	fabric.EventFabric
	mu    sync.Mutex
	err   error
	hang  bool
	tries int
	sent  []fabric.EventRef
}

func (g *gate) Publish(ctx context.Context, _ string, ref fabric.EventRef) error {
	g.mu.Lock()
	g.tries++
	err, hang := g.err, g.hang
	if err == nil && !hang {
		g.sent = append(g.sent, ref)
	}
	g.mu.Unlock()
	if hang {
		<-ctx.Done()
		return ctx.Err()
	}
	return err
}

func (g *gate) set(err error, hang bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.err, g.hang = err, hang
}

func (g *gate) counts() (tries, sent int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.tries, len(g.sent)
}

func failures(t *testing.T, r *metric.ManualReader) int64 {
	t.Helper()
	var rm metricdata.ResourceMetrics
	if err := r.Collect(context.Background(), &rm); err != nil {
		t.Fatal(err)
	}
	for _, sm := range rm.ScopeMetrics {
		for _, m := range sm.Metrics {
			if sum, ok := m.Data.(metricdata.Sum[int64]); ok && m.Name == "compass.delivery.fabric_publish_failures" {
				return sum.DataPoints[0].Value
			}
		}
	}
	return 0
}

func newPublisher(t *testing.T, g *gate, mod func(*fabric.PublisherConfig)) (*fabric.Publisher, *metric.ManualReader) {
	t.Helper()
	reader := metric.NewManualReader()
	cfg := fabric.PublisherConfig{
		Fabric: g, Logger: quietLog(), Meter: metric.NewMeterProvider(metric.WithReader(reader)),
	}
	if mod != nil {
		mod(&cfg)
	}
	p, err := fabric.NewPublisher(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return p, reader
}

// Holds REQ-012.
func TestPublishFailureMetricIsTheOneEverybodyNames(t *testing.T) {
	t.Parallel()
	if fabric.MetricPublishFailures != telemetry.FabricPublishFailures {
		t.Errorf("%q here, %q in telemetry", fabric.MetricPublishFailures, telemetry.FabricPublishFailures)
	}
}

// Holds REQ-011, REQ-019, REQ-240: a minute without NATS costs the poster nothing, and is counted.
func TestPublisherOutage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := &gate{err: fabric.ErrUnavailable}
		p, reader := newPublisher(t, g, nil)
		began := time.Now()
		const n = 500
		for i := range n {
			if err := p.Enqueue(t.Context(), fabrictest.Ref(fabrictest.TenantA, "m_"+strconv.Itoa(i))); err != nil {
				t.Fatalf("enqueue %d: %v", i, err)
			}
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("posting waited %s for a broker that is away", took)
		}
		<-time.After(time.Minute) // virtual
		if got := failures(t, reader); got != n {
			t.Errorf("counted %d failures, want %d", got, n)
		}
		g.set(nil, false)
		if err := p.Enqueue(t.Context(), fabrictest.Ref(fabrictest.TenantA, "after")); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if _, sent := g.counts(); sent != 1 {
			t.Errorf("sent %d after the outage, want 1", sent)
		}
		if err := p.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
}

// A leader election of ten seconds fails nothing.
func TestPublisherRetriesForFifteenSeconds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := &gate{err: fabric.ErrUnavailable}
		p, reader := newPublisher(t, g, nil)
		if err := p.Enqueue(t.Context(), fabrictest.Ref(fabrictest.TenantA, "m_1")); err != nil {
			t.Fatal(err)
		}
		<-time.After(10 * time.Second)
		g.set(nil, false)
		<-time.After(3 * time.Second)
		tries, sent := g.counts()
		if sent != 1 || failures(t, reader) != 0 {
			t.Errorf("sent %d, failed %d, want 1 and 0", sent, failures(t, reader))
		}
		if tries > 20 {
			t.Errorf("%d tries in 13 s: the pauses must grow", tries)
		}
		if err := p.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
}

func TestPublisherOverflowIsAFailure(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := &gate{hang: true}
		p, reader := newPublisher(t, g, func(c *fabric.PublisherConfig) { c.Queue, c.Workers = 2, 1 })
		var refused int64
		for i := range 6 {
			err := p.Enqueue(t.Context(), fabrictest.Ref(fabrictest.TenantA, "m_"+strconv.Itoa(i)))
			if errors.Is(err, fabric.ErrOverflow) {
				refused++
			} else if err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		if refused != 3 || failures(t, reader) != 3 { // one in the worker's hands, two waiting
			t.Errorf("refused %d and counted %d, want 3", refused, failures(t, reader))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := p.Close(ctx); err == nil {
			t.Error("Close must say that it gave references up")
		}
		if got := failures(t, reader); got != 6 {
			t.Errorf("counted %d after Close, want all 6", got)
		}
		if err := p.Enqueue(t.Context(), fabrictest.Ref(fabrictest.TenantA, "late")); !errors.Is(err, fabric.ErrClosed) {
			t.Errorf("after Close: got %v, want ErrClosed", err)
		}
	})
}

// A tenant that no stream carries is not published and not a failure.
func TestPublisherNoStream(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := &gate{err: fabric.ErrNoStream}
		p, reader := newPublisher(t, g, nil)
		if err := p.Enqueue(t.Context(), fabrictest.Ref(fabrictest.TenantA, "m_1")); err != nil {
			t.Fatal(err)
		}
		if err := p.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if tries, _ := g.counts(); tries != 1 || failures(t, reader) != 0 {
			t.Errorf("tried %d times and counted %d, want once and none", tries, failures(t, reader))
		}
		bad := fabrictest.Ref(fabrictest.TenantA, "m.1")
		if err := p.Enqueue(t.Context(), bad); !errors.Is(err, fabric.ErrBadRef) {
			t.Errorf("bad reference: got %v, want ErrBadRef", err)
		}
	})
}
