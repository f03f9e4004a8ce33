package telemetry_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/rigelbuild/compass-operator/internal/telemetry"
)

func get(t *testing.T, h http.Handler, path string) (int, string) {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
	body, err := io.ReadAll(w.Body)
	if err != nil {
		t.Fatal(err)
	}
	return w.Code, string(body)
}

// Holds REQ-012: the counter has exactly this name; Prometheus writes dots as underscores and adds _total.
func TestMetricsAreServedByTheirNames(t *testing.T) {
	t.Parallel()
	tel, err := telemetry.Start(t.Context(), telemetry.Options{Service: "test", Log: io.Discard})
	if err != nil {
		t.Fatal(err)
	}
	failures, err := tel.Meters.Meter(telemetry.Scope).Int64Counter(telemetry.FabricPublishFailures)
	if err != nil {
		t.Fatal(err)
	}
	failures.Add(t.Context(), 3)
	hops, err := tel.Meters.Meter(telemetry.Scope).Float64Histogram(telemetry.HopDuration, metric.WithUnit("s"))
	if err != nil {
		t.Fatal(err)
	}
	hops.Record(t.Context(), 0.0007, metric.WithAttributes(attribute.String(telemetry.AttrHop, telemetry.HopHint)))

	well := func(context.Context) error { return nil }
	_, body := get(t, tel.Handler(well, well), "/metrics")
	for _, want := range []string{
		"compass_delivery_fabric_publish_failures_total", "} 3",
		`compass_delivery_hop_duration_seconds_bucket{hop="hint"`, `le="0.001"`,
	} {
		if !strings.Contains(body, want) {
			t.Errorf("/metrics lacks %q:\n%s", want, body)
		}
	}
	if telemetry.FabricPublishFailures != "compass.delivery.fabric_publish_failures" {
		t.Errorf("the counter was renamed to %s", telemetry.FabricPublishFailures)
	}
}

func TestHealthSaysWhy(t *testing.T) {
	t.Parallel()
	tel, err := telemetry.Start(t.Context(), telemetry.Options{Service: "test", Log: io.Discard})
	if err != nil {
		t.Fatal(err)
	}
	h := tel.Handler(
		func(context.Context) error { return nil },
		func(context.Context) error { return errors.New("postgres does not answer") },
	)
	if code, _ := get(t, h, "/healthz"); code != http.StatusOK {
		t.Errorf("healthz = %d", code)
	}
	if code, body := get(t, h, "/readyz"); code != http.StatusServiceUnavailable || !strings.Contains(body, "postgres") {
		t.Errorf("readyz = %d %q: want it to say why", code, body)
	}
}

func TestLogIsJSONAndLevelled(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	tel, err := telemetry.Start(t.Context(), telemetry.Options{Service: "test", Level: "warn", Log: &out})
	if err != nil {
		t.Fatal(err)
	}
	tel.Log.InfoContext(t.Context(), "Too quiet")
	tel.Log.WarnContext(t.Context(), "Loud enough")
	if got := out.String(); strings.Contains(got, "quiet") || !strings.Contains(got, `"msg":"Loud enough"`) || !strings.Contains(got, `"service":"test"`) {
		t.Errorf("log = %s", got)
	}
	if _, err := telemetry.Start(t.Context(), telemetry.Options{Level: "loud", Log: io.Discard}); err == nil {
		t.Error("an unknown level was accepted")
	}
}
