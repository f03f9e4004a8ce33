package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"github.com/rigelbuild/compass-operator/internal/comms"
	"github.com/rigelbuild/compass-operator/internal/config"
	"github.com/rigelbuild/compass-operator/internal/delivery"
	"github.com/rigelbuild/compass-operator/internal/edge"
	"github.com/rigelbuild/compass-operator/internal/event"
	"github.com/rigelbuild/compass-operator/internal/fabric"
	"github.com/rigelbuild/compass-operator/internal/hub"
	"github.com/rigelbuild/compass-operator/internal/store"
)

func serverCommand() *cobra.Command {
	var path string
	cmd := &cobra.Command{
		Use: "server", Short: "Serve the Connect API, Runners and client streams", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runServer(cmd.Context(), path, cmd.ErrOrStderr()) },
	}
	cmd.Flags().StringVar(&path, "config", "/etc/compass/config.yaml", "configuration file")
	return cmd
}

func runServer(ctx context.Context, path string, log io.Writer) (err error) {
	told, err := config.LoadServer(path)
	if err != nil {
		return err
	}
	ctx, p, err := newProcess(ctx, "compass-server", told.Config, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.close(err)) }()

	if err := p.serveHealth(ctx, told.Telemetry.Listen, alive, p.ready); err != nil {
		return err
	}
	st, err := p.openStore(ctx, told.Store, told.Databases, false)
	if err != nil {
		return err
	}
	where := &placements{store: st, now: time.Now}
	fc := p.fabricConfig("compass-server", fabric.InboxPrefix(fabric.RoleServer, ""), told.Fabric, told.CommandKeys)
	fc.StreamOf, fc.Instance = where.streamOf, newIDs().Instance()
	fab, err := p.openFabric(ctx, fc)
	if err != nil {
		return err
	}
	access, err := newRunnerAccess(told.Config, told.CommandKeys)
	if err != nil {
		return err
	}
	s, err := p.assembleServer(ctx, serverParts{config: told.Config, store: st, fabric: fab, access: access, streamOf: where.streamOf})
	if err != nil {
		return err
	}
	if _, err := p.serveEdge(ctx, told.Server, s.edge.Handler()); err != nil {
		return err
	}
	p.begun(s.ready)
	return p.wait(ctx)
}

// serverParts are what a Server is made of; standalone brings its own.
type serverParts struct {
	config config.Config
	store  *store.Store
	fabric *fabric.Fabric
	access *runnerAccess
	// streamOf says who carries a tenant.
	streamOf func(tenant string) (string, bool)
	// stream carries tenants that are made through the API; empty leaves that to the operator.
	stream string
}

type server struct {
	edge  *edge.Edge
	hub   *hub.Hub
	ready func(context.Context) error
}

// assembleServer wires comms, hub and edge, and starts what runs beside requests. It is one fabric for all of them (REQ-063).
func (p *process) assembleServer(ctx context.Context, o serverParts) (*server, error) {
	instance, err := event.NewInstance(o.fabric.Instance())
	if err != nil {
		return nil, err
	}
	bus, err := event.NewBus(event.BusOptions{Epoch: instance.ID()})
	if err != nil {
		return nil, err
	}
	p.onClose(func(context.Context) error { bus.Close(); return nil })
	publisher, err := fabric.NewPublisher(fabric.PublisherConfig{Fabric: o.fabric, Meter: p.tel.Meters, Logger: p.log})
	if err != nil {
		return nil, err
	}
	p.onClose(publisher.Close)
	told, err := event.NewEmitter(event.EmitterOptions{Instance: instance, Bus: bus, Broker: o.fabric, Queue: queue{publisher}, Lost: p.lostFact})
	if err != nil {
		return nil, err
	}
	emitter := delivery.News{Emitter: told, Notifier: o.fabric, StreamOf: o.streamOf, Log: p.log}
	heard, err := p.interest(bus, instance, o.fabric)
	if err != nil {
		return nil, err
	}
	ids := newIDs()
	c, err := comms.NewComms(comms.Options{Store: o.store, Emitter: emitter, Bus: heard, IDs: ids, Now: time.Now, Known: &p.limits, Meters: p.tel.Meters})
	if err != nil {
		return nil, err
	}
	h, err := hub.New(hub.Options{Store: o.store, Comms: c, Emitter: emitter, IDs: ids, Caller: edge.Caller, Fabric: o.fabric,
		Access: o.access, Lease: time.Duration(o.config.Sessions.Lease), Now: time.Now, Log: p.log, Meter: p.tel.Meters})
	if err != nil {
		return nil, err
	}
	s := &server{hub: h, ready: readiness(o.store)}
	s.edge, err = edge.New(edge.Options{Store: o.store, Comms: c, Emitter: emitter, IDs: ids, Now: time.Now, Sessions: h.SessionService(), Runners: h.RunnerService(),
		Lines: lines{o.fabric}, Ready: s.ready, Stream: o.stream, Log: p.log, Meters: p.tel.Meters, Tracers: p.tel.Tracers})
	if err != nil {
		return nil, err
	}
	return s, p.startHub(ctx, o, h)
}

