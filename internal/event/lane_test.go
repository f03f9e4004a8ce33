package event_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rigelbuild/compass-operator/internal/event"
	"github.com/rigelbuild/compass-operator/internal/fabric"
	"github.com/rigelbuild/compass-operator/internal/fabric/embedded"
	"github.com/rigelbuild/compass-operator/internal/naming"
)

const (
	acme    = "t_06f0e5k3vdrg0000000000000g"
	rival   = "t_06f0e5k3vdrg0000000000001g"
	channel = "c_06f0e5k3vdrg0000000000000g"
	message = "m_06f0e5k3vdrg0000000000000g"
	agent   = "a_06f0e5k3vdrg0000000000000g"
)

const patience = 30 * time.Second

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// cable is an instance's way to the broker, which can be cut.
type cable struct {
	broker *embedded.Server
	mu     sync.Mutex
	conns  []net.Conn
}

func (c *cable) InProcessConn() (net.Conn, error) {
	conn, err := c.broker.InProcessConn()
	if err == nil {
		c.mu.Lock()
		c.conns = append(c.conns, conn)
		c.mu.Unlock()
	}
	return conn, err
}

func (c *cable) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range c.conns {
		_ = conn.Close()
	}
	c.conns = nil
}

// broker is a real nats-server.
func broker(t *testing.T) *embedded.Server {
	t.Helper()
	ns, err := embedded.Start(embedded.Config{Dir: t.TempDir(), Logger: slog.New(slog.DiscardHandler)})
	must(t, err)
	t.Cleanup(ns.Stop)
	return ns
}

// server is one instance as a process assembles it: emitter, envelope factory, bridge, interest and fabric are the
// product's, with a connection of its own. Its listeners write down what they were told.
type server struct {
	*event.Emitter
	id       string
	fabric   *fabric.Fabric
	cable    *cable
	interest *event.Interest
	refused  chan error
}

func boot(t *testing.T, ns *embedded.Server) *server {
	t.Helper()
	ids := &naming.IDs{Now: time.Now, Rand: rand.Reader}
	s := &server{id: ids.Instance(), cable: &cable{broker: ns}, refused: make(chan error, 100)}
	credentials, err := ns.Credentials(fabric.RoleServer, "")
	must(t, err)
	s.fabric, err = fabric.Open(t.Context(), fabric.Config{
		Name: "server", Instance: s.id, InProcess: s.cable, Credentials: credentials, Logger: slog.New(slog.DiscardHandler),
		Link: fabric.Link{ReconnectWait: 10 * time.Millisecond},
	})
	must(t, err)
	t.Cleanup(func() { _ = s.fabric.Close(context.WithoutCancel(t.Context())) })
	self, err := event.NewInstance(s.id)
	must(t, err)
	bus, err := event.NewBus(event.BusOptions{Epoch: s.id})
	must(t, err)
	t.Cleanup(bus.Close)
	s.Emitter, err = event.NewEmitter(event.EmitterOptions{Instance: self, Bus: bus, Broker: s.fabric})
	must(t, err)
	bridge, err := event.NewBridge(event.BridgeOptions{Instance: self, Bus: bus, Now: time.Now})
	must(t, err)
	s.interest, err = event.NewInterest(event.InterestOptions{
		Bus: bus, Bridge: bridge, Refused: func(_ string, err error) { s.refused <- err },
		Hear: func(ctx context.Context, tenant string, fn func(event.Received)) (func(), error) {
			return s.fabric.Listen(ctx, tenant, func(_ context.Context, m fabric.BroadcastMsg) {
				fn(event.Received{Tenant: m.Tenant, Event: m.Event, Envelope: m.Envelope})
			})
		},
	})
	must(t, err)
	return s
}

// listener is somebody with a consequence for each fact.
type listener struct {
	t     *testing.T
	sub   *event.Subscription
	taken []event.Ref
}

func (s *server) listen(t *testing.T, tenant string) *listener {
	t.Helper()
	sub, err := s.interest.Subscribe(event.SubscribeOptions{Tenant: tenant})
	must(t, err)
	t.Cleanup(sub.Close)
	return &listener{t: t, sub: sub}
}

