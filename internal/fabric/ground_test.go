package fabric_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/rigelbuild/compass-operator/internal/fabric"
	"github.com/rigelbuild/compass-operator/internal/fabric/embedded"
	"github.com/rigelbuild/compass-operator/internal/fabric/fabrictest"
)

// broker is an embedded server that can go away and come back with the same files. It listens nowhere.
type broker struct {
	dir string

	mu    sync.Mutex
	ns    *embedded.Server
	conns []*conn
}

// conn is a connection to the broker that a test can cut or freeze.
type conn struct {
	net.Conn
	frozen chan struct{} // closed: nothing is read any more
}

func (c *conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	select {
	case <-c.frozen: // what came is lost, like with a server that stands still
		return c.hang()
	default:
		return n, err
	}
}

func (c *conn) hang() (int, error) {
	_, err := io.Copy(io.Discard, c.Conn) // until it is closed
	return 0, errors.Join(net.ErrClosed, err)
}

// each calls fn for every connection made so far, and forgets them.
func (b *broker) each(fn func(*conn)) {
	b.mu.Lock()
	conns := b.conns
	b.conns = nil
	b.mu.Unlock()
	for _, c := range conns {
		fn(c)
	}
}

func (b *broker) cut()    { b.each(func(c *conn) { _ = c.Close() }) }
func (b *broker) freeze() { b.each(func(c *conn) { close(c.frozen) }) }

func quietLog() *slog.Logger { return slog.New(slog.DiscardHandler) }

func newBroker(t *testing.T) *broker {
	t.Helper()
	b := &broker{dir: t.TempDir()}
	b.start(t)
	t.Cleanup(b.stop)
	return b
}

func (b *broker) start(t *testing.T) {
	t.Helper()
	ns, err := embedded.Start(embedded.Config{Dir: b.dir, Logger: quietLog(), SyncEvery: seldom})
	if err != nil {
		t.Fatal(err)
	}
	b.mu.Lock()
	b.ns = ns
	b.mu.Unlock()
}

func (b *broker) stop() {
	b.mu.Lock()
	ns := b.ns
	b.ns = nil
	b.mu.Unlock()
	if ns != nil {
		ns.Stop()
	}
}

// InProcessConn implements fabric.InProcess over restarts.
func (b *broker) InProcessConn() (net.Conn, error) {
	b.mu.Lock()
	ns := b.ns
	b.mu.Unlock()
	if ns == nil {
		return nil, net.ErrClosed
	}
	c, err := ns.InProcessConn()
	if err != nil {
		return nil, err
	}
	wrapped := &conn{Conn: c, frozen: make(chan struct{})}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.conns = append(b.conns, wrapped)
	return wrapped, nil
}

func (b *broker) Outage(t *testing.T) func() {
	b.stop()
	return func() { b.start(t) }
}

func (b *broker) Raw(t *testing.T, subject string, header map[string]string, body []byte) {
	t.Helper()
	nc := b.client(t)
	msg := &nats.Msg{Subject: subject, Data: body, Header: nats.Header{}}
	for k, v := range header {
		msg.Header.Set(k, v)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	answer, err := nc.RequestMsgWithContext(ctx, msg)
	if err != nil {
		t.Fatalf("raw publish to %s: %v (%v)", subject, err, answer)
	}
}

// client is a bare connection.
func (b *broker) client(t *testing.T) *nats.Conn {
	t.Helper()
	creds := b.standalone(t)
	nc, err := nats.Connect("", nats.InProcessServer(b), nats.UserJWT(creds.JWT, creds.Sign))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

func (b *broker) standalone(t *testing.T) fabric.Credentials {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	creds, err := b.ns.Standalone()
	if err != nil {
		t.Fatal(err)
	}
	return creds
}

// config is what an instance on the broker uses, with waits that suit a test.
func (b *broker) config(t *testing.T, o fabrictest.Options) fabric.Config {
	t.Helper()
	return fabric.Config{
		Name: "test", InProcess: b, Credentials: b.standalone(t), Stream: o.Stream, StreamOf: o.StreamOf, Manage: o.Stream != "",
		Spec: fabric.StreamSpec{AckWait: o.AckWait}, MaxDeliver: o.MaxDeliver, Backoff: o.Backoff,
		Commands: o.Commands,
		Inspect:  200 * time.Millisecond, Logger: quietLog(),
		Link: fabric.Link{Settle: 50 * time.Millisecond, ReconnectWait: 20 * time.Millisecond},
	}
}

func (b *broker) Runner(t *testing.T, id string, keys *fabric.CommandKeys) fabric.RunnerConn {
	t.Helper()
	b.mu.Lock()
	creds, err := b.ns.Credentials(fabric.RoleRunner, id)
	b.mu.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	r, err := fabric.OpenRunner(t.Context(), fabric.RunnerConfig{
		ID: id, InProcess: b, Credentials: creds, Commands: keys, Logger: quietLog(),
		Link: fabric.Link{Settle: 50 * time.Millisecond, ReconnectWait: 20 * time.Millisecond},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r
}

func (b *broker) Open(t *testing.T, o fabrictest.Options) fabrictest.Instance {
	t.Helper()
	return open(t, b.config(t, o))
}

func open(t *testing.T, cfg fabric.Config) *fabric.Fabric {
	t.Helper()
	f, err := fabric.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return f
}
