package delivery

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"
)

// A tenant that floods the stream leaves another's latencies alone. What is measured is a tenant of modest pace, alone and then
// beside one that posts far more than it may, with nobody to refuse it, up to 60 % of what the whole can do; in turns, so that
// whatever else the machine does falls on both.
//
// It is judged by figures of one run: p99 within twice that of alone and 5 ms.
func TestFloodLeavesOthersAlone(t *testing.T) {
	const pace, rounds = 50, 4
	span := seconds(t)
	p := newProduct(t, 1)
	other := p.neighbour("beta")
	drive(t, "before", 1, pace*span, pace, other, p.times)
	drive(t, "flood before", 1, 4*pace, pace, p.stage, p.times)
	p.analyze()
	capacity := p.capacity(t)
	flood := capacity*6/10 - pace
	if flood < 2*pace {
		t.Fatalf("%d messages a second are all there is: that is no flood", capacity)
	}
	var alone, beside, flooding []string
	for round := range rounds {
		ids, _ := drive(t, fmt.Sprint("alone ", round), 1, pace*span/2, pace, other, p.times)
		alone = append(alone, ids...)
		flooded := make(chan []string, 1)
		go func() {
			ids, _ := drive(t, fmt.Sprint("flood ", round), 1, flood*span/2, flood, p.stage, p.times)
			flooded <- ids
		}()
		ids, _ = drive(t, fmt.Sprint("beside ", round), 1, pace*span/2, pace, other, p.times)
		beside = append(beside, ids...)
		flooding = append(flooding, <-flooded...)
	}
	a, b, f := p.times.latencies(alone), p.times.latencies(beside), p.times.latencies(flooding)
	if lost := len(alone) + len(beside) + len(flooding) - len(a) - len(b) - len(f); lost != 0 {
		t.Fatalf("%d deliveries are missing", lost)
	}
	t.Logf("capacity %d/s; alone p50 %v p99 %v; beside a flood of %d/s p50 %v p99 %v; the flood's own p50 %v p99 %v", capacity,
		at(a, 50), at(a, 99), flood, at(b, 50), at(b, 99), at(f, 50), at(f, 99))
	if most := 2*at(a, 99) + 5*time.Millisecond; at(b, 99) > most {
		t.Errorf("p99 %v beside a flood: want %v at most, twice that of alone and 5 ms", at(b, 99), most)
	}
}

// capacity is how many messages go all the way in a second when posters wait for nothing but their answers.
func (p *product) capacity(t *testing.T) int {
	t.Helper()
	const posters, span = 16, 4 * time.Second
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
	for p.times.count(ids) < len(ids) && t.Context().Err() == nil {
		<-time.After(10 * time.Millisecond)
	}
	return int(float64(len(ids)) / time.Since(begun).Seconds())
}
