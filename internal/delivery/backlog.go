package delivery

import (
	"context"
	"sync"

	"go.opentelemetry.io/otel/metric"

	"github.com/rigelbuild/compass-operator/internal/store"
)

// Names of what a stream has not delivered, as the last circle of the tick counted it.
const (
	MetricOwed       = "compass.delivery.owed"                // deliveries after a cursor; many is counted as many
	MetricPending    = "compass.delivery.owed.beside"         // mentions, answers and replays
	MetricHeld       = "compass.delivery.held"                // messages whose turn is open
	MetricOldestHeld = "compass.delivery.held.oldest.seconds" // age of the oldest of them
	MetricParked     = "compass.delivery.parked"              // rows that are set aside
)

// BacklogReads counts what is not delivered, across tenants, with the system role; *store.Store is one.
type BacklogReads interface {
	StreamBacklog(ctx context.Context, q store.SweepQuery) (store.Backlog, error)
}

// backlog keeps the count of each part, so that counting is spread over the tick as sweeping is.
type backlog struct {
	mu    sync.Mutex
	parts map[backlogPart]store.Backlog
}

type backlogPart struct{ database, part int }

func (b *backlog) set(q store.SweepQuery, n store.Backlog) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.parts == nil {
		b.parts = map[backlogPart]store.Backlog{}
	}
	b.parts[backlogPart{q.Database, q.Part}] = n
}

// total adds the parts up; false before anything was counted.
func (b *backlog) total() (all store.Backlog, counted bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, n := range b.parts {
		all.Owed += n.Owed
		all.Pending += n.Pending
		all.Held += n.Held
		all.DeadLetters += n.DeadLetters
		all.OldestHeldMs = max(all.OldestHeldMs, n.OldestHeldMs)
	}
	return all, len(b.parts) > 0
}

// countBacklog counts one part, if anybody wants to know.
func (c *Consumer) countBacklog(ctx context.Context, q store.SweepQuery) error {
	if c.o.Backlog == nil {
		return nil
	}
	var n store.Backlog
	err := c.step(ctx, func(ctx context.Context) (err error) {
		n, err = c.o.Backlog.StreamBacklog(ctx, q)
		return err
	})
	if err == nil {
		c.backlog.set(q, n)
	}
	return err
}

// observeBacklog shows the last count.
func (c *Consumer) observeBacklog(o metric.Observer, g backlogGauges) {
	all, counted := c.backlog.total()
	if !counted {
		return
	}
	o.ObserveInt64(g.owed, all.Owed)
	o.ObserveInt64(g.pending, all.Pending)
	o.ObserveInt64(g.held, all.Held)
	o.ObserveInt64(g.parked, all.DeadLetters)
	o.ObserveFloat64(g.oldest, float64(all.OldestHeldMs)/1000)
}

type backlogGauges struct {
	owed, pending, held, parked metric.Int64ObservableGauge
	oldest                      metric.Float64ObservableGauge
}
