package hub_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"

	compassv1 "github.com/rigelbuild/compass-operator/api/proto/compass/v1"
	"github.com/rigelbuild/compass-operator/api/proto/compass/v1/compassv1connect"
	"github.com/rigelbuild/compass-operator/internal/comms"
	"github.com/rigelbuild/compass-operator/internal/event"
	"github.com/rigelbuild/compass-operator/internal/fabric"
	"github.com/rigelbuild/compass-operator/internal/fabric/embedded"
	"github.com/rigelbuild/compass-operator/internal/fabric/fabrictest"
	"github.com/rigelbuild/compass-operator/internal/hub"
	"github.com/rigelbuild/compass-operator/internal/naming"
	"github.com/rigelbuild/compass-operator/internal/store"
	"github.com/rigelbuild/compass-operator/internal/store/worldtest"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// ground is a real Postgres and a real broker that several Servers and Runners share.
type ground struct {
	*worldtest.World
	broker *embedded.Server
}

func newGround(t *testing.T) *ground {
	t.Helper()
	broker, err := embedded.Start(embedded.Config{Dir: t.TempDir(), Logger: slog.New(slog.DiscardHandler)})
	must(t, err)
	t.Cleanup(broker.Stop)
	return &ground{World: worldtest.New(t), broker: broker}
}

// server is one Server: a hub behind real HTTP and on the broker.
type server struct {
	*hub.Hub
	url   string
	facts *facts
	log   *logged
}

func (g *ground) server(t *testing.T, change ...func(*hub.Options)) *server {
	t.Helper()
	credentials, err := g.broker.Credentials(fabric.RoleServer, "")
	must(t, err)
	f, err := fabric.New(fabric.Config{
		Name: "server", InProcess: g.broker, Credentials: credentials, Commands: fabrictest.TestSigner("k1"), Logger: slog.New(slog.DiscardHandler),
	})
	must(t, err)
	t.Cleanup(func() { _ = f.Close(context.WithoutCancel(t.Context())) })

	s := &server{facts: &facts{}, log: &logged{}}
	bus, err := event.NewBus(event.BusOptions{Epoch: "test"})
	must(t, err)
	t.Cleanup(bus.Close)
	c, err := comms.NewComms(comms.Options{Store: g.Store, Emitter: s.facts, Bus: bus, IDs: g.IDs, Now: time.Now})
	must(t, err)
	o := hub.Options{
		Store: g.Store, Comms: c, Emitter: s.facts, IDs: g.IDs, Fabric: f, Now: time.Now, Caller: callerOf,
		Log: slog.New(slog.NewTextHandler(s.log, nil)),
	}
	for _, fn := range change {
		fn(&o)
	}
	s.Hub, err = hub.New(o)
	must(t, err)
	stop, err := s.Listen(t.Context())
	must(t, err)
	t.Cleanup(stop)

	mux := http.NewServeMux()
	mux.Handle(compassv1connect.NewRunnerServiceHandler(s.RunnerService()))
	mux.Handle(compassv1connect.NewSessionServiceHandler(s.SessionService(), connect.WithInterceptors(asCaller())))
	web := httptest.NewServer(mux)
	t.Cleanup(web.Close)
	s.url = web.URL
	return s
}

// The edge's part: who calls comes in a header here.
type callerKey struct{}

var errNobody = connect.NewError(connect.CodeUnauthenticated, errors.New("nobody"))

func callerOf(ctx context.Context) (store.Caller, error) {
	c, ok := ctx.Value(callerKey{}).(store.Caller)
	if !ok {
		return c, errNobody
	}
	return c, nil
}

func asCaller() connect.UnaryInterceptorFunc {
	return func(next connect.UnaryFunc) connect.UnaryFunc {
		return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
			if tenant := req.Header().Get("Test-Tenant"); tenant != "" {
				ctx = context.WithValue(ctx, callerKey{}, store.Caller{
					Tenant: store.TenantID(tenant), Account: store.Account{Role: store.Role(req.Header().Get("Test-Role"))},
				})
			}
			return next(ctx, req)
		}
	}
}

