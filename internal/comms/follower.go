package comms

import (
	"context"
	"errors"
	"time"

	"github.com/rigelbuild/compass-operator/internal/event"
	"github.com/rigelbuild/compass-operator/internal/store"
)

// follower is a running stream. What it remembers per channel is only how far it has come; every message is read under
// the membership of the moment in which it was read.
type follower struct {
	*Comms
	Subscriber
	tenant   store.TenantID
	sub      *event.Subscription
	channels map[string]*place
	dirty    map[string]bool // channel → now; false waits until enough edits came together
	sent     time.Time       // anything
	drained  time.Time       // all that was told had been read
	looked   time.Time       // when the read of heads began that the stream goes by
	polled   time.Time
	doubted  bool // whether the caller still may is to be asked at once
}

// place is how far a stream has come in one channel.
type place struct {
	told    int64 // the last rev told, or the one resumed from
	scanned int64 // nothing that may be told is at or below it
	head    int64 // everything up to here has committed
	urgent  bool  // what is behind is more than an edit
	live    bool  // it has caught up, and reads together with the other streams
}

// begin places the stream in every channel of the account.
func (f *follower) begin(ctx context.Context) error {
	f.seats.enter(f.tenant, f.Account)
	f.looked = f.now()
	heads, err := f.store.ChannelsOf(ctx, f.Account)
	if err != nil {
		return err
	}
	// The first word says that the stream is there: what is committed from now on will be told.
	if err := f.send(Update{Heartbeat: true}); err != nil {
		return err
	}
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
		f.follow(h, from)
	}
	return nil
}

// end lets go of what the stream shared with others.
func (f *follower) end() {
	for channel := range f.channels {
		f.unfollow(channel)
	}
	f.seats.exit(f.tenant, f.Account)
}

func (f *follower) follow(h store.ChannelHead, from int64) {
	f.channels[h.Channel] = &place{told: from, scanned: from, head: h.Last, live: from == h.Last}
	f.shared.join(address{f.tenant, h.Channel}, f.Account)
	if from < h.Last {
		f.dirty[h.Channel] = true
	}
}

func (f *follower) unfollow(channel string) {
	delete(f.channels, channel)
	f.shared.leave(address{f.tenant, channel}, f.Account)
}

// drain tells what changed in the channels that are due: together with the other streams where this one keeps up with
// them, and by itself where it does not yet.
func (f *follower) drain(ctx context.Context) error {
	defer func() { f.drained = f.now() }()
	wants, behind := map[string]want{}, map[string]int64{}
	for channel, now := range f.dirty {
		if !now {
			continue
		}
		delete(f.dirty, channel)
		switch at := f.channels[channel]; {
		case at == nil || at.scanned >= at.head:
		case at.live:
			wants[channel] = want{at.scanned, at.head}
		default:
			behind[channel] = at.scanned
		}
	}
	if len(wants) > 0 {
		if err := f.together(ctx, wants, behind); err != nil {
			return err
		}
	}
	return f.alone(ctx, behind)
}

// together tells what one read found for every stream. Where that does not reach back to this one, it is behind.
func (f *follower) together(ctx context.Context, wants map[string]want, behind map[string]int64) error {
	news, err := f.shared.after(ctx, f.tenant, f.Account, wants)
	if err != nil {
		return err
	}
	for channel, n := range news {
		at := f.channels[channel]
		if n.alone {
			behind[channel] = at.scanned
			continue
		}
		for _, m := range n.messages {
			if err := f.tell(m); err != nil {
				return err
			}
		}
		if at.scanned = max(at.scanned, n.upTo); at.scanned < at.head {
			f.dirty[channel] = at.urgent
		} else {
			at.urgent = false
		}
	}
	return nil
}

// alone tells what changed in channels after a rev each, until it finds nothing more.
func (f *follower) alone(ctx context.Context, after map[string]int64) error {
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
				at.live, at.urgent = true, false
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

// wait returns when something is due. However busy the stream is, it polls in time.
func (f *follower) wait(ctx context.Context) error { //nolint:gocyclo // one case for each thing that can wake it
	for {
		rest := f.stream.Poll - f.now().Sub(f.polled)
		if rest <= 0 {
			return f.poll(ctx)
		}
		pause, edits := f.coalesced()
		if edits = edits && pause < rest; edits {
			rest = pause
		}
		if rest <= 0 { // something is due now
			return nil
		}
		events, err := f.batch(ctx, rest)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, event.ErrClosed):
			return errors.Join(store.ErrUnavailable, err)
		case errors.Is(err, event.ErrLagged):
			return f.refresh(ctx, since{seq: f.sub.Position().Seq})
		case err != nil && edits:
			f.press()
			return nil
		case err != nil:
			return f.poll(ctx)
		}
		if done, err := f.heard(ctx, events); done || err != nil {
			return err
		}
	}
}

