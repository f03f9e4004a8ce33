package delivery

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"log/slog"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	compassv1 "github.com/rigelbuild/compass-operator/api/proto/compass/v1"
	"github.com/rigelbuild/compass-operator/internal/fabric"
	"github.com/rigelbuild/compass-operator/internal/fabric/embedded"
	"github.com/rigelbuild/compass-operator/internal/store"
	"github.com/rigelbuild/compass-operator/internal/store/worldtest"
)

// site is a world on real Postgres and a real nats-server, with Runners that take commands as the protocol says.
type site struct {
	*worldtest.World
	broker *embedded.Server
	creds  fabric.Credentials
	signer fabric.Signer
	keys   *fabric.CommandKeys
	tenant *worldtest.Tenant
	person store.Account
	room   store.Channel
	box    *box // all Runners
	server *fabric.Fabric

	mu       sync.Mutex
	sessions map[string]*worldtest.Session
	dials    map[string]int
}

// line is one process's way to the broker.
type line struct {
	*site
	name string
}

// InProcessConn implements fabric.InProcess and counts.
func (l line) InProcessConn() (net.Conn, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dials[l.name]++
	return l.broker.InProcessConn()
}

func newSite(t *testing.T) *site {
	t.Helper()
	w := worldtest.New(t)
	broker, err := embedded.Start(embedded.Config{Dir: t.TempDir(), Logger: slog.New(slog.DiscardHandler)})
	must(t, err)
	t.Cleanup(broker.Stop)
	creds, err := broker.Standalone()
	must(t, err)
	public, private, err := ed25519.GenerateKey(rand.Reader)
	must(t, err)
	s := &site{World: w, broker: broker, creds: creds, signer: fabric.Signer{KeyID: "k1", Key: private},
		keys: fabric.NewCommandKeys(map[string]ed25519.PublicKey{"k1": public}), sessions: map[string]*worldtest.Session{}, dials: map[string]int{}}
	s.tenant = w.Tenant(t, "acme")
	s.person = s.tenant.Person(t, "ada")
	s.room = s.tenant.Channel(t, "general", s.person)
	s.box = newBox(newTruth())
	s.box.ack = func(session, channel string, pos int64) {
		_, err := w.Store.Ack(s.tenant.Ctx, s.ref(session), []store.ChannelAck{{Channel: channel, Pos: pos}})
		wrong(t, err)
	}
	s.box.ackSteer = func(session string, c *compassv1.SessionCommand) {
		ack := store.CommandAck{N: c.GetN(), MessageID: c.GetMessage().GetId(), Pos: c.GetMessage().GetPos()}
		_, _, err := w.Store.AckCommands(s.tenant.Ctx, s.ref(session), []store.CommandAck{ack})
		wrong(t, err)
	}
	s.server = s.fabric(t, "server")
	return s
}

