package edge

import (
	"context"
	"fmt"
	"net/http"
	"runtime/debug"

	"connectrpc.com/connect"

	"github.com/rigelbuild/compass-operator/internal/wire"
)

// guard stands before every handler: it survives panics, bounds the time, finds out who calls and whether he may, and says
// what an error is on the wire.
type guard struct {
	edge *Edge
	// authenticate is off for services that prove their callers themselves.
	authenticate bool
}

// WrapUnary guards a call that is no stream.
func (g *guard) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (res connect.AnyResponse, err error) {
		procedure := req.Spec().Procedure
		ctx, ended := g.edge.observe.begin(ctx, procedure, req.Header())
		defer func() {
			err = g.outcome(ctx, procedure, recover(), err)
			ended(err)
		}()
		ctx, cancel := context.WithTimeout(ctx, g.edge.Timeout)
		defer cancel()
		if ctx, err = g.admit(ctx, procedure, req.Header()); err != nil {
			return nil, err
		}
		return next(ctx, req)
	}
}

// WrapStreamingHandler guards a live stream, which ends when its client goes.
func (g *guard) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) (err error) {
		procedure := conn.Spec().Procedure
		defer g.edge.observe.stream(ctx)()
		defer func() { err = g.outcome(ctx, procedure, recover(), err) }()
		if ctx, err = g.admit(ctx, procedure, conn.RequestHeader()); err != nil {
			return err
		}
		return next(ctx, conn)
	}
}

// WrapStreamingClient is for clients, and this is none.
func (*guard) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

// admit authenticates and checks the role. It returns a context in any case, so that the outcome can be logged.
func (g *guard) admit(ctx context.Context, procedure string, header http.Header) (context.Context, error) {
	if !g.authenticate {
		return ctx, nil
	}
	scoped, err := g.edge.authenticated(ctx, header)
	if err != nil {
		return ctx, err
	}
	caller, err := Caller(scoped)
	if err != nil {
		return ctx, err
	}
	return scoped, allow(roles()[procedure], caller)
}

// outcome turns what a handler left behind into what the caller reads. Only what is our fault is logged: the rest is the
// caller's to know, and counted by its code elsewhere.
func (g *guard) outcome(ctx context.Context, procedure string, panicked any, err error) error {
	if panicked != nil {
		g.edge.Log.ErrorContext(ctx, "Handler panicked", "procedure", procedure, "panic", fmt.Sprint(panicked), "stack", string(debug.Stack()))
		return connect.NewError(connect.CodeInternal, errInternal)
	}
	if err == nil {
		return nil
	}
	out := wire.Error(err)
	if out.Code() == connect.CodeInternal {
		g.edge.Log.ErrorContext(ctx, "Call failed", "procedure", procedure, "error", err)
	}
	return out
}
