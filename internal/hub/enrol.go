package hub

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"connectrpc.com/connect"

	compassv1 "github.com/rigelbuild/compass-operator/api/proto/compass/v1"
	"github.com/rigelbuild/compass-operator/internal/fabric"
	"github.com/rigelbuild/compass-operator/internal/naming"
	"github.com/rigelbuild/compass-operator/internal/store"
	"github.com/rigelbuild/compass-operator/internal/wire"
)

// minNonce is the shortest nonce, in bytes: shorter ones repeat.
const minNonce = 16

// userKey leads the public keys of NATS users; no other kind of key may enroll.
const userKey = "U"

// enroll binds a one-time token to the key of a Runner, which proves that it holds it (R4). Whoever comes with another key
// later is refused and the token is of no use to anybody: one of the two has stolen it, and we cannot tell which.
func (h *Hub) enroll(ctx context.Context, q *compassv1.EnrollRequest) (*compassv1.EnrollResponse, error) {
	if _, _, err := naming.ParseRunnerToken(q.GetToken()); err != nil {
		return nil, fmt.Errorf("%w: no enrolment token", wire.ErrUnauthenticated)
	}
	if len(q.GetNonce()) < minNonce {
		return nil, fmt.Errorf("%w: the nonce has %d bytes, at least %d are needed", wire.ErrShape, len(q.GetNonce()), minNonce)
	}
	if !strings.HasPrefix(q.GetPublicKey(), userKey) ||
		!fabric.VerifyKey(q.GetPublicKey(), naming.EnrolmentProof(q.GetNonce(), q.GetToken()), q.GetSignature()) {
		return nil, fmt.Errorf("%w: the signature is not of this key", wire.ErrUnauthenticated)
	}
	r, err := h.store.EnrollRunner(ctx, store.Enrolment{
		TokenHash: naming.TokenHash(q.GetToken()), PublicKey: q.GetPublicKey(), ID: h.ids.Runner(),
	})
	if err != nil {
		return nil, h.notEnrolled(ctx, q.GetPublicKey(), err)
	}
	count(ctx, h.metrics.enrolments, "enrolled")
	answer := &compassv1.EnrollResponse{RunnerId: r.ID, Fleet: r.Fleet}
	if h.access == nil {
		return answer, nil
	}
	way, err := h.access.RunnerAccess(ctx, r)
	if err != nil {
		return nil, fmt.Errorf("give Runner %s its access: %w", r.ID, err)
	}
	answer.NatsJwt, answer.NatsUrls, answer.NatsCa, answer.CommandKeys = way.JWT, way.URLs, way.CA, way.CommandKeys
	return answer, nil
}

// notEnrolled says why not, and raises the alarm where a token was shown with two keys.
func (h *Hub) notEnrolled(ctx context.Context, publicKey string, err error) error {
	switch {
	case errors.Is(err, store.ErrNotFound):
		count(ctx, h.metrics.enrolments, "unknown")
		return fmt.Errorf("%w: unknown enrolment token", wire.ErrUnauthenticated)
	case errors.Is(err, store.ErrTokenStolen):
		count(ctx, h.metrics.enrolments, "stolen")
		h.log.ErrorContext(ctx, "Enrolment token was shown with a second key and is disabled; the Runner of the first key may be "+
			"the thief's", "public_key", publicKey)
		return connect.NewError(connect.CodePermissionDenied, store.ErrTokenStolen)
	case errors.Is(err, store.ErrTokenDisabled):
		count(ctx, h.metrics.enrolments, "disabled")
		return connect.NewError(connect.CodePermissionDenied, store.ErrTokenDisabled)
	}
	return err
}

// hello begins a new incarnation of the Runner. Its old sessions are over; they are ended at once, and by the expirer if
// that fails.
func (h *Hub) hello(ctx context.Context, who store.Runner, q *compassv1.HelloRequest) (*compassv1.HelloResponse, error) {
	if err := named(who, q.GetRunnerId()); err != nil {
		return nil, err
	}
	incarnation, err := h.store.HelloRunner(ctx, who.ID, h.lease)
	if err != nil {
		return nil, err
	}
	h.endOld(ctx, who)
	return &compassv1.HelloResponse{
		Incarnation: incarnation, LeaseMs: h.lease.Milliseconds(), HeartbeatMs: (h.lease / beatsPerLease).Milliseconds(),
	}, nil
}

// endOld ends the sessions of the Runner's process before.
func (h *Hub) endOld(ctx context.Context, who store.Runner) {
	ctx, cancel := context.WithTimeout(ctx, helloTime)
	defer cancel()
	for _, database := range h.store.DatabaseIDs() {
		if err := endStale(ctx, h.store, database, who.ID, h.ended); err != nil {
			h.log.WarnContext(ctx, "Sessions of the old process are left to the expirer", "runner", who.ID, "database", database, "error", err)
		}
	}
}
