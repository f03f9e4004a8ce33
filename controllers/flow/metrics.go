package flow

import (
	"fmt"
	"reflect"

	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Names of what the operator counts. No label grows with tenants.
const (
	MetricDriftRepaired = "compass_operator_drift_repaired_total"
	MetricScaleReverted = "compass_operator_scale_reverted_total"
)

// Metrics are what passes count. Nil counts nothing.
type Metrics struct {
	drift  *prometheus.CounterVec
	scales *prometheus.CounterVec
}

// NewMetrics registers them, and what is read from the objects themselves.
func NewMetrics(registry prometheus.Registerer, objects client.Reader) (*Metrics, error) {
	m := &Metrics{
		drift: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: MetricDriftRepaired, Help: "What somebody else had changed and the operator put back.",
		}, []string{"kind"}),
		scales: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: MetricScaleReverted, Help: "How often the worker of a DeliveryStream was scaled by somebody else, and that was undone.",
		}, []string{"namespace", "stream"}),
	}
	for _, c := range []prometheus.Collector{m.drift, m.scales, newGauges(objects)} {
		if err := registry.Register(c); err != nil {
			return nil, fmt.Errorf("register metrics: %w", err)
		}
	}
	return m, nil
}

func (m *Metrics) repaired(obj client.Object, n int) {
	if m != nil {
		m.drift.WithLabelValues(reflect.TypeOf(obj).Elem().Name()).Add(float64(n))
	}
}

// ScaleReverted counts one worker that was scaled, and is one again.
func (m *Metrics) ScaleReverted(stream client.ObjectKey) {
	if m != nil {
		m.scales.WithLabelValues(stream.Namespace, stream.Name).Inc()
	}
}
