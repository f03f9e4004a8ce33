package sim_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	compassv1 "github.com/rigelbuild/compass-operator/api/proto/compass/v1"
	"github.com/rigelbuild/compass-operator/internal/comms"
	"github.com/rigelbuild/compass-operator/internal/delivery"
	"github.com/rigelbuild/compass-operator/internal/event"
	"github.com/rigelbuild/compass-operator/internal/fabric"
	"github.com/rigelbuild/compass-operator/internal/fabric/fabrictest"
	"github.com/rigelbuild/compass-operator/internal/hub"
	"github.com/rigelbuild/compass-operator/internal/naming"
	"github.com/rigelbuild/compass-operator/internal/runner"
	"github.com/rigelbuild/compass-operator/internal/store"
	"github.com/rigelbuild/compass-operator/internal/store/storetwin"
)

// What a schedule has. Times are the product's, or shorter where the product lets them be set.
const (
	runnerLease = 4 * time.Second
	floorTick   = 6 * time.Second
	resend      = 2 * time.Second
	maxDeliver  = 3
	servers     = 2
	runners     = 2
)

// names are those of the two streams. Each begins with one tenant; the Runners serve both.
var names = [...]string{"main", "second"}

// world is one schedule.
type world struct {
	s        *scheduler
	seed     uint64
	controls controls
	db       *storetwin.DB
	broker   *fabrictest.Broker
	wire     *fabrictest.Twin // what is on its way arrives through it
	air      *process         // what is on its way
	people   *process
	ids      *naming.IDs
	nonces   atomic.Int64

	tenants  []*tenant
	serving  [servers]*server
	pods     [len(names)]*pod
	workers  int
	hosting  [runners]*process
	natsAway atomic.Bool
	quiet    atomic.Bool     // nobody starts to write
	poison   map[string]bool // messages that kill whoever reads them
	had      map[string]bool // faults that happened
	forgot   time.Time       // when the last failover was

	mu       sync.Mutex
	leftOpen map[string]bool // sessions whose agent has left a turn open
	taken    []taken
	steered  map[string]bool             // session and text of a steer by hand -> it was applied
	told     map[string]time.Time        // when its Server said that it was written
	stale    map[*compassv1.Message]bool // sent under a lower fence than the Runner had heard
	storms   storms
}

func (w *world) markStale(ms ...*compassv1.Message) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, m := range ms {
		if m != nil {
			w.stale[m] = true
		}
	}
}

// pod is the place of a stream's worker: one process, and beside it those that are paused past their lease.
type pod struct {
	stream string
	worker *process
	holder string // the same one takes its lease back at once
	gone   bool   // for good
}

// tenant is one of two, whose rows bear the same ids.
type tenant struct {
	id       store.TenantID
	admin    string
	agents   []store.Account
	channels []string
	budget   atomic.Int64 // messages that agents may still write
	posted   atomic.Int64 // messages of a person that were answered
	wanted   atomic.Value // the stream that shall have it
	moves    bool         // it has an operator
	carried  atomic.Value // the stream that Servers believe it is with
}

// server is a Server: comms and hub over one fabric.
type server struct {
	*process
	store *storetwin.Client
	comms *comms.Comms
	hub   *hub.Hub
}

// seeded makes ids of a seed.
type seeded struct{ r *rand.Rand }

func (s seeded) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = byte(s.r.Uint32())
	}
	return len(b), nil
}

var _ io.Reader = seeded{}

func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }

func newWorld(seed uint64, c controls) *world {
	w := &world{
		s: newScheduler(seed), seed: seed, controls: c, db: storetwin.New(time.Now, c.Rules), broker: fabrictest.NewBroker(),
		ids: &naming.IDs{Now: time.Now, Rand: seeded{rand.New(rand.NewPCG(seed, 2))}}, had: map[string]bool{}, leftOpen: map[string]bool{}, steered: map[string]bool{}, told: map[string]time.Time{}, stale: map[*compassv1.Message]bool{}, poison: map[string]bool{}, storms: storms{pushed: map[push]time.Time{}, session: map[agentOf]string{}},
	}
	w.air, w.people = w.s.process("air"), w.s.process("people")
	for i, name := range names {
		w.pods[i] = &pod{stream: name}
	}
	w.wire = w.broker.Connect(fabrictest.Options{Stream: names[0], StreamOf: w.streamOf})
	return w
}

func (w *world) streamOf(id string) (string, bool) {
	t := w.tenant(store.TenantID(id))
	if t == nil {
		return "", false
	}
	stream, ok := t.carried.Load().(string)
	return stream, ok
}

// somePod picks the worker of one stream.
func (w *world) somePod() *pod { return w.pods[w.s.rng.IntN(len(w.pods))] }

