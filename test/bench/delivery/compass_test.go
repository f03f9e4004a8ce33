package delivery

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"net/http"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/rigelbuild/compass-operator/api/proto/compass/v1/compassv1connect"
	"github.com/rigelbuild/compass-operator/internal/delivery"
	"github.com/rigelbuild/compass-operator/internal/edge"
	"github.com/rigelbuild/compass-operator/internal/event"
	"github.com/rigelbuild/compass-operator/internal/fabric"
	"github.com/rigelbuild/compass-operator/internal/fabric/embedded"
	"github.com/rigelbuild/compass-operator/internal/hub"
	"github.com/rigelbuild/compass-operator/internal/naming"
	"github.com/rigelbuild/compass-operator/internal/runner"
	"github.com/rigelbuild/compass-operator/internal/store"
	"github.com/rigelbuild/compass-operator/internal/store/worldtest"
)

// product is the stage with everything of ours: a Server, the worker of the stream and a Runner, each with a connection of its
// own to a broker that is in this process too.
type product struct {
	*stage
	broker *embedded.Server
	signer fabric.Signer
	keys   *fabric.CommandKeys
	hub    *hub.Hub
	url    string
}

func newCompass(tb testing.TB, recipients int) *stage {
	tb.Helper()
	return newProduct(tb, recipients).stage
}

// neighbour is another tenant of the same product, with one recipient.
func (p *product) neighbour(slug string) *stage {
	p.tb.Helper()
	s := *p.stage
	s.agents = nil
	s.settle(slug, 1)
	s.callAt(p.url)
	p.begin(&s)
	return &s
}

func newProduct(tb testing.TB, recipients int) *product {
	tb.Helper()
	broker, err := embedded.Start(embedded.Config{Dir: tb.TempDir(), Logger: quiet})
	must(tb, err)
	tb.Cleanup(broker.Stop)
	public, private, err := ed25519.GenerateKey(rand.Reader)
	must(tb, err)
	p := &product{stage: newStage(tb, recipients), broker: broker, signer: fabric.Signer{KeyID: "k1", Key: private},
		keys: fabric.NewCommandKeys(map[string]ed25519.PublicKey{"k1": public})}
	p.server()
	p.worker()
	p.runner()
	p.begin(p.stage)
	return p
}

func (p *product) fabric(name string) *fabric.Fabric {
	p.tb.Helper()
	credentials, err := p.broker.Standalone()
	must(p.tb, err)
	f, err := fabric.New(fabric.Config{Name: name, InProcess: p.broker, Credentials: credentials, Stream: stream, Manage: true,
		Commands: p.signer, Logger: quiet})
	must(p.tb, err)
	p.tb.Cleanup(func() { _ = f.Close(context.WithoutCancel(p.tb.Context())) })
	return f
}

// queue hands references to the publisher.
type queue struct{ publisher *fabric.Publisher }

func (q queue) Enqueue(ctx context.Context, ref event.Ref) error {
	return q.publisher.Enqueue(ctx, fabric.EventRef{Tenant: ref.Tenant, Kind: fabric.EventKind(ref.Kind), RowID: ref.RowID, Version: ref.Version})
}

func carried(string) (string, bool) { return stream, true }

func (p *product) server() {
	p.tb.Helper()
	f := p.fabric("server")
	publisher, err := fabric.NewPublisher(fabric.PublisherConfig{Fabric: f, Logger: quiet})
	must(p.tb, err)
	p.tb.Cleanup(func() { _ = publisher.Close(context.WithoutCancel(p.tb.Context())) })
	told, err := event.NewEmitter(event.EmitterOptions{Instance: p.about, Bus: p.bus, Broker: f, Queue: queue{publisher}})
	must(p.tb, err)
	news := delivery.News{Emitter: told, Notifier: f, StreamOf: carried, Log: quiet}
	c := p.comms(news, nil)
	p.hub, err = hub.New(hub.Options{Store: p.world.Store, Comms: c, Emitter: news, IDs: p.world.IDs, Caller: edge.Caller, Fabric: f, Now: time.Now})
	must(p.tb, err)
	stop, err := p.hub.Listen(p.tb.Context())
	must(p.tb, err)
	p.tb.Cleanup(stop)
	p.url = p.serve(edge.Options{Comms: c, Emitter: news, Sessions: p.hub.SessionService(), Runners: p.hub.RunnerService()})
}

