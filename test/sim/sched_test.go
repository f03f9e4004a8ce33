package sim_test

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"hash"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing/synctest"
	"time"

	"github.com/rigelbuild/compass-operator/internal/store/storetwin"
)

// fate is what becomes of a call.
type fate uint8

const (
	fine    fate = iota
	lost         // it never happens
	silent       // it happens, and nobody hears of it
	doubled      // it happens twice
	dead         // its process is no more
)

// kind says what may become of a call.
type kind uint8

const (
	statement kind = iota // of Postgres
	oneWay                // over NATS, nobody answers
	request               // over NATS or Connect, answered
	flight                // on its way already: it arrives
)

// call is one that waits for the scheduler.
type call struct {
	who   *process
	what  string
	kind  kind
	after time.Time // not before
	slow  bool      // its delay was drawn
	out   chan fate
}

// weather is how bad it is, in thousandths of calls.
type weather struct{ drop, double, slow, flaky int }

// source is one of numbers that several goroutines draw from.
type source struct {
	mu  sync.Mutex
	pcg *rand.PCG
}

func (s *source) Uint64() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pcg.Uint64()
}

// scheduler lets one call go at a time.
type scheduler struct {
	rng   *rand.Rand
	start time.Time
	weather

	mu      sync.Mutex
	arrived []*call // since the last look, in no order that could be relied on
	parked  []*call
	kick    chan struct{}

	all   []*process // under mu
	steps int
	hash  hash.Hash64
	trace func(string)
}

func newScheduler(seed uint64) *scheduler {
	return &scheduler{
		rng: rand.New(&source{pcg: rand.NewPCG(seed, 1)}), start: time.Now(), kick: make(chan struct{}, 1), hash: fnv.New64a(),
	}
}

func (s *scheduler) chance(thousandths int) bool { return s.rng.IntN(1000) < thousandths }

func (s *scheduler) between(a, b time.Duration) time.Duration {
	return a + time.Duration(s.rng.Int64N(int64(b-a)))
}

// park waits until the scheduler lets the call go. What a dead process still has on the wire may happen all the same.
func (s *scheduler) park(ctx context.Context, who *process, what string, k kind) fate {
	c := &call{who: who, what: what, kind: k, out: make(chan fate, 1)}
	s.mu.Lock()
	if who.dead {
		s.mu.Unlock()
		return dead
	}
	s.arrived = append(s.arrived, c)
	s.mu.Unlock()
	select {
	case s.kick <- struct{}{}:
	default:
	}
	select {
	case f := <-c.out:
		return f
	case <-ctx.Done():
	}
	s.mu.Lock()
	lingers := who.dead && !who.over
	if !lingers {
		s.drop(c)
	}
	s.mu.Unlock()
	if lingers {
		return <-c.out
	}
	return lost
}

// drop takes a call out of those that wait. Called under mu.
func (s *scheduler) drop(c *call) {
	not := func(other *call) bool { return other == c }
	s.parked, s.arrived = slices.DeleteFunc(s.parked, not), slices.DeleteFunc(s.arrived, not)
}

// line puts those that came since the last look in line, in the same order each time: timers of one instant fire in any.
// Called under mu.
func (s *scheduler) line() {
	slices.SortStableFunc(s.arrived, func(a, b *call) int {
		return cmp.Or(cmp.Compare(a.who.name, b.who.name), cmp.Compare(a.what, b.what))
	})
	s.parked = append(s.parked, s.arrived...)
	s.arrived = s.arrived[:0]
}

// next chooses the call that goes now; nil, and when one may go: zero, none waits.
func (s *scheduler) next(now time.Time) (*call, time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.line()
	for {
		var ready []*call
		var soonest time.Time
		for _, c := range s.parked {
			at := c.after
			if c.who.paused.After(at) {
				at = c.who.paused
			}
			if !at.After(now) {
				ready = append(ready, c)
			} else if soonest.IsZero() || at.Before(soonest) {
				soonest = at
			}
		}
		if len(ready) == 0 {
			return nil, soonest
		}
		c := ready[0]
		if s.rng.IntN(2) == 0 {
			c = ready[s.rng.IntN(len(ready))]
		}
		if !c.slow {
			c.slow = true
			if s.chance(s.slow) {
				c.after = now.Add(s.between(time.Millisecond, 400*time.Millisecond))
				continue
			}
		}
		if c.who.ambush && strings.HasPrefix(c.what, "deliver") {
			c.who.ambush, c.who.wakes, c.who.paused = false, true, now.Add(12*time.Second)
			continue
		}
		s.drop(c)
		return c, time.Time{}
	}
}

