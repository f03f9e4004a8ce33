package stream

import (
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/rigelbuild/compass-operator/api/v1alpha1"
	"github.com/rigelbuild/compass-operator/internal/fault"
)

func sized(name string, age int, queue, dead string) v1alpha1.DeliveryStream {
	d := v1alpha1.DeliveryStream{ObjectMeta: metav1.ObjectMeta{
		Name: name, UID: types.UID(name), CreationTimestamp: metav1.NewTime(time.Unix(int64(1000-age), 0)),
	}}
	d.Spec.Stream.MaxBytes, d.Spec.DeadLetter.MaxBytes = resource.MustParse(queue), resource.MustParse(dead)
	return d
}

// Holds REQ-215: what JetStream would refuse with a number of its own is said with the sum and what to change; the older
// streams keep their room.
func TestFits(t *testing.T) {
	t.Parallel()
	gone := sized("gone", 9, "4Gi", "1Gi")
	gone.DeletionTimestamp = new(metav1.Now())
	huge := sized("huge", 9, "1Pi", "1Gi")
	huge.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionStreamReady, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonInvalidSpec}}
	for name, c := range map[string]struct {
		self   v1alpha1.DeliveryStream
		others []v1alpha1.DeliveryStream
		class  fault.Class
		says   string
	}{
		"alone":                      {self: sized("a", 1, "4Gi", "1Gi")},
		"too big":                    {self: sized("a", 1, "5Gi", "256Mi"), class: fault.ClassTerminal, says: "are 5376Mi together, more than the 5Gi"},
		"beside an older":            {self: sized("a", 1, "4Gi", "1Gi"), others: []v1alpha1.DeliveryStream{sized("b", 2, "1Gi", "1Mi")}, class: fault.ClassWaiting, says: "with those of older DeliveryStreams (b 1025Mi) 6145Mi"},
		"beside a younger":           {self: sized("a", 2, "4Gi", "1Gi"), others: []v1alpha1.DeliveryStream{sized("b", 1, "1Gi", "1Mi")}},
		"beside one that is refused": {self: sized("a", 1, "4Gi", "1Gi"), others: []v1alpha1.DeliveryStream{huge}},
		"beside one that goes":       {self: sized("a", 1, "4Gi", "1Gi"), others: []v1alpha1.DeliveryStream{gone}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := fits(&c.self, append(c.others, c.self), resource.MustParse("5Gi"))
			if fault.ClassOf(err) != c.class || c.class != fault.None && (fault.ReasonOf(err) != v1alpha1.ReasonInvalidSpec || !strings.Contains(err.Error(), c.says)) {
				t.Errorf("%v; want %v saying %q", err, c.class, c.says)
			}
		})
	}
}

// Holds REQ-208: how many tenants a stream has room for is told before it is full.
func TestCrowded(t *testing.T) {
	t.Parallel()
	d := sized("a", 1, "1Gi", "1Mi")
	d.Spec.Stream.PerTenant.MaxMessages = 10_000
	if got := crowded(&d, 209); got != "" {
		t.Errorf("209 tenants: %q", got)
	}
	if got := crowded(&d, 210); !strings.Contains(got, "full queues of 209 tenants fill the stream") {
		t.Errorf("210 tenants: %q", got)
	}
}
