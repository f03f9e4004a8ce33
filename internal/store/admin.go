package store

import (
	"context"
	"encoding/json"

	"github.com/jackc/pgx/v5"
)

// Owed is what one agent has not acknowledged in one channel.
type Owed struct {
	Agent   string
	Channel string
	Count   int64
	Acked   int64
	LastPos int64
}

// Status is a tenant in figures.
type Status struct {
	ID           TenantID
	Slug         string
	Stream       string // who delivers for it; empty: nobody
	Messages     int64
	Owed         int64
	Held         int64
	DeadLetters  int64
	LiveSessions int64
}

const (
	// sqlOwedCounts counts both ways of being owed, as the drain judges them: in the chain, after the cursor and not set
	// aside; beside it, by rows that are not done.
	sqlOwedCounts = `
with chain as (
    select c.tenant_id, c.agent_id, c.channel_id, n.count
      from compass.delivery_cursors c
      join compass.channel_members cm on cm.tenant_id = c.tenant_id and cm.channel_id = c.channel_id and cm.account_id = c.agent_id
      join compass.channel_heads h on h.tenant_id = c.tenant_id and h.channel_id = c.channel_id and h.last_pos > c.acked
     cross join lateral (
           select count(*) as count from compass.messages m
            where ` + sqlOwedInChain + `) n
), beside as (
    select o.tenant_id, o.agent_id, o.channel_id, count(*) as count
      from compass.owed_mentions o
     where not o.done and (o.kind = 'replay' or not exists (
           select from compass.dead_letters d where d.message_id = o.message_id and d.recipient_id = o.agent_id))
     group by o.tenant_id, o.agent_id, o.channel_id
), owed as (
    select tenant_id, agent_id, channel_id, sum(count)::bigint as count
      from (select * from chain union all select * from beside) b group by tenant_id, agent_id, channel_id
)`

	sqlListOwed = sqlOwedCounts + `
select o.agent_id, o.channel_id, o.count, coalesce(c.acked, 0), h.last_pos
  from owed o
  join compass.channel_heads h on h.tenant_id = o.tenant_id and h.channel_id = o.channel_id
  left join compass.delivery_cursors c on c.tenant_id = o.tenant_id and c.agent_id = o.agent_id and c.channel_id = o.channel_id
 where o.count > 0 order by o.count desc, o.agent_id, o.channel_id limit $1`

	sqlListHeld = `select` + sqlMessageColumns + ` from compass.messages m where m.pos is null order by m.seq, m.id limit $1`

	sqlStatus = sqlOwedCounts + `
select t.id, t.slug, coalesce(p.stream, ''),
       (select count(*) from compass.messages), (select coalesce(sum(o.count), 0)::bigint from owed o),
       (select count(*) from compass.messages m where m.pos is null), (select count(*) from compass.dead_letters),
       (select count(*) from compass.session_bindings b where b.live)
  from compass.tenants t left join compass.placements p on p.tenant_id = t.id`

	sqlCountMessages = `select count(*) from (select from compass.messages limit $1) m`

	sqlAudit = `
insert into compass.audit_log (tenant_id, actor, action, detail) select t.id, $1, $2, $3::jsonb from compass.tenants t returning id`
)

// ListOwed counts what is deliverable and not acknowledged, per agent and channel, those that owe most first.
func (s *Store) ListOwed(ctx context.Context, limit int) ([]Owed, error) {
	rows, err := query(ctx, s, pgx.RowToStructByPos[Owed], sqlListOwed, limit)
	return rows, wrapf(err, "list what is owed")
}

// ListHeld lists messages whose turn is open, oldest first. They come without content: an admin need not be a member.
func (s *Store) ListHeld(ctx context.Context, limit int) ([]Message, error) {
	rows, err := query(ctx, s, scanMessage, sqlListHeld, limit)
	for i := range rows {
		rows[i].Blocks = nil
	}
	return rows, wrapf(err, "list what is held")
}

// TenantStatus counts what the tenant of the context has.
func (s *Store) TenantStatus(ctx context.Context) (Status, error) {
	status, err := queryOne(ctx, s, pgx.RowToStructByPos[Status], sqlStatus)
	return status, wrapf(err, "read status")
}

// CountedMost is where CountMessages stops.
const CountedMost = 100_000

// CountMessages counts the messages of the tenant in the context, up to CountedMost: it tells an order of magnitude without
// reading all that a large tenant has.
func (s *Store) CountMessages(ctx context.Context) (int64, error) {
	n, err := queryOne(ctx, s, pgx.RowTo[int64], sqlCountMessages, CountedMost)
	return n, wrapf(err, "count messages")
}

// Audit writes a line into the audit log of the tenant in the context. ErrNotFound where that tenant is not there.
func (s *Store) Audit(ctx context.Context, actor, action string, detail map[string]string) error {
	data, err := json.Marshal(detail)
	if err != nil {
		return wrapf(err, "audit %s", action)
	}
	if detail == nil {
		data = []byte("{}")
	}
	_, err = queryOne(ctx, s, pgx.RowTo[int64], sqlAudit, actor, action, string(data))
	return wrapf(err, "audit %s", action)
}
