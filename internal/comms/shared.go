package comms

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/rigelbuild/compass-operator/internal/store"
)

const (
	// sharedFor is how long the answer of one statement is handed on: as long as a burst takes to reach every stream.
	sharedFor = time.Second
	// readTime bounds a read that streams wait for; it belongs to none of them, so no client that goes ends it.
	readTime = 10 * time.Second
)

var errPanicked = errors.New("a read that streams shared panicked")

// shared lets the streams of a process read together: a burst in a channel costs one statement, whatever the number of
// clients (B3). What is shared is the answer of one statement, which says itself who was a member when it read (B2). Nobody
// is told from it what was committed after his membership ended, and it is forgotten within sharedFor.
type shared struct {
	store channels
	now   func() time.Time
	size  int // most messages of a channel in one read

	mu      sync.Mutex
	pages   map[address]*page
	expires []expiry // oldest first
}

// address is one channel.
type address struct {
	tenant  store.TenantID
	channel string
}

// page is the newest piece of a channel that is streamed here.
type page struct {
	streams map[string]int // account → its live streams
	parts   []part         // without a gap, oldest first
	upTo    int64          // where the last one ended, also once it is forgotten
	flight  *flight        // the read that is under way
	read    time.Time      // when the last one began
}

// part is what one statement said: everything in (after, upTo], and who among asked may be told.
type part struct {
	after, upTo    int64
	messages       []store.Message
	asked          map[string]bool
	people, agents map[string]bool
}

// flight is a read that others wait for.
type flight struct {
	done chan struct{}
	err  error
}

type expiry struct {
	at   time.Time
	page *page
	upTo int64
}

// span is how far a stream has come in a channel, and how far the channel has: both have committed.
type span struct{ after, head int64 }

// want is a channel that a stream asks about, and what it gets of it: what it may be told in (after, upTo]. alone: nothing
// here reaches back to where it is, it must read for itself.
type want struct {
	channel string
	span
	served   bool
	messages []*store.Message
	upTo     int64
	alone    bool
}

func newShared(s channels, now func() time.Time, size int) *shared {
	return &shared{store: s, now: now, size: size, pages: map[address]*page{}}
}

// join says that an account streams a channel here whose head is known, once for each of its streams. Only who has joined is
// asked for.
func (s *shared) join(at address, account string, head int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.pages[at]
	if p == nil {
		p = &page{streams: map[string]int{}, upTo: head}
		s.pages[at] = p
	}
	p.streams[account]++
}

func (s *shared) leave(at address, account string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.pages[at]
	if p.streams[account]--; p.streams[account] == 0 {
		delete(p.streams, account)
	}
	if len(p.streams) == 0 {
		delete(s.pages, at)
	}
}

// lost forgets what was shared of a channel: some of it is no more, and its head has gone back.
func (s *shared) lost(at address, head int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.pages[at]
	p.parts, p.upTo = nil, head
}

// lastRead is when the channel was last read for all of its streams.
func (s *shared) lastRead(at address) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.pages[at]; p != nil {
		return p.read
	}
	return time.Time{}
}

// serve answers each want with something beyond after, or with nothing that may be told up to there. Where it is not here
// yet, one of those who ask reads it, for all of them in one statement; the others wait. Errors: ctx's, and those of that
// read.
func (s *shared) serve(ctx context.Context, tenant store.TenantID, account string, wants []want) error {
	for {
		mine, theirs := s.look(tenant, account, wants)
		switch {
		case mine != nil:
			if err := s.fly(ctx, mine); err != nil {
				return err
			}
		case theirs != nil:
			select {
			case <-theirs.done:
				if theirs.err != nil {
					return theirs.err
				}
			case <-ctx.Done():
				return ctx.Err()
			}
		default:
			return nil
		}
	}
}

// trip is a read that is about to begin.
type trip struct {
	flight *flight
	tenant store.TenantID
	spans  map[string]span // by channel: from where, and how far it must come
	asked  map[string]map[string]bool
}

// look serves what is here, and takes on what nobody reads yet.
func (s *shared) look(tenant store.TenantID, account string, wants []want) (mine *trip, theirs *flight) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forget()
	for i := range wants {
		w := &wants[i]
		if w.served {
			continue
		}
		p := s.pages[address{tenant, w.channel}]
		switch {
		case p.serve(account, w):
		case p.flight != nil:
			theirs = p.flight
		default:
			if mine == nil {
				mine = newTrip(tenant)
			}
			s.takeOn(mine, w.channel, p, p.from(w.span))
		}
	}
	return mine, theirs
}

