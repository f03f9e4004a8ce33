package fabric

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// link keeps one connection for as long as the fabric lives. nats.go reconnects by itself; where it gives up for good (a
// payload above a lowered limit, repeated refusals) the link dials again and puts back what was subscribed.
type link struct {
	cfg     Config
	log     *slog.Logger
	metrics *metrics
	recover *recovery

	mu       sync.Mutex
	nc       *nats.Conn
	js       jetstream.JetStream
	changed  chan struct{} // closed and made anew when nc is replaced
	drop     chan struct{} // closed and made anew when the broker goes out of reach
	up       chan struct{} // closed and made anew when it is back
	subs     map[*coreSub]struct{}
	refusals *goneBox
	down     time.Time // since when the connection is gone; zero: it is there
	closed   bool
	done     chan struct{}
}

// dial connects, trying for cfg.Link.Window. Nothing is ever buffered for a broker that is away: what could not be sent
// is an error now, not a surprise later.
func dial(ctx context.Context, cfg Config, m *metrics) (*link, error) {
	l := &link{
		cfg: cfg, log: cfg.Logger, metrics: m,
		changed: make(chan struct{}), drop: make(chan struct{}), up: make(chan struct{}), subs: map[*coreSub]struct{}{}, done: make(chan struct{}),
	}
	l.recover = newRecovery(cfg.Link.Settle)
	ctx, cancel := context.WithTimeout(ctx, cfg.Link.Window)
	defer cancel()
	opts, err := l.options()
	if err != nil {
		return nil, err
	}
	for wait := l.cfg.Link.ReconnectWait; ; wait = min(2*wait, 2*time.Second) {
		nc, err := opts.Connect()
		if err == nil {
			return l, l.adopt(nc)
		}
		if hopeless(err) {
			return nil, fmt.Errorf("connect to NATS: %w: %w", ErrConfig, err)
		}
		l.log.Warn("NATS cannot be reached, trying again", "error", err)
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("connect to NATS: %w: %w", ErrUnavailable, interpret(err))
		case <-time.After(wait):
		}
	}
}

// hopeless tells a configuration that can never connect from a broker that is away or does not know us yet.
func hopeless(err error) bool {
	return errors.Is(err, nats.ErrNkeyAndUser) || errors.Is(err, nats.ErrNkeyButNoSigCB) ||
		errors.Is(err, nats.ErrUserButNoSigCB) || errors.Is(err, nats.ErrNkeysNotSupported) ||
		errors.Is(err, nats.ErrSecureConnWanted)
}

// adopt makes nc the connection.
func (l *link) adopt(nc *nats.Conn) error {
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(l.cfg.PublishTimeout))
	if err != nil {
		nc.Close()
		return fmt.Errorf("open JetStream: %w", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		nc.Close()
		return ErrClosed
	}
	l.nc, l.js = nc, js
	for s := range l.subs {
		if err := s.attach(nc); err != nil {
			l.log.Error("Subscription could not be put back", "subject", s.subject, "error", err)
		}
	}
	close(l.changed)
	l.changed = make(chan struct{})
	return nil
}

// current returns the connection and a channel that is closed when it has been replaced.
func (l *link) current() (*nats.Conn, jetstream.JetStream, <-chan struct{}, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, nil, nil, ErrClosed
	}
	return l.nc, l.js, l.changed, nil
}

// dropped is closed when the connection that is there now goes: what is on its way then never comes.
func (l *link) dropped() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.drop
}

// back is closed when the broker is in reach again, after an outage that may have begun already.
func (l *link) back() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.up
}

