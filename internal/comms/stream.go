package comms

import (
	"context"
	"errors"
	"time"

	"github.com/rigelbuild/compass-operator/internal/event"
	"github.com/rigelbuild/compass-operator/internal/store"
)

// StreamOptions bound a live stream. Zero values have the defaults.
type StreamOptions struct {
	Poll      time.Duration // how often heads are compared, which finds a lost last event; 15 s
	Heartbeat time.Duration // after how long without anything else a heartbeat is sent; 30 s
	Coalesce  time.Duration // edits of open turns are sent at most this often; 200 ms
	Page      int           // messages per read and channel; 100
}

func (o StreamOptions) withDefaults() StreamOptions {
	set := func(d *time.Duration, standard time.Duration) {
		if *d <= 0 {
			*d = standard
		}
	}
	set(&o.Poll, 15*time.Second)
	set(&o.Heartbeat, 30*time.Second)
	set(&o.Coalesce, 200*time.Millisecond)
	if o.Page <= 0 {
		o.Page = 100
	}
	return o
}

// Update is one thing that a stream tells: exactly one field is set.
type Update struct {
	Message   *store.Message
	PrevRev   int64  // with Message: the rev that this stream told before in its channel, so that a gap shows
	Resync    string // this channel must be read again: the client's rev is none of ours
	Channel   string // the caller's set of channels, or this one of them, changed
	Heartbeat bool
}

// Subscriber is one live stream.
type Subscriber struct {
	Account string
	Resume  map[string]int64 // the last rev seen per channel; a channel that is missing starts at its head
	// Send gives an update to the client and waits until the transport took it. Its error ends the stream.
	Send func(Update) error
	// Check is asked at every poll whether the caller still is who it was; its error ends the stream.
	Check func(ctx context.Context) error
}

// follower is a running stream. What it remembers per channel is only how far it has come; every message is read under
// the membership of now.
type follower struct {
	*Comms
	Subscriber
	sub      *event.Subscription
	channels map[string]*place
	dirty    map[string]bool
	sent     time.Time // anything
	drained  time.Time
	polled   time.Time
}

// place is how far a stream has come in one channel.
type place struct {
	told    int64 // the last rev told, or the one resumed from
	scanned int64 // nothing that may be told is at or below it
	head    int64 // everything up to here has committed
}

// streamed are the facts that a stream wakes for.
func streamed() []event.Name {
	return []event.Name{event.NameMessageVisible, event.NameMessageUpdated, event.NameChannelChanged}
}

// SubscribeComms tells a member of channels what changes in them, in order of rev per channel, until ctx ends or Send or
// Check fails. A fact only wakes it: what is told is read from Postgres, so a lost one costs at most Poll, and a client
// that resumes by rev misses neither edits nor settles (B2). Errors: ctx's, Send's, Check's, the store's, and
// store.ErrUnavailable when the process shuts down.
func (c *Comms) SubscribeComms(ctx context.Context, s Subscriber) error {
	tenant, ok := store.TenantFromContext(ctx)
	if !ok {
		return store.ErrNoTenant
	}
	// Before the first read, so that what is committed after it is heard.
	sub, err := c.bus.Subscribe(event.SubscribeOptions{Tenant: string(tenant), Names: streamed()})
	if err != nil {
		return errors.Join(store.ErrUnavailable, err)
	}
	defer sub.Close()
	f := &follower{Comms: c, Subscriber: s, sub: sub, dirty: map[string]bool{}, sent: c.now(), polled: c.now()}
	if err := f.begin(ctx); err != nil {
		return err
	}
	for {
		if err := f.drain(ctx); err != nil {
			return err
		}
		if err := f.wait(ctx); err != nil {
			return err
		}
	}
}

// begin places the stream in every channel of the account.
func (f *follower) begin(ctx context.Context) error {
	heads, err := f.store.ChannelsOf(ctx, f.Account)
	if err != nil {
		return err
	}
	// The first word says that the stream is there: what is committed from now on will be told.
	if err := f.send(Update{Heartbeat: true}); err != nil {
		return err
	}
	f.channels = make(map[string]*place, len(heads))
	for _, h := range heads {
		from, resumed := f.Resume[h.Channel]
		if !resumed {
			from = h.Last
		}
		if from > h.Last { // a rev that a failover forgot, or never was
			from = h.Last
			if err := f.send(Update{Resync: h.Channel}); err != nil {
				return err
			}
		}
		f.channels[h.Channel] = &place{told: from, scanned: from, head: h.Last}
		if from < h.Last {
			f.dirty[h.Channel] = true
		}
	}
	return nil
}

