package store

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// AgentQuery asks what is owed to one agent beside the chain.
type AgentQuery struct {
	Stream string
	Agent  string
	Limit  int
}

// AgentView is what is owed to an agent beside the chain, seen in one snapshot.
type AgentView struct {
	Mine     bool
	Draining bool
	Claim    int64
	Session  *LiveSession // nil: none that may be sent to
	Wake     bool         // it has no session and wishes one
	Pending  []PendingOwed
	Cut      bool // as many as were asked for
}

// PendingOwed is a mention, an answer or a replay that the agent has not acknowledged.
type PendingOwed struct {
	MessageID string
	Channel   string
	Pos       int64
	Kind      CommandKind
	Command   bool // its session has the command already
	Attempts  int
	IdleMs    int64
}

//compass:hot
const sqlAgentOwed = `
with mine as (
    select p.tenant_id, p.claim, p.draining, b.session_id, b.generation, b.runner_id, l.fleet,
           b.claimed and l.runner_id is not null as ready,
           a.wake = 'on_owed' and a.deleted_at_unix_ms is null and b.session_id is null as wake
      from compass.placements p
      join compass.accounts a on a.tenant_id = p.tenant_id and a.id = $2
      left join compass.session_bindings b on b.tenant_id = p.tenant_id and b.agent_account_id = a.id and b.live
      left join compass.runner_leases l
        on l.runner_id = b.runner_id and l.incarnation = b.incarnation and l.expires_at > clock_timestamp()
     where p.stream = $1
)
select mine.claim, mine.draining, coalesce(mine.ready, false), mine.wake, coalesce(mine.session_id, ''),
       coalesce(mine.generation, 0), coalesce(mine.runner_id, ''), coalesce(mine.fleet, ''),
       o.message_id, coalesce(o.channel_id, ''), coalesce(o.pos, 0), coalesce(o.kind, ''),
       (select true from compass.session_commands c
         where c.tenant_id = mine.tenant_id and c.session_id = mine.session_id and c.message_id = o.message_id) is not null,
       coalesce(t.n, 0), coalesce(compass.unix_ms() - t.last_unix_ms, 0)
  from mine
  left join lateral (
       select o.message_id, o.channel_id, o.pos, o.kind from compass.owed_mentions o
        where o.tenant_id = mine.tenant_id and o.agent_id = $2 and not o.done and not mine.draining
          and (select true from compass.dead_letters d
                where d.tenant_id = o.tenant_id and d.message_id = o.message_id and d.recipient_id = $2 and o.kind <> 'replay') is null
        order by o.pos limit $3) o on true
  left join lateral (
       select a.n, a.last_unix_ms from compass.delivery_attempts a
        where a.tenant_id = mine.tenant_id and a.message_id = o.message_id and a.recipient_id = $2 limit 1) t on true
 order by o.pos, o.message_id`

// AgentOwed reads what an agent is owed beside the chain, and the session that it may be sent to.
func (s *Store) AgentOwed(ctx context.Context, q AgentQuery) (AgentView, error) {
	var v AgentView
	_, err := query(ctx, s, func(row pgx.CollectableRow) (struct{}, error) {
		var ready bool
		var live LiveSession
		var id *string
		var p PendingOwed
		err := row.Scan(&v.Claim, &v.Draining, &ready, &v.Wake, &live.Session, &live.Generation, &live.Runner, &live.Fleet,
			&id, &p.Channel, &p.Pos, &p.Kind, &p.Command, &p.Attempts, &p.IdleMs)
		v.Mine = true
		if ready {
			live.Agent = q.Agent
			v.Session = &live
		}
		if id != nil {
			p.MessageID = *id
			v.Pending = append(v.Pending, p)
		}
		return struct{}{}, err
	}, sqlAgentOwed, q.Stream, q.Agent, q.Limit)
	if err != nil {
		return AgentView{}, wrapf(err, "read what agent %s is owed", q.Agent)
	}
	v.Cut = len(v.Pending) >= q.Limit
	return v, nil
}

// NewCommands asks for the commands that send what is owed.
type NewCommands struct {
	Agent    string
	Session  string
	Messages []string
	// Blind reads no content back: after an unclean exit each row is read by itself, with its attempt written first.
	Blind bool
}

// CommandQuery asks for the commands of a live session that name a message.
type CommandQuery struct {
	Session  string
	Messages []string // nil: all
}