// until reads up to a fact.
func (l *listener) until(last event.Fact) {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(l.t.Context(), patience)
	defer cancel()
	for {
		e, err := l.sub.Next(ctx)
		if err != nil {
			l.t.Fatalf("waiting for %+v: %v; told %+v", last.Ref(), err, l.taken)
		}
		if e.Ref == last.Ref() {
			return
		}
		l.taken = append(l.taken, e.Ref)
	}
}

// marks number the facts that only say how far the others have come.
var marks = struct {
	sync.Mutex
	n int64
}{n: 1 << 40}

func mark(tenant string) event.Fact {
	marks.Lock()
	defer marks.Unlock()
	marks.n++
	return event.PlacementChanged(tenant, marks.n)
}

// settle returns when everything that a has told has reached both, its echo has come back to a, and nothing more of it can
// come: b answers after it heard, and the broker hands that to a behind every echo.
func settle(t *testing.T, a, b *server, onA, onB *listener) {
	t.Helper()
	asked, answered := mark(acme), mark(acme)
	a.Emit(t.Context(), asked)
	onB.until(asked)
	b.Emit(t.Context(), answered)
	onB.until(answered)
	onA.until(asked)
	onA.until(answered)
}

func (l *listener) want(what string, facts ...event.Fact) {
	l.t.Helper()
	var want []event.Ref
	for _, f := range facts {
		want = append(want, f.Ref())
	}
	if diff := cmp.Diff(want, l.taken); diff != "" {
		l.t.Errorf("%s: %s", what, diff)
	}
	l.taken = nil
}

// Holds REQ-145, REQ-155: two instances on a real broker. What A tells, A's listener takes once and B's takes once, though
// the broker hands it back to A; another tenant's listener on B takes nothing.
func TestTwoInstancesTellOnce(t *testing.T) {
	t.Parallel()
	ns := broker(t)
	a, b := boot(t, ns), boot(t, ns)
	onA, onB, stranger := a.listen(t, acme), b.listen(t, acme), b.listen(t, rival)
	facts := []event.Fact{
		event.MessageVisible(acme, channel, message, 1), event.ChannelChanged(acme, channel, 2), event.BindingChanged(acme, agent, 3),
		// Two quick edits of one row, and one account that went and came.
		event.MessageUpdated(acme, channel, message, 4), event.MessageUpdated(acme, channel, message, 5),
		event.PresenceChanged(acme, agent, 6), event.PresenceChanged(acme, agent, 7), event.PresenceChanged(acme, agent, 8),
	}
	for _, f := range facts {
		a.Emit(t.Context(), f)
	}
	settle(t, a, b, onA, onB)
	onA.want("the instance that decided", facts...)
	onB.want("the other instance", facts...)
	// Rows and versions of another tenant may be the same.
	twin := event.MessageUpdated(rival, channel, message, 5)
	a.Emit(t.Context(), twin)
	last := mark(rival)
	a.Emit(t.Context(), last)
	stranger.until(last)
	stranger.want("another tenant's listener", twin)
	settle(t, a, b, onA, onB)
	onA.want("acme on A")
	onB.want("acme on B")
}

// ear hears what the broker carries, as a hostile or confused peer could, and says it again.
type ear struct {
	t      *testing.T
	fabric *fabric.Fabric
	heard  chan fabric.BroadcastMsg
}

func overhear(t *testing.T, ns *embedded.Server, tenant string) *ear {
	t.Helper()
	e := &ear{t: t, fabric: boot(t, ns).fabric, heard: make(chan fabric.BroadcastMsg, 1000)}
	stop, err := e.fabric.Listen(t.Context(), tenant, func(_ context.Context, m fabric.BroadcastMsg) { e.heard <- m })
	must(t, err)
	t.Cleanup(stop)
	return e
}

func (e *ear) next() fabric.BroadcastMsg {
	e.t.Helper()
	select {
	case m := <-e.heard:
		return m
	case <-time.After(patience):
		e.t.Fatal("the broker carried nothing")
		return fabric.BroadcastMsg{}
	}
}

func (e *ear) say(tenant, name string, envelope []byte) {
	e.t.Helper()
	must(e.t, e.fabric.Broadcast(e.t.Context(), tenant, name, envelope, nil))
}