func (s *site) ref(session string) store.SessionRef {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.sessions[session]
	return store.SessionRef{Session: session, Generation: r.Generation, Runner: r.Runner}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// wrong reports what went wrong at a Runner. It goes on until the test has ended, and what it can no longer do then is no error.
func wrong(t *testing.T, err error) {
	t.Helper()
	if err != nil && t.Context().Err() == nil {
		t.Error(err)
	}
}

func (s *site) fabric(t *testing.T, name string) *fabric.Fabric {
	t.Helper()
	f, err := fabric.New(fabric.Config{
		Name: name, InProcess: line{s, name}, Credentials: s.creds, Stream: "main", Manage: true, Commands: s.signer,
		Logger: slog.New(slog.DiscardHandler), Link: fabric.Link{Settle: 20 * time.Millisecond},
	})
	must(t, err)
	t.Cleanup(func() { _ = f.Close(context.WithoutCancel(t.Context())) })
	return f
}

// agent makes an agent that is a member, with a session on a Runner that listens.
func (s *site) agent(t *testing.T, handle string) (store.Account, *worldtest.Session) {
	t.Helper()
	a := s.tenant.Agent(t, handle)
	must(t, s.Store.AddMember(s.tenant.Ctx, store.Member{Channel: s.room.ID, Account: a.ID, Actor: s.tenant.Admin.ID}))
	session := s.tenant.Session(t, a)
	s.mu.Lock()
	s.sessions[session.ID] = session
	s.mu.Unlock()
	creds, err := s.broker.Credentials(fabric.RoleRunner, session.Runner)
	must(t, err)
	r, err := fabric.OpenRunner(t.Context(), fabric.RunnerConfig{
		ID: session.Runner, InProcess: line{s, session.Runner}, Credentials: creds, Commands: s.keys, Logger: slog.New(slog.DiscardHandler)})
	must(t, err)
	t.Cleanup(r.Close)
	_, err = r.Commands(t.Context(), func(ctx context.Context, cmd *compassv1.Command, signed *compassv1.SessionsResponse) {
		s.box.mu.Lock()
		state := s.box.take(cmd, signed)
		s.box.mu.Unlock()
		if state != nil {
			wrong(t, r.State(ctx, cmd.GetStream(), state))
		}
	})
	must(t, err)
	return a, session
}

func (s *site) post(t *testing.T, blocks ...store.Block) store.Message {
	t.Helper()
	n := s.tenant.Message(s.person, s.room, "hello")
	if len(blocks) > 0 {
		n.Blocks = blocks
	}
	m, _, _, err := s.Store.AppendMessage(s.tenant.Ctx, n)
	must(t, err)
	return m
}

func (s *site) publish(t *testing.T, m store.MessageRef) {
	t.Helper()
	subject, err := fabric.CommsSubject(string(s.tenant.ID), fabric.KindMessagePosted)
	must(t, err)
	ref := fabric.EventRef{Tenant: string(s.tenant.ID), Kind: fabric.KindMessagePosted, RowID: m.ID, Version: m.Pos}
	must(t, s.server.Publish(t.Context(), subject, ref))
}

// workerLife is one process of the worker.
type workerLife struct {
	leases *LeaseSet
	cancel context.CancelFunc
	ran    chan error // of the consumer
	kept   chan error // of the leases
}

// worker starts one as compass delivery does: leases, then NATS, then the consumer.
func (s *site) worker(t *testing.T, holder string, change ...func(*Options)) *workerLife {
	t.Helper()
	db := s.Database
	st, err := store.Open(t.Context(), store.Config{
		Databases: []store.Database{{App: db.App, System: db.System, Direct: db.Direct}}, Fenced: true})
	must(t, err)
	t.Cleanup(st.Close)
	lease, err := st.NewLease(store.LeaseOptions{Stream: "main", Holder: holder})
	must(t, err)
	leases, err := NewLeaseSet(LeaseOptions{Leases: []Lease{lease}, Log: slog.New(slog.DiscardHandler)})
	must(t, err)
	must(t, leases.Acquire(t.Context()))
	f := s.fabric(t, "worker "+holder)
	o := Options{Stream: "main", Writes: st, Leases: leases, DeadLetters: f, OpenProof: s.keys.Open, Notes: f, FloorTick: 100 * time.Hour}
	for _, fn := range change {
		fn(&o)
	}
	c, err := NewConsumer(st, f, st, f, slog.New(slog.DiscardHandler), o)
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	life := &workerLife{leases: leases, cancel: cancel, ran: make(chan error, 1), kept: make(chan error, 1)}
	go func() {
		err := leases.Run(ctx)
		cancel()
		life.kept <- err
	}()
	go func() { life.ran <- c.Run(ctx) }()
	t.Cleanup(cancel)
	return life
}

// stop ends the process; clean says goodbye.
func (l *workerLife) stop(t *testing.T, clean bool) {
	t.Helper()
	l.cancel()
	must(t, <-l.ran)
	if err := <-l.kept; err != nil {
		t.Log(err)
	}
	if clean {
		must(t, l.leases.Release(t.Context()))
	}
}

func (s *site) await(t *testing.T, session *worldtest.Session, why string, want ...store.Message) {
	t.Helper()
	ids := []string{}
	for _, m := range want {
		ids = append(ids, m.ID)
	}
	deadline := time.After(20 * time.Second)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !slices.Equal(s.box.of(session.ID), ids) {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("%s: took %v, want %v", why, short(s.box.of(session.ID)), short(ids))
		}
	}
}

