package main

import (
	"context"
	"errors"
	"time"

	"github.com/rigelbuild/compass-operator/internal/comms"
	"github.com/rigelbuild/compass-operator/internal/config"
	"github.com/rigelbuild/compass-operator/internal/edge"
	"github.com/rigelbuild/compass-operator/internal/event"
	"github.com/rigelbuild/compass-operator/internal/fabric"
	"github.com/rigelbuild/compass-operator/internal/hub"
	"github.com/rigelbuild/compass-operator/internal/store"
)

// startConns is how many connections a worker has for starting sessions: agents are woken one after the other.
const startConns = 2

// waker starts sessions of agents that wake when something is owed to them, as StartSession does.
type waker struct{ hub *hub.Hub }

func (w waker) Wake(ctx context.Context, agent string) error {
	tenant, ok := store.TenantFromContext(ctx)
	if !ok {
		return store.ErrNoTenant
	}
	_, err := w.hub.Start(ctx, tenant, agent)
	return err
}

// openStarts opens the databases a second time, with the app role alone. A start is a transaction of several statements, which
// the worker's fenced store refuses; it needs no fence, because of two starts at once one is refused, whoever makes them.
func (p *process) openStarts(ctx context.Context, c config.Store, databases []config.Database) (*store.Store, error) {
	c.MaxConnections = startConns
	var app []config.Database
	for _, d := range databases {
		app = append(app, config.Database{ID: d.ID, App: d.App})
	}
	return p.openStore(ctx, c, app, false)
}

// newWaker is a worker's: it tells everybody of a session that began, and the Runner of its start, over the worker's own
// connection to NATS.
func (p *process) newWaker(st *store.Store, fab *fabric.Fabric) (waker, error) {
	instance, err := event.NewInstance(fab.Instance())
	if err != nil {
		return waker{}, err
	}
	bus, err := event.NewBus(event.BusOptions{Epoch: instance.ID()})
	if err != nil {
		return waker{}, err
	}
	p.onClose(func(context.Context) error { bus.Close(); return nil })
	told, err := event.NewEmitter(event.EmitterOptions{Instance: instance, Bus: bus, Broker: fab, Queue: noQueue{}, Lost: p.lostFact})
	if err != nil {
		return waker{}, err
	}
	ids := newIDs()
	c, err := comms.NewComms(comms.Options{Store: st, Emitter: told, Bus: bus, IDs: ids, Now: time.Now, Known: &p.limits})
	if err != nil {
		return waker{}, err
	}
	h, err := hub.New(hub.Options{Store: st, Comms: c, Emitter: told, IDs: ids, Caller: edge.Caller, Fabric: fab, Now: time.Now, Log: p.log})
	return waker{h}, err
}

// noQueue refuses references: a worker takes them and publishes none. A start makes something deliverable only where the
// agent got a session, and lost its Runner, in the moment since it was seen to sleep; the floor tick finds that.
type noQueue struct{}

func (noQueue) Enqueue(context.Context, event.Ref) error {
	return errors.New("a worker publishes no references")
}

// lostFact logs a fact that did not get to everybody.
func (p *process) lostFact(ctx context.Context, name event.Name, err error) {
	p.log.WarnContext(ctx, "Fact was not told; a poll or the floor tick finds it", "event", name, "error", err)
}
