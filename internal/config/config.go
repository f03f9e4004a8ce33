package config

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"sigs.k8s.io/yaml"
)

// Config is the whole file. Each subcommand reads the parts that it needs; Validate is asked for those.
type Config struct {
	Log       Log       `json:"log,omitempty"`
	Telemetry Telemetry `json:"telemetry,omitempty"`
	Store     Store     `json:"store,omitempty"`
	Fabric    Fabric    `json:"fabric,omitempty"`
	Server    Server    `json:"server,omitempty"`
	Sessions  Sessions  `json:"sessions,omitempty"`
	Delivery  Delivery  `json:"delivery,omitempty"`
}

// Log shapes the JSON log on standard error.
type Log struct {
	// Level is debug, info, warn or error. Default: info.
	Level string `json:"level,omitempty"`
}

// Telemetry says where figures and traces go.
type Telemetry struct {
	// Listen serves /metrics (Prometheus), /healthz and /readyz. Default: 127.0.0.1:9090; "-" serves nothing.
	Listen string `json:"listen,omitempty"`
	// OTLPEndpoint is a gRPC collector, host:port; empty: no traces leave the process.
	OTLPEndpoint string `json:"otlpEndpoint,omitempty"`
}

// Store says where Postgres is.
type Store struct {
	// DatabasesFile holds the DSNs, see Databases. Required.
	DatabasesFile string `json:"databasesFile,omitempty"`
	// MaxConnections of this process to each database's request path. Default: 20.
	MaxConnections int `json:"maxConnections,omitempty"`
	// Bootstrap lets a call without a tenant act as the system tenant. Standalone only (REQ-007).
	Bootstrap bool `json:"-"`
}

// Fabric says where NATS is.
type Fabric struct {
	// URLs of the servers. Required; a standalone process runs NATS itself.
	URLs []string `json:"urls,omitempty"`
	// CredsFile is a NATS credentials file, read again at every reconnect.
	CredsFile string `json:"credsFile,omitempty"`
	// CAFile verifies the servers' certificates; empty: the system's roots.
	CAFile string `json:"caFile,omitempty"`
	// CommandKeysFile holds the Ed25519 keys that sign commands, see CommandKeys.
	CommandKeysFile string `json:"commandKeysFile,omitempty"`
	// IssuerFile holds the scoped signing seeds with which a Server signs user JWTs for Runners; Servers only.
	IssuerFile string `json:"issuerFile,omitempty"`
	// BootWait bounds how long an unreachable Postgres, and then an unreachable NATS, is waited for at boot. Default: 2m.
	BootWait Duration `json:"bootWait,omitempty"`
}

// Server shapes the Connect edge.
type Server struct {
	// Listen address. Default: :8443 with a certificate, else 127.0.0.1:8080 in clear (h2c).
	Listen string `json:"listen,omitempty"`
	// TLSCertFile and TLSKeyFile are read again when they change.
	TLSCertFile string `json:"tlsCertFile,omitempty"`
	TLSKeyFile  string `json:"tlsKeyFile,omitempty"`
	// RunnerURLs is what enrolled Runners are told to connect NATS to.
	RunnerURLs []string `json:"runnerURLs,omitempty"`
}

// Sessions says how long silence is forgiven.
type Sessions struct {
	// Lease of a Runner; it heartbeats three times in it. Default: 30s.
	Lease Duration `json:"lease,omitempty"`
	// MaxTurn settles a turn that stays open longer; 0: never. Default: 0s.
	MaxTurn Duration `json:"maxTurn,omitempty"`
}

// Delivery shapes the worker of one stream.
type Delivery struct {
	// Stream that this process serves. Required for the worker.
	Stream string `json:"stream,omitempty"`
	// Holder names this process on the lease: one that finds its own name there takes the lease at once, so no two that run
	// may share it. Default: the pod's name where EnvPod has it, else the host's name and the process id.
	Holder string `json:"holder,omitempty"`
	// MaxDeliver is the number of attempts before a message is set aside. Default: 5.
	MaxDeliver int `json:"maxDeliver,omitempty"`
	// AckWait until a message that no Runner took is sent again. Default: 30s.
	AckWait Duration `json:"ackWait,omitempty"`
	// Backoff between attempts; the last value repeats. Default: 1s, 5s, 30s.
	Backoff []Duration `json:"backoff,omitempty"`
	// MaxAckPending references on their way to this worker. Default: 256.
	MaxAckPending int `json:"maxAckPending,omitempty"`
	// FloorTick is the period of the sweep that heals everything. Default: 2m.
	FloorTick Duration `json:"floorTick,omitempty"`
	// Lease of the stream's one writer. Default: 6s.
	Lease Duration `json:"lease,omitempty"`
}

