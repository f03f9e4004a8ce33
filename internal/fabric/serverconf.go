package fabric

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// ServerConfig is what a nats-server of ours is started with. It holds no secret: an operator JWT and an account JWT are
// public.
type ServerConfig struct {
	Name      string // of the server; unique in the cluster. May be an environment reference such as $POD_NAME
	Operator  string // JWT
	System    string // public key of the system account
	Preload   map[string]string
	JWTDir    string
	StoreDir  string
	Host      string // default 0.0.0.0
	Port      int    // default 4222; -1 picks one
	Monitor   int    // HTTP monitoring port for probes; 0: none
	TLS       *ServerTLS
	Cluster   *ServerCluster
	MaxFile   int64  // bytes of JetStream on disk; 0: the server's own choice
	SyncEvery string // a duration, or "always"; default 100ms (REQ-125)
	PidFile   string
}

// ServerTLS names the files of a certificate.
type ServerTLS struct{ CertFile, KeyFile, CAFile string }

// ServerCluster joins servers.
type ServerCluster struct {
	Name   string
	Host   string // default 0.0.0.0
	Port   int    // default 6222
	Routes []string
	TLS    *ServerTLS
}

// maxPayload is generous for references and calls; a lowered one would close connections for good (measured).
const maxPayload = 1 << 20

// Render returns the configuration file. Same input, same bytes.
func (c ServerConfig) Render() string {
	setDefault(&c.Host, "0.0.0.0")
	setDefault(&c.Port, 4222)
	setDefault(&c.SyncEvery, "100ms")
	w := &confWriter{}
	w.line("server_name: %s", quoteUnlessEnv(c.Name))
	w.line("listen: %q", c.Host+":"+strconv.Itoa(c.Port))
	w.line("max_payload: %d", maxPayload)
	w.line("write_deadline: 10s")
	w.line("ping_interval: 20s")
	w.line("lame_duck_duration: 30s")
	w.line("lame_duck_grace_period: 2s")
	if c.PidFile != "" {
		w.line("pid_file: %q", c.PidFile)
	}
	if c.Monitor > 0 {
		w.line("http_port: %d", c.Monitor)
	}
	if c.TLS != nil {
		c.TLS.render(w, false)
	}
	w.line("operator: %q", c.Operator)
	w.line("system_account: %q", c.System)
	w.block("resolver", func() {
		w.line("type: full")
		w.line("dir: %q", c.JWTDir)
		w.line("allow_delete: true") // a deletion renames: it can be seen afterwards
		w.line("interval: \"2m\"")
		w.line("timeout: \"1.9s\"")
	})
	w.block("resolver_preload", func() {
		for _, k := range slices.Sorted(maps.Keys(c.Preload)) {
			w.line("%s: %q", k, c.Preload[k])
		}
	})
	w.block("jetstream", func() {
		w.line("store_dir: %q", c.StoreDir)
		w.line("sync_interval: %s", c.SyncEvery)
		w.line("max_mem: 0")
		if c.MaxFile > 0 {
			w.line("max_file: %d", c.MaxFile)
		}
	})
	if c.Cluster != nil {
		c.Cluster.render(w)
	}
	return w.String()
}

// Check refuses what a server would not start with.
func (c ServerConfig) Check() error {
	switch {
	case c.Name == "", c.Operator == "", c.System == "", c.JWTDir == "", c.StoreDir == "":
		return fmt.Errorf("%w: a server needs Name, Operator, System, JWTDir and StoreDir", ErrConfig)
	case c.Preload[c.System] == "":
		return fmt.Errorf("%w: the system account must be preloaded, or nobody can push the others", ErrConfig)
	}
	if c.SyncEvery == "" || c.SyncEvery == "always" {
		return nil
	}
	if d, err := time.ParseDuration(c.SyncEvery); err != nil || d <= 0 {
		return fmt.Errorf("%w: sync interval %q is neither a duration nor always", ErrConfig, c.SyncEvery)
	}
	return nil
}

func (t *ServerTLS) render(w *confWriter, verify bool) {
	w.block("tls", func() {
		w.line("cert_file: %q", t.CertFile)
		w.line("key_file: %q", t.KeyFile)
		if t.CAFile != "" {
			w.line("ca_file: %q", t.CAFile)
		}
		if verify {
			w.line("verify: true")
		}
	})
}

func (cl ServerCluster) render(w *confWriter) {
	setDefault(&cl.Port, 6222)
	setDefault(&cl.Host, "0.0.0.0")
	w.block("cluster", func() {
		w.line("name: %q", cl.Name)
		w.line("listen: %q", cl.Host+":"+strconv.Itoa(cl.Port))
		if cl.TLS != nil {
			cl.TLS.render(w, true)
		}
		w.line("no_advertise: true")
		w.line("routes: [")
		for _, r := range cl.Routes {
			w.line("  %q", r)
		}
		w.line("]")
	})
}

// quoteUnlessEnv leaves $NAME to the server, which replaces it from its environment.
func quoteUnlessEnv(s string) string {
	if strings.HasPrefix(s, "$") {
		return s
	}
	return strconv.Quote(s)
}

type confWriter struct {
	strings.Builder
	depth int
}

func (w *confWriter) line(format string, args ...any) {
	w.WriteString(strings.Repeat("  ", w.depth))
	fmt.Fprintf(w, format, args...)
	w.WriteByte('\n')
}

func (w *confWriter) block(name string, body func()) {
	w.line("%s {", name)
	w.depth++
	body()
	w.depth--
	w.line("}")
}
