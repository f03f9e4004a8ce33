package storetwin_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rigelbuild/compass-operator/internal/delivery"
	"github.com/rigelbuild/compass-operator/internal/hub"
	"github.com/rigelbuild/compass-operator/internal/naming"
	"github.com/rigelbuild/compass-operator/internal/store"
	"github.com/rigelbuild/compass-operator/internal/store/storetest"
	"github.com/rigelbuild/compass-operator/internal/store/storetwin"
)

// port is what the suite asks of both.
type port interface {
	messages
	hub.Store
	delivery.DeliveryReads
	delivery.Writes
	delivery.SessionResolver
	CreateTenant(ctx context.Context, n store.NewTenant) error
	CreateAccount(ctx context.Context, a store.Account, actor string) (store.Account, error)
	CreateChannel(ctx context.Context, c store.Channel) (store.Channel, error)
	ArchiveChannel(ctx context.Context, channel, actor string) (store.Channel, error)
	AddMember(ctx context.Context, m store.Member) error
	RemoveMember(ctx context.Context, m store.Member) error
	MessageByID(ctx context.Context, id string) (store.Message, error)
	Session(ctx context.Context, session string) (store.Binding, error)
	DrainTenant(ctx context.Context, id store.TenantID, stream string) error
	PlaceTenant(ctx context.Context, id store.TenantID, from, to string) error
	ReadLease(ctx context.Context, stream string, database int) (store.LeaseSeen, error)
	IssueRunnerToken(ctx context.Context, hash [32]byte, fleet string) error
	ReplayDeadLetters(ctx context.Context, f store.DeadLetterFilter, actor string, dryRun bool) (store.Replayed, error)
}

// messages is what comms calls, without what live streams read.
type messages interface {
	AppendMessage(ctx context.Context, n store.NewMessage) (store.Message, bool, []store.Touched, error)
	AppendAsk(ctx context.Context, n store.NewMessage) (store.Message, bool, []store.Touched, error)
	AnswerAsk(ctx context.Context, n store.NewAnswer) (store.Message, bool, []store.Touched, error)
	EditMessage(ctx context.Context, e store.Edit) (store.Message, error)
	CommitFrame(ctx context.Context, f store.Frame) (store.Message, bool, []store.Touched, error)
	ListMessages(ctx context.Context, page store.MessagePage) ([]store.Message, bool, error)
	TenantLimits(ctx context.Context) (store.TenantLimits, error)
}

var (
	_ port = (*store.Store)(nil)
	_ port = (*storetwin.Client)(nil)
)

// ground is an empty database, twin or real, and a tenant in it.
type ground struct {
	port
	lease func(stream, holder string, ttl time.Duration) delivery.Lease
	ids   *naming.IDs

	stream string // of this test's tenants
	a, b   tenant
}

type tenant struct {
	id     store.TenantID
	ctx    context.Context //nolint:containedctx // a test's, scoped to the tenant
	person string
	bot    store.Account
	other  store.Account // an agent too
	room   string        // where all three are
	side   string        // where the person and the bot are
}

var tests atomic.Int64

