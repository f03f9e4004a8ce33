package store

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
)

// Claim is a Runner's wish to take a start.
type Claim struct {
	SessionRef
	Incarnation int64 // of the Runner's process
	Counter     int64 // of its heartbeats, at the time of the claim
}

// Claimed is a start that was taken, with what the agent begins with.
type Claimed struct {
	Binding Binding
	Handle  string    // the agent's
	Pins    []Message // context of the start: no chain, no ack
}

const (
	// Only the Runner that the session is bound to, only for this very start, and only by the process that the start was
	// meant for and that is still the Runner's newest: a command that is replayed therefore starts nothing (R4).
	sqlClaimStart = `
update compass.session_bindings b set claimed = true, claim_counter = greatest(b.claim_counter, $5)
 where b.session_id = $1 and b.generation = $2 and b.runner_id = $3 and b.incarnation = $4 and b.live
   and exists (select from compass.runner_leases l where l.runner_id = b.runner_id and l.incarnation = b.incarnation)
returning` + bindingColumns

	sqlHandleOf = `select a.handle from compass.accounts a where a.id = $1`
)

// ClaimStart takes a start for the Runner that asks. Idempotent: a repeat gets the same answer, with the pins of now.
// ErrStale where the start is over, superseded, another Runner's, or of another process of this one.
func (s *Store) ClaimStart(ctx context.Context, c Claim) (Claimed, error) {
	var claimed Claimed
	err := s.inTenantTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		rows, _ := tx.Query(ctx, sqlClaimStart, c.Session, c.Generation, c.Runner, c.Incarnation, c.Counter)
		b, err := pgx.CollectExactlyOneRow(rows, scanBinding)
		if errors.Is(err, pgx.ErrNoRows) {
			return ErrStale
		}
		if err != nil {
			return err
		}
		claimed.Binding = b
		return sendBatch(ctx, tx, func(batch *pgx.Batch) {
			batch.Queue(sqlHandleOf, b.Agent).QueryRow(func(row pgx.Row) error { return row.Scan(&claimed.Handle) })
			batch.Queue(sqlPinsOf, b.Agent).Query(func(rows pgx.Rows) (err error) {
				claimed.Pins, err = pgx.CollectRows(rows, scanMessage)
				return err
			})
		})
	})
	if err != nil {
		return Claimed{}, wrapf(err, "claim session %s", c.Session)
	}
	return claimed, nil
}
