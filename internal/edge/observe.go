package edge

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"connectrpc.com/connect"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	tracenoop "go.opentelemetry.io/otel/trace/noop"

	"github.com/rigelbuild/compass-operator/internal/telemetry"
)

// The instruments of the edge. None carries a tenant: that would be unbounded.
const (
	MetricCalls   = "compass.edge.call.duration" // seconds of a call that is no stream, by procedure and code
	MetricStreams = "compass.edge.streams"       // live streams now
)

// observer measures and traces calls.
type observer struct {
	calls   metric.Float64Histogram
	streams metric.Int64UpDownCounter
	tracer  trace.Tracer
	now     func() time.Time
}

func newObserver(o Options) (*observer, error) {
	if o.Meters == nil {
		o.Meters = metricnoop.NewMeterProvider()
	}
	if o.Tracers == nil {
		o.Tracers = tracenoop.NewTracerProvider()
	}
	meter := o.Meters.Meter(telemetry.Scope)
	calls, callsErr := meter.Float64Histogram(MetricCalls, metric.WithUnit("s"), metric.WithDescription("Time of one call, by procedure and code."),
		metric.WithExplicitBucketBoundaries(.001, .002, .005, .01, .02, .05, .1, .25, .5, 1, 2.5, 5, 10))
	streams, streamsErr := meter.Int64UpDownCounter(MetricStreams, metric.WithDescription("Live client streams."))
	if err := errors.Join(callsErr, streamsErr); err != nil {
		return nil, fmt.Errorf("make instruments: %w", err)
	}
	return &observer{calls: calls, streams: streams, tracer: o.Tracers.Tracer(telemetry.Scope), now: o.Now}, nil
}

// begin starts a span below the caller's, and returns how to end it with what came of the call.
func (o *observer) begin(ctx context.Context, procedure string, header http.Header) (context.Context, func(err error)) {
	began := o.now()
	ctx = propagation.TraceContext{}.Extract(ctx, propagation.HeaderCarrier(header))
	ctx, span := o.tracer.Start(ctx, procedure, trace.WithSpanKind(trace.SpanKindServer))
	return ctx, func(err error) {
		code := "ok"
		if err != nil {
			code = connect.CodeOf(err).String()
			span.SetStatus(codes.Error, code)
		}
		span.End()
		o.calls.Record(ctx, o.now().Sub(began).Seconds(), metric.WithAttributes(
			attribute.String("procedure", procedure), attribute.String("code", code)))
	}
}

// stream counts a live stream until the returned function is called.
func (o *observer) stream(ctx context.Context) func() {
	o.streams.Add(ctx, 1)
	return func() { o.streams.Add(context.WithoutCancel(ctx), -1) }
}