// Holds REQ-115: for all of it each process has one connection to the broker.
// Holds REQ-044, REQ-053, REQ-055, REQ-080, REQ-226, REQ-227 on real Postgres and NATS: the thread from a commit to the cursor.
func TestThreadOnRealGround(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	bot, botSession := s.agent(t, "bot")
	author, authorSession := s.agent(t, "author")
	before := s.post(t)
	life := s.worker(t, "one")
	s.await(t, botSession, "owed before the start, no reference", before)

	var ms []store.Message
	for range 10 {
		m := s.post(t)
		ms = append(ms, m)
		s.publish(t, store.MessageRef{ID: m.ID, Pos: m.Pos})
	}
	want := append([]store.Message{before}, ms...)
	s.await(t, botSession, "by references", want...)
	s.await(t, authorSession, "both agents", want...)

	n := s.tenant.Message(author, s.room, "half")
	n.In = authorSession.In("turn")
	held, _, _, err := s.Store.AppendMessage(s.tenant.Ctx, n)
	must(t, err)
	s.publish(t, store.MessageRef{ID: held.ID, Pos: held.Rev})
	after := s.post(t, store.Mention(bot.Handle))
	s.publish(t, store.MessageRef{ID: after.ID, Pos: after.Pos})
	s.await(t, botSession, "the held one is passed over, the mention goes", append(want, after)...)
	touched, err := s.Store.SettleTurn(s.tenant.Ctx, authorSession.Next(), "turn")
	must(t, err)
	for _, c := range touched {
		s.publish(t, c.Last())
	}
	s.await(t, botSession, "settled", append(want, after, held)...)
	life.stop(t, true)

	missed := s.post(t)
	life = s.worker(t, "two") // another holder, at once: the one before said goodbye
	if life.leases.Careful(0) {
		t.Error("careful after a clean exit")
	}
	s.await(t, botSession, "swept at the start", append(want, after, held, missed)...)
	s.await(t, authorSession, "never its own", append(want, after, missed)...)
	acked := s.Count(t, `select count(*) from compass.delivery_cursors c join compass.channel_heads h using (tenant_id, channel_id)
		where c.agent_id = $1 and c.acked >= $2`, bot.ID, missed.Pos)
	if acked != 1 {
		t.Error("the cursor did not follow")
	}
	life.stop(t, false)
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, n := range s.dials {
		if n != 1 {
			t.Errorf("%s has dialled %d times, want one connection", name, n)
		}
	}
	if len(s.dials) != 5 {
		t.Errorf("%d processes have dialled, want the Server, two workers and two Runners", len(s.dials))
	}
}

// Holds REQ-054, REQ-080: with no reference at all, the tick alone delivers.
func TestTickOnRealGround(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	_, session := s.agent(t, "bot")
	s.worker(t, "one", func(o *Options) { o.FloorTick = 400 * time.Millisecond })
	a, b := s.post(t), s.post(t)
	s.await(t, session, "no reference", a, b)
}

// Holds REQ-065, REQ-209, REQ-228 across two workers: the second waits for the lease; when it has it, the first, which believes
// still, writes nothing and moves no Runner that has heard the second, and ends.
func TestTakeoverOnRealGround(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	bot, session := s.agent(t, "bot")
	first := s.worker(t, "one")
	m := s.post(t)
	s.publish(t, store.MessageRef{ID: m.ID, Pos: m.Pos})
	s.await(t, session, "the first worker", m)
	stale, _ := first.leases.Fence(0)

	s.Exec(t, `update compass.delivery_leases set expires_at = clock_timestamp() - interval '1 second'`)
	second := s.worker(t, "two")
	if !second.leases.Careful(0) {
		t.Error("not careful after an unclean exit")
	}
	next := s.post(t, store.Mention(bot.Handle))
	s.publish(t, store.MessageRef{ID: next.ID, Pos: next.Pos})
	s.await(t, session, "one of both, once", m, next)
	db := s.Database
	st, err := store.Open(t.Context(), store.Config{Databases: []store.Database{{App: db.App, System: db.System}}, Fenced: true})
	must(t, err)
	t.Cleanup(st.Close)
	err = st.BeginAttempt(s.tenant.Ctx, stale, store.Delivery{MessageID: m.ID, Recipient: bot.ID})
	if !errors.Is(err, store.ErrStaleWriter) {
		t.Errorf("the first still writes: %v", err)
	}
	if err := <-first.kept; !errors.Is(err, store.ErrLeaseLost) {
		t.Errorf("the first ended with %v, want ErrLeaseLost", err)
	}
	must(t, <-first.ran)
	last := s.post(t)
	s.publish(t, store.MessageRef{ID: last.ID, Pos: last.Pos})
	s.await(t, session, "the second goes on", m, next, last)
	s.box.mu.Lock()
	defer s.box.mu.Unlock()
	if got, _ := second.leases.Fence(0); s.box.seen[string(s.tenant.ID)].GetLease() != got.Epoch {
		t.Errorf("the Runner has seen %v, want the second's epoch", s.box.seen[string(s.tenant.ID)])
	}
}
