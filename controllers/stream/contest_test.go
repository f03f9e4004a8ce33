package stream

import (
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Holds REQ-209, layer 2: what somebody scaled is undone at once three times, then less and less often; who stops is
// forgotten, and one stream's quarrel is no other's.
func TestContest(t *testing.T) {
	t.Parallel()
	var c contests
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	one, two := client.ObjectKey{Name: "one"}, client.ObjectKey{Name: "two"}
	for i := range scaleReverts {
		if !c.found(one, now) {
			t.Fatalf("revert %d waits", i)
		}
		if got := c.contested(one, now); got != (i == scaleReverts-1) {
			t.Errorf("after %d reverts: contested %v", i+1, got)
		}
	}
	var pauses []time.Duration
	for len(pauses) < 7 {
		from := now
		for !c.found(one, now) {
			now = now.Add(time.Second)
		}
		pauses = append(pauses, now.Sub(from))
	}
	want := []time.Duration{30 * time.Second, time.Minute, 2 * time.Minute, 4 * time.Minute, 8 * time.Minute, 8 * time.Minute, 8 * time.Minute}
	for i := range want {
		if pauses[i] != want[i] {
			t.Errorf("pause %d is %v, want %v", i, pauses[i], want[i])
		}
	}
	if !c.found(two, now) || c.contested(two, now) {
		t.Error("another stream is judged by the first")
	}
	now = now.Add(scaleCalm + time.Second)
	for i := range scaleReverts {
		if !c.found(one, now) {
			t.Errorf("who stopped is not forgotten: revert %d waits", i)
		}
	}
	now = now.Add(scaleCalm + time.Second)
	if c.contested(one, now) {
		t.Error("who stopped is still contesting")
	}
}