func newTrip(tenant store.TenantID) *trip {
	return &trip{&flight{done: make(chan struct{})}, tenant, map[string]span{}, map[string]map[string]bool{}}
}

// takeOn adds a channel to a trip. The caller holds the lock.
func (s *shared) takeOn(t *trip, channel string, p *page, of span) {
	t.spans[channel], t.asked[channel] = of, asked(p.streams)
	p.flight, p.read = t.flight, s.now()
}

func asked(streams map[string]int) map[string]bool {
	out := make(map[string]bool, len(streams))
	for account := range streams {
		out[account] = true
	}
	return out
}

// serve answers from what is here. False: it must be read.
func (p *page) serve(account string, w *want) bool {
	if len(p.parts) == 0 || p.last() <= w.after {
		return false
	}
	w.served, w.upTo, w.alone = true, w.after, p.parts[0].after > w.after
	if w.alone {
		return true
	}
	for i := range p.parts {
		part := &p.parts[i]
		if part.upTo <= w.after {
			continue
		}
		if !part.asked[account] { // it was read before this stream came
			w.alone = w.upTo == w.after
			break
		}
		for j := range part.messages {
			if m := &part.messages[j]; m.Rev > w.after && part.tells(account, m) {
				w.messages = append(w.messages, m)
			}
		}
		w.upTo = part.upTo
	}
	return true
}

func (p *part) tells(account string, m *store.Message) bool {
	return p.people[account] || p.agents[account] && (!m.Held() || m.Author == account)
}

func (p *page) last() int64 { return p.parts[len(p.parts)-1].upTo }

// from is where the next part begins: at the end of the last one, unless that ends before the asker's place.
func (p *page) from(s span) span {
	if len(p.parts) > 0 && p.last() < s.after {
		p.parts = nil
	}
	if len(p.parts) > 0 {
		s.after = p.last()
	}
	return s
}

// fly reads for everybody, and wakes them, also if the read panics.
func (s *shared) fly(ctx context.Context, t *trip) (err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), readTime)
	defer cancel()
	burst := store.Burst{After: map[string]int64{}, Limit: s.size}
	readers := map[string]bool{}
	for channel, span := range t.spans {
		burst.After[channel] = span.after
		maps.Copy(readers, t.asked[channel])
	}
	burst.Readers = slices.Sorted(maps.Keys(readers))
	var news map[string]store.News
	err = errPanicked
	defer func() { s.land(t, news, err) }()
	news, err = s.store.MessagesBurst(ctx, burst)
	return err
}

func (s *shared) land(t *trip, news map[string]store.News, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for channel, span := range t.spans {
		p := s.pages[address{t.tenant, channel}]
		if p == nil || p.flight != t.flight { // everybody has left since
			continue
		}
		p.flight = nil
		if err == nil {
			s.keep(p, newPart(span, news[channel], t.asked[channel], s.size))
		}
	}
	t.flight.err = err
	close(t.flight.done)
}

func newPart(s span, n store.News, asked map[string]bool, size int) part {
	p := part{after: s.after, upTo: s.head, messages: n.Messages, asked: asked, people: map[string]bool{}, agents: map[string]bool{}}
	if last := len(n.Messages) - 1; last >= 0 {
		if rev := n.Messages[last].Rev; last+1 == size || rev > p.upTo {
			p.upTo = rev
		}
	}
	for _, account := range n.People {
		p.people[account] = true
	}
	for _, account := range n.Agents {
		p.agents[account] = true
	}
	return p
}

// keep adds a part for a while. The caller holds the lock.
func (s *shared) keep(p *page, next part) {
	p.parts, p.upTo = append(p.parts, next), next.upTo
	s.expires = append(s.expires, expiry{s.now().Add(sharedFor), p, next.upTo})
}

// forget drops what was shared long enough. The caller holds the lock.
func (s *shared) forget() {
	now := s.now()
	for len(s.expires) > 0 && !s.expires[0].at.After(now) {
		e := s.expires[0]
		s.expires = s.expires[1:]
		for len(e.page.parts) > 0 && e.page.parts[0].upTo <= e.upTo {
			e.page.parts = e.page.parts[1:]
		}
	}
}
