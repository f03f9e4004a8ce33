package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// SettleTurn ends a turn by its author's word: its messages get their positions, in the order in which they were made.
// Idempotent by the event's number; settling what is settled or was never opened does nothing. ErrStale where the session
// is not current: then its turn was settled by whoever ended it.
func (s *Store) SettleTurn(ctx context.Context, e Event, turn string) ([]Touched, error) {
	var touched []Touched
	err := s.inTenantTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		_, duplicate, err := takeEvent(ctx, tx, e)
		if err != nil || duplicate {
			return err
		}
		touched, err = settleTurn(ctx, tx, e.Session, turn, SettledByAuthor)
		return err
	})
	if err != nil {
		return nil, wrapf(err, "settle turn %s of session %s", turn, e.Session)
	}
	return touched, nil
}

// EndSession ends a session by its Runner's word; its open turn settles as it stands. Idempotent: a repeat after the
// session is over is answered as done. ErrStale where it never was this Runner's.
func (s *Store) EndSession(ctx context.Context, e Event) (Ended, error) {
	var ended Ended
	err := s.inTenantTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		b, duplicate, err := takeEvent(ctx, tx, e)
		switch {
		case errors.Is(err, ErrStale):
			return overAlready(ctx, tx, e, err)
		case err != nil || duplicate:
			return err
		}
		ended = Ended{Binding: b, Was: true}
		ended.Touched, err = endBinding(ctx, tx, b, SettledBySessionEnd)
		return err
	})
	if err != nil {
		return Ended{}, wrapf(err, "end session %s", e.Session)
	}
	return ended, nil
}

// overAlready is nil where the session was this Runner's and is over, else the refusal.
func overAlready(ctx context.Context, tx pgx.Tx, e Event, refusal error) error {
	b, err := lockBinding(ctx, tx, e.Session)
	if errors.Is(err, ErrNotFound) {
		return refusal
	}
	if err == nil && (b.Live || b.Runner != e.Runner || b.Generation != e.Generation) {
		return refusal
	}
	return err
}

// ErrBeyondHead refuses the ack of a position that the channel never gave out (D10).
var ErrBeyondHead = errors.New("position is beyond the channel's head")

const (
	// The one statement that moves a cursor (D10): only for the agent of the binding that the Runner proves, only where
	// that is current, never beyond the head, never back. A position beyond the head is refused and not cut to it: whoever
	// says so never consumed what is there. Done owed rows at or below the cursor have done their work: the chain has
	// passed them.
	//
	//compass:hot
	sqlAck = `
with mine as materialized (
    select c.tenant_id, c.agent_id, c.channel_id, h.last_pos
      from compass.session_bindings b
      join compass.delivery_cursors c on c.tenant_id = b.tenant_id and c.agent_id = b.agent_account_id and c.channel_id = $4
      join compass.channel_heads h on h.tenant_id = c.tenant_id and h.channel_id = c.channel_id
     where b.session_id = $1 and b.generation = $2 and b.runner_id = $3 and b.live and ` + sqlNotFrozen + `
), moved as (
    update compass.delivery_cursors c set acked = greatest(c.acked, $5)
      from mine k
     where c.tenant_id = k.tenant_id and c.agent_id = k.agent_id and c.channel_id = k.channel_id
       and $5 <= k.last_pos and c.acked < $5
    returning c.tenant_id, c.agent_id, c.channel_id, c.acked
), passed as (
    delete from compass.owed_mentions o using moved m
     where o.tenant_id = m.tenant_id and o.agent_id = m.agent_id and o.channel_id = m.channel_id
       and o.pos <= m.acked and o.done
)
select k.agent_id, $5 > k.last_pos, exists (select from moved), compass.number() - $5 from mine k`

	// Why sqlAck found nothing: the session is not current, or the tenant is being moved, or the agent never was a member.
	sqlAckable = `
select b.live, exists (select from compass.tenants t where t.frozen) from compass.session_bindings b
 where b.session_id = $1 and b.generation = $2 and b.runner_id = $3`
)

// Acked says what acks did: the channels whose cursor moved, and those whose position was refused. Ages are those of the
// positions that cursors moved to, by the clock that gave them out; a promotion of the database in between adds its minute.
type Acked struct {
	Agent   string
	Moved   []string
	Ages    []time.Duration // of Moved, side by side
	Refused []string
}

// Ack moves the cursors of the session's agent, in one round trip. An ack that is not above its cursor is done already; so is one for a
// channel that the agent never joined. ErrStale where the session is not current. ErrBeyondHead where a position was
// refused: the others count all the same, and Acked is valid.
func (s *Store) Ack(ctx context.Context, ref SessionRef, acks []ChannelAck) (Acked, error) {
	var acked Acked
	found, alive, frozen := 0, false, false
	// In the order of channels, so that two batches of one agent cannot wait for each other.
	acks = slices.SortedFunc(slices.Values(acks), func(a, b ChannelAck) int { return strings.Compare(a.Channel, b.Channel) })
	err := s.do(ctx, func(b *pgx.Batch) {
		for _, a := range acks {
			b.Queue(sqlAck, ref.Session, ref.Generation, ref.Runner, a.Channel, a.Pos).Query(func(rows pgx.Rows) error {
				var beyond, moved bool
				var age int64
				for rows.Next() {
					if err := rows.Scan(&acked.Agent, &beyond, &moved, &age); err != nil {
						return err
					}
					found++
					acked.note(a.Channel, beyond, moved, time.Duration(age)*time.Microsecond)
				}
				return rows.Err()
			})
		}
		b.Queue(sqlAckable, ref.Session, ref.Generation, ref.Runner).Query(func(rows pgx.Rows) error {
			for rows.Next() {
				if err := rows.Scan(&alive, &frozen); err != nil {
					return err
				}
			}
			return rows.Err()
		})
	})
	switch {
	case err != nil:
	case found < len(acks) && !alive:
		err = ErrStale
	case found < len(acks) && frozen:
		err = s.heard(s.ResolveTenant(ctx), ErrFrozen)
	case len(acked.Refused) > 0:
		err = fmt.Errorf("channels %v: %w", acked.Refused, ErrBeyondHead)
	}
	return acked, wrapf(err, "acknowledge for session %s", ref.Session)
}

func (a *Acked) note(channel string, beyond, moved bool, age time.Duration) {
	if beyond {
		a.Refused = append(a.Refused, channel)
	}
	if moved {
		a.Moved = append(a.Moved, channel)
		a.Ages = append(a.Ages, age)
	}
}