// Holds REQ-143, REQ-147: whatever the broker or a peer repeats, forges or puts on another tenant's subject, a listener takes
// each fact once.
func TestRepeatedAndForgedEnvelopes(t *testing.T) {
	t.Parallel()
	ns := broker(t)
	a, b := boot(t, ns), boot(t, ns)
	onA, onB, stranger := a.listen(t, acme), b.listen(t, acme), b.listen(t, rival)
	peer := overhear(t, ns, acme)

	fact := event.MessageVisible(acme, channel, message, 1)
	a.Emit(t.Context(), fact)
	said := peer.next()
	for range 5 {
		peer.say(acme, said.Event, said.Envelope)
	}
	settle(t, a, b, onA, onB)
	onA.want("A, of which five copies came back", fact)
	onB.want("B, which got six copies", fact)

	// An old envelope again, after others; and one that names B as its producer, of a fact that B has not told.
	other := event.MessageVisible(acme, channel, message, 2)
	forged := bytes.ReplaceAll(said.Envelope, []byte(a.id), []byte(b.id))
	peer.say(acme, said.Event, forged)
	peer.say(acme, said.Event, said.Envelope)
	// A dropped its own echo of the first fact before it looked at the digest, so a copy under another name is news to it:
	// the one repetition that a forger can have, and nothing that would not be found by reading.
	onA.until(fact)
	b.Emit(t.Context(), other) // not before: what two connections say has no order
	settle(t, a, b, onA, onB)
	onA.want("A, after a forged producer", other)
	onB.want("B, which takes the forged one for its echo", other)

	// The same bytes on another tenant's subject, and with a version that the digest is not of.
	peer.say(rival, said.Event, said.Envelope)
	peer.say(acme, said.Event, bytes.Replace(said.Envelope, []byte(`"version":1`), []byte(`"version":9`), 1))
	settle(t, a, b, onA, onB)
	last := mark(rival)
	b.Emit(t.Context(), last)
	stranger.until(last)
	stranger.want("another tenant's listener")
	onA.want("A, after what was refused")
	onB.want("B, after what was refused")
	for range 2 { // B hears both tenants
		select {
		case <-b.refused: //nolint:errcheck // that it was refused is what matters
		case <-time.After(patience):
			t.Fatal("nobody was told that something was refused")
		}
	}
}

// Holds REQ-147 (B22: the connection of B flaps twenty times. A takes everything once, B nothing twice, and what is told
// when the connection is back arrives.)
func TestFlapsRepeatNothing(t *testing.T) {
	t.Parallel()
	ns := broker(t)
	a, b := boot(t, ns), boot(t, ns)
	onA, onB := a.listen(t, acme), b.listen(t, acme)
	var facts []event.Fact
	for i := range 20 {
		b.cable.cut()
		f := event.MessageUpdated(acme, channel, message, int64(i+1))
		a.Emit(t.Context(), f)
		facts = append(facts, f)
		back(t, a, b, onB)
	}
	settle(t, a, b, onA, onB)
	onA.taken = withoutMarks(onA.taken)
	onA.want("A, whose connection held", facts...)
	seen := map[string]int{}
	for _, ref := range withoutMarks(onB.taken) {
		seen[fmt.Sprint(ref)]++
	}
	for ref, n := range seen {
		if n != 1 {
			t.Errorf("B took %s %d times", ref, n)
		}
	}
}

// back waits until B hears A again: what A says while B is away is lost, by design of the lane.
func back(t *testing.T, a, b *server, onB *listener) {
	t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	for {
		a.Emit(t.Context(), mark(acme))
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		e, err := onB.sub.Next(ctx)
		cancel()
		if err == nil {
			onB.taken = append(onB.taken, e.Ref)
			if e.Kind == event.NamePlacementChanged {
				return
			}
			continue
		}
		select {
		case <-deadline.C:
			t.Fatalf("B never came back; connected: %v", b.fabric.Connected())
		default:
		}
	}
}

func withoutMarks(refs []event.Ref) (out []event.Ref) {
	for _, r := range refs {
		if r.Kind != event.NamePlacementChanged {
			out = append(out, r)
		}
	}
	return out
}
