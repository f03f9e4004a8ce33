package store

import (
	"context"
	"encoding/json"

	"github.com/jackc/pgx/v5"
)

// LiveSession is a session that may be sent to: live, claimed, its Runner's lease not over and still of the incarnation
// that the session was started in.
type LiveSession struct {
	Session    string
	Generation int64
	Agent      string
	Runner     string
	Fleet      string
}

// ChannelQuery asks what one channel owes.
type ChannelQuery struct {
	Stream  string
	Channel string
	// Passed says, per session, up to which position the reader has looked already; nothing at or below it is listed.
	Passed map[string]int64
	// Page is how many positions are looked at per session.
	Page int
}

// ChannelView is what one channel owes, all of it seen in one snapshot.
type ChannelView struct {
	Mine     bool  // the tenant is the stream's; else nothing else is set
	Draining bool  // the tenant is about to move: nothing is listed
	Claim    int64 // of the placement, the first half of the fence
	Head     int64 // the channel's newest position
	Sessions []OwedSession
	Asleep   []string // agents behind the head that have no session and wish to be woken
}

// OwedSession is a session whose agent is behind the head.
type OwedSession struct {
	LiveSession
	Acked int64
	Rows  []OwedRow // in order of position
	Cut   bool      // as many as were asked for: more may follow
}

// OwedRow is one message after what was passed. It carries no content: that is read when it is sent.
type OwedRow struct {
	ID  string
	Pos int64
	// Skip: not for this chain. It is the agent's own, a dead letter, or owed (or done) beside the chain.
	Skip     bool
	Attempts int   // that failed
	IdleMs   int64 // since the last of them, by the database's clock
}

// sqlChannelOwed is one snapshot of all that a drain decides by: placement, who is live, what was acknowledged, what was
// set aside. It begins at the cursors of the channel, which only agents have, and walks each session's messages by the
// index on position, a page at most: a backlog costs nothing before its turn comes. The sub-selects with a limit are there
// so that no plan turns around and reads a table of the tenant whole.
//
//compass:hot
const sqlChannelOwed = `
with mine as (
    select p.tenant_id, p.claim, p.draining, h.channel_id, h.last_pos
      from compass.placements p
      left join compass.channel_heads h on h.tenant_id = p.tenant_id and h.channel_id = $2
     where p.stream = $1
), behind as (
    select c.agent_id, b.session_id, b.generation, b.runner_id, b.fleet, c.acked, greatest(c.acked, m.joined_at, b.passed) as after
      from mine
      join compass.delivery_cursors c on c.tenant_id = mine.tenant_id and c.channel_id = mine.channel_id and c.acked < mine.last_pos
     cross join lateral (
           select cm.joined_at from compass.channel_members cm
            where cm.tenant_id = c.tenant_id and cm.channel_id = c.channel_id and cm.account_id = c.agent_id limit 1) m
      left join lateral (
           select s.session_id, s.generation, s.runner_id, l.fleet, s.claimed and l.runner_id is not null as ready,
                  ($3::jsonb ->> s.session_id)::bigint as passed
             from compass.session_bindings s
             left join compass.runner_leases l
               on l.runner_id = s.runner_id and l.incarnation = s.incarnation and l.expires_at > clock_timestamp()
            where s.tenant_id = c.tenant_id and s.agent_account_id = c.agent_id and s.live limit 1) b on true
     where not mine.draining
       and case when b.session_id is null
                then (select a.wake = 'on_owed' and a.deleted_at_unix_ms is null
                        from compass.accounts a where a.tenant_id = c.tenant_id and a.id = c.agent_id)
                else b.ready end
)
select mine.claim, mine.draining, coalesce(mine.last_pos, 0), s.agent_id, s.session_id, coalesce(s.generation, 0),
       coalesce(s.runner_id, ''), coalesce(s.fleet, ''), coalesce(s.acked, 0), x.id, coalesce(x.pos, 0),
       coalesce(x.author_id = s.agent_id, false)
       or (select true from compass.dead_letters d
            where d.tenant_id = mine.tenant_id and d.message_id = x.id and d.recipient_id = s.agent_id) is not null
       or (select true from compass.owed_mentions o
            where o.tenant_id = mine.tenant_id and o.agent_id = s.agent_id and o.message_id = x.id) is not null,
       coalesce(t.n, 0), coalesce(compass.unix_ms() - t.last_unix_ms, 0)
  from mine
  left join behind s on true
  left join lateral (
       select m.id, m.pos, m.author_id from compass.messages m
        where m.tenant_id = mine.tenant_id and m.channel_id = $2 and m.pos > s.after and s.session_id is not null
        order by m.pos limit $4) x on true
  left join lateral (
       select a.n, a.last_unix_ms from compass.delivery_attempts a
        where a.tenant_id = mine.tenant_id and a.message_id = x.id and a.recipient_id = s.agent_id limit 1) t on true
 order by s.agent_id, x.pos`

