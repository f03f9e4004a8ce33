package hub

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/rigelbuild/compass-operator/internal/naming"
	"github.com/rigelbuild/compass-operator/internal/presence"
	"github.com/rigelbuild/compass-operator/internal/store"
)

const (
	// DefaultLease is how long a Runner lives without a heartbeat (CompassServer.spec.sessions.lease).
	DefaultLease = 30 * time.Second
	// heartbeats per lease: two may be lost.
	beatsPerLease = 3
	// hintTime bounds one hint to a Runner: nobody waits for NATS longer than that.
	hintTime = time.Second
	// helloTime bounds what a hello ends of the process before; the expirer ends the rest.
	helloTime = 2 * time.Second
)

// Options are the parts of a hub. Store, Comms, Emitter, IDs, Caller and Now are required.
type Options struct {
	Store   Store
	Comms   Comms
	Emitter emitter
	IDs     *naming.IDs
	// Caller is who a person's request speaks for, as the edge found out; its error is answered as it is.
	Caller func(ctx context.Context) (store.Caller, error)
	// Fabric carries hints to Runners. Nil: there are none, and Runners live by their heartbeats.
	Fabric runnerFabric
	// Access gives enrolled Runners their way to the broker. Nil: they have none and speak Connect alone.
	Access access
	// Lease is how long a Runner lives without a heartbeat; default DefaultLease.
	Lease time.Duration
	Now   func() time.Time
	Log   *slog.Logger         // default: none
	Meter metric.MeterProvider // default: none
}

// Hub serves Runners and sessions. It is safe for concurrent use.
type Hub struct {
	store   Store
	comms   Comms
	emitter emitter
	ids     *naming.IDs
	caller  func(ctx context.Context) (store.Caller, error)
	fabric  runnerFabric
	access  access
	lease   time.Duration
	now     func() time.Time
	log     *slog.Logger

	metrics  *instruments
	presence *presence.Publisher
	known    known
}

// New returns a hub; it starts nothing. Listen begins to answer over the fabric.
func New(o Options) (*Hub, error) {
	if o.Store == nil || o.Comms == nil || o.Emitter == nil || o.IDs == nil || o.Caller == nil || o.Now == nil {
		return nil, errors.New("hub: store, comms, emitter, ids, caller and clock are required")
	}
	if o.Lease <= 0 {
		o.Lease = DefaultLease
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	there, err := presence.New(presence.Options{Sessions: o.Store, Emitter: o.Emitter, Now: o.Now})
	if err != nil {
		return nil, err
	}
	metrics, err := newInstruments(o.Meter)
	if err != nil {
		return nil, err
	}
	return &Hub{
		store: o.Store, comms: o.Comms, emitter: o.Emitter, ids: o.IDs, caller: o.Caller, fabric: o.Fabric, access: o.Access,
		lease: o.Lease, now: o.Now, log: o.Log, metrics: metrics, presence: there,
	}, nil
}
