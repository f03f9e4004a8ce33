package store

import (
	"context"
	"sync"

	"github.com/jackc/pgx/v5"
)

// Fence is what a delivery worker proves with every write: that it holds the lease of the stream in this database, by
// the epoch that it was given and the nonce that it chose (K3). The epoch alone is not unique: a failover that forgets the
// newest commits hands the same one out again [F2].
//
// writerDo leads the worker's batches with it. assert_writer keeps a share of the lease's row to the end of the batch, so a
// takeover either waits for the batch or is seen by it [F3]; there is no moment between the check and the write at which
// another could have become the writer.
type Fence struct {
	Stream string
	Epoch  int64
	Nonce  string
}

// writing holds back a process's batches of one stream while it raises the epoch of its own lease.
type writing struct {
	mu      sync.Mutex
	streams map[writer]*sync.RWMutex
}

// writer is who writes for a stream in one database.
type writer struct {
	database int
	stream   string
}

func (w *writing) of(database int, stream string) *sync.RWMutex {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.streams == nil {
		w.streams = map[writer]*sync.RWMutex{}
	}
	at := writer{database, stream}
	if w.streams[at] == nil {
		w.streams[at] = &sync.RWMutex{}
	}
	return w.streams[at]
}

const sqlConfirmDrain = `select compass.confirm_drain($1, $2, $3)`

// ConfirmDrain is the worker's word that it sends nothing more for the tenant of the context under that claim (protocol,
// "Moves"). ErrStaleWriter: then the word is not needed, a lease that is not held counts as given.
func (s *Store) ConfirmDrain(ctx context.Context, fence Fence, claim int64) error {
	tenant := s.ResolveTenant(ctx)
	err := s.writerDo(ctx, fence, func(b *pgx.Batch) { b.Queue(sqlConfirmDrain, fence.Stream, tenant, claim) })
	return wrapf(err, "confirm the drain of tenant %s", tenant)
}

// Placement says which stream carries the tenant of the context, and where it lives.
type Placement struct {
	Stream   string
	Database int
	Claim    int64
	Draining bool
}

const sqlPlacement = `select coalesce(p.stream, ''), p.database_id, p.claim, p.draining from compass.placements p`

// Placement reads the placement of the tenant of the context. ErrNotFound: there is no such tenant.
func (s *Store) Placement(ctx context.Context) (Placement, error) {
	p, err := queryOne(ctx, s, pgx.RowToStructByPos[Placement], sqlPlacement)
	return p, wrapf(err, "read the placement of tenant %s", s.ResolveTenant(ctx))
}
