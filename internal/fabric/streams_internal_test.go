package fabric

import (
	"testing"

	"github.com/nats-io/nats.go/jetstream"
)

// Lessons B18: a consumer that has delivered what its stream does not hold is ahead, and starves. Servers of today reset it
// themselves (TestConsumerAheadOfStreamHeals cannot tell who did it); one that does not is still seen.
func TestConsumerAheadIsSeen(t *testing.T) {
	t.Parallel()
	spec := StreamSpec{Name: "main"}.withDefaults()
	cfg, err := spec.consumerConfig()
	if err != nil {
		t.Fatal(err)
	}
	p := &provisioner{spec: spec, durable: cfg}
	for delivered, want := range map[uint64]bool{0: false, 9: false, 10: false, 11: true} {
		info := &jetstream.ConsumerInfo{Config: cfg, Delivered: jetstream.SequenceInfo{Stream: delivered}}
		if seen := p.seen(info, 10); seen.Ahead != want || len(seen.Drift) != 0 {
			t.Errorf("delivered %d of 10: %+v, want ahead %v", delivered, seen, want)
		}
	}
	if p.seen(nil, 10).Exists {
		t.Error("an absent consumer exists")
	}
}
