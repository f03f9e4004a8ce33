package fabric

import (
	"crypto/rand"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/nats-io/nats.go"
	"go.opentelemetry.io/otel/metric"
)

// Defaults of the queue lane.
const (
	// DefaultMaxDeliver is the number of attempts, the first included, after which a failing reference parks (REQ-027).
	DefaultMaxDeliver = 5
	// DefaultAckWait is how long JetStream waits for an answer before it delivers again (REQ-028).
	DefaultAckWait = 30 * time.Second
	// DefaultDuplicateWindow is how long a message id is remembered (design S1).
	DefaultDuplicateWindow = 30 * time.Second
	// DefaultMaxAckPending bounds the references that are delivered and unanswered, over all processes of a consumer.
	DefaultMaxAckPending = 256
	// DefaultPublishTimeout bounds one Publish whose context ends later.
	DefaultPublishTimeout = 5 * time.Second
)

// InProcess is a broker in this process; *embedded.Server is one. It is called for each connection.
type InProcess interface {
	InProcessConn() (net.Conn, error)
}

// Config says where the broker is and how to behave. Every process on one stream must use the same values (REQ-024).
type Config struct {
	// Name is shown by the broker beside the connection. Required.
	Name string
	// Instance is the producer id in the headers of what this process publishes. Default: random.
	Instance string

	// URLs or InProcess, exactly one of them, chooses the deployment shape; nothing else differs (REQ-032).
	URLs      []string
	InProcess InProcess

	Credentials Credentials
	// CAFile is a PEM file, read again at each connect. TLS, if set, is the base configuration.
	CAFile string
	TLS    *tls.Config
	Link   Link

	// Stream is the DeliveryStream that Subscribe and SubscribeKind consume; empty: this process only publishes.
	Stream string
	// StreamOf maps a tenant to its stream when publishing. Nil: every tenant is carried by Stream.
	StreamOf func(tenant string) (stream string, ok bool)
	// Manage lets the fabric make and repair Stream, its dead letters and its consumer. Never in Kubernetes, where only the
	// operator does (design section 6).
	Manage bool
	// Spec is what Manage makes. Its Name is set from Stream.
	Spec StreamSpec

	// MaxDeliver, default DefaultMaxDeliver; Backoff, default 1s, 5s, 30s, the last value repeats; AckWait and
	// MaxAckPending are in Spec, because the broker enforces them.
	MaxDeliver int
	Backoff    []time.Duration
	// Prefetch is how many references are fetched ahead, default 1: then a process that dies on one charges an attempt to
	// no other.
	Prefetch       int
	PublishTimeout time.Duration
	// Inspect is how often consumer and stream are compared with each other and with Spec, default 15s.
	Inspect time.Duration

	// Commands signs what SendCommand sends. Required by SendCommand only.
	Commands Signer

	Logger *slog.Logger         // required
	Now    func() time.Time     // default time.Now
	Meter  metric.MeterProvider // default: none

	// Options are applied first. Handlers in them are called after the fabric's own, and what the fabric's promises rest
	// on (endless reconnects, no reconnect buffer) is set after them (REQ-023).
	Options []nats.Option
}

// Credentials is how this process proves who it is. File is a NATS credentials file, read again at each connect, so that
// a rotated one is picked up. JWT and Sign are for keys that live elsewhere. All empty: none.
type Credentials struct {
	File string
	JWT  func() (string, error)
	Sign func(nonce []byte) ([]byte, error)
	// InboxPrefix is where answers arrive, default _INBOX. Whoever may only subscribe below its own must name it.
	InboxPrefix string
}

// Link is how the connection is kept. Zero values mean the defaults.
type Link struct {
	Window        time.Duration // how long New tries before it gives up; default 2m
	Timeout       time.Duration // of one dial; default 2s
	ReconnectWait time.Duration // default 100ms, plus up to half of it
	PingInterval  time.Duration // default 10s; the connection is lost after two unanswered
	Settle        time.Duration // how long the connection must hold before OnReconnect fires; default 1s
	Drain         time.Duration // how long Close waits for callbacks; default 10s
}

func (c Config) withDefaults() (Config, error) {
	if err := c.check(); err != nil {
		return c, err
	}
	if c.Instance == "" {
		var b [8]byte
		_, _ = rand.Read(b[:]) // never fails: crypto/rand aborts the process instead
		c.Instance = hex.EncodeToString(b[:])
	}
	setDefault(&c.MaxDeliver, DefaultMaxDeliver)
	setDefault(&c.Prefetch, 1)
	setDefault(&c.PublishTimeout, DefaultPublishTimeout)
	setDefault(&c.Inspect, 15*time.Second)
	setDefault(&c.Link.Window, 2*time.Minute)
	setDefault(&c.Link.Timeout, 2*time.Second)
	setDefault(&c.Link.ReconnectWait, 100*time.Millisecond)
	setDefault(&c.Link.PingInterval, 10*time.Second)
	setDefault(&c.Link.Settle, time.Second)
	setDefault(&c.Link.Drain, 10*time.Second)
	if len(c.Backoff) == 0 {
		c.Backoff = []time.Duration{time.Second, 5 * time.Second, 30 * time.Second}
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.StreamOf == nil {
		stream := c.Stream
		c.StreamOf = func(string) (string, bool) { return stream, stream != "" }
	}
	c.Spec.Name = c.Stream
	c.Spec = c.Spec.withDefaults()
	return c, nil
}

func (c Config) check() error {
	var bad []error
	require := func(ok bool, what string) {
		if !ok {
			bad = append(bad, errors.New(what))
		}
	}
	require(c.Name != "", "Name is empty")
	require(c.Logger != nil, "Logger is nil")
	require((len(c.URLs) > 0) != (c.InProcess != nil), "exactly one of URLs and InProcess must be given")
	require(!c.Manage || c.Stream != "", "Manage needs a Stream")
	require(c.MaxDeliver >= 0 && c.Prefetch >= 0, "MaxDeliver and Prefetch must not be negative")
	require((c.Credentials.JWT == nil) == (c.Credentials.Sign == nil), "Credentials need both JWT and Sign, or neither")
	require(c.Credentials.File == "" || c.Credentials.JWT == nil, "Credentials are a File or a JWT, not both")
	for _, d := range c.Backoff {
		require(d > 0, "Backoff must be positive: a nak without delay is redelivered at once")
	}
	if len(bad) > 0 {
		return fmt.Errorf("%w: %w", ErrConfig, errors.Join(bad...))
	}
	return nil
}

func setDefault[T comparable](v *T, def T) {
	var zero T
	if *v == zero {
		*v = def
	}
}