func (w *world) loseRefs() bool { return w.controls.LoseRefs && w.s.rng.IntN(2) == 0 }

// listens says whether a Runner is there to be sent to.
func (w *world) listens(id string) bool {
	for _, r := range w.hosting {
		if r != nil && r.name == id && r.alive() {
			return true
		}
	}
	return false
}

func runnerID(i int) string { return fmt.Sprintf("r-%026d", i+1) }

// found makes what was there before anything happens. Both tenants have rows of the same ids, so that a statement that
// forgets its tenant finds the other's.
func (w *world) found(ctx context.Context) error {
	c := w.db.Client(nil)
	var errs []error
	for i := range runners {
		hash := [32]byte{byte(i + 1)}
		_, err := c.EnrollRunner(ctx, store.Enrolment{TokenHash: hash, PublicKey: runnerID(i), ID: runnerID(i)})
		if errors.Is(err, store.ErrNotFound) {
			errs = append(errs, c.IssueRunnerToken(ctx, hash, naming.SharedFleet))
			_, err = c.EnrollRunner(ctx, store.Enrolment{TokenHash: hash, PublicKey: runnerID(i), ID: runnerID(i)})
		}
		errs = append(errs, err)
	}
	for i := range 2 {
		t := &tenant{id: store.TenantID(fmt.Sprintf("t_%026d", i+1)), admin: fmt.Sprintf("a_%026d", 9)}
		t.wanted.Store(names[i])
		t.carried.Store(names[i])
		t.budget.Store(14)
		errs = append(errs, c.CreateTenant(ctx, store.NewTenant{
			ID: t.id, Slug: fmt.Sprint("tenant", i), Stream: names[i], Admin: store.Account{ID: t.admin, Handle: "admin"}}))
		ctx := store.WithTenant(ctx, t.id)
		for a := range 3 {
			account, err := c.CreateAccount(ctx, store.Account{
				ID: fmt.Sprintf("a_%026d", a+1), Kind: store.KindAgent, Role: store.RoleMember, Handle: fmt.Sprint("bot", a), Wake: store.WakeManual}, "")
			t.agents, errs = append(t.agents, account), append(errs, err)
		}
		for n := range 2 {
			channel, err := c.CreateChannel(ctx, store.Channel{ID: fmt.Sprintf("c_%026d", n+1), Name: fmt.Sprint("channel", n), CreatedBy: t.admin})
			t.channels, errs = append(t.channels, channel.ID), append(errs, err)
			for a, agent := range t.agents {
				if a == 2 && n == 1 {
					continue // one that is only mentioned there
				}
				errs = append(errs, c.AddMember(ctx, store.Member{Channel: channel.ID, Account: agent.ID, Actor: t.admin}))
			}
		}
		w.tenants = append(w.tenants, t)
	}
	w.db.Replicated()
	return errors.Join(errs...)
}

// queue hands references to the publisher, as the Server's does.
type queue struct{ publisher *fabric.Publisher }

func (q queue) Enqueue(ctx context.Context, ref event.Ref) error {
	return q.publisher.Enqueue(ctx, fabric.EventRef{Tenant: ref.Tenant, Kind: fabric.EventKind(ref.Kind), RowID: ref.RowID, Version: ref.Version})
}

// commsStore is the twin as comms wants it. Live streams are not simulated: what they read is not there.
type commsStore struct {
	*storetwin.Client
	streams
}

type streams struct{ comms.Store }

// startServer wires one as cmd/compass does.
func (w *world) startServer(i int) error {
	p := w.s.process(fmt.Sprint("server", i))
	fab := w.node(p, "")
	st := w.db.Client(p)
	instance, err := event.NewInstance(w.ids.Instance())
	if err != nil {
		return err
	}
	bus, err := event.NewBus(event.BusOptions{Epoch: instance.ID()})
	if err != nil {
		return err
	}
	publisher, err := fabric.NewPublisher(fabric.PublisherConfig{Fabric: fab, Workers: 2, Logger: discard()})
	if err != nil {
		return err
	}
	p.closes = append(p.closes, bus.Close, func() {
		gone, cancel := context.WithCancel(context.Background())
		cancel()
		_ = publisher.Close(gone)
	})
	told, err := event.NewEmitter(event.EmitterOptions{Instance: instance, Bus: bus, Queue: queue{publisher}})
	if err != nil {
		return err
	}
	emitter := delivery.News{Emitter: told, Notifier: fab, StreamOf: w.streamOf, Log: discard()}
	c, err := comms.NewComms(comms.Options{Store: commsStore{Client: st}, Emitter: emitter, Bus: bus, IDs: w.ids, Now: time.Now})
	if err != nil {
		return err
	}
	h, err := hub.New(hub.Options{
		Store: st, Comms: c, Emitter: emitter, IDs: w.ids, Fabric: fab, Lease: runnerLease, Now: time.Now,
		Caller: func(ctx context.Context) (store.Caller, error) { // the people here are admins
			id, _ := store.TenantFromContext(ctx)
			return store.Caller{Tenant: id, Account: store.Account{Role: store.RoleAdmin}}, nil
		},
	})
	if err != nil {
		return err
	}
	if _, err := h.Listen(p.ctx); err != nil {
		return err
	}
	expirer, err := hub.NewExpirer(hub.ExpirerOptions{
		Store: st, Ended: h.Expired, Lease: runnerLease, Interval: runnerLease / 5, After: time.After,
		NATS: func(context.Context) error {
			if w.natsAway.Load() && !w.controls.BlindHealth {
				return fabric.ErrUnavailable
			}
			return nil
		},
	})
	if err != nil {
		return err
	}
	p.spawn(expirer.Run)
	w.serving[i] = &server{process: p, store: st, comms: c, hub: h}
	return nil
}

