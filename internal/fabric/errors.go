package fabric

import (
	"context"
	"errors"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// What a caller may test for. Everything else is transient.
var (
	// ErrConfig: the configuration is absent, incomplete or contradicts itself. Trying again is useless.
	ErrConfig = errors.New("bad fabric configuration")
	// ErrUnavailable: no broker answered in time.
	ErrUnavailable = errors.New("NATS is unavailable")
	// ErrUnauthorized: a broker answered and refused the credentials or the subject.
	ErrUnauthorized = errors.New("NATS refused the credentials")
	// ErrClosed: the fabric was closed.
	ErrClosed = errors.New("fabric is closed")
	// ErrNoStream: no stream carries the tenant. Nothing was published, and that is no failure (protocol.md, "Moves").
	ErrNoStream = errors.New("no stream carries the tenant")
	// ErrAbsent: the stream or consumer does not exist and this fabric may not make it.
	ErrAbsent = errors.New("stream or consumer does not exist")
	// ErrFull: a limit of the tenant or of the stream refuses another reference.
	ErrFull = errors.New("stream is full")
	// ErrNoRoom: what the streams may hold together is more than the servers have; nothing was made.
	ErrNoRoom = errors.New("no room for another stream")
	// ErrOverlap: another consumer of the work queue already gets these references.
	ErrOverlap = errors.New("another consumer already gets these references")
	// ErrDuplicate: the broker had stored the message id before and stored nothing now.
	ErrDuplicate = errors.New("already published within the duplicate window")
	// ErrMismatch: the place of a dead letter is taken by another one.
	ErrMismatch = errors.New("another dead letter is stored there")
	// ErrBadRef: a reference or a subject is malformed, or they contradict each other.
	ErrBadRef = errors.New("bad reference")
	// ErrOverflow: the publisher's queue is full.
	ErrOverflow = errors.New("publisher queue is full")
	// ErrRunnerGone: nobody listens for the commands of that Runner.
	ErrRunnerGone = errors.New("Runner is not connected")
	// ErrSignature: a command carries no valid signature of a known key.
	ErrSignature = errors.New("command signature is not valid")
)

// JetStream error codes that the client library has no sentinel for.
const (
	codeOverlap         jetstream.ErrorCode = 10100 // filtered consumer not unique on a work queue
	codeMultiUnfiltered jetstream.ErrorCode = 10099 // multiple non-filtered consumers not allowed on a work queue
	codeNoRoom          jetstream.ErrorCode = 10047 // insufficient storage resources available
	codeMaxMessages     jetstream.ErrorCode = 10077 // stream store failed: maximum messages (also per subject) or bytes
)

// interpret is the one place that turns what nats.go says into the sentinels above. The original stays in the chain.
func interpret(err error) error {
	if err == nil {
		return nil
	}
	if s := sentinelOf(err); s != nil {
		return &wrapped{sentinel: s, cause: err}
	}
	return err
}

func sentinelOf(err error) error {
	var api *jetstream.APIError
	switch {
	case errors.As(err, &api):
		return sentinelOfCode(api.ErrorCode)
	case errors.Is(err, nats.ErrAuthorization), errors.Is(err, nats.ErrAuthExpired), errors.Is(err, nats.ErrAuthRevoked),
		errors.Is(err, nats.ErrAccountAuthExpired), errors.Is(err, nats.ErrPermissionViolation):
		return ErrUnauthorized
	case errors.Is(err, nats.ErrConnectionClosed), errors.Is(err, nats.ErrNoServers), errors.Is(err, nats.ErrTimeout),
		errors.Is(err, nats.ErrReconnectBufExceeded), errors.Is(err, nats.ErrDisconnected), errors.Is(err, nats.ErrNoResponders),
		errors.Is(err, jetstream.ErrNoStreamResponse), errors.Is(err, context.DeadlineExceeded):
		return ErrUnavailable
	}
	return nil
}

func sentinelOfCode(code jetstream.ErrorCode) error {
	switch code { //nolint:exhaustive // the others stay as they are
	case jetstream.JSErrCodeStreamNotFound, jetstream.JSErrCodeConsumerNotFound, jetstream.JSErrCodeConsumerDoesNotExist:
		return ErrAbsent
	case codeOverlap, codeMultiUnfiltered:
		return ErrOverlap
	case codeMaxMessages:
		return ErrFull
	case codeNoRoom:
		return ErrNoRoom
	case jetstream.JSErrCodeJetStreamNotEnabled, jetstream.JSErrCodeJetStreamNotEnabledForAccount:
		return ErrUnavailable
	}
	return nil
}

// wrapped shows the cause's text and answers to both errors.
type wrapped struct{ sentinel, cause error }

func (w *wrapped) Error() string   { return w.sentinel.Error() + ": " + w.cause.Error() }
func (w *wrapped) Unwrap() []error { return []error{w.sentinel, w.cause} }
