package embedded

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/rigelbuild/compass-operator/internal/fabric"
)

// Config says how to run the server.
type Config struct {
	// Dir keeps everything: keys, account JWTs and JetStream's files. Required.
	Dir string
	// Listen is host:port; port 0 or -1 picks one. Empty: the server opens no socket, only InProcessConn reaches it.
	Listen string
	// SyncEvery is how often JetStream forces data to disk, or "always"; default 100ms (REQ-125).
	SyncEvery string
	// StartTimeout bounds Start, default 10s.
	StartTimeout time.Duration
	Logger       *slog.Logger // required
}

// owner marks the accounts of an embedded server.
const owner = "embedded"

// Server is a running server. *Server is the InProcess of fabric.Config.
type Server struct {
	ns      *server.Server
	keys    fabric.Keys
	started time.Time
}

// Start runs a server and returns when it serves. Keys are made at the first start and kept in Dir, readable by this user
// alone; a later start finds the same identity.
func Start(cfg Config) (*Server, error) {
	if cfg.Dir == "" || cfg.Logger == nil {
		return nil, errors.New("embedded NATS needs Dir and Logger")
	}
	if cfg.StartTimeout == 0 {
		cfg.StartTimeout = 10 * time.Second
	}
	keys, err := loadKeys(filepath.Join(cfg.Dir, "keys"))
	if err != nil {
		return nil, err
	}
	opts, err := options(cfg, keys)
	if err != nil {
		return nil, err
	}
	ns, err := server.NewServer(opts)
	if err != nil {
		return nil, fmt.Errorf("configure embedded NATS: %w", err)
	}
	ns.SetLoggerV2(logger{cfg.Logger}, false, false, false)
	go ns.Start()
	if !ns.ReadyForConnections(cfg.StartTimeout) {
		ns.Shutdown()
		return nil, fmt.Errorf("embedded NATS is not ready after %s", cfg.StartTimeout)
	}
	return &Server{ns: ns, keys: keys, started: time.Now()}, nil
}

// options go through the same configuration file as a server in Kubernetes: one code path for both shapes (REQ-032).
func options(cfg Config, keys fabric.Keys) (*server.Options, error) {
	conf, err := configFile(cfg, keys)
	if err != nil {
		return nil, err
	}
	path := filepath.Join(cfg.Dir, "nats.conf")
	if err := os.WriteFile(path, []byte(conf), 0o600); err != nil {
		return nil, fmt.Errorf("write configuration: %w", err)
	}
	opts, err := server.ProcessConfigFile(path)
	if err != nil {
		return nil, fmt.Errorf("configure embedded NATS: %w", err)
	}
	opts.NoSigs, opts.NoLog = true, true
	opts.DontListen = cfg.Listen == ""
	return opts, nil
}

func configFile(cfg Config, keys fabric.Keys) (string, error) {
	operator, err := fabric.OperatorJWT(keys, owner)
	if err != nil {
		return "", err
	}
	preload := map[string]string{}
	for _, a := range []fabric.Account{
		fabric.SystemAccount(keys, owner), fabric.CompassAccount(keys, owner), fabric.RunnersAccount(keys, owner),
	} {
		if preload[a.Public], err = a.Sign(keys.Signing[0]); err != nil {
			return "", err
		}
	}
	c := fabric.ServerConfig{
		Name: "embedded", Operator: operator, System: keys.System.Identity.Public(), Preload: preload,
		JWTDir: filepath.Join(cfg.Dir, "jwt"), StoreDir: filepath.Join(cfg.Dir, "js"), SyncEvery: cfg.SyncEvery,
		Host: "127.0.0.1", Port: -1,
	}
	if cfg.Listen != "" {
		if c.Host, c.Port, err = listenOn(cfg.Listen); err != nil {
			return "", err
		}
	}
	if err := c.Check(); err != nil {
		return "", err
	}
	return c.Render(), nil
}

func listenOn(addr string) (string, int, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return "", 0, fmt.Errorf("listen address: %w", err)
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		return "", 0, fmt.Errorf("listen address: %w", err)
	}
	if n == 0 {
		n = server.RANDOM_PORT
	}
	return host, n, nil
}

// InProcessConn opens a connection that never leaves the process.
func (s *Server) InProcessConn() (net.Conn, error) {
	c, err := s.ns.InProcessConn()
	if err != nil {
		return nil, fmt.Errorf("connect to embedded NATS: %w", err)
	}
	return c, nil
}

// URL is where the server listens; empty if it does not.
func (s *Server) URL() string {
	if s.ns.Addr() == nil {
		return ""
	}
	return s.ns.ClientURL()
}

// Stop shuts the server down and returns when its files are closed.
func (s *Server) Stop() {
	s.ns.Shutdown()
	s.ns.WaitForShutdown()
}

// logger hands the server's lines to slog. Its debug and trace lines are off: they would show message bodies.
type logger struct{ to *slog.Logger }

func (l logger) Noticef(f string, v ...any) { l.to.Debug("NATS server", "line", fmt.Sprintf(f, v...)) }
func (l logger) Warnf(f string, v ...any)   { l.to.Warn("NATS server", "line", fmt.Sprintf(f, v...)) }
func (l logger) Errorf(f string, v ...any)  { l.to.Error("NATS server", "line", fmt.Sprintf(f, v...)) }
func (l logger) Fatalf(f string, v ...any)  { l.to.Error("NATS server", "line", fmt.Sprintf(f, v...)) }
func (l logger) Debugf(string, ...any)      {}
func (l logger) Tracef(string, ...any)      {}
