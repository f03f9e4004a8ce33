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

// result is one side under one load.
type result struct {
	side       string
	recipients int
	rate       int // deliveries asked for, per second
	p50, p99   time.Duration
	perCPU     float64 // deliveries per second of processor, of every process there is
	lost       int
	late       time.Duration // how far the last post was behind its time
}

// load posts in an open loop: each post begins at its time, whatever became of those before. It ends when everything was
// handled, or a minute after the last post.
func load(tb testing.TB, name string, recipients, rate int, s side, m *times, postgres int) result {
	tb.Helper()
	span := seconds(tb)
	posts := rate * span / recipients
	pause := time.Duration(span) * time.Second / time.Duration(posts)
	cpu := used(tb, postgres)
	var work sync.WaitGroup
	var mu sync.Mutex
	var ids []string
	begun := time.Now()
	var late time.Duration
	for n := range posts {
		at := begun.Add(time.Duration(n) * pause)
		<-time.After(time.Until(at))
		late = time.Since(at)
		work.Go(func() {
			ctx, cancel := context.WithTimeout(tb.Context(), 30*time.Second)
			defer cancel()
			id, err := s.post(ctx, fmt.Sprintf("%s %d", name, n))
			if err != nil {
				tb.Errorf("%s: post: %v", name, err)
			}
			mu.Lock()
			defer mu.Unlock()
			ids = append(ids, id)
		})
	}
	work.Wait()
	patience := time.After(time.Minute)
	look := time.NewTicker(50 * time.Millisecond)
	defer look.Stop()
wait:
	for len(m.latencies(ids)) < posts*recipients {
		select {
		case <-look.C:
		case <-patience:
			break wait
		}
	}
	spent := used(tb, postgres) - cpu
	all := m.latencies(ids)
	r := result{side: name, recipients: recipients, rate: rate, lost: posts*recipients - len(all), late: late,
		perCPU: float64(len(all)) / spent.Seconds()}
	if len(all) > 0 {
		r.p50, r.p99 = all[len(all)/2], all[len(all)*99/100]
	}
	return r
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

// used is the processor time of this process and of Postgres, its dead children included.
func used(tb testing.TB, postmaster int) time.Duration {
	tb.Helper()
	var self syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &self); err != nil {
		tb.Fatal(err)
	}
	total := time.Duration(self.Utime.Nano() + self.Stime.Nano())
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
			total += time.Duration(number(f[11])+number(f[12])+number(f[13])+number(f[14])) * tick
		case f[1] == strconv.Itoa(postmaster):
			total += time.Duration(number(f[11])+number(f[12])) * tick
		}
	}
	return total
}

func number(s string) int64 {
	n, _ := strconv.ParseInt(s, 10, 64)
	return n
}