// Load reads a file, refuses what it does not know, and fills in the defaults.
func Load(path string) (Config, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return Config{}, fmt.Errorf("read configuration: %w", err)
	}
	var c Config
	if err := yaml.UnmarshalStrict(raw, &c); err != nil {
		return Config{}, fmt.Errorf("read configuration %s: %w", path, err)
	}
	return c.WithDefaults(), nil
}

// WithDefaults returns c with every absent value filled in.
func (c Config) WithDefaults() Config {
	def(&c.Log.Level, "info")
	def(&c.Telemetry.Listen, "127.0.0.1:9090")
	def(&c.Store.MaxConnections, 20)
	def(&c.Fabric.BootWait, Duration(2*time.Minute))
	if c.Server.TLSCertFile != "" {
		def(&c.Server.Listen, ":8443")
	}
	def(&c.Server.Listen, "127.0.0.1:8080")
	def(&c.Sessions.Lease, Duration(30*time.Second))
	if c.Delivery.Holder == "" {
		c.Delivery.Holder = holder()
	}
	def(&c.Delivery.MaxDeliver, 5)
	def(&c.Delivery.AckWait, Duration(30*time.Second))
	def(&c.Delivery.MaxAckPending, 256)
	def(&c.Delivery.FloorTick, Duration(2*time.Minute))
	def(&c.Delivery.Lease, Duration(6*time.Second))
	if len(c.Delivery.Backoff) == 0 {
		c.Delivery.Backoff = []Duration{Duration(time.Second), Duration(5 * time.Second), Duration(30 * time.Second)}
	}
	return c
}

// EnvPod is the variable in which Kubernetes tells a worker the name of its pod.
const EnvPod = "POD_NAME"

// holder is a name that no other running process has, and that a pod's container keeps when it starts again.
func holder() string {
	if pod := os.Getenv(EnvPod); pod != "" {
		return pod
	}
	host, _ := os.Hostname()
	return fmt.Sprintf("%s/%d", host, os.Getpid())
}

func def[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// ValidateServer reports every reason why a Server cannot start from c.
func (c Config) ValidateServer() error {
	return errors.Join(c.validateCommon(),
		require(c.Fabric.CommandKeysFile, "fabric.commandKeysFile", "the file with the keys that sign commands"),
		pair(c.Server.TLSCertFile, c.Server.TLSKeyFile, "server.tlsCertFile", "server.tlsKeyFile"),
		atLeast(c.Sessions.Lease, time.Second, "sessions.lease"),
	)
}

// ValidateDelivery reports every reason why a worker cannot start from c.
func (c Config) ValidateDelivery() error {
	errs := []error{c.validateCommon(),
		require(c.Fabric.CommandKeysFile, "fabric.commandKeysFile", "the file with the keys that sign commands"),
		require(c.Delivery.Stream, "delivery.stream", "the name of the stream to serve"),
		require(c.Delivery.Holder, "delivery.holder", "a name for this process"),
		atLeast(c.Delivery.Lease, 3*time.Second, "delivery.lease"),
		atLeast(c.Delivery.AckWait, time.Second, "delivery.ackWait"),
		atLeast(c.Delivery.FloorTick, time.Second, "delivery.floorTick"),
		positive(c.Delivery.MaxDeliver, "delivery.maxDeliver"),
		positive(c.Delivery.MaxAckPending, "delivery.maxAckPending"),
	}
	for _, d := range c.Delivery.Backoff {
		errs = append(errs, atLeast(d, 100*time.Millisecond, "delivery.backoff"))
	}
	return errors.Join(errs...)
}

func (c Config) validateCommon() error {
	var level error
	switch c.Log.Level {
	case "debug", "info", "warn", "error":
	default:
		level = fmt.Errorf("log.level: %q is none of debug, info, warn, error", c.Log.Level)
	}
	return errors.Join(level,
		require(c.Store.DatabasesFile, "store.databasesFile", "the file that names the databases"),
		positive(c.Store.MaxConnections, "store.maxConnections"),
		require(strings.Join(c.Fabric.URLs, ""), "fabric.urls", "the addresses of the NATS servers"),
		atLeast(c.Fabric.BootWait, time.Second, "fabric.bootWait"))
}

func require(value, field, what string) error {
	if value == "" {
		return fmt.Errorf("%s: missing; set it to %s", field, what)
	}
	return nil
}

func positive(n int, field string) error {
	if n < 1 {
		return fmt.Errorf("%s: %d; at least 1", field, n)
	}
	return nil
}

func pair(a, b, fieldA, fieldB string) error {
	if (a == "") != (b == "") {
		return fmt.Errorf("%s and %s: set both or neither", fieldA, fieldB)
	}
	return nil
}

func atLeast(d Duration, least time.Duration, field string) error {
	if time.Duration(d) < least {
		return fmt.Errorf("%s: %s is too short; at least %s", field, time.Duration(d), least)
	}
	return nil
}
