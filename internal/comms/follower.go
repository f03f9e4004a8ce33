package comms

import (
	"context"
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
	dirty    map[string]bool  // channel → now; false waits until enough edits came together
	wants    []want           // of the drain under way: what is read together
	behind   map[string]int64 // and where it must read alone
	alarm    *time.Timer
	sent     time.Time // anything
	drained  time.Time // all that was told had been read
	looked   time.Time // when the read of heads began that the stream goes by
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
	f.shared.join(address{f.tenant, h.Channel}, f.Account, h.Last)
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
	clear(f.behind)
	f.wants = f.wants[:0]
	for channel, now := range f.dirty {
		if !now {
			continue
		}
		delete(f.dirty, channel)
		switch at := f.channels[channel]; {
		case at == nil || at.scanned >= at.head:
		case at.live:
			f.wants = append(f.wants, want{channel: channel, span: span{at.scanned, at.head}})
		default:
			f.behind[channel] = at.scanned
		}
	}
	if len(f.wants) > 0 {
		if err := f.together(ctx); err != nil {
			return err
		}
	}
	return f.alone(ctx, f.behind)
}

// together tells what one read found for every stream. Where that does not reach back to this one, it is behind.
func (f *follower) together(ctx context.Context) error {
	if err := f.shared.serve(ctx, f.tenant, f.Account, f.wants); err != nil {
		return err
	}
	defer clear(f.wants) // what was told is kept by nobody who waits
	for i := range f.wants {
		w := &f.wants[i]
		at := f.channels[w.channel]
		if w.alone {
			f.behind[w.channel] = at.scanned
			continue
		}
		for _, m := range w.messages {
			if err := f.tell(m); err != nil {
				return err
			}
		}
		if at.scanned = max(at.scanned, w.upTo); at.scanned < at.head {
			f.dirty[w.channel] = at.urgent
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
