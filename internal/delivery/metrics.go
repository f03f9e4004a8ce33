package delivery

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/rigelbuild/compass-operator/internal/telemetry"
)

// Names of what a worker measures. No attribute names a tenant, a channel or a session: their number has no bound.
const (
	MetricHints       = "compass.delivery.hints"            // references taken, by result
	MetricWait        = "compass.delivery.wait.seconds"     // from marked to looked at, by kind
	MetricAge         = "compass.delivery.age.seconds"      // from posted to sent
	MetricSent        = "compass.delivery.sent"             // commands sent, by kind
	MetricUnreached   = "compass.delivery.unreached"        // sends that reached nobody
	MetricRewinds     = "compass.delivery.rewinds"          // gates that went back to what the Runner holds
	MetricRefused     = "compass.delivery.fence.refused"    // commands refused for their fence, by proof
	MetricRejected    = "compass.delivery.rejections"       // messages rejected by name
	MetricDeadLetters = "compass.delivery.dead_letters"     // rows set aside, by reason
	MetricUnannounced = "compass.delivery.unannounced"      // dead letters whose announcement was given up
	MetricMissing     = "compass.delivery.missing_rows"     // references and listed rows without a row
	MetricMissed      = "compass.delivery.missed_mentions"  // mentions that only the net found: always a fault of ours
	MetricFailures    = "compass.delivery.failures"         // looks that failed, by what was looked at
	MetricWakes       = "compass.delivery.wakes"            // sessions started for what is owed, by result
	MetricSweep       = "compass.delivery.sweep.seconds"    // cost of a sweep, by trigger
	MetricSwept       = "compass.delivery.sweep.found"      // what sweeps marked, by kind
	MetricTickAge     = "compass.delivery.tick.age.seconds" // since everything was last visited
	MetricDirty       = "compass.delivery.dirty"            // items that wait
	MetricInFlight    = "compass.delivery.in_flight"        // links that are not acknowledged
	MetricChains      = "compass.delivery.chains"           // chains that are remembered
	MetricEpoch       = "compass.delivery.fence.epoch"      // of the lease, by database
)

// instruments are the worker's measurements.
type instruments struct {
	hints, sent, unreached, rewinds, refused, rejected, deadLetters, unannounced metric.Int64Counter
	missing, missed, failures, wakes, swept                                      metric.Int64Counter
	wait, age, sweep                                                             metric.Float64Histogram
	hops                                                                         telemetry.Hops

	inFlight, chains atomic.Int64
	lastTick         atomic.Int64 // Unix nanoseconds
}

func newInstruments(provider metric.MeterProvider) (*instruments, metric.Meter, error) {
	meter := provider.Meter("github.com/rigelbuild/compass-operator/internal/delivery")
	in := &instruments{}
	var bad []error
	counter := func(into *metric.Int64Counter, name string) {
		c, err := meter.Int64Counter(name)
		*into, bad = c, append(bad, err)
	}
	counter(&in.hints, MetricHints)
	counter(&in.sent, MetricSent)
	counter(&in.unreached, MetricUnreached)
	counter(&in.rewinds, MetricRewinds)
	counter(&in.refused, MetricRefused)
	counter(&in.rejected, MetricRejected)
	counter(&in.deadLetters, MetricDeadLetters)
	counter(&in.unannounced, MetricUnannounced)
	counter(&in.missing, MetricMissing)
	counter(&in.missed, MetricMissed)
	counter(&in.failures, MetricFailures)
	counter(&in.wakes, MetricWakes)
	counter(&in.swept, MetricSwept)
	histogram := func(into *metric.Float64Histogram, name string) {
		h, err := meter.Float64Histogram(name, metric.WithUnit("s"),
			metric.WithExplicitBucketBoundaries(.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 120))
		*into, bad = h, append(bad, err)
	}
	histogram(&in.wait, MetricWait)
	histogram(&in.age, MetricAge)
	histogram(&in.sweep, MetricSweep)
	hops, err := telemetry.NewHops(provider)
	in.hops = hops
	return in, meter, errors.Join(append(bad, err)...)
}

func count(ctx context.Context, c metric.Int64Counter, n int, key, value string) {
	if n > 0 {
		c.Add(ctx, int64(n), metric.WithAttributes(attribute.String(key, value)))
	}
}

// observe registers what is asked for when it is collected.
func (c *Consumer) observe(meter metric.Meter) (metric.Registration, error) {
	var bad []error
	gauge := func(name string) metric.Int64ObservableGauge {
		g, err := meter.Int64ObservableGauge(name)
		bad = append(bad, err)
		return g
	}
	dirty, flight, chains, epoch := gauge(MetricDirty), gauge(MetricInFlight), gauge(MetricChains), gauge(MetricEpoch)
	seconds := func(name string) metric.Float64ObservableGauge {
		g, err := meter.Float64ObservableGauge(name, metric.WithUnit("s"))
		bad = append(bad, err)
		return g
	}
	age := seconds(MetricTickAge)
	back := backlogGauges{owed: gauge(MetricOwed), pending: gauge(MetricPending), held: gauge(MetricHeld),
		parked: gauge(MetricParked), oldest: seconds(MetricOldestHeld)}
	if err := errors.Join(bad...); err != nil {
		return nil, err
	}
	return meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		o.ObserveInt64(dirty, int64(c.dirty.depth()))
		o.ObserveInt64(flight, c.in.inFlight.Load())
		o.ObserveInt64(chains, c.in.chains.Load())
		if last := c.in.lastTick.Load(); last > 0 {
			o.ObserveFloat64(age, c.clock.Now().Sub(time.Unix(0, last)).Seconds())
		}
		c.observeBacklog(o, back)
		for _, db := range c.leases.Held() {
			if fence, ok := c.leases.Fence(db); ok {
				o.ObserveInt64(epoch, fence.Epoch, metric.WithAttributes(attribute.Int("database", db)))
			}
		}
		return nil
	}, dirty, flight, chains, epoch, age, back.owed, back.pending, back.held, back.parked, back.oldest)
}
