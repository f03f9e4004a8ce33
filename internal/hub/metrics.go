package hub

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"

	"github.com/rigelbuild/compass-operator/internal/telemetry"
)

// Names of what a hub and an expirer measure. No attribute names a tenant, a Runner or a session: their number has no
// bound.
const (
	MetricEnrolments  = "compass.hub.enrolments"      // by result; "stolen" is an alarm (R4)
	MetricHints       = "compass.hub.hints"           // hints to Runners, by result
	MetricHealed      = "compass.hub.healed"          // sessions and turns that a heartbeat ended: lost edges
	MetricAcksRefused = "compass.hub.acks_refused"    // positions beyond a channel's head: a Runner's fault
	MetricExpired     = "compass.hub.runners_expired" // leases that ended
	MetricUnhealthy   = "compass.hub.expiry_waits"    // sweeps put off until health was observed for one lease
)

type instruments struct {
	enrolments, hints, healed, acksRefused, expired, unhealthy metric.Int64Counter
	hops                                                       telemetry.Hops
}

func newInstruments(provider metric.MeterProvider) (*instruments, error) {
	if provider == nil {
		provider = noop.NewMeterProvider()
	}
	meter := provider.Meter("github.com/rigelbuild/compass-operator/internal/hub")
	in := &instruments{}
	var bad []error
	for _, c := range []struct {
		into *metric.Int64Counter
		name string
	}{
		{&in.enrolments, MetricEnrolments}, {&in.hints, MetricHints}, {&in.healed, MetricHealed},
		{&in.acksRefused, MetricAcksRefused}, {&in.expired, MetricExpired}, {&in.unhealthy, MetricUnhealthy},
	} {
		counter, err := meter.Int64Counter(c.name)
		*c.into, bad = counter, append(bad, err)
	}
	hops, err := telemetry.NewHops(provider)
	in.hops = hops
	return in, errors.Join(append(bad, err)...)
}

// count adds one, under a result.
func count(ctx context.Context, c metric.Int64Counter, result string) {
	c.Add(ctx, 1, metric.WithAttributes(attribute.String("result", result)))
}
