package telemetry

import (
	"context"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
)

// Hops records HopDuration. Every package that sees a hop of a message shares it, so that one histogram shows the whole way.
type Hops struct {
	seconds metric.Float64Histogram
	hops    map[string]metric.MeasurementOption
}

// NewHops makes the histogram; a nil provider records nothing.
func NewHops(provider metric.MeterProvider) (Hops, error) {
	if provider == nil {
		provider = noop.NewMeterProvider()
	}
	seconds, err := provider.Meter(Scope).Float64Histogram(HopDuration, metric.WithUnit("s"),
		metric.WithDescription("Time that one hop of a message's way took."))
	if err != nil {
		return Hops{}, fmt.Errorf("make histogram of hops: %w", err)
	}
	h := Hops{seconds, map[string]metric.MeasurementOption{}}
	for _, hop := range []string{HopCommit, HopPublish, HopHint, HopDrain, HopDispatch, HopTaken, HopAck} {
		h.hops[hop] = metric.WithAttributeSet(attribute.NewSet(attribute.String(AttrHop, hop)))
	}
	return h, nil
}

// Took records one hop, one of the Hop constants. A duration below zero, which two clocks can make, counts as zero.
func (h Hops) Took(ctx context.Context, hop string, d time.Duration) {
	h.seconds.Record(ctx, max(d, 0).Seconds(), h.hops[hop])
}
