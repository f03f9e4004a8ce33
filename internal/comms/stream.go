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
	// Check is asked at every poll, and when the account's access changed, whether the caller still is who it was; its error
	// ends the stream.
	Check func(ctx context.Context) error
}

// streamed are the facts that a stream wakes for.
func streamed() []event.Name {
	return []event.Name{event.NameMessageVisible, event.NameMessageUpdated, event.NameChannelChanged, event.NameAccessChanged}
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
	f := &follower{
		Comms: c, Subscriber: s, tenant: tenant, sub: sub, channels: map[string]*place{}, dirty: map[string]bool{},
		behind: map[string]int64{}, sent: c.now(), polled: c.now(),
		alarm: time.NewTimer(0), //nolint:forbidigo // it only wakes; what is due is asked of the clock
	}
	defer f.alarm.Stop()
	if err := c.seats.enter(ctx, tenant, s.Account, sub); err != nil {
		return errors.Join(store.ErrUnavailable, err)
	}
	defer f.end()
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
