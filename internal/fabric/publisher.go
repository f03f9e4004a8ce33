package fabric

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/rigelbuild/compass-operator/internal/telemetry"
)

// PublisherConfig says how references leave a request behind. Zero values mean the defaults.
type PublisherConfig struct {
	// Fabric publishes. Required.
	Fabric EventFabric
	// Budget is how long a reference is tried, counted from Enqueue; default 15s, longer than a leader election.
	Budget time.Duration
	// Queue bounds the references that wait, default 4096. A full queue is a failure, not a wait.
	Queue int
	// Workers publish side by side, default 16. References of one row may overtake each other; they are only hints.
	Workers int
	// Pause is the first wait between two tries, default 50ms; it doubles up to 2s.
	Pause time.Duration

	Meter  metric.MeterProvider // default: none
	Logger *slog.Logger         // required
	Now    func() time.Time     // default time.Now
}

// Publisher publishes references behind the back of a request (design S4). What it gives up is counted as
// compass.delivery.fabric_publish_failures and logged; the floor tick delivers those messages. It never tells the poster
// (REQ-011).
type Publisher struct {
	cfg     PublisherConfig
	metrics *metrics
	work    chan queued

	mu     sync.RWMutex // write: closing
	closed bool
	stop   context.CancelFunc
	wg     sync.WaitGroup
}

// queued is one reference on its way. The context carries values (trace) and no end.
type queued struct {
	ctx context.Context //nolint:containedctx // crosses a channel
	ref EventRef
	at  time.Time
}

// NewPublisher starts the workers. Close stops them.
func NewPublisher(cfg PublisherConfig) (*Publisher, error) {
	if cfg.Fabric == nil || cfg.Logger == nil {
		return nil, fmt.Errorf("%w: a publisher needs Fabric and Logger", ErrConfig)
	}
	setDefault(&cfg.Budget, 15*time.Second)
	setDefault(&cfg.Queue, 4096)
	setDefault(&cfg.Workers, 16)
	setDefault(&cfg.Pause, 50*time.Millisecond)
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	m, err := newMetrics(cfg.Meter)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	ctx, stop := context.WithCancel(context.Background())
	p := &Publisher{cfg: cfg, metrics: m, work: make(chan queued, cfg.Queue), stop: stop}
	for range cfg.Workers {
		p.wg.Go(func() { p.run(ctx) })
	}
	return p, nil
}

// Enqueue takes the reference and returns at once. ErrOverflow and ErrClosed say that it was not taken, and are counted
// already; ErrBadRef is a mistake of the caller. Call it after the commit.
func (p *Publisher) Enqueue(ctx context.Context, ref EventRef) error {
	subject, err := CommsSubject(ref.Tenant, ref.Kind)
	if err != nil {
		return err
	}
	if err := ref.check(subject); err != nil {
		return err
	}
	p.mu.RLock()
	defer p.mu.RUnlock()
	if p.closed {
		p.fail(ctx, ref, ErrClosed)
		return ErrClosed
	}
	select {
	case p.work <- queued{context.WithoutCancel(ctx), ref, p.cfg.Now()}:
		return nil
	default:
		p.fail(ctx, ref, ErrOverflow)
		return ErrOverflow
	}
}

// Close takes nothing more and publishes what waits until ctx ends; the rest is given up and counted.
func (p *Publisher) Close(ctx context.Context) error {
	p.mu.Lock()
	if !p.closed {
		p.closed = true
		close(p.work)
	}
	p.mu.Unlock()
	done := make(chan struct{})
	go func() { p.wg.Wait(); close(done) }()
	select {
	case <-done:
		p.stop()
		return nil
	case <-ctx.Done():
		p.stop() // ends the tries; every worker still counts what it leaves
		<-done
		return fmt.Errorf("drain publisher: %w", context.Cause(ctx))
	}
}

func (p *Publisher) run(ctx context.Context) {
	for q := range p.work {
		switch err := p.publish(ctx, q); {
		case err == nil:
			p.metrics.hops.Took(q.ctx, telemetry.HopPublish, p.cfg.Now().Sub(q.at))
		case !errors.Is(err, ErrNoStream):
			p.fail(q.ctx, q.ref, err)
		}
	}
}

// publish tries until it works, cannot work, or the budget is spent. Every try carries the same message id, so one that
// was stored and not answered is not stored twice.
func (p *Publisher) publish(stop context.Context, q queued) error {
	subject, err := CommsSubject(q.ref.Tenant, q.ref.Kind)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(q.ctx, max(q.at.Add(p.cfg.Budget).Sub(p.cfg.Now()), 0))
	defer cancel()
	defer context.AfterFunc(stop, cancel)()
	for pause := p.cfg.Pause; ; pause = min(2*pause, 2*time.Second) {
		err := p.cfg.Fabric.Publish(ctx, subject, q.ref)
		if err == nil || errors.Is(err, ErrNoStream) || errors.Is(err, ErrBadRef) || errors.Is(err, ErrClosed) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(pause):
		}
	}
}

func (p *Publisher) fail(ctx context.Context, ref EventRef, err error) {
	p.metrics.failures.Add(ctx, 1)
	p.cfg.Logger.ErrorContext(ctx, "Reference given up; the floor tick delivers it",
		"tenant", ref.Tenant, "kind", string(ref.Kind), "row", ref.RowID, "error", err)
}
