package comms

import (
	"context"
	"errors"

	"github.com/rigelbuild/compass-operator/internal/event"
	"github.com/rigelbuild/compass-operator/internal/store"
)

// herald goes before all streams of a tenant: what became visible is read once for all of them before they wake. If each
// of them woke to ask for it, the one that reads would wait until all others have asked.
func (s *seats) herald(ctx context.Context, tenant store.TenantID, first *event.Subscription) {
	for {
		events, err := first.Batch(ctx, 256, nil)
		switch {
		case errors.Is(err, event.ErrLagged): // so are the streams
		case err != nil:
			return
		}
		s.shared.prepare(ctx, tenant, events)
	}
}

// prepare reads what became visible, for every stream of its channels. What fails here, or panics, does so again in the
// first of them that asks.
func (s *shared) prepare(ctx context.Context, tenant store.TenantID, events []event.Event) {
	defer func() { _ = recover() }()
	if t := s.plan(tenant, events); len(t.spans) > 0 {
		_ = s.fly(ctx, t)
	}
}

func (s *shared) plan(tenant store.TenantID, events []event.Event) *trip {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forget()
	t := newTrip(tenant)
	for _, e := range events {
		p := s.pages[address{tenant, e.Scope}]
		if e.Kind != event.NameMessageVisible || p == nil {
			continue
		}
		if of, mine := t.spans[e.Scope]; mine {
			t.spans[e.Scope] = span{of.after, max(of.head, e.Version)}
		} else if p.flight == nil && p.upTo < e.Version { // else it is here, or on its way
			s.takeOn(t, e.Scope, p, span{p.upTo, e.Version})
		}
	}
	return t
}