// startHub answers Runners over the fabric and expires those that are gone.
func (p *process) startHub(ctx context.Context, o serverParts, h *hub.Hub) error {
	stop, err := h.Listen(ctx)
	if err != nil {
		return fmt.Errorf("listen for Runners: %w", err)
	}
	p.onClose(func(context.Context) error { stop(); return nil })
	expirer, err := hub.NewExpirer(hub.ExpirerOptions{Store: o.store, NATS: connected(o.fabric), Ended: h.Expired,
		Lease: time.Duration(o.config.Sessions.Lease), MaxTurn: time.Duration(o.config.Sessions.MaxTurn), After: time.After, Log: p.log, Meter: p.tel.Meters})
	if err != nil {
		return err
	}
	p.spawn(ctx, "expirer", func(ctx context.Context) error { expirer.Run(ctx); return nil })
	return nil
}

// interest hears of other Servers what concerns tenants that have a socket here.
func (p *process) interest(bus *event.Bus, instance event.Instance, fab *fabric.Fabric) (*event.Interest, error) {
	bridge, err := event.NewBridge(event.BridgeOptions{Instance: instance, Bus: bus, Now: time.Now})
	if err != nil {
		return nil, err
	}
	return event.NewInterest(event.InterestOptions{Bus: bus, Bridge: bridge,
		Refused: func(tenant string, err error) { p.log.Warn("Broadcast was refused", "tenant", tenant, "error", err) },
		Hear: func(ctx context.Context, tenant string, fn func(event.Received)) (func(), error) {
			return fab.Listen(ctx, tenant, func(_ context.Context, m fabric.BroadcastMsg) {
				fn(event.Received{Tenant: m.Tenant, Event: m.Event, Envelope: m.Envelope})
			})
		},
	})
}

// queue hands references of the event emitter to the publisher.
type queue struct{ publisher *fabric.Publisher }

func (q queue) Enqueue(ctx context.Context, ref event.Ref) error {
	return q.publisher.Enqueue(ctx, fabric.EventRef{
		Tenant: ref.Tenant, Kind: fabric.EventKind(ref.Kind), RowID: ref.RowID, Version: ref.Version,
	})
}

var errNATSAway = errors.New("NATS is not connected; posting goes on and is delivered later")

func connected(fab *fabric.Fabric) func(context.Context) error {
	return func(context.Context) error {
		if !fab.Connected() {
			return errNATSAway
		}
		return nil
	}
}

// readiness: a Server that can reach Postgres takes requests. NATS is not asked: it was there at boot, and without it
// posting goes on (ADR-0017).
func readiness(st *store.Store) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := st.Ping(ctx)
		if err != nil {
			return errors.New("database does not answer") // the cause may name hosts; it is in the log
		}
		return nil
	}
}

// serveEdge opens the Connect API: over TLS where there is a certificate, else in clear with HTTP/2 for gRPC.
func (p *process) serveEdge(ctx context.Context, c config.Server, handler http.Handler) (string, error) {
	server := &http.Server{Handler: handler, Protocols: new(http.Protocols)} //nolint:gosec // serve sets the timeout
	server.Protocols.SetHTTP1(true)
	server.Protocols.SetHTTP2(true)
	if c.TLSCertFile != "" {
		certificate := &reloading{cert: c.TLSCertFile, key: c.TLSKeyFile}
		if _, err := certificate.get(nil); err != nil {
			return "", err
		}
		server.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: certificate.get}
	} else {
		server.Protocols.SetUnencryptedHTTP2(true)
	}
	address, err := p.serve(ctx, "Connect API", c.Listen, server)
	if err != nil {
		return "", err
	}
	return address.String(), nil
}
