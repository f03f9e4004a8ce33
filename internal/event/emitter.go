package event

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// handOver bounds each call of a broker or a queue: a decider's request waits for neither.
const handOver = time.Second

// broker is the broadcast lane of the fabric.
type broker interface {
	Broadcast(ctx context.Context, tenant, event string, envelope []byte, header map[string]string) error
}

// queue is the queue lane: something that takes a reference at once and publishes it later, with retries of its own
// (ruling S4). An error says that it did not take it.
type queue interface {
	Enqueue(ctx context.Context, ref Ref) error
}

// EmitterOptions are the parts of an emitter. Instance and Bus are required. A nil Broker or Queue keeps the facts of that
// lane in the process: for unit tests (REQ-014), and for a process that decides none of them.
type EmitterOptions struct {
	Instance Instance
	Bus      *Bus
	Broker   broker
	Queue    queue
	// Lost hears of each fact that did not get where its entry says, for log and metrics. Optional.
	Lost func(ctx context.Context, name Name, err error)
}

// Emitter tells facts. How each travels is the catalogue's decision; there is no argument for it. Safe for concurrent use.
type Emitter struct {
	instance Instance
	byName   map[Name]Entry
	bus      *Bus
	broker   broker
	queue    queue
	lost     func(context.Context, Name, error)
}

// NewEmitter returns an emitter. It fails if an option or the catalogue is not complete.
func NewEmitter(o EmitterOptions) (*Emitter, error) {
	if o.Instance.id == "" || o.Bus == nil {
		return nil, errors.New("event emitter: instance and bus are required")
	}
	if o.Lost == nil {
		o.Lost = func(context.Context, Name, error) {}
	}
	byName, err := index(Catalogue())
	if err != nil {
		return nil, err
	}
	return &Emitter{instance: o.Instance, byName: byName, bus: o.Bus, broker: o.Broker, queue: o.Queue, lost: o.Lost}, nil
}

// Emit tells a fact, after the commit that decided it: to the bus, then to the broker or the queue, as its entry says. It
// returns nothing, because the fact stands and its decider can do nothing about a lost broadcast (REQ-011); Lost hears of
// it. A cancelled ctx does not stop it.
func (e *Emitter) Emit(ctx context.Context, f Fact) {
	ref := f.ref
	entry, declared := e.byName[ref.Kind]
	if !declared {
		e.lost(ctx, ref.Kind, fmt.Errorf("%w: made by no constructor", ErrFact))
		return
	}
	if err := ref.check(entry); err != nil {
		e.lost(ctx, ref.Kind, err)
		return
	}
	if entry.Local.On {
		if err := e.bus.emit(ref); err != nil {
			e.lost(ctx, ref.Kind, err)
		}
	}
	if entry.Broker.On {
		if err := e.handOver(ctx, entry.Lane, ref); err != nil {
			e.lost(ctx, ref.Kind, err)
		}
	}
}

func (e *Emitter) handOver(ctx context.Context, lane Lane, ref Ref) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), handOver)
	defer cancel()
	switch {
	case lane == LaneBroadcast && e.broker != nil:
		return e.broadcast(ctx, ref)
	case lane == LaneQueue && e.queue != nil:
		if err := e.queue.Enqueue(ctx, ref); err != nil {
			return fmt.Errorf("enqueue %s: %w", ref.Kind, err)
		}
	}
	return nil
}

func (e *Emitter) broadcast(ctx context.Context, ref Ref) error {
	envelope := seal(e.instance, ref)
	body, err := envelope.encode()
	if err != nil {
		return err
	}
	if err := e.broker.Broadcast(ctx, ref.Tenant, string(ref.Kind), body, envelope.header()); err != nil {
		return fmt.Errorf("broadcast %s: %w", ref.Kind, err)
	}
	return nil
}
