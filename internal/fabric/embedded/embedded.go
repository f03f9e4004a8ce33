package embedded

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// Config says how to run the server.
type Config struct {
	// StoreDir keeps JetStream's files. Required: the server's own default is a temporary folder.
	StoreDir string
	// Listen is host:port; port 0 or -1 picks one. Empty: the server opens no socket, only InProcessConn reaches it.
	Listen string
	// SyncInterval is how often JetStream forces data to disk, default 100ms (REQ-125).
	SyncInterval time.Duration
	// StartTimeout bounds Start, default 10s.
	StartTimeout time.Duration
	Logger       *slog.Logger // required
}

// Server is a running server. *Server is the InProcess of fabric.Config.
type Server struct{ ns *server.Server }

// Start runs a server and returns when it serves.
func Start(cfg Config) (*Server, error) {
	if cfg.StoreDir == "" || cfg.Logger == nil {
		return nil, errors.New("embedded NATS needs StoreDir and Logger")
	}
	if cfg.SyncInterval == 0 {
		cfg.SyncInterval = 100 * time.Millisecond
	}
	if cfg.StartTimeout == 0 {
		cfg.StartTimeout = 10 * time.Second
	}
	opts := &server.Options{
		ServerName: "embedded", DontListen: cfg.Listen == "", JetStream: true, StoreDir: cfg.StoreDir,
		NoSigs: true, SyncInterval: cfg.SyncInterval, NoSystemAccount: false,
	}
	if cfg.Listen != "" {
		if err := listenOn(opts, cfg.Listen); err != nil {
			return nil, err
		}
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
	return &Server{ns: ns}, nil
}

func listenOn(opts *server.Options, addr string) error {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return fmt.Errorf("listen address: %w", err)
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		return fmt.Errorf("listen address: %w", err)
	}
	if n == 0 {
		n = server.RANDOM_PORT
	}
	opts.Host, opts.Port = host, n
	return nil
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
