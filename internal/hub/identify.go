package hub

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/rigelbuild/compass-operator/internal/fabric"
	"github.com/rigelbuild/compass-operator/internal/naming"
	"github.com/rigelbuild/compass-operator/internal/store"
	"github.com/rigelbuild/compass-operator/internal/wire"
)

// clockSkew is how far a Runner's clock may be from ours. A proof names procedure and time, not the body: TLS keeps it from
// being recorded, and this bounds what a recording is worth.
const clockSkew = time.Minute

// maxKnown bounds the remembered Runners; when it is full, all are forgotten.
const maxKnown = 10_000

// known remembers enrolled Runners. Id, key and fleet of one never change, so it needs no invalidation; only those that
// exist are kept, so nobody fills it with guesses. Incarnations are not read from it.
type known struct {
	mu      sync.Mutex
	runners map[string]store.Runner
}

func (k *known) get(id string) (store.Runner, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	r, ok := k.runners[id]
	return r, ok
}

func (k *known) put(r store.Runner) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.runners == nil || len(k.runners) >= maxKnown {
		k.runners = map[string]store.Runner{}
	}
	k.runners[r.ID] = r
}

// prove finds which Runner signed a Connect call of the procedure. Whatever is wrong with the proof is
// wire.ErrUnauthenticated alike: nobody learns which Runners exist.
func (h *Hub) prove(ctx context.Context, header http.Header, procedure string) (store.Runner, error) {
	proof, err := naming.ParseRunnerProof(header.Get("Authorization"))
	if err != nil {
		return store.Runner{}, fmt.Errorf("%w: no Runner's proof", wire.ErrUnauthenticated)
	}
	if age := h.now().Sub(time.Unix(proof.Unix, 0)); age > clockSkew || age < -clockSkew {
		return store.Runner{}, fmt.Errorf("%w: the proof is from another time; compare the clocks", wire.ErrUnauthenticated)
	}
	r, err := h.enrolled(ctx, proof.Runner)
	if errors.Is(err, store.ErrNotFound) {
		return store.Runner{}, fmt.Errorf("%w: the proof does not hold", wire.ErrUnauthenticated)
	}
	if err != nil {
		return store.Runner{}, err
	}
	if !fabric.VerifyKey(r.PublicKey, proof.Message(procedure), proof.Signature) {
		return store.Runner{}, fmt.Errorf("%w: the proof does not hold", wire.ErrUnauthenticated)
	}
	return r, nil
}

// enrolled finds a Runner by its id.
func (h *Hub) enrolled(ctx context.Context, id string) (store.Runner, error) {
	if r, ok := h.known.get(id); ok {
		return r, nil
	}
	r, err := h.store.FindRunner(ctx, id)
	if err == nil {
		h.known.put(r)
	}
	return r, err
}

// vouched finds the Runner that the broker says sent a request. The broker let it in by a user that a Server signed, so it
// is enrolled; the look-up is for a broker that outlived our database, and for a fleet that is not the Runner's.
func (h *Hub) vouched(ctx context.Context, from fabric.RunnerAddr) (store.Runner, error) {
	r, err := h.enrolled(ctx, from.ID)
	if errors.Is(err, store.ErrNotFound) || err == nil && r.Fleet != from.Fleet {
		return store.Runner{}, fmt.Errorf("%w: no such Runner in this fleet", wire.ErrUnauthenticated)
	}
	return r, err
}

// named refuses a body that speaks of another Runner than the one that sent it. An empty name is the sender's.
func named(r store.Runner, id string) error {
	if id != "" && id != r.ID {
		return fmt.Errorf("%w: the request names another Runner", wire.ErrDenied)
	}
	return nil
}

// sessionOf returns the context of the session's tenant. The tenant comes from the session's id and is a hint: the session
// must then be found under it (T5).
func sessionOf(ctx context.Context, session string) (context.Context, error) {
	tenant, _, err := naming.ParseSession(session)
	if err != nil {
		return nil, store.ErrStale // like one that is not there
	}
	return store.WithTenant(ctx, store.TenantID(tenant)), nil
}
