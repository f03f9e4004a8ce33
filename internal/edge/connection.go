package edge

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/rigelbuild/compass-operator/internal/naming"
	"github.com/rigelbuild/compass-operator/internal/store"
	"github.com/rigelbuild/compass-operator/internal/wire"
)

// The headers by which a client and its live streams know each other.
const (
	// HeaderConnection stands in the answer to SubscribeComms: the address of this stream.
	HeaderConnection = "Compass-Connection"
	// HeaderReplaces may stand in the request: the address of the stream that the client had before. A connection that broke
	// on the client's side can hang on another Server for minutes; so it ends at once.
	HeaderReplaces = "Compass-Replaces"
)

// wordTime bounds a word to a connection: the stream that says it waits for it.
const wordTime = time.Second

// Word is what is said to one connection alone. It says for whom it is: a connection believes nothing that is not for its
// own account.
type Word struct {
	Event           string
	Tenant, Account string
}

// WordReplaced says that the client has another stream now.
const WordReplaced = "replaced"

// lines carry words to the one Server that holds a connection, whichever that is (REQ-113): `client.<connection>`, never a
// queue group. A word that is lost costs what it costs without it.
type lines interface {
	Tell(ctx context.Context, connection string, w Word) error
	Hear(ctx context.Context, connection string, fn func(Word)) (stop func(), err error)
}

// hold makes a stream addressable and ends the one before it. The returned context ends with the cause wire.ErrReplaced
// when a later stream takes its place.
func (e *Edge) hold(ctx context.Context, caller store.Caller, ask, answer http.Header) (context.Context, func(), error) {
	before := ask.Get(HeaderReplaces)
	if before != "" {
		if err := wire.ID(naming.ConnectionPrefix, before); err != nil {
			return nil, nil, fmt.Errorf("%s: %w", HeaderReplaces, err)
		}
	}
	if e.Lines == nil {
		return ctx, func() {}, nil
	}
	connection := e.IDs.Connection()
	ctx, end := context.WithCancelCause(ctx)
	mine := Word{Event: WordReplaced, Tenant: string(caller.Tenant), Account: caller.Account.ID}
	stop, err := e.Lines.Hear(ctx, connection, func(w Word) {
		if w == mine {
			end(wire.ErrReplaced)
		}
	})
	if err != nil { // without a broker a stream is as good, and nobody can replace it from elsewhere
		e.Log.WarnContext(ctx, "A stream cannot be addressed", "error", err)
		return ctx, func() { end(nil) }, nil
	}
	answer.Set(HeaderConnection, connection)
	if before != "" {
		e.tell(ctx, before, mine)
	}
	return ctx, func() {
		end(nil)
		stop()
	}, nil
}

func (e *Edge) tell(ctx context.Context, connection string, w Word) {
	ctx, cancel := context.WithTimeout(ctx, wordTime)
	defer cancel()
	if err := e.Lines.Tell(ctx, connection, w); err != nil {
		e.Log.WarnContext(ctx, "A stream was not told that it is replaced; it ends with its connection", "error", err)
	}
}
