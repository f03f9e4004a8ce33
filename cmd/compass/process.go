package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/rigelbuild/compass-operator/internal/config"
	"github.com/rigelbuild/compass-operator/internal/fabric"
	"github.com/rigelbuild/compass-operator/internal/naming"
	"github.com/rigelbuild/compass-operator/internal/store"
	"github.com/rigelbuild/compass-operator/internal/telemetry"
)

const (
	// goodbye bounds the shutdown of a process; pods get a longer grace period.
	goodbye = 20 * time.Second
	// noGoodbye bounds it where the lease is lost: somebody else is the writer, or waits until this process has ended.
	noGoodbye = 500 * time.Millisecond
)

// process is what every long-running subcommand has: telemetry, a list of things to close in reverse order, and a group of
// loops of which the first to fail ends all.
type process struct {
	tel *telemetry.Telemetry
	log *slog.Logger
	// limits of tenants, as they were last read.
	limits store.KnownLimits

	bootWait time.Duration                   // how long what is away is waited for at boot
	waits    atomic.Pointer[string]          // what the boot waits for
	check    atomic.Pointer[telemetry.Check] // of readiness, once the boot is over

	end     context.CancelFunc // of every loop
	closers []func(context.Context) error
	loops   sync.WaitGroup
	failed  chan error
}

// newProcess returns a process and the context of all that it does: it ends with ctx, and with close.
func newProcess(ctx context.Context, service string, c config.Config, log io.Writer) (context.Context, *process, error) {
	tel, err := telemetry.Start(ctx, telemetry.Options{
		Service: service, Version: version, Level: c.Log.Level, Log: log, OTLPEndpoint: c.Telemetry.OTLPEndpoint,
	})
	if err != nil {
		return nil, nil, err
	}
	ctx, end := context.WithCancel(ctx)
	p := &process{tel: tel, log: tel.Log, end: end, failed: make(chan error, 1), bootWait: time.Duration(c.Fabric.BootWait)}
	p.onClose(tel.Close)
	return ctx, p, nil
}

func (p *process) onClose(fn func(context.Context) error) { p.closers = append(p.closers, fn) }

// spawn runs a loop until its context ends. An error that it returns ends the process.
func (p *process) spawn(ctx context.Context, what string, loop func(context.Context) error) {
	p.loops.Add(1)
	go func() {
		defer p.loops.Done()
		if err := loop(ctx); err != nil && ctx.Err() == nil {
			select {
			case p.failed <- fmt.Errorf("%s: %w", what, err):
			default:
			}
		}
	}()
}

// wait returns when the context ends (nil) or a loop failed.
func (p *process) wait(ctx context.Context) error {
	select {
	case <-ctx.Done():
		p.log.Info("Stopping")
		return nil
	case err := <-p.failed:
		return err
	}
}

// close ends everything, last opened first, and returns within goodbye, whatever hangs; cause is what ended the process. What
// has not ended then ends with the process.
func (p *process) close(cause error) error {
	p.end()
	within := goodbye
	if errors.Is(cause, store.ErrLeaseLost) {
		within = noGoodbye
	}
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	closed := make(chan error, 1)
	go func() {
		var errs []error
		for i := len(p.closers) - 1; i >= 0; i-- {
			errs = append(errs, p.closers[i](ctx))
		}
		p.loops.Wait()
		closed <- errors.Join(errs...)
	}()
	select {
	case err := <-closed:
		return err
	case <-ctx.Done():
		return fmt.Errorf("not everything was closed within %v", within)
	}
}

// openStore opens the databases that a file names, and waits for them.
func (p *process) openStore(ctx context.Context, c config.Store, databases []config.Database, fenced bool) (*store.Store, error) {
	open := store.Config{
		Bootstrap: c.Bootstrap, Fenced: fenced, MaxConns: int32(c.MaxConnections), //nolint:gosec // validated
		Limits: p.limits.Of, Log: p.log,
	}
	for _, d := range databases {
		open.Databases = append(open.Databases, store.Database{ID: d.ID, App: d.App, System: d.System, Provision: d.Provision, Direct: d.Direct})
	}
	p.waitFor("Postgres")
	var st *store.Store
	err := p.patiently(ctx, func() (err error) {
		st, err = store.Open(ctx, open)
		return err
	})
	if err != nil {
		if c.DatabasesFile != "" && errors.Is(err, store.ErrUnavailable) {
			err = fmt.Errorf("reach Postgres; check that it runs and what %s (store.databasesFile) says: %w", c.DatabasesFile, err)
		}
		return nil, err
	}
	p.onClose(func(context.Context) error { st.Close(); return nil })
	return st, nil
}