// whileUp ends with the connection too: without it, only a deadline would tell that no answer comes.
func (l *link) whileUp(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	dropped := l.dropped()
	go func() {
		select {
		case <-dropped:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

// options builds what to connect with: the caller's first, then ours, with the caller's handlers called behind ours.
func (l *link) options() (nats.Options, error) {
	o := nats.GetDefaultOptions()
	for _, opt := range l.cfg.Options {
		if err := opt(&o); err != nil {
			return o, fmt.Errorf("%w: apply option: %w", ErrConfig, err)
		}
	}
	o.Name = l.cfg.Name
	o.Servers = l.cfg.URLs
	if l.cfg.InProcess != nil {
		o.InProcessServer = l.cfg.InProcess
	}
	o.AllowReconnect = true
	o.MaxReconnect = -1 // REQ-030
	o.ReconnectBufSize = -1
	o.IgnoreAuthErrorAbort = true
	o.Timeout = l.cfg.Link.Timeout
	o.ReconnectWait = l.cfg.Link.ReconnectWait
	o.ReconnectJitter = l.cfg.Link.ReconnectWait / 2
	o.ReconnectJitterTLS = l.cfg.Link.ReconnectWait / 2
	o.PingInterval = l.cfg.Link.PingInterval
	o.MaxPingsOut = 2
	o.RetryOnFailedConnect = false // New has its own window
	if err := authenticate(&o, l.cfg); err != nil {
		return o, err
	}
	l.chain(&o)
	return o, nil
}

// chain puts our handlers in front of the caller's.
func (l *link) chain(o *nats.Options) {
	theirs := *o
	o.DisconnectedErrCB = func(nc *nats.Conn, err error) {
		l.lost(err)
		switch {
		case theirs.DisconnectedErrCB != nil:
			theirs.DisconnectedErrCB(nc, err)
		case theirs.DisconnectedCB != nil:
			theirs.DisconnectedCB(nc)
		}
	}
	o.ReconnectedCB = func(nc *nats.Conn) {
		l.found()
		if theirs.ReconnectedCB != nil {
			theirs.ReconnectedCB(nc)
		}
	}
	o.ClosedCB = func(nc *nats.Conn) {
		l.gone(nc)
		if theirs.ClosedCB != nil {
			theirs.ClosedCB(nc)
		}
	}
	o.AsyncErrorCB = func(nc *nats.Conn, s *nats.Subscription, err error) {
		l.asyncError(s, err)
		if theirs.AsyncErrorCB != nil {
			theirs.AsyncErrorCB(nc, s, err)
		}
	}
}

func (l *link) lost(err error) {
	l.mu.Lock()
	closed := l.closed
	first := l.down.IsZero()
	if first && !closed {
		l.down = l.cfg.Now()
	}
	close(l.drop)
	l.drop = make(chan struct{})
	l.mu.Unlock()
	if closed {
		return
	}
	l.recover.lost()
	if first {
		l.metrics.outage()
		l.log.Warn("NATS connection lost", "error", err)
	}
}

func (l *link) found() {
	l.mu.Lock()
	var away time.Duration
	if !l.down.IsZero() {
		away = l.cfg.Now().Sub(l.down)
	}
	l.down = time.Time{}
	close(l.up)
	l.up = make(chan struct{})
	l.mu.Unlock()
	l.log.Info("NATS connection restored", "outage", away)
	l.recover.found()
}

// gone is called when nats.go has given up; unless we closed it, dial again.
func (l *link) gone(nc *nats.Conn) {
	l.mu.Lock()
	ours := l.nc == nc && !l.closed
	l.mu.Unlock()
	if !ours {
		return
	}
	err := nc.LastError()
	l.lost(err)
	l.log.Error("NATS connection closed for good, dialing anew", "error", err)
	go l.redial()
}

func (l *link) redial() {
	for wait := l.cfg.Link.ReconnectWait; ; wait = min(2*wait, 2*time.Second) {
		opts, err := l.options()
		if err == nil {
			var nc *nats.Conn
			if nc, err = opts.Connect(); err == nil {
				if err = l.adopt(nc); err == nil {
					l.found()
					return
				}
			}
		}
		if errors.Is(err, ErrClosed) {
			return
		}
		l.log.Debug("NATS cannot be reached, trying again", "error", err)
		select {
		case <-l.done:
			return
		case <-time.After(wait):
		}
	}
}

func (l *link) asyncError(s *nats.Subscription, err error) {
	subject := ""
	if s != nil {
		subject = s.Subject
	}
	if errors.Is(err, nats.ErrSlowConsumer) {
		l.metrics.slow()
	}
	l.log.Warn("NATS reports an error", "subject", subject, "error", err)
}

// connected reports whether the broker was reachable when last heard of.
func (l *link) connected() bool {
	nc, _, _, err := l.current()
	return err == nil && nc.IsConnected()
}

func (l *link) close() {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return
	}
	l.closed = true
	nc := l.nc
	close(l.done)
	close(l.changed)
	l.changed = make(chan struct{})
	l.mu.Unlock()
	l.recover.close()
	nc.Close()
}
