package fabric

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"

	"github.com/rigelbuild/compass-operator/internal/fabric/internal/counting"
	"github.com/rigelbuild/compass-operator/internal/telemetry"
)

// The names of every instrument of this package. None carries a tenant: that would be unbounded.
const (
	// MetricPublishFailures counts references that the publisher gave up; the name is fixed (REQ-012).
	MetricPublishFailures = telemetry.FabricPublishFailures
	MetricPublishDuration = "compass.fabric.publish.duration" // seconds of one Publish, by outcome
	MetricConsumed        = "compass.fabric.consumed"         // references taken from the queue, by outcome
	MetricCallback        = "compass.fabric.callback.duration"
	MetricOutages         = "compass.fabric.outages"
	MetricSlow            = "compass.fabric.slow_consumer"
	MetricRejected        = "compass.fabric.rejected" // messages dropped for what they claim, by what was wrong
	MetricHealed          = "compass.fabric.healed"   // streams and consumers repaired, by what was wrong
	MetricBacklog         = "compass.delivery.backlog"
	MetricOrphans         = "compass.fabric.orphans" // stored, seen by no consumer any more; must read 0
	MetricDeadLetters     = "compass.fabric.dead_letters"
)

// The outcomes of a publish.
const (
	publishStored    = "stored"
	publishDuplicate = "duplicate" // the broker had it already
	publishFailed    = "failed"
)

type metrics struct {
	failures, consumed, outages, slowed, healed, rejections metric.Int64Counter
	publishing, callbacks                                   metric.Float64Histogram
	backlog, orphans, dead                                  metric.Int64Gauge
	hops                                                    telemetry.Hops
	outcomes                                                map[string]metric.MeasurementOption
}

func newMetrics(p metric.MeterProvider) (*metrics, error) {
	if p == nil {
		p = noop.NewMeterProvider()
	}
	meter := p.Meter("github.com/rigelbuild/compass-operator/internal/fabric")
	m := metrics{outcomes: map[string]metric.MeasurementOption{}}
	for _, o := range []string{
		publishStored, publishDuplicate, publishFailed,
		string(counting.Ack), string(counting.Retry), string(counting.Nak), string(counting.Park),
	} {
		m.outcomes[o] = metric.WithAttributeSet(attribute.NewSet(attribute.String("outcome", o)))
	}
	var errs []error
	counter := func(to *metric.Int64Counter, name, about string) {
		c, err := meter.Int64Counter(name, metric.WithDescription(about))
		*to, errs = c, append(errs, err)
	}
	histogram := func(to *metric.Float64Histogram, name, about string) {
		h, err := meter.Float64Histogram(name, metric.WithUnit("s"), metric.WithDescription(about))
		*to, errs = h, append(errs, err)
	}
	gauge := func(to *metric.Int64Gauge, name, about string) {
		g, err := meter.Int64Gauge(name, metric.WithDescription(about))
		*to, errs = g, append(errs, err)
	}
	counter(&m.failures, MetricPublishFailures, "References given up by the publisher; the floor tick delivers their messages.")
	counter(&m.consumed, MetricConsumed, "References taken from the queue, by outcome.")
	counter(&m.outages, MetricOutages, "Times the connection to NATS was lost.")
	counter(&m.slowed, MetricSlow, "Times messages were dropped because a listener was too slow.")
	counter(&m.rejections, MetricRejected, "Messages dropped for what they claim to be, by what was wrong.")
	counter(&m.healed, MetricHealed, "Streams and consumers repaired, by what was wrong.")
	histogram(&m.publishing, MetricPublishDuration, "Time of one publish to the queue, by outcome.")
	histogram(&m.callbacks, MetricCallback, "Time of one callback of the queue.")
	gauge(&m.backlog, MetricBacklog, "References stored and not yet acknowledged, by state.")
	gauge(&m.orphans, MetricOrphans, "References stored that no consumer will see again; must be 0.")
	gauge(&m.dead, MetricDeadLetters, "References in the dead-letter stream.")
	hops, err := telemetry.NewHops(p)
	m.hops = hops
	if err := errors.Join(append(errs, err)...); err != nil {
		return nil, fmt.Errorf("make instruments: %w", err)
	}
	m.failures.Add(context.Background(), 0) // an alarm needs the figure before the first failure
	return &m, nil
}

// The methods below record without a caller's context: the instruments need none, and these are told from handlers that
// have none.

func (m *metrics) outage() { m.outages.Add(context.Background(), 1) }
func (m *metrics) slow()   { m.slowed.Add(context.Background(), 1) }

func (m *metrics) heal(what string) {
	m.healed.Add(context.Background(), 1, metric.WithAttributes(attribute.String("what", what)))
}

func (m *metrics) reject(why string) {
	m.rejections.Add(context.Background(), 1, metric.WithAttributes(attribute.String("why", why)))
}

func (m *metrics) published(ctx context.Context, took time.Duration, outcome string) {
	m.publishing.Record(ctx, took.Seconds(), m.outcomes[outcome])
}

func (m *metrics) took(ctx context.Context, outcome counting.Outcome) {
	m.consumed.Add(ctx, 1, m.outcomes[string(outcome)])
}
