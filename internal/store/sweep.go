package store

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// SweepQuery chooses tenants of a stream in one database: those whose hash falls on Part of Parts. The system role only
// chooses whom to look at; whatever is then read, written or sent happens under the tenant (REQ-102).
type SweepQuery struct {
	Database int
	Stream   string
	Part     int
	Parts    int
	Tenant   TenantID // only this one; "" for all
}

// OwingChannel is a channel whose head is past the cursor of a live agent.
type OwingChannel struct {
	Tenant  TenantID
	Channel string
}

// OwedAgent is an agent with something owed.
type OwedAgent struct {
	Tenant TenantID
	Agent  string
}

// StreamTenant is one tenant of a stream.
type StreamTenant struct {
	Tenant   TenantID
	Claim    int64
	Draining bool
}

const (
	// $1 stream, $2 parts, $3 part, $4 tenant, $5 database: database 0 also has the rows of tenants that live elsewhere.
	sqlSweepTenants = `p.stream = $1 and mod(hashtext(p.tenant_id) & 1023, $2) = $3 and ($4 = '' or p.tenant_id = $4) and p.database_id = $5`

	// TickAll: every live (agent, channel) that owes, those that moved first; age never excludes.
	//
	//compass:hot
	sqlSweepChannels = `
select c.tenant_id, c.channel_id
  from compass.placements p
  join compass.session_bindings b on b.tenant_id = p.tenant_id and b.live and b.claimed
  join compass.delivery_cursors c on c.tenant_id = b.tenant_id and c.agent_id = b.agent_account_id
  join compass.channel_heads h on h.tenant_id = c.tenant_id and h.channel_id = c.channel_id and h.last_pos > c.acked
 where not p.draining and ` + sqlSweepTenants + `
 group by c.tenant_id, c.channel_id order by max(h.last_pos) desc`

	sqlSweepAgents = `
select o.tenant_id, o.agent_id
  from compass.placements p
  join compass.session_bindings b on b.tenant_id = p.tenant_id and b.live and b.claimed
 cross join lateral (
       select o.tenant_id, o.agent_id, o.pos from compass.owed_mentions o
        where o.tenant_id = b.tenant_id and o.agent_id = b.agent_account_id and not o.done
        order by o.pos desc limit 1) o
 where not p.draining and ` + sqlSweepTenants + ` order by o.pos desc`

	sqlSweepAsleep = `
select a.tenant_id, a.id
  from compass.placements p
  join compass.accounts a on a.tenant_id = p.tenant_id and a.wake = 'on_owed' and a.deleted_at_unix_ms is null
 where not p.draining and ` + sqlSweepTenants + `
   and not exists (select from compass.session_bindings b
                    where b.tenant_id = a.tenant_id and b.agent_account_id = a.id and b.live)
   and ((select true from compass.owed_mentions o
          where o.tenant_id = a.tenant_id and o.agent_id = a.id and not o.done limit 1) is not null
     or (select true from compass.delivery_cursors c
           join compass.channel_heads h
             on h.tenant_id = c.tenant_id and h.channel_id = c.channel_id and h.last_pos > c.acked
          where c.tenant_id = a.tenant_id and c.agent_id = a.id limit 1) is not null)`

	sqlSweepUnrouted = `
select p.tenant_id from compass.placements p
 where not p.draining and ` + sqlSweepTenants + `
   and (select true from compass.messages m
         where m.tenant_id = p.tenant_id and m.pos is not null and m.mentions_routed_at is null limit 1) is not null`

	// What has come to the stream since, and what is about to leave it; a claim only rises.
	sqlMovedTenants = `
select p.tenant_id, p.claim, p.draining from compass.placements p
 where p.stream = $1 and (p.claim > $2 or p.draining) and p.database_id = $3 order by p.claim`
)

func (q SweepQuery) args() []any {
	return []any{q.Stream, max(q.Parts, 1), q.Part, q.Tenant, q.Database}
}

// SweepChannels finds the channels that owe a live session something.
func (s *Store) SweepChannels(ctx context.Context, q SweepQuery) ([]OwingChannel, error) {
	found, err := systemQuery(ctx, s, LoopSweep, q.Database, pgx.RowToStructByPos[OwingChannel], sqlSweepChannels, q.args()...)
	return found, wrapf(err, "sweep channels of stream %s", q.Stream)
}

// SweepAgents finds the live agents with something owed beside the chain.
func (s *Store) SweepAgents(ctx context.Context, q SweepQuery) ([]OwedAgent, error) {
	found, err := systemQuery(ctx, s, LoopSweep, q.Database, pgx.RowToStructByPos[OwedAgent], sqlSweepAgents, q.args()...)
	return found, wrapf(err, "sweep agents of stream %s", q.Stream)
}

// SweepAsleep finds agents that have no session, wish to be woken, and may be owed something.
func (s *Store) SweepAsleep(ctx context.Context, q SweepQuery) ([]OwedAgent, error) {
	found, err := systemQuery(ctx, s, LoopSweep, q.Database, pgx.RowToStructByPos[OwedAgent], sqlSweepAsleep, q.args()...)
	return found, wrapf(err, "sweep sleeping agents of stream %s", q.Stream)
}

