package fabric

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"go.opentelemetry.io/otel/metric"
	"google.golang.org/protobuf/proto"

	compassv1 "github.com/rigelbuild/compass-operator/api/proto/compass/v1"
	"github.com/rigelbuild/compass-operator/internal/naming"
)

// RunnerConfig is what a Runner connects with. URLs or InProcess, as in Config.
type RunnerConfig struct {
	ID          string // required
	URLs        []string
	InProcess   InProcess
	Credentials Credentials // InboxPrefix is set from ID
	CAFile      string
	TLS         *tls.Config
	Link        Link
	Commands    *CommandKeys         // required
	Logger      *slog.Logger         // required
	Now         func() time.Time     // default time.Now
	Meter       metric.MeterProvider // default: none
}

// Runner is a Runner's one connection (REQ-115). It implements RunnerConn.
type Runner struct {
	id   string
	keys *CommandKeys
	link *link

	strange atomic.Bool // a command came with a signature that no known key made

	mu   sync.Mutex
	ends []func()
}

var _ RunnerConn = (*Runner)(nil)

// OpenRunner connects, trying for Link.Window; errors as New.
func OpenRunner(ctx context.Context, cfg RunnerConfig) (*Runner, error) {
	inbox, err := naming.RunnerInbox(cfg.ID)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	if cfg.Commands == nil {
		return nil, fmt.Errorf("%w: a Runner needs the public keys of commands", ErrConfig)
	}
	cfg.Credentials.InboxPrefix = inbox
	full, err := Config{
		Name: "runner " + cfg.ID, URLs: cfg.URLs, InProcess: cfg.InProcess, Credentials: cfg.Credentials, CAFile: cfg.CAFile,
		TLS: cfg.TLS, Link: cfg.Link, Logger: cfg.Logger, Now: cfg.Now, Meter: cfg.Meter,
	}.withDefaults()
	if err != nil {
		return nil, err
	}
	m, err := newMetrics(full.Meter)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	l, err := dial(ctx, full, m)
	if err != nil {
		return nil, err
	}
	return &Runner{id: cfg.ID, keys: cfg.Commands, link: l}, nil
}

// OnReconnect calls fn after each outage: a heartbeat then says at once what is held. See EventFabric.OnReconnect.
func (r *Runner) OnReconnect(fn func()) Unsubscribe { return once(r.link.recover.add(fn)) }

// Connected reports whether the broker could be reached when last heard of.
func (r *Runner) Connected() bool { return r.link.connected() }

// Refused reports whether the broker, when last heard of, refused this Runner's user: then other credentials help, and
// waiting does not.
func (r *Runner) Refused() bool {
	nc, _, _, err := r.link.current()
	return err == nil && !nc.IsConnected() && errors.Is(interpret(nc.LastError()), ErrUnauthorized)
}

// Mistrusted reports, once, that a command was dropped because no key that this Runner knows has signed it: somebody is up to
// something, or the keys of the installation are others now.
func (r *Runner) Mistrusted() bool { return r.strange.Swap(false) }

// Close ends the subscriptions, waits for a callback that runs, and disconnects.
func (r *Runner) Close() {
	r.mu.Lock()
	ends := r.ends
	r.ends = nil
	r.mu.Unlock()
	for _, end := range ends {
		end()
	}
	r.link.close()
}

// Commands see RunnerConn.
func (r *Runner) Commands(
	ctx context.Context, fn func(ctx context.Context, command *compassv1.Command, signed *compassv1.SessionsResponse),
) (Unsubscribe, error) {
	subject, err := r.own(naming.RunnerAddress{Leg: naming.RunnerCmd})
	if err != nil {
		return nil, err
	}
	base := context.WithoutCancel(ctx)
	stop, err := r.link.subscribe(ctx, subject, "", func(msg *nats.Msg) {
		command, signed, err := r.open(msg)
		if err != nil {
			r.link.metrics.reject("command")
			r.strange.Store(true)
			r.link.log.Warn("Command dropped", "error", err)
			return
		}
		fn(base, command, signed)
	})
	if err != nil {
		return nil, err
	}
	stop = once(stop)
	r.mu.Lock()
	r.ends = append(r.ends, stop)
	r.mu.Unlock()
	detach := context.AfterFunc(ctx, stop)
	return func() { detach(); stop() }, nil
}

// open refuses what did not come from a Server or worker, or was meant for another: whoever shares our account can make
// the broker write to our subject (measured), but cannot sign.
func (r *Runner) open(msg *nats.Msg) (*compassv1.Command, *compassv1.SessionsResponse, error) {
	var signed compassv1.SessionsResponse
	if err := proto.Unmarshal(msg.Data, &signed); err != nil {
		return nil, nil, fmt.Errorf("%w: %w", ErrSignature, err)
	}
	command, err := r.keys.Open(&signed)
	if err != nil {
		return nil, nil, err
	}
	if command.GetRunnerId() != r.id {
		return nil, nil, fmt.Errorf("%w: it is for another Runner", ErrSignature)
	}
	return command, &signed, nil
}

// Event see RunnerConn.
func (r *Runner) Event(ctx context.Context, event *compassv1.RunnerEvent) (*compassv1.RunnerEventAnswer, error) {
	body, err := proto.Marshal(event)
	if err != nil {
		return nil, fmt.Errorf("send event: %w: %w", ErrBadRef, err)
	}
	msg, err := r.request(ctx, naming.RunnerEvents, nil, body)
	if err != nil {
		return nil, fmt.Errorf("send event: %w", err)
	}
	var answer compassv1.RunnerEventAnswer
	if err := proto.Unmarshal(msg.Data, &answer); err != nil {
		return nil, fmt.Errorf("read answer to event: %w", err)
	}
	return &answer, nil
}

// Call see RunnerConn.
func (r *Runner) Call(ctx context.Context, procedure string, body []byte) ([]byte, error) {
	msg, err := r.request(ctx, naming.RunnerCall, nats.Header{headerProcedure: {procedure}}, body)
	if err != nil {
		return nil, fmt.Errorf("call %s: %w", procedure, err)
	}
	if err := decodeStatus(msg.Header); err != nil {
		return nil, err // the Server's own words, as over Connect
	}
	return msg.Data, nil
}

// State see RunnerConn.
func (r *Runner) State(ctx context.Context, stream string, state *compassv1.RunnerState) error {
	subject, err := r.own(naming.RunnerAddress{Leg: naming.RunnerState, Stream: stream})
	if err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("send state: %w", err)
	}
	body, err := proto.Marshal(state)
	if err != nil {
		return fmt.Errorf("send state: %w: %w", ErrBadRef, err)
	}
	if err := r.link.send(&nats.Msg{Subject: subject, Data: body}); err != nil {
		return fmt.Errorf("send state: %w", err)
	}
	return nil
}

func (r *Runner) request(ctx context.Context, leg naming.RunnerLeg, h nats.Header, body []byte) (*nats.Msg, error) {
	subject, err := r.own(naming.RunnerAddress{Leg: leg})
	if err != nil {
		return nil, err
	}
	nc, _, _, err := r.link.current()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	msg, err := nc.RequestMsgWithContext(ctx, &nats.Msg{Subject: subject, Header: h, Data: body})
	if errors.Is(err, context.Canceled) {
		return nil, err
	}
	return msg, interpret(err)
}

func (r *Runner) own(a naming.RunnerAddress) (string, error) {
	a.ID = r.id
	subject, err := naming.RunnerOwnSubject(a)
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrBadRef, err)
	}
	return subject, nil
}
