package edge

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"
	"connectrpc.com/grpchealth"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/rigelbuild/compass-operator/api/proto/compass/v1/compassv1connect"
	"github.com/rigelbuild/compass-operator/internal/comms"
	"github.com/rigelbuild/compass-operator/internal/event"
	"github.com/rigelbuild/compass-operator/internal/naming"
	"github.com/rigelbuild/compass-operator/internal/store"
)

// messaging is what a client does with messages; see comms.Comms.
type messaging interface {
	PostMessage(ctx context.Context, n store.NewMessage) (comms.Result, error)
	UpdateMessage(ctx context.Context, e store.Edit) (store.Message, error)
	AskQuestion(ctx context.Context, n store.NewMessage) (comms.Result, error)
	RespondToAsk(ctx context.Context, n store.NewAnswer) (comms.Result, error)
	ListMessages(ctx context.Context, page store.MessagePage) ([]store.Message, bool, error)
}

// telling is how clients hear of messages, and how others are told of them; see comms.Comms.
type telling interface {
	SubscribeComms(ctx context.Context, s comms.Subscriber) error
	Announce(ctx context.Context, touched []store.Touched)
	AnnounceReplay(ctx context.Context, touched []store.Touched)
}

// Comms is what the edge needs of *comms.Comms.
type Comms interface {
	messaging
	telling
}

// emitter tells facts after they were committed; see event.Emitter.
type emitter interface {
	Emit(ctx context.Context, f event.Fact)
}

// Options are the parts of an edge. Store, Comms, Emitter, IDs and Now are required.
type Options struct {
	Store   Store
	Comms   Comms
	Emitter emitter
	IDs     *naming.IDs
	// Sessions and Runners are the hub's; nil ones are not mounted. Sessions stands behind the edge's authentication,
	// Runners proves its callers itself.
	Sessions compassv1connect.SessionServiceHandler
	Runners  compassv1connect.RunnerServiceHandler
	// Lines carry what is for one live stream alone. Nil: streams are not addressable.
	Lines lines
	// Ready says whether this process should get work, for gRPC health checks. Nil: always.
	Ready func(ctx context.Context) error
	// Stream carries tenants that are made through the API. Empty leaves that to the operator.
	Stream string
	// Timeout bounds every call that is no stream; a shorter deadline of the caller's holds. Default 10 s.
	Timeout time.Duration
	// MaxBytes bounds one request before it is looked at. Default 1 MiB.
	MaxBytes int
	Now      func() time.Time
	Log      *slog.Logger         // default: none
	Meters   metric.MeterProvider // default: none
	Tracers  trace.TracerProvider // default: none
}

const (
	defaultTimeout  = 10 * time.Second
	defaultMaxBytes = 1 << 20
	// compressFrom is the size from which an answer is compressed for who asks for that: below it the time of each client of a
	// stream is worth more than the bytes.
	compressFrom = 4 << 10
)

// Edge serves clients of every tenant. It is safe for concurrent use.
type Edge struct {
	Options
	observe *observer
	told    atomic.Pointer[told]
}

// New returns an edge; it starts nothing.
func New(o Options) (*Edge, error) {
	if o.Store == nil || o.Comms == nil || o.Emitter == nil || o.IDs == nil || o.Now == nil {
		return nil, errors.New("edge: store, comms, emitter, ids and clock are required")
	}
	if o.Timeout <= 0 {
		o.Timeout = defaultTimeout
	}
	if o.MaxBytes <= 0 {
		o.MaxBytes = defaultMaxBytes
	}
	if o.Ready == nil {
		o.Ready = func(context.Context) error { return nil }
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	observe, err := newObserver(o)
	if err != nil {
		return nil, fmt.Errorf("edge: %w", err)
	}
	return &Edge{Options: o, observe: observe}, nil
}

// Handler serves every service of compass.v1 and gRPC health, over Connect, gRPC and gRPC-Web. The HTTP server around it
// owns connections: TLS or h2c, header timeouts, shutdown.
func (e *Edge) Handler() http.Handler {
	open := connect.WithInterceptors(&guard{edge: e})
	closed := connect.WithInterceptors(&guard{edge: e, authenticate: true})
	size := connect.WithHandlerOptions(e.unpacks(), connect.WithCompressMinBytes(compressFrom), connect.WithCodec(codec{e}))
	mux := http.NewServeMux()
	mux.Handle(compassv1connect.NewAccountServiceHandler(accounts{e}, closed, size))
	mux.Handle(compassv1connect.NewChannelServiceHandler(channels{e}, closed, size))
	mux.Handle(compassv1connect.NewCommsServiceHandler(messages{e}, closed, size))
	mux.Handle(compassv1connect.NewAdminServiceHandler(admin{e}, closed, size))
	if e.Sessions != nil {
		mux.Handle(compassv1connect.NewSessionServiceHandler(e.Sessions, closed, size))
	}
	if e.Runners != nil {
		mux.Handle(compassv1connect.NewRunnerServiceHandler(e.Runners, open, size))
	}
	mux.Handle(grpchealth.NewHandler(health{e}))
	return e.within(mux)
}

// health answers gRPC health checks, for the process as a whole and for each service by name.
type health struct{ *Edge }

// Check reports serving while the process is ready.
func (h health) Check(ctx context.Context, req *grpchealth.CheckRequest) (*grpchealth.CheckResponse, error) {
	if _, known := services()[req.Service]; req.Service != "" && !known {
		return nil, connect.NewError(connect.CodeNotFound, errors.New("no such service"))
	}
	ctx, cancel := context.WithTimeout(ctx, h.Timeout)
	defer cancel()
	if err := h.Ready(ctx); err != nil {
		return &grpchealth.CheckResponse{Status: grpchealth.StatusNotServing}, nil
	}
	return &grpchealth.CheckResponse{Status: grpchealth.StatusServing}, nil
}

func services() map[string]struct{} {
	return map[string]struct{}{
		compassv1connect.AccountServiceName: {}, compassv1connect.ChannelServiceName: {}, compassv1connect.CommsServiceName: {},
		compassv1connect.AdminServiceName: {}, compassv1connect.SessionServiceName: {}, compassv1connect.RunnerServiceName: {},
	}
}