// SweepUnrouted finds the tenants that have a message with a position whose mentions were not routed. Routing happens in
// the transaction that gives the position, so there should be none: whatever it finds is a fault of ours (RouteInTx).
func (s *Store) SweepUnrouted(ctx context.Context, q SweepQuery) ([]TenantID, error) {
	found, err := systemQuery(ctx, s, LoopSweep, q.Database, pgx.RowTo[TenantID], sqlSweepUnrouted, q.args()...)
	return found, wrapf(err, "sweep unrouted messages of stream %s", q.Stream)
}

// MovedTenants lists the tenants of a stream with a claim above one seen before, and those that are draining, by claim.
func (s *Store) MovedTenants(ctx context.Context, database int, stream string, above int64) ([]StreamTenant, error) {
	found, err := systemQuery(ctx, s, LoopPlacement, database, pgx.RowToStructByPos[StreamTenant], sqlMovedTenants, stream, above, database)
	return found, wrapf(err, "look for moved tenants of stream %s", stream)
}

// sqlOwedInChain is what the drain would send of a message m to the agent of cursor c, whose membership is cm: everything
// after both that is not the agent's own, was not set aside, and is not owed beside the chain.
const sqlOwedInChain = `m.tenant_id = c.tenant_id and m.channel_id = c.channel_id and m.pos > greatest(c.acked, cm.joined_at)
                         and m.author_id <> c.agent_id
                         and (select true from compass.dead_letters d
                               where d.tenant_id = m.tenant_id and d.message_id = m.id and d.recipient_id = c.agent_id) is null
                         and (select true from compass.owed_mentions o
                               where o.tenant_id = m.tenant_id and o.agent_id = c.agent_id and o.message_id = m.id) is null`

const (
	// sqlSessionOwes is the sweep of one agent, under its tenant.
	sqlSessionOwes = `
select c.channel_id from compass.delivery_cursors c
  join compass.channel_heads h on h.tenant_id = c.tenant_id and h.channel_id = c.channel_id and h.last_pos > c.acked
 where c.agent_id = $1 order by h.last_pos desc`

	// sqlIsOwed asks whether anything waits for an agent, for the decision to wake it.
	sqlIsOwed = `
select from compass.accounts a
 where a.id = $1 and (
       exists (select from compass.owed_mentions o where o.tenant_id = a.tenant_id and o.agent_id = a.id and not o.done)
    or exists (select from compass.delivery_cursors c
                 join compass.channel_heads h
                   on h.tenant_id = c.tenant_id and h.channel_id = c.channel_id and h.last_pos > c.acked
                 join compass.channel_members cm
                   on cm.tenant_id = c.tenant_id and cm.channel_id = c.channel_id and cm.account_id = c.agent_id
                cross join lateral (
                      select m.id from compass.messages m
                       where ` + sqlOwedInChain + `
                       order by m.pos limit 1) m
                where c.tenant_id = a.tenant_id and c.agent_id = a.id))`
)

// SessionOwes finds the channels in which an agent is behind the head.
func (s *Store) SessionOwes(ctx context.Context, agent string) ([]string, error) {
	found, err := query(ctx, s, pgx.RowTo[string], sqlSessionOwes, agent)
	return found, wrapf(err, "sweep agent %s", agent)
}

// IsOwed reports whether anything waits for an agent, in a chain or beside one.
func (s *Store) IsOwed(ctx context.Context, agent string) (bool, error) {
	found, err := query(ctx, s, func(pgx.CollectableRow) (bool, error) { return true, nil }, sqlIsOwed, agent)
	return len(found) > 0, wrapf(err, "ask what agent %s is owed", agent)
}

// sqlRouteMissed is the net below routing: one statement stamps and makes owed, and only what has a position, so a message
// that is still held can never be stamped with half its mentions (REQ-048).
const sqlRouteMissed = `
with missed as (
    select m.id from compass.messages m where m.pos is not null and m.mentions_routed_at is null limit $1 for update skip locked
), placed as (
    update compass.messages m set mentions_routed_at = clock_timestamp() from missed
     where m.id = missed.id and m.pos is not null and m.mentions_routed_at is null
    returning m.tenant_id, m.id, m.channel_id, m.author_id, m.pos, m.mentions
), owed as (
    insert into compass.owed_mentions (tenant_id, agent_id, message_id, channel_id, pos, kind)
    select p.tenant_id, a.id, p.id, p.channel_id, p.pos, 'mention'` + sqlMentioned + `
    on conflict do nothing
), answered as (
    insert into compass.owed_mentions (tenant_id, agent_id, message_id, channel_id, pos, kind)
    select p.tenant_id, q.asker_id, p.id, p.channel_id, p.pos, 'answer'
      from placed p
      join compass.asks q on q.tenant_id = p.tenant_id and q.answer_id = p.id
      join compass.accounts a on a.tenant_id = q.tenant_id and a.id = q.asker_id
     where a.kind = 'agent' and a.deleted_at_unix_ms is null and a.id <> p.author_id
    on conflict do nothing
)
select p.id from placed p`

// RouteMissed routes the mentions and answers of at most limit messages that have a position and were not routed, and
// returns which. ErrStaleWriter, ErrFrozen.
func (s *Store) RouteMissed(ctx context.Context, fence Fence, limit int) ([]string, error) {
	var found []string
	err := s.writerDo(ctx, fence, func(b *pgx.Batch) {
		b.Queue(sqlRouteMissed, limit).Query(func(rows pgx.Rows) (err error) {
			found, err = pgx.CollectRows(rows, pgx.RowTo[string])
			return err
		})
	})
	if err != nil {
		return nil, wrapf(err, "route missed mentions")
	}
	return found, nil
}