// both runs a test of the suite on the twin and on a real Postgres.
func both(t *testing.T, test func(t *testing.T, g *ground)) {
	t.Helper()
	t.Run("twin", func(t *testing.T) {
		t.Parallel()
		db := storetwin.New(time.Now, storetwin.Rules{})
		c := db.Client(nil)
		nonces := &naming.IDs{Now: time.Now, Rand: rand.Reader}
		g := &ground{port: c, lease: func(stream, holder string, ttl time.Duration) delivery.Lease {
			return c.NewLease(storetwin.LeaseOptions{Stream: stream, Holder: holder, TTL: ttl, Nonce: nonces.TokenID})
		}}
		g.found(t)
		test(t, g)
	})
	t.Run("real", func(t *testing.T) {
		t.Parallel()
		db := storetest.NewDatabase(t)
		s, err := store.Open(t.Context(), store.Config{
			Databases: []store.Database{{App: db.App, System: db.System, Provision: db.Provision, Direct: db.Direct}},
			Limits: func(store.TenantID) store.Limits {
				return store.Limits{StatementTimeout: time.Minute, Transactions: 16}
			},
		})
		must(t, err)
		t.Cleanup(s.Close)
		g := &ground{port: s, lease: func(stream, holder string, ttl time.Duration) delivery.Lease {
			l, err := s.NewLease(store.LeaseOptions{Stream: stream, Holder: holder, TTL: ttl})
			must(t, err)
			return l
		}}
		g.found(t)
		test(t, g)
	})
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func want(t *testing.T, what string, err, target error) {
	t.Helper()
	if !errors.Is(err, target) {
		t.Errorf("%s: %v, want %v", what, err, target)
	}
}

// equal compares what prints alike.
func equal[T any](t *testing.T, what string, got, want T) {
	t.Helper()
	if g, w := fmt.Sprintf("%+v", got), fmt.Sprintf("%+v", want); g != w {
		t.Errorf("%s: %s, want %s", what, g, w)
	}
}

func (g *ground) found(t *testing.T) {
	t.Helper()
	g.ids = &naming.IDs{Now: time.Now, Rand: rand.Reader}
	g.stream = fmt.Sprint("s", tests.Add(1))
	g.a, g.b = g.tenant(t, "acme"), g.tenant(t, "beta")
}

func (g *ground) tenant(t *testing.T, slug string) tenant {
	t.Helper()
	n := store.NewTenant{ID: store.TenantID(g.ids.Tenant()), Slug: slug, Stream: g.stream, Actor: "test"}
	n.Admin = store.Account{ID: g.ids.Account(), Handle: "person"}
	n.Token = store.NewToken{ID: g.ids.TokenID(), Hash: naming.TokenHash(slug)}
	must(t, g.CreateTenant(t.Context(), n))
	x := tenant{id: n.ID, ctx: store.WithTenant(t.Context(), n.ID), person: n.Admin.ID}
	account := func(handle string, wake store.Wake) store.Account {
		a, err := g.CreateAccount(x.ctx, store.Account{
			ID: g.ids.Account(), Kind: store.KindAgent, Role: store.RoleMember, Handle: handle, Wake: wake}, x.person)
		must(t, err)
		return a
	}
	x.bot, x.other = account("bot", store.WakeManual), account("other", store.WakeOnOwed)
	channel := func(name string, members ...string) string {
		c, err := g.CreateChannel(x.ctx, store.Channel{ID: g.ids.Channel(), Name: name, CreatedBy: x.person})
		must(t, err)
		for _, m := range members {
			must(t, g.AddMember(x.ctx, store.Member{Channel: c.ID, Account: m, Actor: x.person}))
		}
		return c.ID
	}
	x.room, x.side = channel("room", x.bot.ID, x.other.ID), channel("side", x.bot.ID)
	return x
}

func (g *ground) draft(channel, author, client string, blocks ...store.Block) store.NewMessage {
	if len(blocks) == 0 {
		blocks = []store.Block{store.Text(client)}
	}
	return store.NewMessage{ID: g.ids.Message(), Channel: channel, Author: author, ClientID: client, Blocks: blocks}
}

// post is what a person says.
func (g *ground) post(t *testing.T, x tenant, channel, client string, blocks ...store.Block) store.Message {
	t.Helper()
	m, inserted, _, err := g.AppendMessage(x.ctx, g.draft(channel, x.person, client, blocks...))
	must(t, err)
	if !inserted {
		t.Fatalf("message %s was there", client)
	}
	return m
}

// runner enrols one and lets it say hello.
func (g *ground) runner(t *testing.T, lease time.Duration) (id string, incarnation int64) {
	t.Helper()
	key := g.ids.Runner()
	hash := naming.TokenHash(key)
	must(t, g.IssueRunnerToken(t.Context(), hash, naming.SharedFleet))
	r, err := g.EnrollRunner(t.Context(), store.Enrolment{TokenHash: hash, PublicKey: key, ID: g.ids.Runner()})
	must(t, err)
	incarnation, err = g.HelloRunner(t.Context(), r.ID, lease)
	must(t, err)
	return r.ID, incarnation
}

// session is one that a Runner has taken.
type session struct {
	store.Binding
	n int64
}

func (s *session) ref() store.SessionRef {
	return store.SessionRef{Session: s.Session, Generation: s.Generation, Runner: s.Runner}
}

func (s *session) event() store.Event {
	return store.Event{Session: s.Session, Generation: s.Generation, Runner: s.Runner, N: s.n}
}

func (s *session) in(turn string) *store.InTurn {
	s.n++
	return &store.InTurn{Event: s.event(), Turn: turn}
}

func (g *ground) start(t *testing.T, x tenant, agent string) *session {
	t.Helper()
	id, err := g.ids.Session(string(x.id))
	must(t, err)
	started, err := g.StartSession(x.ctx, store.NewSession{Session: id, Agent: agent})
	must(t, err)
	claimed, err := g.ClaimStart(x.ctx, store.Claim{
		SessionRef:  store.SessionRef{Session: id, Generation: started.Binding.Generation, Runner: started.Binding.Runner},
		Incarnation: started.Binding.Incarnation, Counter: 1})
	must(t, err)
	return &session{Binding: claimed.Binding}
}

// say writes in a turn.
func (g *ground) say(t *testing.T, x tenant, s *session, turn, channel, client string, blocks ...store.Block) store.Message {
	t.Helper()
	n := g.draft(channel, "", client, blocks...)
	n.In = s.in(turn)
	m, _, _, err := g.AppendMessage(x.ctx, n)
	must(t, err)
	return m
}

func (g *ground) settle(t *testing.T, x tenant, s *session, turn string) []store.Touched {
	t.Helper()
	s.n++
	touched, err := g.SettleTurn(x.ctx, s.event(), turn)
	must(t, err)
	return touched
}

func (g *ground) owed(t *testing.T, x tenant, channel string, passed map[string]int64) store.ChannelView {
	t.Helper()
	v, err := g.ChannelOwed(x.ctx, store.ChannelQuery{Stream: g.stream, Channel: channel, Passed: passed, Page: 10})
	must(t, err)
	return v
}

// rows prints what a view lists for an agent: ids, - for those that are not for its chain.
func rows(v store.ChannelView, agent string) (out []string) {
	for _, s := range v.Sessions {
		for _, r := range s.Rows {
			if s.Agent == agent && !r.Skip {
				out = append(out, r.ID)
			} else if s.Agent == agent {
				out = append(out, "-")
			}
		}
	}
	return out
}

// writer holds the stream's lease.
func (g *ground) writer(t *testing.T) (delivery.Lease, store.Fence) {
	t.Helper()
	l := g.lease(g.stream, "one", time.Minute)
	must(t, l.Acquire(t.Context(), 0))
	fence, ok := l.Fence()
	if !ok {
		t.Fatal("no fence")
	}
	return l, fence
}
