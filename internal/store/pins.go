package store

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Pin names a message that is sent again at each session start.
type Pin struct {
	Channel string
	Message string
	Actor   string // must be a member
}

const (
	sqlPin = `
insert into compass.pins (tenant_id, channel_id, message_id)
select m.tenant_id, m.channel_id, m.id from compass.messages m
  join compass.channel_members cm on cm.tenant_id = m.tenant_id and cm.channel_id = m.channel_id
 where m.channel_id = $1 and m.id = $2 and m.pos is not null and cm.account_id = $3
on conflict do nothing`

	sqlUnpin = `
delete from compass.pins p
 where p.channel_id = $1 and p.message_id = $2
   and exists (select from compass.channel_members cm where cm.channel_id = $1 and cm.account_id = $3)`

	sqlPinTarget = `
select m.pos is null from compass.messages m
  join compass.channel_members cm on cm.tenant_id = m.tenant_id and cm.channel_id = m.channel_id
 where m.channel_id = $1 and m.id = $2 and cm.account_id = $3`

	sqlPinsOf = `
select` + sqlMessageColumns + ` from compass.channel_members cm
  join compass.pins p on p.tenant_id = cm.tenant_id and p.channel_id = cm.channel_id
  join compass.messages m on m.tenant_id = p.tenant_id and m.id = p.message_id
 where cm.account_id = $1 and m.pos is not null order by m.channel_id, m.pos`
)

// PinMessage pins a message of the channel. Idempotent. ErrNotFound: no such message there, or the actor is not a member.
// ErrPrecondition: its turn is open, and what may still change is shown to no agent (REQ-226).
func (s *Store) PinMessage(ctx context.Context, p Pin) error {
	var held []bool
	err := s.do(ctx, func(b *pgx.Batch) {
		b.Queue(sqlPin, p.Channel, p.Message, p.Actor)
		b.Queue(sqlPinTarget, p.Channel, p.Message, p.Actor).Query(func(rows pgx.Rows) (err error) {
			held, err = pgx.CollectRows(rows, pgx.RowTo[bool])
			return err
		})
	})
	isHeld, err := only(held, err)
	if err == nil && isHeld {
		err = fmt.Errorf("%w: its turn is open", ErrPrecondition)
	}
	return wrapf(err, "pin message %s", p.Message)
}

// UnpinMessage unpins a message. Idempotent. ErrNotFound where the actor is not a member of the channel.
func (s *Store) UnpinMessage(ctx context.Context, p Pin) error {
	member := false
	err := s.do(ctx, func(b *pgx.Batch) {
		queueExists(b, &member, sqlIsMember, p.Channel, p.Actor)
		b.Queue(sqlUnpin, p.Channel, p.Message, p.Actor)
	})
	if err == nil && !member {
		err = ErrNotFound
	}
	return wrapf(err, "unpin message %s", p.Message)
}

// PinsOf returns the pinned messages of every channel that the account is in: the context of a session's start, sent with
// its claim.
func (s *Store) PinsOf(ctx context.Context, account string) ([]Message, error) {
	pins, err := query(ctx, s, scanMessage, sqlPinsOf, account)
	return pins, wrapf(err, "read pins of %s", account)
}
