package broadcast

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/rigelbuild/compass-operator/internal/comms"
	"github.com/rigelbuild/compass-operator/internal/edge"
	"github.com/rigelbuild/compass-operator/internal/event"
	"github.com/rigelbuild/compass-operator/internal/fabric"
	"github.com/rigelbuild/compass-operator/internal/fabric/embedded"
	"github.com/rigelbuild/compass-operator/internal/store"
	"github.com/rigelbuild/compass-operator/internal/store/worldtest"
)

// ground is a Postgres, a broker and two Servers, A and B, assembled as cmd/compass does.
type ground struct {
	world   *worldtest.World
	tenant  *worldtest.Tenant
	channel store.Channel
	members []string // tokens
	a       *comms.Comms
	told    *commits
	b       *httptest.Server
}

// accounts is how many people the clients belong to.
const accounts = 20

func newGround(tb testing.TB) *ground {
	tb.Helper()
	g := &ground{world: worldtest.New(tb)}
	g.tenant = g.world.Tenant(tb, "acme")
	g.world.Exec(tb, `update compass.tenants set limits = '{"messages":{"perSecond":100000,"burst":100000}}' where id = $1`, g.tenant.ID)
	var people []store.Account
	for i := range accounts {
		p := g.tenant.Person(tb, fmt.Sprintf("p%d", i))
		_, token := g.tenant.TokenOf(tb, p)
		people, g.members = append(people, p), append(g.members, token)
	}
	g.channel = g.tenant.Channel(tb, "general", people...)
	ns, err := embedded.Start(embedded.Config{Dir: tb.TempDir(), Listen: "127.0.0.1:0", Logger: quiet()})
	must(tb, err)
	tb.Cleanup(ns.Stop)
	a, _ := g.server(tb, ns, func(e *event.Emitter) emitter {
		g.told = &commits{Emitter: e, at: map[string]time.Time{}}
		return g.told
	})
	g.a = a
	_, g.b = g.server(tb, ns, func(e *event.Emitter) emitter { return e })
	return g
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

type emitter interface {
	Emit(ctx context.Context, f event.Fact)
}

// commits notes when a message had committed: the moment in which it is first told.
type commits struct {
	*event.Emitter
	mu sync.Mutex
	at map[string]time.Time
}

func (c *commits) Emit(ctx context.Context, f event.Fact) {
	if ref := f.Ref(); ref.Kind == event.NameMessageVisible {
		c.mu.Lock()
		c.at[ref.RowID] = time.Now()
		c.mu.Unlock()
	}
	c.Emitter.Emit(ctx, f)
}

func (c *commits) when(message string) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at[message]
}

func (g *ground) server(tb testing.TB, ns *embedded.Server, tap func(*event.Emitter) emitter) (*comms.Comms, *httptest.Server) {
	tb.Helper()
	instance, err := event.NewInstance(g.world.IDs.Instance())
	must(tb, err)
	credentials, err := ns.Credentials(fabric.RoleServer, "")
	must(tb, err)
	f, err := fabric.Open(tb.Context(), fabric.Config{
		Name: "server", Instance: instance.ID(), URLs: []string{ns.URL()}, Credentials: credentials, Logger: quiet(),
	})
	must(tb, err)
	tb.Cleanup(func() { _ = f.Close(context.WithoutCancel(tb.Context())) })
	bus, err := event.NewBus(event.BusOptions{Epoch: instance.ID()})
	must(tb, err)
	tb.Cleanup(bus.Close)
	told, err := event.NewEmitter(event.EmitterOptions{Instance: instance, Bus: bus, Broker: f})
	must(tb, err)
	bridge, err := event.NewBridge(event.BridgeOptions{Instance: instance, Bus: bus, Now: time.Now})
	must(tb, err)
	interest, err := event.NewInterest(event.InterestOptions{
		Bus: bus, Bridge: bridge, Hear: func(ctx context.Context, tenant string, fn func(event.Received)) (func(), error) {
			return f.Listen(ctx, tenant, func(_ context.Context, m fabric.BroadcastMsg) {
				fn(event.Received{Tenant: m.Tenant, Event: m.Event, Envelope: m.Envelope})
			})
		},
	})
	must(tb, err)
	out := tap(told)
	c, err := comms.NewComms(comms.Options{Store: g.world.Store, Emitter: out, Bus: interest, IDs: g.world.IDs, Now: time.Now})
	must(tb, err)
	e, err := edge.New(edge.Options{Store: g.world.Store, Comms: c, Emitter: out, IDs: g.world.IDs, Now: time.Now})
	must(tb, err)
	web := httptest.NewUnstartedServer(e.Handler())
	web.Config.Protocols = new(http.Protocols)
	web.Config.Protocols.SetHTTP1(true)
	web.Start()
	tb.Cleanup(web.CloseClientConnections)
	return c, web
}

// clients opens streams at B.
func (g *ground) clients(tb testing.TB, n int) *readers {
	tb.Helper()
	r := newReaders(tb)
	address := g.b.Listener.Addr().String()
	for i := range n {
		r.open(address, ask(address, g.members[i%len(g.members)]), streaming)
	}
	return r
}

// post commits a message at A and returns its id.
func (g *ground) post(tb testing.TB, i int) string {
	tb.Helper()
	words := stamped(i)
	r, err := g.a.PostMessage(g.tenant.Ctx, store.NewMessage{
		Channel: g.channel.ID, Author: g.tenant.Admin.ID, ClientID: g.world.IDs.Message(), Blocks: []store.Block{store.Text(words)},
	})
	must(tb, err)
	return r.Message.ID
}

// bare is a nats-server, and a connection that publishes to n others.
type bare struct {
	nc *nats.Conn
	*readers
}

// bareSize is about what a message is on the wire of a client.
const bareSize = 300

func newBare(tb testing.TB, n int) *bare {
	tb.Helper()
	ns, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: -1, NoLog: true, NoSigs: true})
	must(tb, err)
	go ns.Start()
	if !ns.ReadyForConnections(30 * time.Second) {
		tb.Fatal("nats-server does not start")
	}
	tb.Cleanup(ns.Shutdown)
	nc, err := nats.Connect(ns.ClientURL())
	must(tb, err)
	tb.Cleanup(nc.Close)
	b := &bare{nc, newReaders(tb)}
	address := ns.Addr().(*net.TCPAddr).String() //nolint:forcetypeassert // it listens on TCP
	for range n {
		b.open(address, "CONNECT {\"verbose\":false}\r\nSUB told 1\r\nPING\r\n", subscribed)
	}
	return b
}

func (b *bare) publish(i int) {
	body := make([]byte, bareSize)
	copy(body, stamped(i))
	must(b.tb, b.nc.Publish("told", body))
	must(b.tb, b.nc.Flush())
}

// used is the processor time of this process.
func used(tb testing.TB) time.Duration {
	tb.Helper()
	var r syscall.Rusage
	must(tb, syscall.Getrusage(syscall.RUSAGE_SELF, &r))
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}
