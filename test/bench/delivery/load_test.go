package delivery

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// side is one way to bring a message from a poster to handlers.
type side interface {
	// post makes one message, as its poster would, and returns its id.
	post(ctx context.Context, words string) (id string, err error)
}

// times keeps when each message was committed and when each recipient's handler was entered with it.
type times struct {
	mu        sync.Mutex
	committed map[string]time.Time
	entered   map[string][]time.Time
}

func newTimes() *times {
	return &times{committed: map[string]time.Time{}, entered: map[string][]time.Time{}}
}

func (m *times) commit(id string) {
	now := time.Now()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.committed[id] = now
}

func (m *times) enter(id string) {
	now := time.Now()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.entered[id] = append(m.entered[id], now)
}

// latencies are those of every delivery of these messages, shortest first.
func (m *times) latencies(ids []string) (all []time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, id := range ids {
		for _, e := range m.entered[id] {
			all = append(all, e.Sub(m.committed[id]))
		}
	}
	slices.Sort(all)
	return all
}

// at is a percentile of what is sorted.
func at(sorted []time.Duration, percent int) time.Duration { return sorted[len(sorted)*percent/100] }

// count is how many deliveries of these messages there were.
func (m *times) count(ids []string) (n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, id := range ids {
		n += len(m.entered[id])
	}
	return n
}

// result is one side under one load.
type result struct {
	side       string
	recipients int
	rate       int // deliveries asked for, per second
	p50, p99   time.Duration
	perCPU     float64 // deliveries per second of processor, of every process there is
	database   float64 // the part of Postgres in that
	lost       int
	late       time.Duration // how far the last post was behind its time
}

// load brings a side to its working state and measures it then: connections are open, statements are planned by what the
// tables have come to be, as in a process that has run for a while.
func load(tb testing.TB, name string, recipients, rate int, s side, m *times, postgres int) result {
	tb.Helper()
	span := seconds(tb)
	drive(tb, name+" before", recipients, max(rate*span/4, recipients), rate, s, m)
	if known, ok := s.(interface{ analyze() }); ok {
		known.analyze()
	}
	drive(tb, name+" again", recipients, max(rate*span/8, recipients), rate, s, m)
	before := used(tb, postgres)
	ids, late := drive(tb, name, recipients, rate*span, rate, s, m)
	spent := used(tb, postgres).less(before)
	all := m.latencies(ids)
	r := result{side: name, recipients: recipients, rate: rate, lost: len(ids)*recipients - len(all), late: late,
		perCPU: float64(len(all)) / spent.all().Seconds(), database: spent.database.Seconds() / spent.all().Seconds()}
	if len(all) > 0 {
		r.p50, r.p99 = at(all, 50), at(all, 99)
	}
	return r
}

// drive posts in an open loop: each post begins at its time, whatever became of those before. It ends when everything was
// handled, or a minute after the last post. late is how far the last post was behind its time.
func drive(tb testing.TB, name string, recipients, deliveries, rate int, s side, m *times) (ids []string, late time.Duration) {
	tb.Helper()
	posts := deliveries / recipients
	pause := time.Duration(recipients) * time.Second / time.Duration(rate)
	var work sync.WaitGroup
	ids = make([]string, posts)
	begun := time.Now()
	for n := range posts {
		at := begun.Add(time.Duration(n) * pause)
		<-time.After(time.Until(at))
		late = time.Since(at)
		work.Go(func() {
			ctx, cancel := context.WithTimeout(tb.Context(), 30*time.Second)
			defer cancel()
			var err error
			if ids[n], err = s.post(ctx, fmt.Sprintf("%s %d", name, n)); err != nil {
				tb.Errorf("%s: post: %v", name, err)
			}
		})
	}
	work.Wait()
	patience := time.After(time.Minute)
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	for m.count(ids) < posts*recipients {
		select {
		case <-look.C:
		case <-patience:
			return ids, late
		}
	}
	return ids, late
}

// seconds is how long a load lasts.
func seconds(tb testing.TB) int {
	tb.Helper()
	text := os.Getenv("BENCH_SECONDS")
	if text == "" {
		return 10
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		tb.Fatalf("BENCH_SECONDS = %q is no number of seconds", text)
	}
	return n
}

// processor is time spent.
type processor struct{ self, database time.Duration }

func (p processor) less(q processor) processor {
	return processor{p.self - q.self, p.database - q.database}
}

func (p processor) all() time.Duration { return p.self + p.database }

// used is the processor time of this process and of Postgres, its dead children included.
func used(tb testing.TB, postmaster int) (p processor) {
	tb.Helper()
	var self syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &self); err != nil {
		tb.Fatal(err)
	}
	p.self = time.Duration(self.Utime.Nano() + self.Stime.Nano())
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		tb.Fatal(err)
	}
	const tick = time.Second / 100
	for _, file := range stats {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended; its parent has its time
		}
		_, rest, _ := strings.Cut(string(text), ") ")
		f := strings.Fields(rest)
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		switch {
		case pid == postmaster:
			p.database += time.Duration(number(f[11])+number(f[12])+number(f[13])+number(f[14])) * tick
		case f[1] == strconv.Itoa(postmaster):
			p.database += time.Duration(number(f[11])+number(f[12])) * tick
		}
	}
	return p
}

func number(s string) int64 {
	n, _ := strconv.ParseInt(s, 10, 64)
	return n
}
