package edge_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/rigelbuild/compass-operator/api/proto/compass/v1/compassv1connect"
	"github.com/rigelbuild/compass-operator/internal/comms"
	"github.com/rigelbuild/compass-operator/internal/edge"
	"github.com/rigelbuild/compass-operator/internal/event"
	"github.com/rigelbuild/compass-operator/internal/store/worldtest"
)

// fixture is an edge on real Postgres behind a real HTTP server.
type fixture struct {
	*worldtest.World
	url   string
	bus   *event.Bus
	queue *queue
	log   *logged
}

// queue remembers what was handed over.
type queue struct {
	mu   sync.Mutex
	refs []event.Ref
}

func (q *queue) Enqueue(_ context.Context, r event.Ref) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.refs = append(q.refs, r)
	return nil
}

func (q *queue) take() []event.Ref {
	q.mu.Lock()
	defer q.mu.Unlock()
	out := q.refs
	q.refs = nil
	return out
}

// logged is a log that can be read while it is written.
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

// parts are what an edge is made of, before it is.
type parts struct {
	edge.Options
	emitter *event.Emitter
	world   *worldtest.World
}

func newFixture(t *testing.T, change ...func(*parts)) *fixture {
	t.Helper()
	w := worldtest.New(t)
	bus, err := event.NewBus(event.BusOptions{Epoch: "test"})
	must(t, err)
	t.Cleanup(bus.Close)
	instance, err := event.NewInstance(w.IDs.Instance())
	must(t, err)
	f := &fixture{World: w, bus: bus, queue: &queue{}, log: &logged{}}
	emitter, err := event.NewEmitter(event.EmitterOptions{Instance: instance, Bus: bus, Queue: f.queue})
	must(t, err)
	c, err := comms.NewComms(comms.Options{
		Store: w.Store, Emitter: emitter, Bus: bus, IDs: w.IDs, Now: time.Now,
		Stream: comms.StreamOptions{Poll: 50 * time.Millisecond},
	})
	must(t, err)
	p := &parts{emitter: emitter, world: w, Options: edge.Options{
		Store: w.Store, Comms: c, Emitter: emitter, IDs: w.IDs, Stream: "main", Now: time.Now, Log: slog.New(slog.NewTextHandler(f.log, nil)),
	}}
	for _, do := range change {
		do(p)
	}
	e, err := edge.New(p.Options)
	must(t, err)
	server := httptest.NewServer(e.Handler())
	t.Cleanup(server.Close)
	f.url = server.URL
	return f
}

// bearer sends a token with every call.
type bearer string

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	if b != "" {
		r.Header.Set("Authorization", "Bearer "+string(b))
	}
	return http.DefaultTransport.RoundTrip(r)
}

func client(token string) *http.Client { return &http.Client{Transport: bearer(token)} }

func (f *fixture) accounts(token string) compassv1connect.AccountServiceClient {
	return compassv1connect.NewAccountServiceClient(client(token), f.url)
}

func (f *fixture) channels(token string) compassv1connect.ChannelServiceClient {
	return compassv1connect.NewChannelServiceClient(client(token), f.url)
}

func (f *fixture) messages(token string) compassv1connect.CommsServiceClient {
	return compassv1connect.NewCommsServiceClient(client(token), f.url)
}

func (f *fixture) admin(token string) compassv1connect.AdminServiceClient {
	return compassv1connect.NewAdminServiceClient(client(token), f.url)
}

// raw calls a procedure with JSON and returns what came back.
func (f *fixture) raw(t *testing.T, token, procedure string, body []byte) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, f.url+procedure, bytes.NewReader(body))
	must(t, err)
	req.Header.Set("Content-Type", "application/json")
	res, err := client(token).Do(req)
	must(t, err)
	data, err := io.ReadAll(res.Body)
	must(t, errors.Join(err, res.Body.Close()))
	return string(data)
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// wants fails the test unless err has the code.
func wants(tb testing.TB, what string, err error, code connect.Code) {
	tb.Helper()
	if err == nil || connect.CodeOf(err) != code {
		tb.Errorf("%s: %v, want %s", what, err, code)
	}
}

func request[T any](m *T) *connect.Request[T] { return connect.NewRequest(m) }