// heard marks what events are about, and does at once what must not wait. done: it has also looked at heads.
func (f *follower) heard(ctx context.Context, events []event.Event) (done bool, err error) {
	set := f.mark(events)
	if f.doubted {
		f.doubted = false
		if err := f.check(ctx); err != nil {
			return false, err
		}
	}
	if set == nil {
		return false, nil
	}
	return true, f.changed(ctx, set, events[len(events)-1].Seq)
}

func (f *follower) check(ctx context.Context) error {
	if f.Check == nil {
		return nil
	}
	return f.Check(ctx)
}

func (f *follower) batch(ctx context.Context, within time.Duration) ([]event.Event, error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	return f.sub.Batch(ctx, 256)
}

// coalesced is how long the first of the dirty channels must still wait, so that the frames of one message become few
// updates: until its last read, which is one for all of its streams, is long enough ago. What is urgent waits not at all.
func (f *follower) coalesced() (rest time.Duration, dirty bool) {
	rest = f.stream.Coalesce
	for channel, now := range f.dirty {
		if !now {
			now = f.now().Sub(f.shared.lastRead(address{f.tenant, channel})) >= f.stream.Coalesce
			f.dirty[channel] = now
		}
		if now {
			return 0, true
		}
		rest = min(rest, f.stream.Coalesce-f.now().Sub(f.shared.lastRead(address{f.tenant, channel})))
	}
	return rest, len(f.dirty) > 0
}

// press makes every dirty channel due.
func (f *follower) press() {
	for channel := range f.dirty {
		f.dirty[channel] = true
	}
}

// mark marks the channels of this stream that events are about. set holds the channels whose members, pins or state changed.
func (f *follower) mark(events []event.Event) (set map[string]bool) {
	for _, e := range events {
		switch at := f.channels[e.Scope]; {
		case e.Kind == event.NameChannelChanged:
			if set == nil {
				set = map[string]bool{}
			}
			set[e.RowID] = true
		case e.Kind == event.NameAccessChanged:
			f.doubted = f.doubted || e.RowID == f.Account
		case at != nil:
			at.head = max(at.head, e.Version)
			at.urgent = at.urgent || e.Kind == event.NameMessageVisible
			f.dirty[e.Scope] = f.dirty[e.Scope] || at.urgent
		}
	}
	return set
}

// poll is what happens when nothing else did: the caller is checked, heads are compared, and the client hears of us.
func (f *follower) poll(ctx context.Context) error {
	f.polled = f.now()
	if err := f.check(ctx); err != nil {
		return err
	}
	// All streams of a tenant poll, each in its own time; half a period apart they may share a look.
	if err := f.refresh(ctx, since{time: f.now().Add(-f.stream.Poll / 2)}); err != nil {
		return err
	}
	if f.now().Sub(f.sent) >= f.stream.Heartbeat {
		return f.send(Update{Heartbeat: true})
	}
	return nil
}

// changed reads the caller's channels anew and tells of those in set that are, or were, among them.
func (f *follower) changed(ctx context.Context, set map[string]bool, seq uint64) error {
	mine := map[string]bool{}
	for channel := range set {
		mine[channel] = f.channels[channel] != nil
	}
	if err := f.refresh(ctx, since{seq: seq}); err != nil {
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
func (f *follower) refresh(ctx context.Context, from since) error {
	if from.time.Before(f.looked) { // what it knows is newer
		from.time = f.looked
	}
	look, err := f.seats.of(ctx, f.tenant, f.Account, from)
	if err != nil {
		return err
	}
	f.looked = look.began
	now := make(map[string]bool, len(look.heads))
	for _, h := range look.heads {
		now[h.Channel] = true
		if err := f.compare(h, look.began); err != nil {
			return err
		}
	}
	for channel := range f.channels {
		if !now[channel] {
			f.unfollow(channel)
			if err := f.send(Update{Channel: channel}); err != nil {
				return err
			}
		}
	}
	return nil
}

// compare holds a head that was read at a time against where the stream is.
func (f *follower) compare(h store.ChannelHead, at time.Time) error {
	p := f.channels[h.Channel]
	switch {
	case p == nil:
		f.follow(h, h.JoinedAt)
		return f.send(Update{Channel: h.Channel})
	case h.Last < p.told && at.After(f.drained): // a failover forgot what was told
		p.told, p.scanned, p.head = h.Last, h.Last, h.Last
		f.shared.lost(address{f.tenant, h.Channel})
		return f.send(Update{Resync: h.Channel})
	}
	if p.head = max(p.head, h.Last); p.scanned < p.head {
		p.urgent, f.dirty[h.Channel] = true, true
	}
	return nil
}
