package hub

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/rigelbuild/compass-operator/internal/store"
)

// ExpirerOptions are the parts of an expirer. Store, NATS, Ended and After are required.
type ExpirerOptions struct {
	Store Expiry
	// NATS says whether the broker can be reached now; nil means that it can.
	NATS func(ctx context.Context) error
	// Ended hears of each session that ended and each turn that settled, after the commit; see Hub.Expired.
	Ended func(ctx context.Context, tenant store.TenantID, e store.Ended)
	// Lease is how long health must have been observed without a gap; default DefaultLease, and the same as the hub's.
	Lease time.Duration
	// MaxTurn is the longest time that a turn may be open; 0: any.
	MaxTurn time.Duration
	// Interval is the pause between two probes; default a tenth of Lease.
	Interval time.Duration
	After    func(time.Duration) <-chan time.Time // like time.After
	Log      *slog.Logger                         // default: none
	Meter    metric.MeterProvider                 // default: none
}

// Expirer ends the sessions of Runners that are gone. One runs in every Server; doubles are harmless, because each
// decision is judged again under the lock of what it is about.
type Expirer struct {
	o       ExpirerOptions
	metrics *instruments

	mu     sync.Mutex
	health map[int]*health // by database: each is judged by its own clock
}

// NewExpirer returns an expirer; Run starts it.
func NewExpirer(o ExpirerOptions) (*Expirer, error) {
	if o.Store == nil || o.NATS == nil || o.Ended == nil || o.After == nil {
		return nil, errors.New("expirer: store, NATS, Ended and After are required")
	}
	if o.Lease <= 0 {
		o.Lease = DefaultLease
	}
	if o.Interval <= 0 {
		o.Interval = o.Lease / 10
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	metrics, err := newInstruments(o.Meter)
	if err != nil {
		return nil, err
	}
	e := &Expirer{o: o, metrics: metrics, health: map[int]*health{}}
	for _, database := range o.Store.DatabaseIDs() {
		e.health[database] = &health{lease: o.Lease, interval: o.Interval}
	}
	return e, nil
}

// Run probes and sweeps until ctx ends. The two go side by side: a sweep that takes long must not look like a gap.
func (e *Expirer) Run(ctx context.Context) {
	var both sync.WaitGroup
	for _, step := range []func(context.Context){e.probe, e.sweep} {
		both.Go(func() {
			for {
				step(ctx)
				select {
				case <-e.o.After(e.o.Interval):
				case <-ctx.Done():
					return
				}
			}
		})
	}
	both.Wait()
}

// probe looks once at NATS and at every database.
func (e *Expirer) probe(ctx context.Context) {
	broker := e.within(ctx, e.o.NATS)
	for _, database := range e.o.Store.DatabaseIDs() {
		var at time.Time
		err := e.within(ctx, func(ctx context.Context) (err error) {
			at, err = e.o.Store.PingDatabase(ctx, database)
			return err
		})
		e.mu.Lock()
		if err != nil || broker != nil {
			e.health[database].failed()
		} else {
			e.health[database].saw(at)
		}
		e.mu.Unlock()
	}
}

// within bounds one look by the interval: what takes longer is not well.
func (e *Expirer) within(ctx context.Context, look func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, e.o.Interval)
	defer cancel()
	return look(ctx)
}

// sweep acts in every database that has been seen well for one lease.
func (e *Expirer) sweep(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, e.o.Lease)
	defer cancel()
	for _, database := range e.o.Store.DatabaseIDs() {
		e.mu.Lock()
		probe, healthy := e.health[database].judge()
		fresh := e.health[database].fresh()
		e.mu.Unlock()
		if !healthy {
			e.metrics.unhealthy.Add(ctx, 1)
			continue
		}
		err := errors.Join(
			e.expire(ctx, store.Expiry{Database: database, Probe: probe, Fresh: fresh}),
			endStale(ctx, e.o.Store, database, "", e.o.Ended),
			e.settleOverlong(ctx, database),
		)
		if err != nil && ctx.Err() == nil {
			e.o.Log.WarnContext(ctx, "Expiry is incomplete; the next sweep goes on", "database", database, "error", err)
		}
	}
}

// expire ends the incarnations of the Runners whose lease is over.
func (e *Expirer) expire(ctx context.Context, by store.Expiry) error {
	overdue, err := e.o.Store.OverdueRunners(ctx, by.Database)
	if err != nil {
		return err
	}
	for _, runner := range overdue {
		by.Runner = runner
		expired, err := e.o.Store.ExpireRunner(ctx, by)
		if err != nil {
			return err
		}
		if expired {
			e.metrics.expired.Add(ctx, 1)
			e.o.Log.WarnContext(ctx, "Runner expired", "runner", runner, "database", by.Database)
		}
	}
	return nil
}

// endStale ends the sessions of Runner processes that are gone, each under its tenant; "" is every Runner.
func endStale(
	ctx context.Context, s turns, database int, runner string, tell func(context.Context, store.TenantID, store.Ended),
) error {
	stale, err := s.StaleSessions(ctx, database, runner)
	if err != nil {
		return err
	}
	var failed []error
	for _, found := range stale {
		ended, err := s.EndStaleSession(store.WithTenant(ctx, found.Tenant), found.Session)
		if err != nil { // a tenant that is being moved keeps no other waiting
			failed = append(failed, fmt.Errorf("tenant %s: %w", found.Tenant, err))
			continue
		}
		tell(ctx, found.Tenant, ended)
	}
	return errors.Join(failed...)
}

// settleOverlong settles turns that have been open for longer than they may.
func (e *Expirer) settleOverlong(ctx context.Context, database int) error {
	if e.o.MaxTurn <= 0 {
		return nil
	}
	found, err := e.o.Store.OverlongTurns(ctx, database, e.o.MaxTurn)
	if err != nil {
		return err
	}
	var failed []error
	for _, t := range found {
		touched, err := e.o.Store.SettleOverlongTurn(store.WithTenant(ctx, t.Tenant), t.Session, t.Turn, e.o.MaxTurn)
		if err != nil {
			failed = append(failed, fmt.Errorf("tenant %s: %w", t.Tenant, err))
			continue
		}
		e.o.Ended(ctx, t.Tenant, store.Ended{Touched: touched})
	}
	return errors.Join(failed...)
}
