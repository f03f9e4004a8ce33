package flow_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/rigelbuild/compass-operator/api/v1alpha1"
	"github.com/rigelbuild/compass-operator/controllers/flow"
)

// Holds REQ-214: conditions are counted and never named by tenant; each stream shows its backlog, dead letters and epoch.
func TestMetrics(t *testing.T) {
	t.Parallel()
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	ready := v1alpha1.Status{Conditions: []metav1.Condition{{Type: "Ready", Status: metav1.ConditionTrue, Reason: "Available"}}}
	stream := &v1alpha1.DeliveryStream{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "main"}}
	stream.Status.Backlog, stream.Status.DeadLetters = &v1alpha1.BacklogStatus{Owed: 10, Held: 2, Pending: 5}, 3
	stream.Status.Writer = &v1alpha1.WriterStatus{Epoch: 7}
	objects := []client.Object{stream}
	for _, name := range []string{"a", "b"} {
		o := &v1alpha1.CompassTenant{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
		o.Status.Status = ready
		objects = append(objects, o)
	}
	registry := prometheus.NewRegistry()
	m, err := flow.NewMetrics(registry, fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).Build())
	if err != nil {
		t.Fatal(err)
	}
	m.ScaleReverted(client.ObjectKey{Namespace: "ns", Name: "main"})
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, f := range families {
		for _, sample := range f.GetMetric() {
			labels := ""
			for _, l := range sample.GetLabel() {
				labels += l.GetName() + "=" + l.GetValue() + " "
			}
			got[f.GetName()] += labels + fmt.Sprint(sample.GetGauge().GetValue()+sample.GetCounter().GetValue())
		}
	}
	want := map[string]string{
		flow.MetricConditions:    "condition=Ready kind=CompassTenant reason=Available status=True 2",
		flow.MetricOwed:          "namespace=ns stream=main 10",
		flow.MetricHeld:          "namespace=ns stream=main 2",
		flow.MetricPending:       "namespace=ns stream=main 5",
		flow.MetricDeadLetters:   "namespace=ns stream=main 3",
		flow.MetricEpoch:         "namespace=ns stream=main 7",
		flow.MetricScaleReverted: "namespace=ns stream=main 1",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
