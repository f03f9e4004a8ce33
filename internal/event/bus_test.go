package event

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

func emit(t *testing.T, b *Bus, tenant string, versions ...int64) {
	t.Helper()
	for _, v := range versions {
		if err := b.emit(ChannelChanged(tenant, chanA, v).Ref()); err != nil {
			t.Fatal(err)
		}
	}
}

// next reads one event, and gives up rather than hang on one that never comes.
func next(t *testing.T, s *Subscription) (Event, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	return s.Next(ctx)
}

func versions(refs []Ref) []int64 {
	var vs []int64
	for _, r := range refs {
		vs = append(vs, r.Version)
	}
	return vs
}

// Holds REQ-016: one order, rising sequences, own tenant only; all of them for who asks for all.
func TestBusOrder(t *testing.T) {
	t.Parallel()
	b := newBus(t, BusOptions{Epoch: "e"})
	emit(t, b, acme, 1) // before anybody listens
	mine, all := subscribe(t, b, SubscribeOptions{Tenant: acme}), subscribe(t, b, SubscribeOptions{Tenant: AllTenants})
	emit(t, b, acme, 2)
	emit(t, b, other, 3)
	emit(t, b, acme, 4)
	first, err := next(t, mine)
	if err != nil {
		t.Fatal(err)
	}
	second, err := next(t, mine)
	if err != nil {
		t.Fatal(err)
	}
	if first.Version != 2 || second.Version != 4 || first.Seq != 2 || second.Seq != 4 {
		t.Errorf("read %+v, %+v", first, second)
	}
	if diff := cmp.Diff([]int64{2, 3, 4}, versions(told(t, all))); diff != "" {
		t.Error(diff)
	}
}

func TestBusFiltersByName(t *testing.T) {
	t.Parallel()
	b := newBus(t, BusOptions{Epoch: "e"})
	s := subscribe(t, b, SubscribeOptions{Tenant: acme, Names: []Name{NamePresenceChanged}})
	emit(t, b, acme, 1)
	want := PresenceChanged(acme, agent, 2).Ref()
	if err := b.emit(want); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]Ref{want}, told(t, s)); diff != "" {
		t.Error(diff)
	}
}

// Holds REQ-016: a position is resumed without a gap while the ring keeps what follows it, and otherwise says so; after
// that the subscription goes on from now.
func TestBusReplayAndLag(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		from   func(b *Bus) Position
		lagged bool
		want   []int64
	}{
		"from now":               {func(*Bus) Position { return Position{} }, false, nil},
		"from the head":          {func(b *Bus) Position { return b.Position() }, false, nil},
		"from the last kept":     {func(b *Bus) Position { return Position{"e", 7} }, false, []int64{8, 9, 10}},
		"just before the ring":   {func(b *Bus) Position { return Position{"e", 6} }, false, []int64{7, 8, 9, 10}},
		"one that is gone":       {func(b *Bus) Position { return Position{"e", 5} }, true, nil},
		"the beginning":          {func(b *Bus) Position { return Position{"e", 0} }, true, nil},
		"another epoch":          {func(b *Bus) Position { return Position{"f", 8} }, true, nil},
		"no epoch":               {func(b *Bus) Position { return Position{"", 8} }, true, nil},
		"ahead of what happened": {func(b *Bus) Position { return Position{"e", 11} }, true, nil},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBus(t, BusOptions{Epoch: "e", Ring: 4})
			emit(t, b, acme, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10)
			s := subscribe(t, b, SubscribeOptions{Tenant: acme, From: tt.from(b)})
			if tt.lagged {
				_, err := next(t, s)
				wantErr(t, err, ErrLagged)
			}
			if diff := cmp.Diff(tt.want, versions(told(t, s))); diff != "" {
				t.Error(diff)
			}
			emit(t, b, acme, 11)
			if diff := cmp.Diff([]int64{11}, versions(told(t, s))); diff != "" {
				t.Errorf("afterwards: %s", diff)
			}
		})
	}
}

