package store

import (
	"context"
	"strings"

	"github.com/jackc/pgx/v5"
)

// DeadLetter is a message that was set aside for one recipient after its attempts. It is truth: sweeps leave the message
// out until it is replayed (D8).
type DeadLetter struct {
	Message     string
	Recipient   string
	Channel     string
	Pos         int64
	Attempts    int
	Reason      string
	FirstUnixMs int64
	LastUnixMs  int64
	Replayed    int
}

// DeadLetterFilter selects dead letters; empty fields select all.
type DeadLetterFilter struct {
	Message   string
	Recipient string
	Channel   string
}

const (
	sqlDeadLetterWhere = `
       ($1 = '' or d.message_id = $1) and ($2 = '' or d.recipient_id = $2) and ($3 = '' or d.channel_id = $3)`

	sqlListDeadLetters = `
select d.message_id, d.recipient_id, d.channel_id, d.pos, d.attempts, d.reason, d.first_unix_ms, d.last_unix_ms, d.replayed
  from compass.dead_letters d
 where (d.message_id, d.recipient_id) > ($1, $2) order by d.message_id, d.recipient_id limit $3`

	// sqlReplayable leaves out what is being replayed already, and recipients that nothing entitles any more: who left the
	// channel gets only what was owed to him by name.
	sqlReplayable = `
  from compass.dead_letters d
  join compass.accounts a on a.tenant_id = d.tenant_id and a.id = d.recipient_id and a.deleted_at_unix_ms is null
  join compass.messages m on m.tenant_id = d.tenant_id and m.id = d.message_id
 where` + sqlDeadLetterWhere + `
   and (a.handle = any (m.mentions)
        or exists (select from compass.channel_members cm where cm.channel_id = d.channel_id and cm.account_id = d.recipient_id)
        or exists (select from compass.asks q where q.answer_id = d.message_id and q.asker_id = d.recipient_id))
   and not exists (select from compass.owed_mentions o
                    where o.agent_id = d.recipient_id and o.message_id = d.message_id and o.kind = 'replay' and not o.done)`

	sqlCountReplayable = `select count(*)` + sqlReplayable

	// Cursor and chain are past the message, so only an owed row brings it back (ReplayOwed). The dead letter stays until
	// the replay is acknowledged.
	sqlReplay = `
with chosen as (
    select d.tenant_id, d.message_id, d.recipient_id, d.channel_id, d.pos` + sqlReplayable + `
), owed as (
    insert into compass.owed_mentions (tenant_id, agent_id, message_id, channel_id, pos, kind)
    select c.tenant_id, c.recipient_id, c.message_id, c.channel_id, c.pos, 'replay' from chosen c
    on conflict (tenant_id, agent_id, message_id) do update set kind = 'replay', done = false, pos = excluded.pos
), counted as (
    update compass.dead_letters d set replayed = d.replayed + 1 from chosen c
     where d.tenant_id = c.tenant_id and d.message_id = c.message_id and d.recipient_id = c.recipient_id
), noted as (
    insert into compass.audit_log (tenant_id, actor, action, detail)
    select t.id, $4, 'deadletter.replay',
           jsonb_build_object('count', (select count(*) from chosen), 'message', $1, 'recipient', $2, 'channel', $3)
      from compass.tenants t where exists (select from chosen)
)
select c.channel_id, c.message_id, c.pos from chosen c order by c.channel_id, c.pos, c.recipient_id`

	sqlCountDeadLetters = `select count(*) from compass.dead_letters d where` + sqlDeadLetterWhere

	// A purged message must not come back through the chain of an agent whose cursor has not passed it: a done owed row
	// keeps it out, and goes when the cursor has passed (SteerAck).
	sqlPurge = `
with purged as (
    delete from compass.dead_letters d where` + sqlDeadLetterWhere + `
    returning d.tenant_id, d.message_id, d.recipient_id, d.channel_id, d.pos
), given_up as (
    insert into compass.owed_mentions (tenant_id, agent_id, message_id, channel_id, pos, kind, done)
    select p.tenant_id, p.recipient_id, p.message_id, p.channel_id, p.pos, 'replay', true from purged p
      join compass.delivery_cursors c
        on c.tenant_id = p.tenant_id and c.agent_id = p.recipient_id and c.channel_id = p.channel_id and c.acked < p.pos
    on conflict (tenant_id, agent_id, message_id) do update set done = true
), noted as (
    insert into compass.audit_log (tenant_id, actor, action, detail)
    select t.id, $4, 'deadletter.purge',
           jsonb_build_object('count', (select count(*) from purged), 'message', $1, 'recipient', $2, 'channel', $3)
      from compass.tenants t where exists (select from purged)
)
select from purged`
)

// ListDeadLetters lists the tenant's dead letters by message, and where the next page begins.
func (s *Store) ListDeadLetters(ctx context.Context, page Page) ([]DeadLetter, string, error) {
	message, recipient, _ := strings.Cut(page.After, "/")
	rows, err := query(ctx, s, pgx.RowToStructByPos[DeadLetter], sqlListDeadLetters, message, recipient, page.Limit+1)
	if err != nil {
		return nil, "", wrapf(err, "list dead letters")
	}
	rows, next := cut(page, rows, func(d DeadLetter) string { return d.Message + "/" + d.Recipient })
	return rows, next, nil
}

// Replayed is what a replay made owed again: to how many recipients, and what to publish so that it is noticed.
type Replayed struct {
	Count   int64
	Touched []Touched
}

// ReplayDeadLetters makes the selected messages owed again, beside the chain, in order of position. Replaying what is
// being replayed does nothing; a dead letter is gone when its replay is acknowledged. dryRun only counts.
func (s *Store) ReplayDeadLetters(ctx context.Context, f DeadLetterFilter, actor string, dryRun bool) (Replayed, error) {
	if dryRun {
		n, err := queryOne(ctx, s, pgx.RowTo[int64], sqlCountReplayable, f.Message, f.Recipient, f.Channel)
		return Replayed{Count: n}, wrapf(err, "count dead letters")
	}
	rows, err := query(ctx, s, func(row pgx.CollectableRow) (Touched, error) {
		t := Touched{Messages: make([]MessageRef, 1)}
		return t, row.Scan(&t.Channel, &t.Messages[0].ID, &t.Messages[0].Pos)
	}, sqlReplay, f.Message, f.Recipient, f.Channel, actor)
	if err != nil {
		return Replayed{}, wrapf(err, "replay dead letters")
	}
	return Replayed{Count: int64(len(rows)), Touched: merge(rows...)}, nil
}

// PurgeDeadLetters gives the selected messages up for their recipients, for good, and counts them. dryRun only counts.
func (s *Store) PurgeDeadLetters(ctx context.Context, f DeadLetterFilter, actor string, dryRun bool) (int64, error) {
	if dryRun {
		n, err := queryOne(ctx, s, pgx.RowTo[int64], sqlCountDeadLetters, f.Message, f.Recipient, f.Channel)
		return n, wrapf(err, "count dead letters")
	}
	tag, err := s.exec(ctx, sqlPurge, f.Message, f.Recipient, f.Channel, actor)
	return tag.RowsAffected(), wrapf(err, "purge dead letters")
}
