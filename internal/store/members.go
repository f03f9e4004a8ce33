package store

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// Member names who does what to whom in a channel.
type Member struct {
	Channel string
	Account string
	Actor   string // must be a member; may be the account itself
}

const (
	// sqlJoin runs after sqlLockChannel: the head as it is now is the first cursor, so what was positioned before is not
	// owed and nothing after it is missed. Only a new membership raises the cursor.
	sqlJoin = `
with joined as (
    insert into compass.channel_members (tenant_id, channel_id, account_id, joined_at)
    select h.tenant_id, h.channel_id, a.id, h.last_pos
      from compass.channel_heads h join compass.accounts a on a.tenant_id = h.tenant_id
     where h.channel_id = $1 and a.id = $2 and a.deleted_at_unix_ms is null
       and exists (select from compass.channel_members cm where cm.channel_id = $1 and cm.account_id = $3)
    on conflict do nothing
    returning tenant_id, channel_id, account_id, joined_at
)
insert into compass.delivery_cursors as d (tenant_id, agent_id, channel_id, acked)
select j.tenant_id, j.account_id, j.channel_id, j.joined_at from joined j
  join compass.accounts a on a.tenant_id = j.tenant_id and a.id = j.account_id and a.kind = 'agent'
on conflict (tenant_id, agent_id, channel_id) do update set acked = greatest(d.acked, excluded.acked)`

	// sqlLeave ends what is owed beside the chain too; the cursor stays.
	sqlLeave = `
with gone as (
    delete from compass.channel_members cm
     where cm.channel_id = $1 and cm.account_id = $2
       and exists (select from compass.channel_members a where a.channel_id = $1 and a.account_id = $3)
    returning cm.tenant_id, cm.channel_id, cm.account_id
), ended as (
    delete from compass.owed_mentions o using gone g
     where o.tenant_id = g.tenant_id and o.agent_id = g.account_id and o.channel_id = g.channel_id
    returning o.tenant_id, o.agent_id, o.message_id
)
delete from compass.session_commands c using ended e, compass.session_bindings b
 where b.tenant_id = e.tenant_id and b.agent_account_id = e.agent_id
   and c.tenant_id = b.tenant_id and c.session_id = b.session_id and c.message_id = e.message_id`

	sqlListMembers = `
select` + sqlAccountColumns + ` from compass.channel_members cm
  join compass.accounts a on a.tenant_id = cm.tenant_id and a.id = cm.account_id
 where cm.channel_id = $1 order by a.id`

	sqlAccountExists = `select from compass.accounts a where a.id = $1 and a.deleted_at_unix_ms is null`
)

// AddMember lets an account in; it is owed what gets its position from then on. Idempotent. ErrNotFound: no such channel
// or account, or the actor is not a member.
func (s *Store) AddMember(ctx context.Context, m Member) error {
	member, account := false, false
	err := s.do(ctx, func(b *pgx.Batch) {
		queueExists(b, &member, sqlLockChannel, m.Channel, m.Actor)
		queueExists(b, &account, sqlAccountExists, m.Account)
		b.Queue(sqlJoin, m.Channel, m.Account, m.Actor)
	})
	if err == nil && (!member || !account) {
		err = ErrNotFound
	}
	return wrapf(err, "add %s to channel %s", m.Account, m.Channel)
}

// RemoveMember ends what is owed to the account in this channel, and keeps its cursor. Idempotent. ErrNotFound where the
// actor is not a member.
func (s *Store) RemoveMember(ctx context.Context, m Member) error {
	member := false
	err := s.do(ctx, func(b *pgx.Batch) {
		queueExists(b, &member, sqlLockChannel, m.Channel, m.Actor)
		b.Queue(sqlLeave, m.Channel, m.Account, m.Actor)
	})
	if err == nil && !member {
		err = ErrNotFound
	}
	return wrapf(err, "remove %s from channel %s", m.Account, m.Channel)
}

// ListMembers lists who is in the channel, in order of id. ErrNotFound where the reader is not.
func (s *Store) ListMembers(ctx context.Context, channel, reader string) ([]Account, error) {
	var out []Account
	member := false
	err := s.do(ctx, func(b *pgx.Batch) {
		queueExists(b, &member, sqlIsMember, channel, reader)
		b.Queue(sqlListMembers, channel).Query(func(rows pgx.Rows) (err error) {
			out, err = pgx.CollectRows(rows, scanAccount)
			return err
		})
	})
	switch {
	case err != nil:
		return nil, wrapf(err, "list members of channel %s", channel)
	case !member:
		return nil, wrapf(ErrNotFound, "list members of channel %s", channel)
	}
	return out, nil
}
