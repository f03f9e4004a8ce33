package natstest

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/rigelbuild/compass-operator/internal/freeport"
)

const startTimeout = 30 * time.Second

// Server is a nats-server as a pod would run it. Its volume survives Stop.
type Server struct {
	dir    string
	port   int
	routes int // port
	pod    Pod

	mu sync.Mutex
	ns *server.Server
}

// Pod is what the configuration finds in a pod of several.
type Pod struct {
	Name  string
	Peers map[string]*Server // by name of the pod
	Files map[string][]byte  // of folders below /etc, by their name there
}

// In places the server in a pod. Default: pod-0, alone.
func (s *Server) In(pod Pod) { s.pod = pod }

// New makes a server that does not run yet.
func New(tb testing.TB) *Server {
	tb.Helper()
	s := &Server{dir: tb.TempDir(), port: freePort(tb), routes: freePort(tb), pod: Pod{Name: "pod-0"}}
	tb.Cleanup(s.Stop)
	return s
}

func freePort(tb testing.TB) int {
	tb.Helper()
	port, err := freeport.Find()
	if err != nil {
		tb.Fatal(err)
	}
	return port
}

// URL is where the server listens while it runs.
func (s *Server) URL() string { return "nats://127.0.0.1:" + strconv.Itoa(s.port) }

var (
	listenLine  = regexp.MustCompile(`(?m)^listen:.*$`)
	routesLine  = regexp.MustCompile(`(?m)^  listen:.*$`)
	peer        = regexp.MustCompile(`"nats://([a-z0-9-]+)\.[^"]*:6222"`)
	monitorLine = regexp.MustCompile(`(?m)^http_port:.*$`)
)

// Start runs the server with the configuration of a pod; it is an error of the configuration if it does not start.
func (s *Server) Start(tb testing.TB, conf string) {
	tb.Helper()
	s.Stop()
	conf = strings.NewReplacer(`"/data/`, `"`+s.dir+`/`, `"/etc/`, `"`+s.dir+`/etc/`, "$POD_NAME", `"`+s.pod.Name+`"`).Replace(conf)
	conf = listenLine.ReplaceAllString(conf, `listen: "127.0.0.1:`+strconv.Itoa(s.port)+`"`)
	conf = routesLine.ReplaceAllString(conf, `  listen: "127.0.0.1:`+strconv.Itoa(s.routes)+`"`)
	conf = peer.ReplaceAllStringFunc(conf, func(route string) string {
		other := s.pod.Peers[peer.FindStringSubmatch(route)[1]]
		if other == nil {
			tb.Fatalf("the configuration names a pod that there is not: %s", route)
		}
		return `"nats://localhost:` + strconv.Itoa(other.routes) + `"`
	})
	for name, content := range s.pod.Files {
		file := filepath.Join(s.dir, "etc", name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, content, 0o600)); err != nil {
			tb.Fatal(err)
		}
	}
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

// Ready reports whether the server would let its pod be called ready: one of several knows what they agreed on.
func (s *Server) Ready() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ns != nil && (!s.ns.JetStreamIsClustered() || s.ns.JetStreamIsCurrent())
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
