package natstest

import (
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

const startTimeout = 30 * time.Second

// Server is a nats-server as a pod would run it. Its volume survives Stop.
type Server struct {
	dir  string
	port int

	mu sync.Mutex
	ns *server.Server
}

// New makes a server that does not run yet.
func New(tb testing.TB) *Server {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port //nolint:forcetypeassert // a TCP listener
	if err := l.Close(); err != nil {
		tb.Fatal(err)
	}
	s := &Server{dir: tb.TempDir(), port: port}
	tb.Cleanup(s.Stop)
	return s
}

// URL is where the server listens while it runs.
func (s *Server) URL() string { return "nats://127.0.0.1:" + strconv.Itoa(s.port) }

var (
	listenLine  = regexp.MustCompile(`(?m)^listen:.*$`)
	monitorLine = regexp.MustCompile(`(?m)^http_port:.*$`)
)

// Start runs the server with the configuration of a pod; it is an error of the configuration if it does not start.
func (s *Server) Start(tb testing.TB, conf string) {
	tb.Helper()
	s.Stop()
	conf = strings.NewReplacer(`"/data/`, `"`+s.dir+`/`, "$POD_NAME", `"pod-0"`).Replace(conf)
	conf = listenLine.ReplaceAllString(conf, `listen: "127.0.0.1:`+strconv.Itoa(s.port)+`"`)
	conf = monitorLine.ReplaceAllString(conf, "")
	path := filepath.Join(s.dir, "nats.conf")
	if err := os.WriteFile(path, []byte(conf), 0o600); err != nil {
		tb.Fatal(err)
	}
	opts, err := server.ProcessConfigFile(path)
	if err != nil {
		tb.Fatalf("nats-server refuses the configuration: %v\n%s", err, conf)
	}
	opts.NoSigs, opts.NoLog = true, true
	ns, err := server.NewServer(opts)
	if err != nil {
		tb.Fatalf("nats-server refuses the configuration: %v", err)
	}
	go ns.Start()
	if !ns.ReadyForConnections(startTimeout) {
		ns.Shutdown()
		tb.Fatal("nats-server does not start")
	}
	s.mu.Lock()
	s.ns = ns
	s.mu.Unlock()
}

// Running reports whether the server was started and not stopped.
func (s *Server) Running() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ns != nil
}

// Stop ends the server, if it runs.
func (s *Server) Stop() {
	s.mu.Lock()
	ns := s.ns
	s.ns = nil
	s.mu.Unlock()
	if ns != nil {
		ns.Shutdown()
		ns.WaitForShutdown()
	}
}

// Wipe is what a lost volume is: everything that the server kept goes, and it stops.
func (s *Server) Wipe(tb testing.TB) {
	tb.Helper()
	s.Stop()
	for _, part := range []string{"jwt", "js"} {
		if err := os.RemoveAll(filepath.Join(s.dir, part)); err != nil {
			tb.Fatal(err)
		}
	}
}
