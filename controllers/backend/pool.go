package backend

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/rigelbuild/compass-operator/api/v1alpha1"
	"github.com/rigelbuild/compass-operator/internal/fault"
	"github.com/rigelbuild/compass-operator/internal/store"
	"github.com/rigelbuild/compass-operator/internal/store/pg"
)

// connections of the operator to one database and right; a pass needs one at a time.
const connections = 4

// Options of a Pool.
type Options struct {
	Log *slog.Logger // default: none
	// Dir is where certificates are kept for the Postgres driver, which takes them as files only. Default: the system's
	// folder for temporary files.
	Dir string
	// Dial maps a NATS URL to others, for an operator that runs outside the cluster. Default: none.
	Dial func(url string) []string
	Now  func() time.Time // default time.Now
	// Routes is how long a process may remember where a tenant lived; see move.Options.
	Routes time.Duration
}

// Pool keeps a store and a NATS connection per CompassServer between passes, and makes a new one when what opens it has
// changed. One that cannot be reached keeps nobody but its own server's objects waiting.
type Pool struct {
	log  *slog.Logger
	dir  string
	dial func(string) []string
	now  func() time.Time

	routes  time.Duration
	ended   context.Context //nolint:containedctx // of what goes on between passes; Close ends it
	end     context.CancelFunc
	movers  sync.WaitGroup
	mu      sync.Mutex
	servers map[client.ObjectKey]*held
	ears    []chan event.TypedGenericEvent[Heard]
}

// held is what is kept of one CompassServer. Its locks are held while dialing, the pool's never is.
type held struct {
	stores  slot[*store.Store]
	admins  slot[*natsAdmin]
	streams slot[*natsStreams]

	mu     sync.Mutex
	probed string // what opened somebody else's NATS when it was found fit
	moves  map[store.TenantID]*moving
}

// slot holds one thing that was opened with a key; another key closes it and opens anew.
type slot[T any] struct {
	mu    sync.Mutex
	key   string
	value T
	close func()
}

func (s *slot[T]) get(key string, open func() (T, func(), error)) (T, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.close != nil && s.key == key {
		return s.value, nil
	}
	s.drop()
	value, end, err := open()
	if err != nil {
		return value, err
	}
	s.key, s.value, s.close = key, value, end
	return value, nil
}

func (s *slot[T]) drop() {
	if s.close != nil {
		s.close()
	}
	var zero T
	s.key, s.value, s.close = "", zero, nil
}

func (s *slot[T]) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drop()
}

// NewPool opens nothing yet.
func NewPool(o Options) *Pool {
	p := &Pool{log: o.Log, dir: o.Dir, dial: o.Dial, now: o.Now, routes: o.Routes, servers: map[client.ObjectKey]*held{}}
	p.ended, p.end = context.WithCancel(context.Background()) // as long as the process, as its connections
	if p.log == nil {
		p.log = slog.New(slog.DiscardHandler)
	}
	if p.dir == "" {
		p.dir = os.TempDir()
	}
	if p.dial == nil {
		p.dial = func(u string) []string { return []string{u} }
	}
	if p.now == nil {
		p.now = time.Now
	}
	return p
}

func (p *Pool) of(server client.ObjectKey) *held {
	p.mu.Lock()
	defer p.mu.Unlock()
	h, ok := p.servers[server]
	if !ok {
		h = &held{}
		p.servers[server] = h
	}
	return h
}

// Forget closes what is held of a CompassServer that is gone.
func (p *Pool) Forget(server client.ObjectKey) {
	p.mu.Lock()
	h := p.servers[server]
	delete(p.servers, server)
	p.mu.Unlock()
	if h != nil {
		h.end()
	}
}

// Close closes everything. A move that is under way is given up; whoever comes next finishes it.
func (p *Pool) Close() {
	p.end()
	p.movers.Wait()
	p.mu.Lock()
	all := p.servers
	p.servers = map[client.ObjectKey]*held{}
	p.mu.Unlock()
	for _, h := range all {
		h.end()
	}
}

func (h *held) end() {
	h.stores.end()
	h.admins.end()
	h.streams.end()
}

// store opens, or finds open, the store of a CompassServer.
func (p *Pool) store(ctx context.Context, at Place) (*store.Store, error) {
	rendered, err := RenderDatabases(at.Databases)
	if err != nil {
		return nil, err
	}
	mark := [][]byte{rendered}
	for _, name := range slices.Sorted(maps.Keys(at.DatabaseCAs)) {
		mark = append(mark, []byte(name), at.DatabaseCAs[name])
	}
	s, err := p.of(at.Server).stores.get(digest(mark...), func() (*store.Store, func(), error) {
		var databases []store.Database
		for _, d := range at.Databases {
			ca, err := p.file(at.DatabaseCAs[DatabaseCAFile(d.ID)])
			if err != nil {
				return nil, nil, err
			}
			databases = append(databases, store.Database{
				ID: d.ID, App: withCA(d.App, ca), System: withCA(d.System, ca), Provision: withCA(d.Provision, ca), Direct: withCA(d.Direct, ca),
			})
		}
		s, err := store.Open(ctx, store.Config{Databases: databases, MaxConns: connections, Log: p.log, Now: p.now})
		if err != nil {
			return nil, nil, err
		}
		return s, s.Close, nil
	})
	return s, interpretStore(err)
}

// interpretStore is the one place that says what an answer of the store means for a condition of a tenant or a stream.
func interpretStore(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, store.ErrUnavailable), errors.Is(err, store.ErrTimeout), errors.Is(err, context.DeadlineExceeded):
		return fault.Transient(v1alpha1.ReasonDatabaseUnreachable,
			&said{"the server's database does not answer: see condition DatabaseReady of its CompassServer", err})
	case errors.Is(err, store.ErrSchema), pg.Code(err) == "42501":
		return fault.Transient(v1alpha1.ReasonReconcileFailed,
			&said{"the server's database is not in its shape: see condition SchemaReady of its CompassServer", err})
	}
	return err
}

// file keeps a certificate where the driver can read it; "" for none. The name is that of the content, so there is nothing
// to clean up after a change but an old certificate, which is public.
func (p *Pool) file(content []byte) (string, error) {
	if len(content) == 0 {
		return "", nil
	}
	path := filepath.Join(p.dir, "compass-ca-"+digest(content)+".crt")
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	if err := os.WriteFile(path+".new", content, 0o600); err != nil {
		return "", fmt.Errorf("keep certificate: %w", err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return "", fmt.Errorf("keep certificate: %w", err)
	}
	return path, nil
}

// withCA replaces the path that a pod has with ours.
func withCA(dsn, file string) string {
	u, err := url.Parse(dsn)
	if err != nil || u.Query().Get(paramRoot) == "" {
		return dsn
	}
	q := u.Query()
	q.Set(paramRoot, file)
	u.RawQuery = q.Encode()
	return u.String()
}

func digest(parts ...[]byte) string {
	h := sha256.New()
	for _, part := range parts {
		fmt.Fprintf(h, "%d:", len(part))
		h.Write(part)
	}
	return hex.EncodeToString(h.Sum(nil)[:12])
}