// drain tells what changed in the channels marked dirty, until it finds nothing more.
func (f *follower) drain(ctx context.Context) error {
	f.drained = f.now()
	after := map[string]int64{}
	for channel := range f.dirty {
		if at := f.channels[channel]; at != nil {
			after[channel] = at.scanned
		}
	}
	clear(f.dirty)
	for len(after) > 0 {
		ms, err := f.store.MessagesAfter(ctx, store.Drain{Reader: f.Account, After: after, Limit: f.stream.Page})
		if err != nil {
			return err
		}
		counts := map[string]int{}
		for i := range ms {
			if err := f.tell(&ms[i]); err != nil {
				return err
			}
			counts[ms[i].Channel]++
		}
		for channel := range after {
			delete(after, channel)
			if at := f.channels[channel]; counts[channel] == f.stream.Page {
				after[channel] = at.scanned
			} else { // what an agent may not see yet is passed over: its settle gives it a new rev
				at.scanned = max(at.scanned, at.head)
			}
		}
	}
	return nil
}

func (f *follower) tell(m *store.Message) error {
	at := f.channels[m.Channel]
	if err := f.send(Update{Message: m, PrevRev: at.told}); err != nil {
		return err
	}
	at.told, at.scanned = m.Rev, m.Rev
	return nil
}

func (f *follower) send(u Update) error {
	f.sent = f.now()
	return f.Send(u)
}

// wait returns when something may have changed, and has marked what. However busy the stream is, it polls in time.
func (f *follower) wait(ctx context.Context) error {
	due, cancel := context.WithTimeout(ctx, f.stream.Poll-f.now().Sub(f.polled))
	defer cancel()
	for {
		events, err := f.sub.Batch(due, 256)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, event.ErrClosed):
			return errors.Join(store.ErrUnavailable, err)
		case errors.Is(err, event.ErrLagged):
			return f.refresh(ctx)
		case err != nil:
			return f.poll(ctx)
		}
		urgent, set := f.mark(events)
		if set != nil {
			return f.changed(ctx, set)
		}
		if urgent {
			return nil
		}
		if len(f.dirty) > 0 {
			return f.coalesce(ctx)
		}
	}
}

// mark marks the channels of this stream that events are about. urgent says that one was more than an edit; set holds the
// channels whose members, pins or state changed.
func (f *follower) mark(events []event.Event) (urgent bool, set map[string]bool) {
	for _, e := range events {
		switch {
		case e.Kind == event.NameChannelChanged:
			if set == nil {
				set = map[string]bool{}
			}
			set[e.RowID] = true
		case f.channels[e.Scope] != nil:
			f.dirty[e.Scope] = true
			f.channels[e.Scope].head = max(f.channels[e.Scope].head, e.Version)
			urgent = urgent || e.Kind == event.NameMessageVisible
		}
	}
	return urgent, set
}

// coalesce waits until the last drain is long enough ago, so that the frames of one message become few updates, or until
// something urgent comes.
func (f *follower) coalesce(ctx context.Context) error {
	rest := f.stream.Coalesce - f.now().Sub(f.drained)
	if rest <= 0 {
		return nil
	}
	pause, cancel := context.WithTimeout(ctx, rest)
	defer cancel()
	for {
		events, err := f.sub.Batch(pause, 256)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, event.ErrLagged):
			return f.refresh(ctx)
		case err != nil:
			return nil
		}
		urgent, set := f.mark(events)
		if set != nil {
			return f.changed(ctx, set)
		}
		if urgent {
			return nil
		}
	}
}

// poll is what happens when nothing else did: the caller is checked, heads are compared, and the client hears of us.
func (f *follower) poll(ctx context.Context) error {
	f.polled = f.now()
	if f.Check != nil {
		if err := f.Check(ctx); err != nil {
			return err
		}
	}
	if err := f.refresh(ctx); err != nil {
		return err
	}
	if f.now().Sub(f.sent) >= f.stream.Heartbeat {
		return f.send(Update{Heartbeat: true})
	}
	return nil
}

// changed reads the caller's channels anew and tells of those in set that are, or were, among them.
func (f *follower) changed(ctx context.Context, set map[string]bool) error {
	mine := map[string]bool{}
	for channel := range set {
		mine[channel] = f.channels[channel] != nil
	}
	if err := f.refresh(ctx); err != nil {
		return err
	}
	for channel, was := range mine {
		if was && f.channels[channel] != nil { // refresh has told of those that came and went
			if err := f.send(Update{Channel: channel}); err != nil {
				return err
			}
		}
	}
	return nil
}

// refresh compares heads and membership with where the stream is, and marks what lies behind.
func (f *follower) refresh(ctx context.Context) error {
	heads, err := f.store.ChannelsOf(ctx, f.Account)
	if err != nil {
		return err
	}
	now := make(map[string]bool, len(heads))
	for _, h := range heads {
		now[h.Channel] = true
		at := f.channels[h.Channel]
		if at == nil {
			at = &place{told: h.JoinedAt, scanned: h.JoinedAt}
			f.channels[h.Channel] = at
			if err := f.send(Update{Channel: h.Channel}); err != nil {
				return err
			}
		}
		at.head = max(at.head, h.Last)
		if at.scanned < h.Last {
			f.dirty[h.Channel] = true
		}
	}
	for channel := range f.channels {
		if !now[channel] {
			delete(f.channels, channel)
			if err := f.send(Update{Channel: channel}); err != nil {
				return err
			}
		}
	}
	return nil
}