// succeeded lets those go on, in a moment, that wait for the first word of their successor.
func (s *scheduler) succeeded(by *process) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.all {
		if p.wakes && p != by && p.stream == by.stream {
			p.wakes, p.paused = false, time.Now().Add(s.between(0, 20*time.Millisecond))
		}
	}
}

// fateOf draws what becomes of a call.
func (s *scheduler) fateOf(c *call, now time.Time) fate {
	if c.kind != statement && c.who.cut.After(now) {
		return lost
	}
	switch c.kind {
	case statement:
		if s.chance(s.flaky) {
			return [...]fate{lost, silent}[s.rng.IntN(2)]
		}
	case oneWay, request:
		if s.chance(s.weather.drop) {
			if c.kind == request && s.rng.IntN(2) == 0 {
				return silent
			}
			return lost
		}
		if s.chance(s.double) {
			return doubled
		}
	case flight:
	}
	return fine
}

// run lets calls go until the time comes.
func (s *scheduler) run(until time.Time) {
	for {
		synctest.Wait()
		now := time.Now()
		if !now.Before(until) {
			return
		}
		c, soonest := s.next(now)
		if c == nil {
			wait := until.Sub(now)
			if !soonest.IsZero() {
				wait = min(wait, soonest.Sub(now))
			}
			timer := time.NewTimer(wait)
			select {
			case <-s.kick:
			case <-timer.C:
			}
			timer.Stop()
			continue
		}
		f := s.fateOf(c, now)
		s.steps++
		s.note(now, c, f)
		c.out <- f
		pass(s.between(time.Microsecond, 900*time.Microsecond)) // wakes when all block; no two calls are of one instant
	}
}

// pass lets time pass, for whatever waits for it.
func pass(d time.Duration) { <-time.After(d) }

var fates = map[fate]string{fine: "", lost: " LOST", silent: " SILENT", doubled: " DOUBLED", dead: " DEAD"}

func (s *scheduler) note(now time.Time, c *call, f fate) {
	s.say(c.who.name, " ", c.what, fates[f])
	var at [8]byte
	binary.LittleEndian.PutUint64(at[:], uint64(now.Sub(s.start))) //nolint:gosec // after the start
	s.mu.Lock()
	defer s.mu.Unlock()
	_, _ = s.hash.Write(at[:])
}

// say adds to the trace, and to the hash of the schedule.
func (s *scheduler) say(parts ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range parts {
		_, _ = io.WriteString(s.hash, p)
	}
	if s.trace != nil {
		s.trace(fmt.Sprintf("%10d %s", time.Since(s.start).Microseconds(), strings.Join(parts, "")))
	}
}

// end lets everything go that waits, for good.
func (s *scheduler) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.line()
	for _, c := range s.parked {
		c.out <- dead
	}
	s.parked = nil
}

// process is one of those whose calls wait.
type process struct {
	s      *scheduler
	name   string
	ctx    context.Context //nolint:containedctx // its life
	cancel context.CancelFunc
	closes []func()
	ends   sync.WaitGroup
	stream string // of a worker

	dead   bool      // under s.mu
	over   bool      // under s.mu: the schedule has ended
	paused time.Time // under s.mu, as all below
	cut    time.Time
	ambush bool // it freezes when it is about to deliver something
	wakes  bool // it goes on as soon as its successor delivers
}

func (s *scheduler) process(name string) *process {
	p := &process{s: s, name: name}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	s.mu.Lock()
	s.all = append(s.all, p)
	s.mu.Unlock()
	return p
}

// Step implements storetwin.Steps.
func (p *process) Step(ctx context.Context, what string) storetwin.Verdict {
	switch p.s.park(ctx, p, what, statement) {
	case lost, dead:
		return storetwin.Refuse
	case silent:
		return storetwin.Lose
	case fine, doubled:
	}
	return storetwin.Go
}

func (p *process) alive() bool {
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	return !p.dead
}

func (p *process) spawn(fn func(ctx context.Context)) {
	p.ends.Go(func() { fn(p.ctx) })
}

// kill ends a process where it stands. Each of its calls on the wire happens or not.
func (p *process) kill() {
	s := p.s
	s.mu.Lock()
	p.dead = true
	s.line()
	for _, c := range slices.Clone(s.parked) {
		if c.who == p && s.rng.IntN(2) == 0 {
			s.drop(c)
			c.out <- dead
		}
	}
	s.mu.Unlock()
	p.cancel()
	for _, end := range p.closes {
		go end()
	}
}