const (
	// The binding's row lock orders everybody who numbers commands of the session; the next statement then sees the newest
	// number and every command that has one.
	sqlLockSession = `
select from compass.session_bindings b
 where b.session_id = $1 and b.agent_account_id = $2 and b.live and b.claimed for no key update`

	// sqlAppendCommands gives numbers in order of position, chained by prev (CmdChain). What has become done, has a command
	// or lost its session meanwhile is left out, and a number that nobody gets is not taken.
	sqlAppendCommands = `
with todo as (
    select o.tenant_id, o.message_id, o.pos, o.kind, row_number() over (order by o.pos, o.message_id) as i
      from compass.owed_mentions o
     where o.agent_id = $2 and o.message_id = any ($3) and not o.done
       and not exists (select from compass.session_commands c where c.session_id = $1 and c.message_id = o.message_id)
), base as materialized (
    select b.last_command as prev, greatest(b.last_command + 1, compass.number()) as first
      from compass.session_bindings b
     where b.session_id = $1 and b.agent_account_id = $2 and b.live and b.claimed
), moved as (
    update compass.session_bindings b set last_command = base.first + t.n - 1
      from base, (select count(*) as n from todo) t
     where b.session_id = $1 and t.n > 0
)
insert into compass.session_commands (tenant_id, session_id, n, prev, kind, message_id, pos)
select todo.tenant_id, $1, base.first + todo.i - 1, case when todo.i = 1 then base.prev else base.first + todo.i - 2 end,
       todo.kind, todo.message_id, todo.pos
  from todo, base`

	sqlCommandsToPush = `
select c.n, c.prev, c.kind, coalesce(c.pos, 0), c.text,` + sqlMessageColumns + `
  from compass.session_commands c
  join compass.messages m on m.tenant_id = c.tenant_id and m.id = c.message_id
  join compass.session_bindings b on b.tenant_id = c.tenant_id and b.session_id = c.session_id and b.live and b.claimed
 where c.session_id = $1 and ($3::text[] is null or c.message_id = any ($3)) order by c.n limit $2`
)

// commandPage is how many commands of a session are pushed at once; the Runner fetches what a gap shows it.
const commandPage = 100

// AppendCommands turns what is owed into numbered commands of the session, and returns every command of the session that
// names a message, with its content, in order: what a Runner may lack. Nil where Blind. ErrStaleWriter, ErrFrozen.
func (s *Store) AppendCommands(ctx context.Context, fence Fence, n NewCommands) ([]SessionCommand, error) {
	var out []SessionCommand
	err := s.writerDo(ctx, fence, func(b *pgx.Batch) {
		b.Queue(sqlLockSession, n.Session, n.Agent)
		b.Queue(sqlAppendCommands, n.Session, n.Agent, n.Messages)
		if n.Blind {
			return
		}
		b.Queue(sqlCommandsToPush, n.Session, commandPage, nil).Query(func(rows pgx.Rows) (err error) {
			out, err = pgx.CollectRows(rows, scanCommandToPush)
			return err
		})
	})
	if err != nil {
		return nil, wrapf(err, "append commands of session %s", n.Session)
	}
	return out, nil
}

// CommandsToPush reads commands of a live session that name a message, with their content, in order.
func (s *Store) CommandsToPush(ctx context.Context, q CommandQuery) ([]SessionCommand, error) {
	cs, err := query(ctx, s, scanCommandToPush, sqlCommandsToPush, q.Session, commandPage, q.Messages)
	return cs, wrapf(err, "read commands of session %s", q.Session)
}

func scanCommandToPush(row pgx.CollectableRow) (SessionCommand, error) {
	var c SessionCommand
	m, err := scanMessage(lead{row, []any{&c.N, &c.Prev, &c.Kind, &c.Pos, &c.Text}})
	c.MessageID, c.Message = m.ID, &m
	return c, err
}

// lead scans columns before those that a scan function knows.
type lead struct {
	pgx.CollectableRow
	first []any
}

// Scan implements pgx.CollectableRow.
func (l lead) Scan(dest ...any) error { return l.CollectableRow.Scan(append(l.first, dest...)...) }

// RowTarget is where a reference leads: the channel of its row, and the agents that are owed the row beside the chain.
type RowTarget struct {
	ID      string
	Channel string
	Held    bool // its turn is open: a settle will say so
	Agents  []string
}

//compass:hot
const sqlRowTargets = `
select m.id, m.channel_id, m.pos is null,
       array(select o.agent_id from compass.owed_mentions o
              where o.tenant_id = m.tenant_id and o.channel_id = m.channel_id and not o.done
                and o.pos between m.pos - $2 and m.pos)
  from compass.messages m where m.id = any ($1)`

// refSpan is how far behind the row of a reference its channel's other mentions are looked for: one reference per settle
// and channel names the last of its messages (K2). It is timing only; the sweep finds every pending mention.
const refSpan = 1024

// RowTargets finds where references lead. An id without a row is left out.
func (s *Store) RowTargets(ctx context.Context, ids []string) ([]RowTarget, error) {
	ts, err := query(ctx, s, func(row pgx.CollectableRow) (RowTarget, error) {
		var t RowTarget
		err := row.Scan(&t.ID, &t.Channel, &t.Held, &t.Agents)
		return t, err
	}, sqlRowTargets, ids, refSpan)
	return ts, wrapf(err, "read %d rows", len(ids))
}
