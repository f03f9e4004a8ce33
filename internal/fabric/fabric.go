package fabric

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Fabric is one process's connection to NATS and everything that goes through it. It is safe for concurrent use.
type Fabric struct {
	cfg     Config
	link    *link
	metrics *metrics
	echo    echo

	mu     sync.Mutex
	ends   map[int]Unsubscribe // what Close has to end
	nextID int
	lane   bool // a SubscribeKind is running
	closed bool
}

var (
	_ EventFabric   = (*Fabric)(nil)
	_ DeadLetterBox = (*Fabric)(nil)
	_ RunnerFabric  = (*Fabric)(nil)
)

// New connects and, with Manage, makes the streams. It fails with ErrConfig at once, and
// with ErrUnavailable or ErrUnauthorized after cfg.Link.Window: a process without a fabric must not boot (REQ-062).
func New(cfg Config) (*Fabric, error) { return Open(context.Background(), cfg) }

// Open is New with a context that can end the wait for the broker earlier.
func Open(ctx context.Context, cfg Config) (*Fabric, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	if cfg.Stream != "" {
		if err := cfg.Spec.check(); err != nil {
			return nil, err
		}
	}
	m, err := newMetrics(cfg.Meter)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	l, err := dial(ctx, cfg, m)
	if err != nil {
		return nil, err
	}
	f := &Fabric{cfg: cfg, link: l, metrics: m, echo: echo{now: cfg.Now}, ends: map[int]Unsubscribe{}}
	if err := f.manage(ctx); err != nil {
		l.close()
		return nil, err
	}
	return f, nil
}

// manage makes the streams that this fabric may make, so that publishing works before anybody subscribes. A broker that
// cannot do it yet is no reason to fail: the subscription tries again.
func (f *Fabric) manage(ctx context.Context) error {
	if !f.cfg.Manage {
		return nil
	}
	p, err := f.provisioner(f.cfg.Spec)
	if err != nil {
		return err
	}
	for _, cfg := range []jetstream.StreamConfig{p.queue, p.dead} {
		_, _, err := p.ensure(ctx, cfg, true)
		switch {
		case err != nil && hopelessLane(err):
			return err
		case err != nil:
			f.cfg.Logger.Warn("Stream could not be made yet", "stream", cfg.Name, "error", err)
		}
	}
	return nil
}

// Connected reports whether the broker could be reached when last heard of. Losing it later is no reason to stop being
// ready: posts go on without it (design section 6).
func (f *Fabric) Connected() bool { return f.link.connected() }

// Instance is the producer id that this process publishes under.
func (f *Fabric) Instance() string { return f.cfg.Instance }

// OnReconnect see EventFabric.
func (f *Fabric) OnReconnect(fn func()) (Unsubscribe, error) {
	if fn == nil {
		return nil, fmt.Errorf("%w: OnReconnect needs a function", ErrConfig)
	}
	if f.isClosed() {
		return nil, ErrClosed
	}
	return once(f.link.recover.add(fn)), nil
}

// Close ends every subscription, waits for callbacks that run (at most Link.Drain or until ctx ends), sends what is
// buffered and disconnects. Order it after the servers that publish and before the store (REQ-064).
func (f *Fabric) Close(ctx context.Context) error {
	f.mu.Lock()
	if f.closed {
		f.mu.Unlock()
		return nil
	}
	f.closed = true
	ends := slices.Collect(maps.Values(f.ends))
	f.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, f.cfg.Link.Drain)
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		var wg sync.WaitGroup
		for _, end := range ends {
			wg.Go(end)
		}
		wg.Wait()
	}()
	var err error
	select {
	case <-done:
	case <-ctx.Done():
		err = fmt.Errorf("drain fabric: %w", context.Cause(ctx))
	}
	if nc, _, _, lerr := f.link.current(); lerr == nil && nc.IsConnected() {
		err = errors.Join(err, ignoreClosed(nc.FlushWithContext(ctx)))
	}
	f.link.close()
	return err
}

func ignoreClosed(err error) error {
	if errors.Is(err, nats.ErrConnectionClosed) || errors.Is(err, context.DeadlineExceeded) {
		return nil
	}
	return err
}

// register makes Close end what end ends; the returned Unsubscribe does it earlier. Both may be called more than once.
func (f *Fabric) register(end func()) (Unsubscribe, error) {
	end = once(end)
	f.mu.Lock()
	if f.closed {
		f.mu.Unlock()
		end()
		return nil, ErrClosed
	}
	id := f.nextID
	f.nextID++
	f.ends[id] = end
	f.mu.Unlock()
	return func() {
		end()
		f.mu.Lock()
		delete(f.ends, id)
		f.mu.Unlock()
	}, nil
}

// registerWith is register for what also ends with ctx.
func (f *Fabric) registerWith(ctx context.Context, end func()) (Unsubscribe, error) {
	stop, err := f.register(end)
	if err != nil {
		return nil, err
	}
	detach := context.AfterFunc(ctx, stop)
	return func() { detach(); stop() }, nil
}

func (f *Fabric) isClosed() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.closed
}

// jetStream returns JetStream on the connection of now.
func (f *Fabric) jetStream() (jetstream.JetStream, error) {
	_, js, _, err := f.link.current()
	return js, err
}

// once makes a function that may be called by several, each of whom waits until it has run.
func once(fn func()) func() {
	var o sync.Once
	return func() { o.Do(fn) }
}
