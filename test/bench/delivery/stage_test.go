package delivery

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/jackc/pgx/v5"

	compassv1 "github.com/rigelbuild/compass-operator/api/proto/compass/v1"
	"github.com/rigelbuild/compass-operator/api/proto/compass/v1/compassv1connect"
	"github.com/rigelbuild/compass-operator/internal/comms"
	"github.com/rigelbuild/compass-operator/internal/edge"
	"github.com/rigelbuild/compass-operator/internal/event"
	"github.com/rigelbuild/compass-operator/internal/store"
	"github.com/rigelbuild/compass-operator/internal/store/worldtest"
)

const stream = "main"

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

var quiet = slog.New(slog.DiscardHandler)

// stage is what every side but the bare loop has in common: a database with one tenant, one channel and so many agents in it,
// and a Server that takes posts.
type stage struct {
	tb      testing.TB
	world   *worldtest.World
	tenant  *worldtest.Tenant
	channel store.Channel
	agents  []store.Account
	times   *times
	api     compassv1connect.CommsServiceClient
	bus     *event.Bus
	about   event.Instance
	others  []string // databases beside the product's
}

func newStage(tb testing.TB, recipients int) *stage {
	tb.Helper()
	s := &stage{tb: tb, world: worldtest.New(tb), times: newTimes()}
	s.settle("acme", recipients)
	var err error
	s.about, err = event.NewInstance(s.world.IDs.Instance())
	must(tb, err)
	s.bus, err = event.NewBus(event.BusOptions{Epoch: s.about.ID()})
	must(tb, err)
	tb.Cleanup(s.bus.Close)
	return s
}

// settle makes the tenant, its agents and the channel.
func (s *stage) settle(slug string, recipients int) {
	tb := s.tb
	tb.Helper()
	s.tenant = s.world.Tenant(tb, slug)
	// Nobody is refused for his pace: what is measured is what happens then.
	s.world.Exec(tb, `update compass.tenants set limits = '{"messages": {"perSecond": 1000000, "burst": 1000000}}' where id = $1`, s.tenant.ID)
	for n := range recipients {
		s.agents = append(s.agents, s.tenant.Agent(tb, "agent-"+strconv.Itoa(n)))
	}
	s.channel = s.tenant.Channel(tb, "general", s.agents...)
}

// analyze lets Postgres know its tables, which autovacuum would do in a database that lives longer than a test.
func (s *stage) analyze() {
	s.tb.Helper()
	for _, dsn := range append(s.others, s.world.Database.Super) {
		conn, err := pgx.Connect(s.tb.Context(), dsn)
		must(s.tb, err)
		_, err = conn.Exec(s.tb.Context(), "vacuum analyze")
		must(s.tb, errors.Join(err, conn.Close(s.tb.Context())))
	}
}

// postmaster is the process id of Postgres.
func (s *stage) postmaster() int {
	s.tb.Helper()
	text, err := os.ReadFile(filepath.Join(filepath.Dir(s.world.Database.Server.Log), "data", "postmaster.pid"))
	must(s.tb, err)
	pid, err := strconv.Atoi(strings.Fields(string(text))[0])
	must(s.tb, err)
	return pid
}

// appends is a store that says when a message was committed, and may do something then.
type appends struct {
	*store.Store
	times *times
	then  func(ctx context.Context, m store.Message) error
}

func (a appends) AppendMessage(ctx context.Context, n store.NewMessage) (store.Message, bool, []store.Touched, error) {
	m, duplicate, touched, err := a.Store.AppendMessage(ctx, n)
	if err == nil && a.then != nil {
		err = a.then(ctx, m)
	}
	if err == nil {
		a.times.commit(m.ID)
	}
	return m, duplicate, touched, err
}

// emitter tells facts.
type emitter interface {
	Emit(ctx context.Context, f event.Fact)
}

func (s *stage) comms(told emitter, then func(context.Context, store.Message) error) *comms.Comms {
	s.tb.Helper()
	c, err := comms.NewComms(comms.Options{Store: appends{s.world.Store, s.times, then}, Emitter: told, Bus: s.bus, IDs: s.world.IDs, Now: time.Now})
	must(s.tb, err)
	return c
}

// serve opens the Connect API and returns its URL.
func (s *stage) serve(o edge.Options) string {
	s.tb.Helper()
	o.Store, o.IDs, o.Now = s.world.Store, s.world.IDs, time.Now
	e, err := edge.New(o)
	must(s.tb, err)
	server := httptest.NewServer(e.Handler())
	s.tb.Cleanup(server.Close)
	s.callAt(server.URL)
	return server.URL
}

// callAt has the tenant's admin post at a Server.
func (s *stage) callAt(url string) {
	web := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
	s.api = compassv1connect.NewCommsServiceClient(web, url, connect.WithInterceptors(connect.UnaryInterceptorFunc(
		func(next connect.UnaryFunc) connect.UnaryFunc {
			return func(ctx context.Context, q connect.AnyRequest) (connect.AnyResponse, error) {
				q.Header().Set("Authorization", "Bearer "+s.tenant.Token)
				return next(ctx, q)
			}
		})))
}

func (s *stage) post(ctx context.Context, words string) (string, error) {
	answer, err := s.api.PostMessage(ctx, connect.NewRequest(&compassv1.PostMessageRequest{
		ChannelId: s.channel.ID, ClientId: words, Blocks: []*compassv1.Block{{Content: &compassv1.Block_Text{Text: words}}},
	}))
	if err != nil {
		return "", err
	}
	return answer.Msg.GetMessage().GetId(), nil
}

// local is an emitter whose facts stay in the process: who polls, or has a queue of his own, is told nothing.
func (s *stage) local() *event.Emitter {
	s.tb.Helper()
	told, err := event.NewEmitter(event.EmitterOptions{Instance: s.about, Bus: s.bus})
	must(s.tb, err)
	return told
}

// ackEvery is how long a Runner gathers acks; the others do so too.
const ackEvery = 50 * time.Millisecond

// cursor acknowledges for one session by the same statement as a Server does, as rarely as a Runner does.
type cursor struct {
	mu  sync.Mutex
	pos int64
}

func (c *cursor) reached(pos int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pos = max(c.pos, pos)
}

func (s *stage) cursor(ctx context.Context, session *worldtest.Session) *cursor {
	c := &cursor{}
	go func() {
		tick := time.NewTicker(ackEvery)
		defer tick.Stop()
		done := int64(0)
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			c.mu.Lock()
			pos := c.pos
			c.mu.Unlock()
			if pos == done {
				continue
			}
			ref := store.SessionRef{Session: session.ID, Generation: session.Generation, Runner: session.Runner}
			if _, err := s.world.Store.Ack(s.tenant.Ctx, ref, []store.ChannelAck{{Channel: s.channel.ID, Pos: pos}}); err != nil {
				if ctx.Err() == nil {
					s.tb.Errorf("ack: %v", err)
				}
				return
			}
			done = pos
		}
	}()
	return c
}
