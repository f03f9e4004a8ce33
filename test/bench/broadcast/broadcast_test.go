package broadcast

import (
	"slices"
	"testing"
	"time"

	"github.com/rigelbuild/compass-operator/internal/store"
)

const (
	rounds     = 3  // ours and the bare one in turn, so that what else the machine does meets both
	posts      = 60 // per round
	warmUp     = 5  // of these do not count
	manyAt     = 1000
	manyPosts  = 30
	latencyAdd = time.Millisecond
	cpuRatio   = 4.0
)

// From the commit to the client, p50: no more than a bare NATS takes, one scoped read, and a millisecond.
func TestLatency(t *testing.T) {
	g := newGround(t)
	read := median(g.scopedReads(t))
	for _, n := range []int{1, 100} {
		ours, plain := g.clients(t, n), newBare(t, n)
		var told, bare []time.Duration
		for range rounds {
			for i := range posts {
				id := g.post(t, i)
				arrivals := ours.wait(n)
				if began := g.told.when(id); i >= warmUp {
					told = append(told, middle(arrivals, began))
				}
			}
			for i := range posts {
				began := time.Now()
				plain.publish(i)
				if arrivals := plain.wait(n); i >= warmUp {
					bare = append(bare, middle(arrivals, began))
				}
			}
		}
		ours.close()
		plain.close()
		got, allowed := median(told), median(bare)+read+latencyAdd
		t.Logf("%4d clients: p50 commit to client %v; allowed %v = bare NATS %v + scoped read %v + %v",
			n, got.Round(time.Microsecond), allowed.Round(time.Microsecond), median(bare).Round(time.Microsecond), read.Round(time.Microsecond), latencyAdd)
		if got > allowed {
			t.Errorf("at %d clients it took %v, allowed are %v", n, got, allowed)
		}
	}
}

// Processor time for each client that is told, at 1,000 clients: at most four times that of a bare NATS.
func TestProcessorTime(t *testing.T) {
	g := newGround(t)
	ours, plain := g.clients(t, manyAt), newBare(t, manyAt)
	var told, bare time.Duration
	for range rounds {
		began := used(t)
		for i := range manyPosts {
			g.post(t, i)
			ours.wait(manyAt)
		}
		told += used(t) - began
		began = used(t)
		for i := range manyPosts {
			plain.publish(i)
			plain.wait(manyAt)
		}
		bare += used(t) - began
	}
	deliveries := time.Duration(rounds * manyPosts * manyAt)
	ratio := float64(told) / float64(bare)
	t.Logf("%4d clients: %v of processor for each that is told, bare NATS %v: %.2f times, allowed %.1f", manyAt, told/deliveries, bare/deliveries, ratio, cpuRatio)
	if ratio > cpuRatio {
		t.Errorf("telling a client costs %.2f times a bare NATS, allowed are %.1f", ratio, cpuRatio)
	}
}

// scopedReads is what one reader's look at one new message takes.
func (g *ground) scopedReads(t *testing.T) (took []time.Duration) {
	t.Helper()
	reader := g.tenant.Admin.ID
	m := g.tenant.Post(t, g.tenant.Admin, g.channel, "read")
	for i := range 200 {
		began := time.Now()
		ms, err := g.world.Store.MessagesAfter(g.tenant.Ctx, store.Drain{Reader: reader, After: map[string]int64{g.channel.ID: m.Rev - 1}, Limit: 100})
		if must(t, err); len(ms) != 1 {
			t.Fatalf("read %d messages", len(ms))
		}
		if i >= warmUp {
			took = append(took, time.Since(began))
		}
	}
	return took
}

// middle is when half of them had been told.
func middle(arrivals []arrival, began time.Time) time.Duration {
	var took []time.Duration
	for _, a := range arrivals {
		took = append(took, a.at.Sub(began))
	}
	return median(took)
}

func median(took []time.Duration) time.Duration {
	slices.Sort(took)
	return took[len(took)/2]
}