// fabricConfig is what every process that reaches NATS over the network has in common. inbox is where its role hears
// answers: nobody may subscribe where another role's arrive.
func (p *process) fabricConfig(name, inbox string, c config.Fabric, keys []config.CommandKey) fabric.Config {
	out := fabric.Config{
		Name: name, URLs: c.URLs, CAFile: c.CAFile, Credentials: fabric.Credentials{File: c.CredsFile, InboxPrefix: inbox},
		Link: fabric.Link{Window: time.Duration(c.BootWait)}, Logger: p.log, Meter: p.tel.Meters,
	}
	if len(keys) > 0 {
		out.Commands = fabric.Signer{KeyID: keys[0].ID, Key: keys[0].Private}
	}
	return out
}

// openFabric connects to NATS. There is no boot without it (REQ-062).
func (p *process) openFabric(ctx context.Context, c fabric.Config) (*fabric.Fabric, error) {
	p.waitFor("NATS")
	fab, err := fabric.Open(ctx, c)
	if errors.Is(err, fabric.ErrConfig) {
		return nil, err
	}
	if err != nil {
		return nil, fmt.Errorf("reach NATS within %v%s: %w", p.bootWait, checkNATS(c.URLs, "fabric.urls and fabric.credsFile"), err)
	}
	p.onClose(fab.Close)
	return fab, nil
}

// checkNATS says what to look at where NATS cannot be reached; nothing where it is in this process.
func checkNATS(urls []string, settings string) string {
	if len(urls) == 0 {
		return ""
	}
	shown := make([]string, len(urls))
	for i, text := range urls {
		shown[i] = "(a URL that cannot be read)" // and is not shown: it may hold a password
		if u, err := url.Parse(text); err == nil {
			shown[i] = u.Redacted()
		}
	}
	return fmt.Sprintf(" at %s; check that it runs and what %s say", strings.Join(shown, ", "), settings)
}

// serve answers HTTP on an address until the process closes; existing requests may finish. It returns the address, which
// matters where the port was 0.
func (p *process) serve(ctx context.Context, what, address string, server *http.Server) (net.Addr, error) {
	var listen net.ListenConfig
	l, err := listen.Listen(ctx, "tcp", address)
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("%s: another process listens at %s: end it, or name another address", what, address)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	server.ReadHeaderTimeout = 10 * time.Second
	server.ErrorLog = slog.NewLogLogger(p.log.Handler(), slog.LevelInfo) // of handshakes that strangers break off
	p.onClose(server.Shutdown)
	p.spawn(ctx, what, func(context.Context) error {
		var err error
		if server.TLSConfig != nil {
			err = server.ServeTLS(l, "", "")
		} else {
			err = server.Serve(l)
		}
		if errors.Is(err, http.ErrServerClosed) {
			return nil
		}
		return err
	})
	p.log.Info("Listening", "for", what, "address", l.Addr().String())
	return l.Addr(), nil
}

// serveHealth answers /metrics, /healthz and /readyz.
func (p *process) serveHealth(ctx context.Context, address string, live, ready telemetry.Check) error {
	if address == "-" {
		return nil
	}
	_, err := p.serve(ctx, "metrics and health", address, &http.Server{Handler: p.tel.Handler(live, ready)}) //nolint:gosec // serve sets the timeout
	return err
}

// alive is the check of a process that has nothing to say about itself.
func alive(context.Context) error { return nil }

// newIDs makes the ids of this process.
func newIDs() *naming.IDs { return &naming.IDs{Now: time.Now, Rand: rand.Reader} }