// people is the session client of somebody of the tenant.
func (s *server) people(tenant store.TenantID, role store.Role) compassv1connect.SessionServiceClient {
	return compassv1connect.NewSessionServiceClient(http.DefaultClient, s.url, connect.WithInterceptors(
		connect.UnaryInterceptorFunc(func(next connect.UnaryFunc) connect.UnaryFunc {
			return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
				req.Header().Set("Test-Tenant", string(tenant))
				req.Header().Set("Test-Role", string(role))
				return next(ctx, req)
			}
		})))
}

// box is a Runner as the outside sees it: a key, and two ways to a Server.
type box struct {
	compassv1connect.RunnerServiceClient
	id, fleet   string
	seed        fabric.Seed
	incarnation int64
	conn        *fabric.Runner

	mu       sync.Mutex
	commands []*compassv1.Command
}

// signs adds the proof of a Runner to each call.
func signs(id string, seed fabric.Seed, at func() time.Time) connect.Interceptor {
	return connect.UnaryInterceptorFunc(func(next connect.UnaryFunc) connect.UnaryFunc {
		return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
			proof := naming.RunnerProof{Runner: id, Unix: at().Unix()}
			var err error
			if proof.Signature, err = seed.Sign(proof.Message(req.Spec().Procedure)); err != nil {
				return nil, err
			}
			req.Header().Set("Authorization", proof.Header())
			return next(ctx, req)
		}
	})
}

func (g *ground) token(t *testing.T, fleet string) string {
	t.Helper()
	token, err := g.IDs.RunnerToken(fleet)
	must(t, err)
	must(t, g.Store.IssueRunnerToken(t.Context(), naming.TokenHash(token), fleet))
	return token
}

// enrolment is a whole request of the key's holder.
func enrolment(t *testing.T, token string, seed fabric.Seed) *compassv1.EnrollRequest {
	t.Helper()
	nonce := make([]byte, 16)
	_, _ = rand.Read(nonce)
	signature, err := seed.Sign(naming.EnrolmentProof(nonce, token))
	must(t, err)
	return &compassv1.EnrollRequest{Token: token, PublicKey: seed.Public(), Nonce: nonce, Signature: signature}
}

// box enrolls a Runner of the shared fleet at the Server, lets it listen and say hello.
func (g *ground) box(t *testing.T, s *server) *box {
	t.Helper()
	seed, err := fabric.NewUserSeed()
	must(t, err)
	enroller := compassv1connect.NewRunnerServiceClient(http.DefaultClient, s.url)
	r, err := enroller.Enroll(t.Context(), connect.NewRequest(enrolment(t, g.token(t, naming.SharedFleet), seed)))
	must(t, err)
	b := &box{id: r.Msg.GetRunnerId(), fleet: r.Msg.GetFleet(), seed: seed}
	b.at(s)
	b.connect(t, g)
	b.hello(t)
	return b
}

// connect gives the box a new connection to the broker and lets it listen.
func (b *box) connect(t *testing.T, g *ground) {
	t.Helper()
	b.conn = g.connect(t, b.id)
	_, err := b.conn.Commands(t.Context(), func(_ context.Context, c *compassv1.Command, _ *compassv1.SessionsResponse) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.commands = append(b.commands, c)
	})
	must(t, err)
}

// connect connects a Runner of the shared fleet to the broker, whether it is enrolled or not.
func (g *ground) connect(t *testing.T, id string) *fabric.Runner {
	t.Helper()
	credentials, err := g.broker.Credentials(fabric.RoleRunner, id)
	must(t, err)
	conn, err := fabric.OpenRunner(t.Context(), fabric.RunnerConfig{
		ID: id, InProcess: g.broker, Credentials: credentials, Logger: slog.New(slog.DiscardHandler),
		Commands: fabric.NewCommandKeys(fabrictest.TestCommandKeys("k1")),
	})
	must(t, err)
	t.Cleanup(conn.Close)
	return conn
}

