package flow

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/rigelbuild/compass-operator/api/v1alpha1"
)

// Names of what is read from the objects at each scrape. Tenants are counted, never named.
const (
	MetricConditions  = "compass_operator_conditions"
	MetricOwed        = "compass_operator_stream_owed"
	MetricHeld        = "compass_operator_stream_held"
	MetricPending     = "compass_operator_stream_pending"
	MetricDeadLetters = "compass_operator_stream_dead_letters"
	MetricEpoch       = "compass_operator_stream_epoch"
)

const scrapeTime = 5 * time.Second

// gauges show what the objects say of themselves, as the cache has them.
type gauges struct {
	objects    client.Reader
	conditions *prometheus.Desc
	streams    []streamGauge
}

type streamGauge struct {
	desc *prometheus.Desc
	of   func(*v1alpha1.DeliveryStreamStatus) float64
}

func newGauges(objects client.Reader) *gauges {
	stream := func(name, help string, of func(*v1alpha1.DeliveryStreamStatus) float64) streamGauge {
		return streamGauge{prometheus.NewDesc(name, help, []string{"namespace", "stream"}, nil), of}
	}
	backlog := func(of func(*v1alpha1.BacklogStatus) int64) func(*v1alpha1.DeliveryStreamStatus) float64 {
		return func(s *v1alpha1.DeliveryStreamStatus) float64 {
			if s.Backlog == nil {
				return 0
			}
			return float64(of(s.Backlog))
		}
	}
	return &gauges{
		objects: objects,
		conditions: prometheus.NewDesc(MetricConditions, "Objects by what a condition of theirs says.",
			[]string{"kind", "condition", "status", "reason"}, nil),
		streams: []streamGauge{
			stream(MetricOwed, "Deliveries owed, by order of magnitude.", backlog(func(b *v1alpha1.BacklogStatus) int64 { return b.Owed })),
			stream(MetricHeld, "Messages whose turn is open, by order of magnitude.", backlog(func(b *v1alpha1.BacklogStatus) int64 { return b.Held })),
			stream(MetricPending, "References that wait for the worker, by order of magnitude.", backlog(func(b *v1alpha1.BacklogStatus) int64 { return b.Pending })),
			stream(MetricDeadLetters, "Messages set aside for a recipient, by order of magnitude.", func(s *v1alpha1.DeliveryStreamStatus) float64 { return float64(s.DeadLetters) }),
			stream(MetricEpoch, "Epoch of the stream's lease; it goes up with each change of the writer.", func(s *v1alpha1.DeliveryStreamStatus) float64 {
				if s.Writer == nil {
					return 0
				}
				return float64(s.Writer.Epoch)
			}),
		},
	}
}

// Describe see prometheus.Collector.
func (g *gauges) Describe(out chan<- *prometheus.Desc) {
	out <- g.conditions
	for _, s := range g.streams {
		out <- s.desc
	}
}

// Collect see prometheus.Collector. What cannot be listed, because the cache is not there yet, is left out.
func (g *gauges) Collect(out chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTime) //nolint:forbidigo // a scrape has no context
	defer cancel()
	counts := map[[4]string]int{}
	count := func(kind string, s *v1alpha1.Status) {
		for _, c := range s.Conditions {
			counts[[4]string{kind, c.Type, string(c.Status), c.Reason}]++
		}
	}
	var servers v1alpha1.CompassServerList
	if g.objects.List(ctx, &servers) == nil {
		for i := range servers.Items {
			count("CompassServer", servers.Items[i].Common())
		}
	}
	var tenants v1alpha1.CompassTenantList
	if g.objects.List(ctx, &tenants) == nil {
		for i := range tenants.Items {
			count("CompassTenant", tenants.Items[i].Common())
		}
	}
	var streams v1alpha1.DeliveryStreamList
	if g.objects.List(ctx, &streams) == nil {
		for i := range streams.Items {
			d := &streams.Items[i]
			count("DeliveryStream", d.Common())
			for _, s := range g.streams {
				out <- prometheus.MustNewConstMetric(s.desc, prometheus.GaugeValue, s.of(&d.Status), d.Namespace, d.Name)
			}
		}
	}
	for labels, n := range counts {
		out <- prometheus.MustNewConstMetric(g.conditions, prometheus.GaugeValue, float64(n), labels[:]...)
	}
}
