package telemetry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	otelprom "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// Options say who tells and how much.
type Options struct {
	// Service is the name of the process, such as compass-server.
	Service string
	// Version of the binary.
	Version string
	// Level of the log: debug, info, warn or error. Default: info.
	Level string
	// Log receives the JSON lines.
	Log io.Writer
	// OTLPEndpoint is a gRPC collector, host:port; empty: traces are not sent.
	OTLPEndpoint string
}

// Telemetry is what the rest of the process is handed: there are no globals.
type Telemetry struct {
	Log        *slog.Logger
	Meters     metric.MeterProvider
	Tracers    trace.TracerProvider
	Propagator propagation.TextMapPropagator

	registry *prometheus.Registry
	stop     []func(context.Context) error
}

// Start makes the providers. It reaches nothing over the network: an absent collector never keeps a process from starting.
func Start(ctx context.Context, o Options) (*Telemetry, error) {
	var level slog.Level
	if o.Level != "" {
		if err := level.UnmarshalText([]byte(o.Level)); err != nil {
			return nil, fmt.Errorf("log level %q: %w", o.Level, err)
		}
	}
	t := &Telemetry{
		Log:        slog.New(slog.NewJSONHandler(o.Log, &slog.HandlerOptions{Level: level})).With("service", o.Service),
		Propagator: propagation.TraceContext{},
		registry:   prometheus.NewRegistry(),
	}
	who := resource.NewSchemaless(attribute.String("service.name", o.Service), attribute.String("service.version", o.Version))
	if err := t.startMetrics(who); err != nil {
		return nil, err
	}
	if err := t.startTraces(ctx, who, o.OTLPEndpoint); err != nil {
		return nil, err
	}
	return t, nil
}

func (t *Telemetry) startMetrics(who *resource.Resource) error {
	reader, err := otelprom.New(otelprom.WithRegisterer(t.registry))
	if err != nil {
		return fmt.Errorf("start metrics: %w", err)
	}
	meters := sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader), sdkmetric.WithResource(who), sdkmetric.WithView(hopBuckets()))
	t.Meters = meters
	t.stop = append(t.stop, meters.Shutdown)
	return nil
}

// hopBuckets resolves a hop from half a millisecond up to the floor tick: the default buckets begin at five milliseconds,
// where a healthy hop has long ended.
func hopBuckets() sdkmetric.View {
	return sdkmetric.NewView(
		sdkmetric.Instrument{Name: HopDuration},
		sdkmetric.Stream{Aggregation: sdkmetric.AggregationExplicitBucketHistogram{
			Boundaries: []float64{.0005, .001, .002, .005, .01, .02, .05, .1, .25, .5, 1, 2.5, 5, 15, 30, 60, 120, 300},
		}},
	)
}

func (t *Telemetry) startTraces(ctx context.Context, who *resource.Resource, endpoint string) error {
	options := []sdktrace.TracerProviderOption{sdktrace.WithResource(who)}
	if endpoint == "" {
		// Ids are still made and passed on, so that a caller's trace is not cut in two.
		options = append(options, sdktrace.WithSampler(sdktrace.NeverSample()))
	} else {
		exporter, err := otlptracegrpc.New(ctx, otlptracegrpc.WithEndpoint(endpoint), otlptracegrpc.WithInsecure())
		if err != nil {
			return fmt.Errorf("start traces: %w", err)
		}
		options = append(options, sdktrace.WithBatcher(exporter))
	}
	tracers := sdktrace.NewTracerProvider(options...)
	t.Tracers = tracers
	t.stop = append(t.stop, tracers.Shutdown)
	return nil
}

// Close flushes what was not sent yet, within the context's deadline.
func (t *Telemetry) Close(ctx context.Context) error {
	var errs []error
	for _, stop := range t.stop {
		errs = append(errs, stop(ctx))
	}
	return errors.Join(errs...)
}
