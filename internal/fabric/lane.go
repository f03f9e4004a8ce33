package fabric

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// errLaneGone ends one session of a lane: its consumer or stream is no longer what it was.
var errLaneGone = errors.New("consumer or stream is gone")

// run keeps the lane consuming until ctx ends.
func (l *lane) run(ctx context.Context) {
	defer close(l.done)
	first := l.f.cfg.Link.ReconnectWait
	for wait := first; ctx.Err() == nil; {
		began, back := l.f.cfg.Now(), l.f.link.back()
		err := l.session(ctx)
		if errors.Is(err, ErrClosed) {
			return
		}
		if l.f.cfg.Now().Sub(began) > 5*time.Second { // it had worked
			wait = first
		}
		if err != nil && ctx.Err() == nil {
			l.f.cfg.Logger.Warn("Queue cannot be consumed, trying again", "stream", l.f.cfg.Stream, "error", err)
		}
		select {
		case <-ctx.Done():
		case <-back: // what went wrong may have been the outage
		case <-time.After(wait):
		}
		wait = min(2*wait, 5*time.Second)
	}
}

// ready makes the consumer be there, or says why it is not.
func (l *lane) ready(ctx context.Context) error {
	ctx, cancel := l.f.link.whileUp(ctx)
	defer cancel()
	p, err := l.provisioner()
	if err != nil {
		return err
	}
	if !l.f.cfg.Manage {
		info, seen, _, err := p.look(ctx)
		switch {
		case err != nil:
			return err
		case !seen.Exists || seen.Ahead:
			return fmt.Errorf("consumer %s of stream %s: %w", p.durable.Durable, l.f.cfg.Stream, ErrAbsent)
		}
		l.ackWait = info.Config.AckWait // the broker's word counts
		return nil
	}
	return l.repair(ctx, p)
}

// repair makes what is missing and changes what differs. Adopt is right here: whoever manages owns the broker.
func (l *lane) repair(ctx context.Context, p *provisioner) error {
	_, wroteQueue, err := p.ensure(ctx, p.queue, true)
	if err != nil {
		return err
	}
	_, wroteDead, err := p.ensure(ctx, p.dead, true)
	if err != nil {
		return err
	}
	_, wroteConsumer, err := p.ensureConsumer(ctx, true)
	if err != nil {
		return err
	}
	for what, wrote := range map[string][]string{"stream": wroteQueue, "dead letters": wroteDead, "consumer": wroteConsumer} {
		if len(wrote) > 0 {
			l.f.metrics.heal(what)
			l.f.cfg.Logger.Info("Queue repaired", "stream", l.f.cfg.Stream, "what", what, "fields", wrote)
		}
	}
	return nil
}

// session consumes until the consumer, the connection or ctx ends.
func (l *lane) session(ctx context.Context) error {
	if err := l.ready(ctx); err != nil {
		return err
	}
	p, err := l.provisioner()
	if err != nil {
		return err
	}
	nc, _, changed, err := l.f.link.current()
	if err != nil {
		return err
	}
	if l.lostOne { // sequences and counts may have begun anew
		clear(l.known)
		l.f.link.recover.found()
		l.lostOne = false
	}
	work := context.WithoutCancel(ctx) // what was taken is worked to its end
	q := &pull{
		link: l.f.link, nc: nc, subject: nextSubject(p.queue.Name, p.durable.Durable), batch: l.f.cfg.Prefetch,
		beat: pullHeartbeat, take: func(msg *nats.Msg) { l.take(work, msg) }, suspect: l.suspect,
	}
	ctx, end := context.WithCancel(ctx)
	watched := make(chan error, 1)
	go func() {
		defer end()
		watched <- l.watch(ctx, changed)
	}()
	err = q.run(ctx)
	end()
	if errors.Is(err, errPullEnded) {
		l.lostOne = true
	}
	return errors.Join(err, <-watched)
}

// watch returns when the session is over. A consumer that is missing, ahead of its stream or changed ends it.
func (l *lane) watch(ctx context.Context, changed <-chan struct{}) error {
	tick := time.NewTicker(l.f.cfg.Inspect)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
			return nil
		case <-l.poke:
		case <-tick.C:
		}
		if err := l.inspect(ctx); err != nil {
			return err
		}
	}
}

// inspect compares consumer and stream, and reports what waits. A broker that does not answer is no finding.
func (l *lane) inspect(ctx context.Context) error {
	p, err := l.provisioner()
	if err != nil {
		return err
	}
	_, seen, queue, err1 := p.look(ctx)
	dead, _, err2 := p.observe(ctx, p.dead)
	if err := errors.Join(err1, err2); err != nil {
		l.f.cfg.Logger.Debug("Queue cannot be inspected", "stream", l.f.cfg.Stream, "error", err)
		return nil
	}
	wrong := slices.Concat(queue.Drift, seen.Drift, dead.Drift)
	switch {
	case !queue.Exists || !seen.Exists || seen.Ahead:
		l.lostOne = true
		return errLaneGone
	case l.f.cfg.Manage && (!dead.Exists || len(wrong) > 0):
		return fmt.Errorf("%w: changed: %v", errLaneGone, wrong)
	}
	l.report(ctx, queue, seen)
	l.f.metrics.dead.Record(ctx, int64(dead.Messages), //nolint:gosec // a count of messages
		metric.WithAttributes(attribute.String("stream", l.f.cfg.Stream)))
	return nil
}

// report tells the backlog. A stored reference that is neither pending nor unanswered is an orphan: nobody will see it.
// Two looks at a moving queue do not fit exactly, so only what two inspections in a row agree on counts.
func (l *lane) report(ctx context.Context, queue StreamSeen, seen ConsumerSeen) {
	state := func(s string) metric.RecordOption {
		return metric.WithAttributes(attribute.String("stream", l.f.cfg.Stream), attribute.String("state", s))
	}
	m := l.f.metrics
	m.backlog.Record(ctx, int64(seen.Pending), state("pending")) //nolint:gosec // counts of messages
	m.backlog.Record(ctx, int64(seen.AckPending), state("unanswered"))
	m.backlog.Record(ctx, int64(seen.Redelivered), state("redelivered"))
	now := max(int64(queue.Messages)-int64(seen.Pending)-int64(seen.AckPending), 0) //nolint:gosec // counts of messages
	orphans := min(now, l.orphans)
	l.orphans = now
	m.orphans.Record(ctx, orphans, metric.WithAttributes(attribute.String("stream", l.f.cfg.Stream)))
	if orphans > 0 {
		l.f.cfg.Logger.Error("References are stored that no consumer will see", "stream", l.f.cfg.Stream, "orphans", orphans)
	}
}

// suspect asks for an inspection now.
func (l *lane) suspect() {
	select {
	case l.poke <- struct{}{}:
	default:
	}
}
