package comms

import (
	"context"
	"errors"
	"time"

	"github.com/rigelbuild/compass-operator/internal/event"
	"github.com/rigelbuild/compass-operator/internal/store"
)

// wait returns when something is due. However busy the stream is, it polls in time.
func (f *follower) wait(ctx context.Context) error {
	for {
		pause, edits := f.rest()
		events, err := f.listen(ctx, pause)
		switch {
		case err != nil:
			return f.deaf(ctx, err)
		case len(events) > 0:
			if done, err := f.heard(ctx, events); done || err != nil {
				return err
			}
		case edits:
			if pause > 0 {
				f.press()
			}
			return nil
		default:
			return f.poll(ctx)
		}
	}
}

// rest is for how long nothing need be done, and whether that is then the edits that came together, or the poll.
func (f *follower) rest() (pause time.Duration, edits bool) {
	pause = f.stream.Poll - f.now().Sub(f.polled)
	if soon, dirty := f.coalesced(); dirty && soon < pause {
		return soon, true
	}
	return pause, false
}

// listen returns what was told within a time, or nothing.
func (f *follower) listen(ctx context.Context, within time.Duration) ([]event.Event, error) {
	if within <= 0 {
		return nil, nil
	}
	f.alarm.Reset(within)
	return f.sub.Batch(ctx, 256, f.alarm.C)
}

// deaf is what follows from an error of the bus: who lagged looks at everything once more, and goes on.
func (f *follower) deaf(ctx context.Context, err error) error {
	switch {
	case errors.Is(err, event.ErrLagged):
		return f.refresh(ctx, since{seq: f.sub.Position().Seq})
	case errors.Is(err, event.ErrClosed):
		return errors.Join(store.ErrUnavailable, err)
	}
	return err
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
		f.shared.lost(address{f.tenant, h.Channel}, h.Last)
		return f.send(Update{Resync: h.Channel})
	}
	if p.head = max(p.head, h.Last); p.scanned < p.head {
		p.urgent, f.dirty[h.Channel] = true, true
	}
	return nil
}