// A subscriber that falls behind is told once, and misses nothing after that.
func TestBusLagsTheSlow(t *testing.T) {
	t.Parallel()
	b := newBus(t, BusOptions{Epoch: "e", Ring: 4})
	slow, quick := subscribe(t, b, SubscribeOptions{Tenant: acme}), subscribe(t, b, SubscribeOptions{Tenant: acme})
	emit(t, b, acme, 1, 2, 3, 4)
	if diff := cmp.Diff([]int64{1, 2, 3, 4}, versions(told(t, quick))); diff != "" {
		t.Error(diff)
	}
	emit(t, b, acme, 5)
	_, err := next(t, slow)
	wantErr(t, err, ErrLagged)
	if got := slow.Position(); got != b.Position() {
		t.Errorf("goes on from %+v, want %+v", got, b.Position())
	}
	emit(t, b, acme, 6)
	for name, s := range map[string]*Subscription{"slow": slow, "quick": quick} {
		got := versions(told(t, s))
		if want := map[string][]int64{"slow": {6}, "quick": {5, 6}}[name]; !cmp.Equal(got, want) {
			t.Errorf("%s read %v, want %v", name, got, want)
		}
	}
}

// What is kept is bounded over all tenants. A forgotten tenant's position is lagged, never quietly resumed; a tenant that
// is listened to is never forgotten.
func TestBusForgetsSilentTenants(t *testing.T) {
	t.Parallel()
	b := newBus(t, BusOptions{Epoch: "e", Topics: 3})
	heard := subscribe(t, b, SubscribeOptions{Tenant: acme})
	emit(t, b, acme, 1)
	emit(t, b, "silent", 2)
	before := Position{"e", 1}
	for i := range 10 {
		emit(t, b, fmt.Sprint("tenant", i), int64(3+i))
	}
	if len(b.topics) != 3 {
		t.Errorf("%d topics are kept", len(b.topics))
	}
	_, err := next(t, subscribe(t, b, SubscribeOptions{Tenant: "silent", From: before}))
	wantErr(t, err, ErrLagged)
	emit(t, b, acme, 13)
	if diff := cmp.Diff([]int64{1, 13}, versions(told(t, heard))); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]int64{12}, versions(told(t, subscribe(t, b, SubscribeOptions{Tenant: "tenant9", From: Position{"e", 11}})))); diff != "" {
		t.Errorf("a kept one: %s", diff)
	}
}

// Who listens to all tenants resumes like anybody else, from when somebody first did; before that nothing was kept.
func TestBusAllTenantsReplay(t *testing.T) {
	t.Parallel()
	b := newBus(t, BusOptions{Epoch: "e", Topics: 2})
	emit(t, b, acme, 1)
	first := subscribe(t, b, SubscribeOptions{Tenant: AllTenants, From: Position{"e", 0}})
	_, err := next(t, first)
	wantErr(t, err, ErrLagged)
	at := first.Position()
	first.Close()
	emit(t, b, acme, 2)
	emit(t, b, other, 3)
	emit(t, b, "third", 4)
	again := subscribe(t, b, SubscribeOptions{Tenant: AllTenants, From: at})
	if diff := cmp.Diff([]int64{2, 3, 4}, versions(told(t, again))); diff != "" {
		t.Error(diff)
	}
}

// Holds REQ-016: Close wakes every reader and leaves none behind; a closed bus takes nothing.
func TestBusClose(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBus(t, BusOptions{Epoch: "e"})
		ended := make(chan error, 8)
		for range cap(ended) {
			s := subscribe(t, b, SubscribeOptions{Tenant: acme})
			go func() {
				_, err := s.Next(context.WithoutCancel(t.Context()))
				ended <- err
			}()
		}
		synctest.Wait() // all of them wait
		b.Close()
		b.Close()
		for range cap(ended) {
			wantErr(t, <-ended, ErrClosed)
		}
		wantErr(t, b.emit(ChannelChanged(acme, chanA, 1).Ref()), ErrClosed)
		_, err := b.Subscribe(SubscribeOptions{Tenant: acme})
		wantErr(t, err, ErrClosed)
	})
}

