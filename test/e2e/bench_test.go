package e2e

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// BenchmarkTakeover says for how long a stream has no writer: after kill -9 of a worker that comes back as the same pod, the
// start of its process included, and after its machine froze while another one waits. Run it with -benchtime 20x.
func BenchmarkTakeover(b *testing.B) {
	b.Run("killed", func(b *testing.B) {
		c := newCluster(b)
		w := c.worker("pod").serves()
		var took []time.Duration
		for range b.N {
			old := c.truth.lease()
			begun := time.Now()
			w.kill()
			w = c.worker("pod")
			c.follows(old)
			took = append(took, time.Since(begun))
			w.serves()
		}
		report(b, took)
	})
	b.Run("frozen", func(b *testing.B) {
		c := newCluster(b)
		w, next := c.worker("worker 0").serves(), c.waits("worker 1")
		var took []time.Duration
		for n := range b.N {
			old := c.truth.lease()
			begun := time.Now()
			w.freeze()
			c.follows(old)
			took = append(took, time.Since(begun))
			w.kill()
			w, next = next.serves(), c.waits(fmt.Sprint("worker ", n+2))
		}
		report(b, took)
	})
}

// follows waits until the lease is newer than it was.
func (c *cluster) follows(old lease) {
	c.tb.Helper()
	await(c.tb, "somebody follows", func() string {
		now := c.truth.lease()
		return unless(now.Epoch > old.Epoch, "%v", now)
	})
}

// report shows the median and the worst.
func report(b *testing.B, took []time.Duration) {
	b.Helper()
	slices.Sort(took)
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(took[len(took)/2].Seconds(), "median-s")
	b.ReportMetric(took[len(took)-1].Seconds(), "worst-s")
}
