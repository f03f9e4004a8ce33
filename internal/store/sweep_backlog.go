package store

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// Backlog is what a stream has not delivered, counted for gauges.
type Backlog struct {
	Owed         int64 // deliveries in the chain, as the drain judges them, of each (agent, channel) at most backlogMost
	Pending      int64 // owed beside the chain
	Held         int64 // messages whose turn is open
	OldestHeldMs int64 // age of the oldest of them
	DeadLetters  int64
}

// backlogMost bounds what is counted for one agent in one channel: beyond it a gauge says "many" and no more.
const backlogMost = 1000

const sqlBacklog = `
with mine as (
    select p.tenant_id from compass.placements p where ` + sqlSweepTenants + `
)
select (select coalesce(sum(n.n), 0)::bigint
          from mine
          join compass.delivery_cursors c on c.tenant_id = mine.tenant_id
          join compass.channel_heads h on h.tenant_id = c.tenant_id and h.channel_id = c.channel_id and h.last_pos > c.acked
          join compass.channel_members cm
            on cm.tenant_id = c.tenant_id and cm.channel_id = c.channel_id and cm.account_id = c.agent_id
         cross join lateral (
               select count(*) as n from (
                      select from compass.messages m where ` + sqlOwedInChain + `
                       order by m.pos limit $6) m) n),
       (select count(*) from mine join compass.owed_mentions o on o.tenant_id = mine.tenant_id and not o.done
         where o.kind = 'replay'
            or (select true from compass.dead_letters d
                 where d.tenant_id = o.tenant_id and d.message_id = o.message_id and d.recipient_id = o.agent_id) is null),
       h.n, h.oldest,
       (select count(*) from mine join compass.dead_letters d on d.tenant_id = mine.tenant_id)
  from (select count(m.id) as n, coalesce(compass.unix_ms() - min(m.created_at_unix_ms), 0) as oldest
          from mine join compass.messages m on m.tenant_id = mine.tenant_id and m.pos is null) h`

// StreamBacklog counts what a part of a stream's tenants has not been delivered.
func (s *Store) StreamBacklog(ctx context.Context, q SweepQuery) (Backlog, error) {
	rows, err := systemQuery(ctx, s, LoopMetrics, q.Database, pgx.RowToStructByPos[Backlog], sqlBacklog, append(q.args(), backlogMost)...)
	b, err := only(rows, err)
	return b, wrapf(err, "count the backlog of stream %s", q.Stream)
}
