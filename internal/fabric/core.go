package fabric

import (
	"context"
	"fmt"
	"sync"

	"github.com/nats-io/nats.go"
)

// coreSub is a core NATS subscription that outlives connections: the link puts it on each new one.
type coreSub struct {
	subject, queue string
	fn             func(*nats.Msg)

	serial sync.Mutex // held by the callback that runs
	ended  bool       // under serial: nothing may run any more
	sub    *nats.Subscription
}

func (s *coreSub) attach(nc *nats.Conn) error {
	sub, err := nc.QueueSubscribe(s.subject, s.queue, s.take)
	if err != nil {
		return fmt.Errorf("subscribe to %s: %w", s.subject, interpret(err))
	}
	s.sub = sub
	return nil
}

func (s *coreSub) take(msg *nats.Msg) {
	s.serial.Lock()
	defer s.serial.Unlock()
	if !s.ended {
		s.fn(msg)
	}
}

// subscribe calls fn serially for each message until the returned function is called, which waits for a callback that
// runs. When it returns, the broker knows of the subscription, if it can be reached. An empty queue: everybody gets all.
func (l *link) subscribe(ctx context.Context, subject, queue string, fn func(*nats.Msg)) (func(), error) {
	s := &coreSub{subject: subject, queue: queue, fn: fn}
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return nil, ErrClosed
	}
	nc := l.nc
	if err := s.attach(nc); err != nil && !nc.IsClosed() { // a closed one is being replaced: adopt attaches
		l.mu.Unlock()
		return nil, err
	}
	l.subs[s] = struct{}{}
	l.mu.Unlock()
	if nc.IsConnected() {
		ctx, cancel := context.WithTimeout(ctx, l.cfg.PublishTimeout)
		defer cancel()
		if err := nc.FlushWithContext(ctx); err != nil {
			l.log.Debug("Subscription not confirmed yet", "subject", subject, "error", err)
		}
	}
	return func() { l.unsubscribe(s) }, nil
}

func (l *link) unsubscribe(s *coreSub) {
	l.mu.Lock()
	delete(l.subs, s)
	sub := s.sub
	l.mu.Unlock()
	if sub != nil {
		_ = sub.Unsubscribe() // fails only where it is gone already
	}
	s.serial.Lock()
	s.ended = true
	s.serial.Unlock()
}

// send publishes one core message, now or not at all.
func (l *link) send(msg *nats.Msg) error {
	nc, _, _, err := l.current()
	if err != nil {
		return err
	}
	return interpret(nc.PublishMsg(msg))
}