// ChannelOwed reads what a channel owes the sessions entitled to it.
//
// A message is listed for a session only if its agent was a member when the message got its position and has been since
// (joining reads the head under its lock, rejoining raises it), if it has a position (REQ-226), and if it comes after
// what the agent acknowledged. Nothing at or below a position seen here can appear later (K1).
func (s *Store) ChannelOwed(ctx context.Context, q ChannelQuery) (ChannelView, error) {
	passed, err := json.Marshal(q.Passed)
	if err != nil {
		return ChannelView{}, wrapf(err, "read what channel %s owes", q.Channel)
	}
	if q.Passed == nil {
		passed = []byte("{}")
	}
	rows, err := query(ctx, s, scanOwed, sqlChannelOwed, q.Stream, q.Channel, string(passed), q.Page)
	if err != nil {
		return ChannelView{}, wrapf(err, "read what channel %s owes", q.Channel)
	}
	return viewOf(rows, q.Page), nil
}

// owedRow is a row of sqlChannelOwed.
type owedRow struct {
	claim    int64
	draining bool
	head     int64
	agent    *string
	session  *string
	live     LiveSession
	acked    int64
	id       *string
	row      OwedRow
}

func scanOwed(row pgx.CollectableRow) (owedRow, error) {
	var r owedRow
	err := row.Scan(&r.claim, &r.draining, &r.head, &r.agent, &r.session, &r.live.Generation,
		&r.live.Runner, &r.live.Fleet, &r.acked, &r.id, &r.row.Pos, &r.row.Skip, &r.row.Attempts, &r.row.IdleMs)
	return r, err
}

func viewOf(rows []owedRow, page int) ChannelView {
	var v ChannelView
	for _, r := range rows {
		v.Mine, v.Draining, v.Claim, v.Head = true, r.draining, r.claim, r.head
		switch {
		case r.agent == nil:
			continue
		case r.session == nil:
			v.Asleep = append(v.Asleep, *r.agent)
			continue
		}
		if n := len(v.Sessions); n == 0 || v.Sessions[n-1].Session != *r.session {
			r.live.Session, r.live.Agent = *r.session, *r.agent
			v.Sessions = append(v.Sessions, OwedSession{LiveSession: r.live, Acked: r.acked})
		}
		if s := &v.Sessions[len(v.Sessions)-1]; r.id != nil {
			r.row.ID = *r.id
			s.Rows = append(s.Rows, r.row)
			s.Cut = len(s.Rows) >= page
		}
	}
	return v
}

// ContentQuery asks for messages of one channel as they are sent, and who may still have them.
type ContentQuery struct {
	Channel  string
	Messages []string
	Sessions []string
}

// Content is messages and who is entitled to them, seen in one snapshot.
type Content struct {
	messages map[string]Message
	since    map[string]int64 // session → where its agent's membership began
}

// sqlContent reads content and membership in one statement, at the moment of sending, also for ids that waited in a gate:
// who left meanwhile gets nothing any more, and who left and came back nothing from before.
//
//compass:hot
const sqlContent = `
with entitled as (
    select array_agg(b.session_id) as sessions, array_agg(cm.joined_at) as since
      from unnest($3::text[]) as w (session_id)
      join compass.session_bindings b on b.session_id = w.session_id and b.live and b.claimed
      join compass.channel_members cm on cm.tenant_id = b.tenant_id and cm.channel_id = $1 and cm.account_id = b.agent_account_id
)
select` + sqlMessageColumns + `, coalesce(e.sessions, '{}'), coalesce(e.since, '{}')
  from compass.messages m, entitled e
 where m.channel_id = $1 and m.id = any ($2) and m.pos is not null`

// ChannelContent reads messages of a channel to be sent now. A message that is not there any more is left out.
func (s *Store) ChannelContent(ctx context.Context, q ContentQuery) (Content, error) {
	c := Content{messages: map[string]Message{}, since: map[string]int64{}}
	_, err := query(ctx, s, func(row pgx.CollectableRow) (struct{}, error) {
		var sessions []string
		var since []int64
		m, err := scanMessage(tail{row, []any{&sessions, &since}})
		c.messages[m.ID] = m
		for i, session := range sessions {
			c.since[session] = since[i]
		}
		return struct{}{}, err
	}, sqlContent, q.Channel, q.Messages, q.Sessions)
	if err != nil {
		return Content{}, wrapf(err, "read messages of channel %s", q.Channel)
	}
	return c, nil
}

// For returns the message at a position if the session is entitled to it. gone says that it is not there: a failover that
// forgot its settle leaves it held, or settled anew elsewhere, and that is another delivery.
func (c Content) For(session, id string, pos int64) (m Message, entitled, gone bool) {
	m, ok := c.messages[id]
	if !ok || m.Pos != pos {
		return Message{}, false, true
	}
	since, member := c.since[session]
	return m, member && m.Pos > since, false
}

// NewContent makes a Content, for tests and twins.
func NewContent(messages []Message, since map[string]int64) Content {
	c := Content{messages: map[string]Message{}, since: since}
	for _, m := range messages {
		c.messages[m.ID] = m
	}
	return c
}

// tail scans more columns after those that a scan function knows.
type tail struct {
	pgx.CollectableRow
	more []any
}

// Scan implements pgx.CollectableRow.
func (t tail) Scan(dest ...any) error { return t.CollectableRow.Scan(append(dest, t.more...)...) }