// startWorker starts a worker as its pod does; one whose lease is lost ends, and another one is started.
func (w *world) startWorker(in *pod, holder string) {
	w.workers++
	p := w.s.process(fmt.Sprint("worker", w.workers))
	p.stream = in.stream
	in.worker, in.holder = p, holder
	st := w.db.Client(p)
	lease := st.NewLease(storetwin.LeaseOptions{Stream: in.stream, Holder: holder, Nonce: func() string { return fmt.Sprint(w.nonces.Add(1)) }})
	p.spawn(func(ctx context.Context) {
		leases, err := delivery.NewLeaseSet(delivery.LeaseOptions{Leases: []delivery.Lease{lease}, Log: discard()})
		if err != nil {
			panic(err)
		}
		if leases.Acquire(ctx) != nil {
			w.exit(in, p)
			return
		}
		fab := w.node(p, in.stream)
		worker, err := delivery.NewConsumer(reads{st, w, in, p}, fab, st, fab, discard(), delivery.Options{
			Stream: in.stream, Writes: st, Leases: leases, DeadLetters: fab, OpenProof: keys{}.Open, Notes: fab,
			MaxDeliver: maxDeliver, Backoff: []time.Duration{200 * time.Millisecond}, AckWait: resend,
			FloorTick: w.controls.tick(), Parts: 2, Placements: 3 * time.Second, Workers: 3, Window: 4, StepTimeout: 5 * time.Second,
			StallAfter: time.Hour,
		})
		if err != nil {
			panic(err)
		}
		p.spawn(func(ctx context.Context) {
			if leases.Run(ctx) != nil {
				w.exit(in, p)
			}
		})
		_ = worker.Run(ctx)
	})
}

// exit is what a process does that lost its lease: it is gone at once, and its pod starts again.
func (w *world) exit(in *pod, p *process) {
	if !p.alive() {
		return
	}
	p.kill()
	w.restart(in, p, 200*time.Millisecond)
}

// restart starts the pod of a worker again, unless another one has come.
func (w *world) restart(in *pod, p *process, after time.Duration) {
	holder := in.holder
	w.later(after, "restart worker", func() {
		if in.worker == p && !in.gone {
			w.startWorker(in, holder)
		}
	})
}

// reads are those of a worker; one that reads the poison dies.
type reads struct {
	*storetwin.Client
	w  *world
	in *pod
	p  *process
}

func (r reads) bitten(messages []string) bool {
	for _, m := range messages {
		if r.w.poison[m] && r.p.alive() {
			r.w.s.say("POISON ", r.p.name)
			r.w.exit(r.in, r.p)
			return true
		}
	}
	return false
}

// ChannelContent implements delivery.ChannelReads.
func (r reads) ChannelContent(ctx context.Context, q store.ContentQuery) (store.Content, error) {
	content, err := r.Client.ChannelContent(ctx, q)
	if err == nil && r.bitten(q.Messages) {
		return store.Content{}, store.ErrUnavailable
	}
	return content, err
}

// startRunner starts one, with agents that write down what they take.
func (w *world) startRunner(i int) error {
	p := w.s.process(runnerID(i))
	l := &link{TwinRunner: w.broker.ConnectRunner(p.name, keys{}), w: w, p: p}
	r, err := runner.New(runner.Options{ID: p.name, Server: l, Link: l, Agent: w.agent(p), Log: discard()})
	if err != nil {
		return err
	}
	p.spawn(func(ctx context.Context) { _ = r.Run(ctx) })
	w.hosting[i] = p
	return nil
}