func (p *product) worker() {
	p.tb.Helper()
	db := p.world.Database
	st, err := store.Open(p.tb.Context(), store.Config{Databases: []store.Database{{App: db.App, System: db.System, Direct: db.Direct}}, Fenced: true})
	must(p.tb, err)
	p.tb.Cleanup(st.Close)
	lease, err := st.NewLease(store.LeaseOptions{Stream: stream, Holder: "bench"})
	must(p.tb, err)
	leases, err := delivery.NewLeaseSet(delivery.LeaseOptions{Leases: []delivery.Lease{lease}, Log: quiet})
	must(p.tb, err)
	must(p.tb, leases.Acquire(p.tb.Context()))
	f := p.fabric("worker")
	c, err := delivery.NewConsumer(st, f, st, f, quiet, delivery.Options{
		Stream: stream, Writes: st, Leases: leases, DeadLetters: f, OpenProof: p.keys.Open, Notes: f})
	must(p.tb, err)
	p.run("leases", leases.Run)
	p.run("worker", c.Run)
}

func (p *product) run(what string, loop func(context.Context) error) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := loop(p.tb.Context()); err != nil && p.tb.Context().Err() == nil {
			p.tb.Errorf("%s: %v", what, err)
		}
	}()
	p.tb.Cleanup(func() { <-ended })
}

func (p *product) runner() {
	p.tb.Helper()
	ctx := p.tb.Context()
	token, err := p.world.IDs.RunnerToken(naming.SharedFleet)
	must(p.tb, err)
	must(p.tb, p.world.Store.IssueRunnerToken(ctx, naming.TokenHash(token), naming.SharedFleet))
	key, err := fabric.NewUserSeed()
	must(p.tb, err)
	who, err := p.world.Store.EnrollRunner(ctx, store.Enrolment{TokenHash: naming.TokenHash(token), PublicKey: key.Public(), ID: p.world.IDs.Runner()})
	must(p.tb, err)
	credentials, err := p.broker.Credentials(fabric.RoleRunner, who.ID)
	must(p.tb, err)
	link, err := fabric.OpenRunner(ctx, fabric.RunnerConfig{ID: who.ID, InProcess: p.broker, Credentials: credentials, Commands: p.keys, Logger: quiet})
	must(p.tb, err)
	p.tb.Cleanup(link.Close)
	r, err := runner.New(runner.Options{ID: who.ID, Server: signing(p.url, who.ID, key), Link: link, Log: quiet,
		Agent: func(ctx context.Context, s *runner.Session) error {
			for {
				item, err := s.Next(ctx)
				if err != nil {
					return err
				}
				p.times.enter(item.Message.GetId())
				s.Done(item)
			}
		}})
	must(p.tb, err)
	p.run("Runner", r.Run)
}

// signing is a client that proves with each call which Runner it is.
func signing(url, id string, key fabric.Seed) compassv1connect.RunnerServiceClient {
	return compassv1connect.NewRunnerServiceClient(http.DefaultClient, url, connect.WithInterceptors(connect.UnaryInterceptorFunc(
		func(next connect.UnaryFunc) connect.UnaryFunc {
			return func(ctx context.Context, q connect.AnyRequest) (connect.AnyResponse, error) {
				proof := naming.RunnerProof{Runner: id, Unix: time.Now().Unix()}
				var err error
				if proof.Signature, err = key.Sign(proof.Message(q.Spec().Procedure)); err != nil {
					return nil, err
				}
				q.Header().Set("Authorization", proof.Header())
				return next(ctx, q)
			}
		})))
}

// begin starts a session of each agent and waits until the Runner has taken it.
func (p *product) begin(s *stage) {
	p.tb.Helper()
	for _, a := range s.agents {
		p.beginOne(s.tenant, a)
	}
}

func (p *product) beginOne(tenant *worldtest.Tenant, a store.Account) {
	p.tb.Helper()
	deadline := time.After(time.Minute)
	look := time.NewTicker(10 * time.Millisecond)
	defer look.Stop()
	started := false
	for {
		if !started {
			_, err := p.hub.Start(p.tb.Context(), tenant.ID, a.ID)
			started = err == nil
		}
		live, err := p.world.Store.LiveAgentSessions(tenant.Ctx)
		must(p.tb, err)
		for _, b := range live {
			if b.Agent == a.ID && b.Claimed {
				return
			}
		}
		select {
		case <-look.C:
		case <-deadline:
			p.tb.Fatal("no session begins")
		}
	}
}
