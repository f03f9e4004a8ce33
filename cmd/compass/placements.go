package main

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/rigelbuild/compass-operator/internal/store"
)

const (
	// placementAge is how long a tenant's stream is remembered. A reference that goes to the old one meanwhile is acked there
	// and counted, and the new worker sweeps when it claims the tenant: only latency depends on this.
	placementAge = 5 * time.Second
	// placementTimeout bounds the look-up; the publisher that asks has retries of its own.
	placementTimeout = 2 * time.Second
)

// placements tells which stream carries a tenant, for the publisher. It never asks for more tenants than post.
type placements struct {
	store interface {
		Placement(ctx context.Context) (store.Placement, error)
	}
	now func() time.Time

	mu    sync.Mutex
	known map[string]placed
}

type placed struct {
	stream string
	until  time.Time
}

// streamOf is fabric.Config.StreamOf. A tenant that no stream carries has none, which is no failure; where the database does
// not answer, what was known last is used.
func (p *placements) streamOf(tenant string) (string, bool) {
	p.mu.Lock()
	known, ok := p.known[tenant]
	p.mu.Unlock()
	if ok && p.now().Before(known.until) {
		return known.stream, known.stream != ""
	}
	ctx, cancel := context.WithTimeout(context.Background(), placementTimeout)
	defer cancel()
	read, err := p.store.Placement(store.WithTenant(ctx, store.TenantID(tenant)))
	if err == nil || errors.Is(err, store.ErrNotFound) {
		known.stream = read.Stream
	}
	known.until = p.now().Add(placementAge)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.known == nil {
		p.known = map[string]placed{}
	}
	p.known[tenant] = known
	return known.stream, known.stream != ""
}
