package backend

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rigelbuild/compass-operator/api/v1alpha1"
	"github.com/rigelbuild/compass-operator/internal/fault"
	"github.com/rigelbuild/compass-operator/internal/store"
	"github.com/rigelbuild/compass-operator/internal/store/move"
)

// Home is one database of a server, as somebody who may act as its owner enters it.
type Home struct {
	Number   int
	Database string // its name
	By       Admin
}

// moveTime bounds one try of a move. A tenant that needs longer for a copy than that is thawed and tried again.
const moveTime = time.Hour

// moving is a move that goes on between passes.
type moving struct {
	to   int
	done chan struct{}
	err  error // when it is done
}

// MoveTenant brings a tenant from one database to another, in the background: it takes longer than a pass may. It is to be
// called until done, and with the same two homes; then nothing of the tenant is left where it was. Wherever an earlier one
// was cut off, it goes on from there.
func (p *Pool) MoveTenant(_ context.Context, at Place, tenant store.TenantID, from, to Home) (done bool, err error) {
	m, err := p.mover(from, to)
	if err != nil {
		return false, err
	}
	h := p.of(at.Server)
	h.mu.Lock()
	now := h.moves[tenant]
	if now == nil {
		now = &moving{to: to.Number, done: make(chan struct{})}
		if h.moves == nil {
			h.moves = map[store.TenantID]*moving{}
		}
		h.moves[tenant] = now
		p.movers.Go(func() { p.run(m, tenant, now, at) }) //nolint:contextcheck // it outlasts the pass that began it
	}
	h.mu.Unlock()
	select {
	case <-now.done:
	default:
		return false, nil
	}
	h.mu.Lock()
	delete(h.moves, tenant)
	h.mu.Unlock()
	return now.err == nil && now.to == to.Number, interpretMove(now.err)
}

func (p *Pool) run(m *move.Mover, tenant store.TenantID, now *moving, at Place) {
	ctx, cancel := context.WithTimeout(p.ended, moveTime)
	defer cancel()
	now.err = m.Move(ctx, string(tenant), now.to)
	close(now.done)
	p.tell(Heard{Server: at.Server, Tenant: string(tenant)})
}

func (p *Pool) mover(homes ...Home) (*move.Mover, error) {
	databases := map[int]string{}
	for _, h := range homes {
		ca, err := p.file(h.By.ca)
		if err != nil {
			return nil, err
		}
		own := h.By
		own.url.Path = "/" + h.Database
		databases[h.Number] = own.dsn(ca)
	}
	m, err := move.New(move.Options{Databases: databases, Routes: p.routes, Log: p.log})
	if err != nil {
		return nil, fault.Waiting(v1alpha1.ReasonInvalidSecret, err.Error())
	}
	return m, nil
}

// interpretMove says what became of a move that failed. The tenant goes on where it was.
func interpretMove(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, move.ErrSameDatabase):
		return fault.Waiting(v1alpha1.ReasonDatabaseConflict, "spec.isolation.dedicated leads to the database that the tenant lives in: name another")
	case errors.Is(err, store.ErrTimeout):
		return fault.Transient(v1alpha1.ReasonMoveFailed, &said{"the tenant is in use by transactions that do not end, and goes on where it was; it is tried again", err})
	}
	return fault.Transient(v1alpha1.ReasonMoveFailed, &said{fmt.Sprintf("the move did not end, and the tenant goes on where it lives; it is tried again: "+
		"see that both databases answer (%s)", short(err)), err})
}

// short is the class of a failure, without ports and times.
func short(err error) string {
	for _, known := range []error{store.ErrUnavailable, store.ErrSchema, store.ErrConflict, store.ErrNotFound, context.DeadlineExceeded} {
		if errors.Is(err, known) {
			return known.Error()
		}
	}
	return "see the operator's log"
}