// at makes the box call that Server over Connect.
func (b *box) at(s *server) {
	b.RunnerServiceClient = compassv1connect.NewRunnerServiceClient(http.DefaultClient, s.url, connect.WithInterceptors(signs(b.id, b.seed, time.Now)))
}

func (b *box) hello(t *testing.T) {
	t.Helper()
	answer, err := b.Hello(t.Context(), connect.NewRequest(&compassv1.HelloRequest{RunnerId: b.id}))
	must(t, err)
	b.incarnation = answer.Msg.GetIncarnation()
}

// heard returns the commands so far.
func (b *box) heard() []*compassv1.Command {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]*compassv1.Command(nil), b.commands...)
}

// beat sends a heartbeat over Connect.
func (b *box) beat(t *testing.T, counter int64, states ...*compassv1.SessionState) *compassv1.HeartbeatResponse {
	t.Helper()
	answer, err := b.Heartbeat(t.Context(), connect.NewRequest(&compassv1.HeartbeatRequest{
		RunnerId: b.id, Incarnation: b.incarnation, Counter: counter, Sessions: states,
	}))
	must(t, err)
	return answer.Msg
}

// claimed starts a session by hand and claims it.
func (b *box) claimed(t *testing.T, s *server, tenant *worldtest.Tenant, agent store.Account) *compassv1.Session {
	t.Helper()
	started, err := s.people(tenant.ID, store.RoleAdmin).StartSession(t.Context(), connect.NewRequest(&compassv1.StartSessionRequest{AgentId: agent.ID}))
	must(t, err)
	session := started.Msg.GetSession()
	_, err = b.ClaimStart(t.Context(), connect.NewRequest(b.claim(session)))
	must(t, err)
	return session
}

func (b *box) claim(s *compassv1.Session) *compassv1.ClaimStartRequest {
	return &compassv1.ClaimStartRequest{RunnerId: b.id, Incarnation: b.incarnation, SessionId: s.GetId(), Generation: s.GetGeneration(), Counter: 1}
}

// post is a relayed post of the session.
func (b *box) post(s *compassv1.Session, n int64, turn, channel string) *compassv1.RelayCommsCallRequest {
	return &compassv1.RelayCommsCallRequest{
		RunnerId: b.id, SessionId: s.GetId(), Generation: s.GetGeneration(), N: n, TurnId: turn,
		Call: &compassv1.RelayCommsCallRequest_Post{Post: &compassv1.RelayPost{
			ChannelId: channel, ClientId: s.GetId() + turn + string(rune('0'+n)), Blocks: textBlock("hello"),
		}},
	}
}

func (b *box) event(s *compassv1.Session, n int64) *compassv1.RunnerEvent {
	return &compassv1.RunnerEvent{RunnerId: b.id, Incarnation: b.incarnation, SessionId: s.GetId(), Generation: s.GetGeneration(), N: n}
}

func (b *box) settle(s *compassv1.Session, n int64, turn string) *compassv1.RunnerEvent {
	e := b.event(s, n)
	e.Event = &compassv1.RunnerEvent_TurnSettled_{TurnSettled: &compassv1.RunnerEvent_TurnSettled{TurnId: turn}}
	return e
}

func textBlock(s string) []*compassv1.Block {
	return []*compassv1.Block{{Content: &compassv1.Block_Text{Text: s}}}
}

// facts is an emitter that remembers.
type facts struct {
	mu   sync.Mutex
	refs []event.Ref
}

func (f *facts) Emit(_ context.Context, fact event.Fact) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refs = append(f.refs, fact.Ref())
}

// of returns the facts of one name, in order.
func (f *facts) of(name event.Name) []event.Ref {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []event.Ref
	for _, r := range f.refs {
		if r.Kind == name {
			out = append(out, r)
		}
	}
	return out
}

// logged collects log lines.
type logged struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

func wantCode(t *testing.T, what string, err error, want connect.Code) {
	t.Helper()
	if err == nil || connect.CodeOf(err) != want {
		t.Errorf("%s: %v, want %v", what, err, want)
	}
}
