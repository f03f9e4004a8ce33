package delivery

import (
	"context"
	"sync"
	"testing"
	"time"
)

// A tenant that floods the stream leaves another's latencies alone. What is measured is a tenant of modest pace, alone and then
// beside one that posts ten times what it may, with nobody to refuse it, up to 60 % of what the whole can do.
//
// It is judged by figures of one run: p99 within twice that of before and 5 ms.
func TestFloodLeavesOthersAlone(t *testing.T) {
	p := newProduct(t, 1)
	other := p.neighbour("beta")
	capacity := p.capacity(t)
	const pace = 20
	flood := capacity*6/10 - pace
	alone := load(t, "alone", 1, pace, other, p.times, p.postmaster())
	flooded := make(chan result, 1)
	go func() { flooded <- load(t, "flood", 1, flood, p.stage, p.times, p.postmaster()) }()
	beside := load(t, "beside", 1, pace, other, p.times, p.postmaster())
	by := <-flooded
	t.Logf("capacity %d/s; alone p50 %v p99 %v; beside a flood of %d/s p50 %v p99 %v; the flood's own p99 %v", capacity, alone.p50, alone.p99,
		flood, beside.p50, beside.p99, by.p99)
	if lost := alone.lost + beside.lost + by.lost; lost != 0 {
		t.Errorf("%d deliveries are missing", lost)
	}
	if beside.p99 > 2*alone.p99+5*time.Millisecond {
		t.Errorf("p99 %v beside a flood and %v alone: want twice that and 5 ms at most", beside.p99, alone.p99)
	}
}

// capacity is how many messages go all the way in a second when posters wait for nothing but their answers.
func (p *product) capacity(t *testing.T) int {
	t.Helper()
	const posters, span = 16, 5 * time.Second
	ctx, cancel := context.WithTimeout(t.Context(), span)
	defer cancel()
	var work sync.WaitGroup
	var mu sync.Mutex
	var ids []string
	for poster := range posters {
		work.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				id, err := p.post(t.Context(), "capacity "+string(rune('a'+poster))+" "+time.Duration(n).String())
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				ids = append(ids, id)
				mu.Unlock()
			}
		})
	}
	begun := time.Now()
	work.Wait()
	for len(p.times.latencies(ids)) < len(ids) && t.Context().Err() == nil {
		<-time.After(10 * time.Millisecond)
	}
	return int(float64(len(ids)) / time.Since(begun).Seconds())
}