// A waiting reader is woken by an event, by its context and by Close, and by nothing else.
func TestWaitingReader(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBus(t, BusOptions{Epoch: "e"})
		s := subscribe(t, b, SubscribeOptions{Tenant: acme})
		ended := make(chan error, 1)
		read := func(ctx context.Context) {
			go func() { _, err := s.Next(ctx); ended <- err }()
			synctest.Wait() // it waits
		}
		ctx, cancel := context.WithCancel(t.Context())
		read(ctx)
		emit(t, b, other, 1)
		synctest.Wait()
		if len(ended) != 0 {
			t.Error("another tenant's event ended the wait")
		}
		emit(t, b, acme, 2)
		wantErr(t, <-ended, nil)
		read(ctx)
		cancel()
		wantErr(t, <-ended, context.Canceled)
		read(context.WithoutCancel(t.Context()))
		s.Close()
		s.Close()
		wantErr(t, <-ended, ErrClosed)
		emit(t, b, acme, 3)
		_, err := s.Next(t.Context())
		wantErr(t, err, ErrClosed)
		if got := b.topics[acme].subs; got != 0 {
			t.Errorf("%d subscribers are counted after the last one left", got)
		}
	})
}

func TestBatchNeedsALimit(t *testing.T) {
	t.Parallel()
	s := subscribe(t, newBus(t, BusOptions{Epoch: "e"}), SubscribeOptions{Tenant: acme})
	if _, err := s.Batch(t.Context(), 0, nil); err == nil {
		t.Error("a batch of none was waited for")
	}
}

// history is what a lagged reader reads afresh: every event before it was told, in the order of the bus.
type history struct {
	mu  sync.Mutex
	log []Ref
}

func (h *history) tell(b *Bus, ref Ref) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.log = append(h.log, ref)
	return b.emit(ref)
}

func (h *history) newest(tenant string, at Position) int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	var newest int64
	for _, ref := range h.log[:at.Seq] {
		if ref.Tenant == tenant {
			newest = ref.Version
		}
	}
	return newest
}

// Writers and readers meet: every reader sees each version of its tenant once, in order, or is told that it must look.
func TestBusTogether(t *testing.T) {
	t.Parallel()
	const each = 2000
	b, h := newBus(t, BusOptions{Epoch: "e", Ring: 64}), &history{}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	read := func(s *Subscription, tenant string) {
		for last := int64(0); last < each; {
			events, err := s.Batch(ctx, 16, nil)
			if errors.Is(err, ErrLagged) {
				last = h.newest(tenant, s.Position())
				continue
			}
			if err != nil {
				t.Error(err)
				return
			}
			for _, e := range events {
				if e.Tenant != tenant || e.Version != last+1 {
					t.Errorf("read %s %d after %d", e.Tenant, e.Version, last)
					return
				}
				last = e.Version
			}
		}
	}
	var group sync.WaitGroup
	for i := range 6 {
		tenant := []string{acme, other}[i%2]
		s := subscribe(t, b, SubscribeOptions{Tenant: tenant})
		group.Go(func() { read(s, tenant) })
	}
	for _, tenant := range []string{acme, other} {
		group.Go(func() {
			for v := int64(1); v <= each; v++ {
				if err := h.tell(b, ChannelChanged(tenant, chanA, v).Ref()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
}

func TestBusOptions(t *testing.T) {
	t.Parallel()
	for _, o := range []BusOptions{{}, {Epoch: "e", Ring: -1}, {Epoch: "e", Topics: -1}} {
		if _, err := NewBus(o); err == nil {
			t.Errorf("taken: %+v", o)
		}
	}
}
