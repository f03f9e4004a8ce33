package store

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// Delivery names one message for one recipient.
type Delivery struct {
	MessageID string
	Recipient string
	Channel   string
	Pos       int64
}

// Parked is a delivery that was set aside: what its announcement says.
type Parked struct {
	Delivery
	Attempts    int
	Reason      string // a short constant
	Replayed    int
	FirstUnixMs int64
	LastUnixMs  int64
}

// Why a delivery was set aside, as dead_letters.reason has it.
const (
	ReasonWorkerDied = "worker_died" // the worker died on the row, again and again
	ReasonRejected   = "rejected"    // the agent's Runner rejected it by name
)

const (
	sqlBeginAttempt = `
insert into compass.delivery_attempts as a (tenant_id, message_id, recipient_id, n)
select m.tenant_id, m.id, $2, 1 from compass.messages m where m.id = $1
on conflict (tenant_id, message_id, recipient_id)
do update set n = a.n + 1, last_unix_ms = compass.unix_ms()`

	sqlSurvived = `delete from compass.delivery_attempts where message_id = $1 and recipient_id = $2`

	// sqlPark needs the attempts that it speaks of: a delivery that was parked meanwhile, or given back, is left alone.
	sqlPark = `
with spent as (
    delete from compass.delivery_attempts a where a.message_id = $1 and a.recipient_id = $2 and a.n >= $6
    returning a.tenant_id, a.n, a.first_unix_ms, a.last_unix_ms
), aside as (
    insert into compass.dead_letters as d
           (tenant_id, message_id, recipient_id, channel_id, pos, attempts, reason, first_unix_ms, last_unix_ms)
    select s.tenant_id, $1, $2, $3, $4, s.n, $5, s.first_unix_ms, s.last_unix_ms from spent s
    on conflict (tenant_id, message_id, recipient_id)
    do update set attempts = excluded.attempts, reason = excluded.reason, last_unix_ms = excluded.last_unix_ms
    returning d.attempts, d.replayed, d.first_unix_ms, d.last_unix_ms
), replay as (
    update compass.owed_mentions o set done = true from aside
     where o.agent_id = $2 and o.message_id = $1 and o.kind = 'replay' and not o.done
), command as (
    delete from compass.session_commands c using aside, compass.session_bindings b
     where b.agent_account_id = $2 and c.session_id = b.session_id and c.message_id = $1
)
select attempts, replayed, first_unix_ms, last_unix_ms from aside`

	// sqlReject counts what a session has rejected. $5 is how often it says so; where we knew less ($4), the difference is
	// new; where we knew nothing and cannot tell ($4 < 0), the row is trusted to have had it.
	sqlReject = `
insert into compass.delivery_attempts as a (tenant_id, message_id, recipient_id, n)
select m.tenant_id, m.id, $2, $5 - greatest($4, 0) from compass.messages m where m.id = $1 and m.pos = $3 and $5 > $4
on conflict (tenant_id, message_id, recipient_id)
do update set n = case when $4 < 0 then greatest(a.n, $5) else a.n + $5 - $4 end, last_unix_ms = compass.unix_ms()`
)

// BeginAttempt writes down that the delivery is about to be tried, before its row is read: if the worker dies on it, the
// next one finds the attempt (D8). ErrStaleWriter, ErrFrozen.
func (s *Store) BeginAttempt(ctx context.Context, fence Fence, d Delivery) error {
	err := s.writerDo(ctx, fence, func(b *pgx.Batch) { b.Queue(sqlBeginAttempt, d.MessageID, d.Recipient) })
	return wrapf(err, "begin attempt of message %s", d.MessageID)
}

// SurvivedAttempt takes attempts back: the worker has read the row and lives, so earlier deaths were not its doing
// (AttemptClear). ErrStaleWriter, ErrFrozen.
func (s *Store) SurvivedAttempt(ctx context.Context, fence Fence, d Delivery) error {
	err := s.writerDo(ctx, fence, func(b *pgx.Batch) { b.Queue(sqlSurvived, d.MessageID, d.Recipient) })
	return wrapf(err, "survive attempt of message %s", d.MessageID)
}

// ParkDelivery sets a delivery with at least so many attempts aside, in one transaction: from its commit on no drain lists it.
// It returns nil where there was nothing to set aside. ErrStaleWriter, ErrFrozen.
func (s *Store) ParkDelivery(ctx context.Context, fence Fence, d Delivery, reason string, atLeast int) (*Parked, error) {
	var p *Parked
	err := s.writerDo(ctx, fence, func(b *pgx.Batch) {
		b.Queue(sqlPark, d.MessageID, d.Recipient, d.Channel, d.Pos, reason, atLeast).Query(func(rows pgx.Rows) error {
			found, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (Parked, error) {
				parked := Parked{Delivery: d, Reason: reason}
				err := row.Scan(&parked.Attempts, &parked.Replayed, &parked.FirstUnixMs, &parked.LastUnixMs)
				return parked, err
			})
			if len(found) == 1 {
				p = &found[0]
			}
			return err
		})
	})
	if err != nil {
		return nil, wrapf(err, "set message %s aside", d.MessageID)
	}
	return p, nil
}

// Rejections is what a session says of one delivery: that it rejected it Count times so far.
type Rejections struct {
	Delivery
	Count int
	// Known is how many of them were counted before; below zero where that cannot be told, as after a restart of the worker.
	Known int
}

// CountRejections counts attempts that a Runner rejected by name: besides a worker's death the only failure that counts.
// ErrStaleWriter, ErrFrozen.
func (s *Store) CountRejections(ctx context.Context, fence Fence, r Rejections) error {
	err := s.writerDo(ctx, fence, func(b *pgx.Batch) {
		b.Queue(sqlReject, r.MessageID, r.Recipient, r.Pos, r.Known, r.Count)
	})
	return wrapf(err, "count rejections of message %s", r.MessageID)
}
