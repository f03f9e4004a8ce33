package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// NewMessage is a message that is to be made.
type NewMessage struct {
	ID       string // from naming.IDs
	Channel  string
	Author   string // with In, whoever the session is bound to instead
	ClientID string // unique per author
	Blocks   []Block
	In       *InTurn // nil: no call of a session
}

const (
	// The answer of an ask and the ask of an answer are looked up for those kinds alone.
	sqlMessageColumns = `
       m.id, m.channel_id, m.author_id, coalesce(m.session_id, ''), coalesce(m.turn_id, ''), m.kind, m.seq, m.rev,
       coalesce(m.pos, 0), m.blocks, m.client_id, m.created_at_unix_ms,
       case when m.kind = 'answer' then coalesce((select q.message_id from compass.asks q where q.answer_id = m.id), '') else '' end,
       case when m.kind = 'ask' then coalesce((select q.answer_id from compass.asks q where q.message_id = m.id), '') else '' end`

	sqlMessageByID = `select` + sqlMessageColumns + ` from compass.messages m where m.id = $1`

	sqlMessageByClientID = `select` + sqlMessageColumns + ` from compass.messages m where m.author_id = $1 and m.client_id = $2`

	// sqlReadable are the messages of a channel that a member may see: text of an open turn is shown to people and to its
	// author, never to other agents.
	sqlReadable = `
  from compass.channel_members cm
  join compass.accounts a on a.tenant_id = cm.tenant_id and a.id = cm.account_id
  join compass.messages m on m.tenant_id = cm.tenant_id and m.channel_id = cm.channel_id
 where cm.channel_id = $1 and cm.account_id = $2 and (m.pos is not null or a.kind = 'person' or m.author_id = a.id)`

	sqlListMessages = `select` + sqlMessageColumns + sqlReadable + ` and m.rev > $3 order by m.rev limit $4`

	sqlIsMember = `select from compass.channel_members cm where cm.channel_id = $1 and cm.account_id = $2`

	sqlIsArchived = `select from compass.channels c where c.id = $1 and c.archived`

	// sqlLockChannel takes the head's lock for a member of the channel, and for nobody else: no row.
	sqlLockChannel = `
select compass.lock_head(c.tenant_id, c.id) from compass.channels c
  join compass.channel_members cm on cm.tenant_id = c.tenant_id and cm.channel_id = c.id
 where c.id = $1 and cm.account_id = $2`

	// sqlAppend runs after sqlLockChannel, in a statement of its own, so that it sees whoever had the lock before: an
	// archival, or the same client id. It makes the message where it may be made, else nothing.
	sqlAppend = `
with place as materialized (
    select c.tenant_id, c.id, compass.take_position(c.tenant_id, c.id, 1, not $10) as n
      from compass.channels c
     where c.id = $2 and not c.archived
       and exists (select from compass.channel_members cm where cm.channel_id = c.id and cm.account_id = $3)
       and not exists (select from compass.messages m where m.author_id = $3 and m.client_id = $4)
)` + sqlMake

	// sqlAppendAt makes a message with a number that was taken before.
	sqlAppendAt = `
with place as (
    select c.tenant_id, c.id, $11::bigint as n from compass.channels c where c.id = $2
)` + sqlMake

	// sqlMake inserts the message and, where it has a position, routes what it mentions (see sqlPlace).
	sqlMake = `, placed as (
    insert into compass.messages (tenant_id, id, channel_id, author_id, client_id, kind, blocks, mentions,
                                  session_id, turn_id, seq, rev, pos, mentions_routed_at)
    select p.tenant_id, $1, p.id, $3, $4, $5, $6::jsonb, $7::text[], nullif($8, ''), nullif($9, ''), p.n, p.n,
           case when not $10 then p.n end, case when not $10 then clock_timestamp() end
      from place p
    returning tenant_id, id, channel_id, author_id, session_id, kind, pos, mentions
), owed as (
    insert into compass.owed_mentions (tenant_id, agent_id, message_id, channel_id, pos, kind)
    select p.tenant_id, a.id, p.id, p.channel_id, p.pos, 'mention'` + sqlMentioned + `
    on conflict do nothing
), asked as (
    insert into compass.asks (tenant_id, message_id, channel_id, asker_id, asker_session)
    select p.tenant_id, p.id, p.channel_id, p.author_id, p.session_id from placed p where p.kind = 'ask'
)
select from placed`
)

// MessageByID reads one message of the tenant; whether somebody may see it is the caller's question. ErrNotFound.
func (s *Store) MessageByID(ctx context.Context, id string) (Message, error) {
	m, err := queryOne(ctx, s, scanMessage, sqlMessageByID, id)
	return m, wrapf(err, "read message %s", id)
}

// MessagePage asks for the messages of a channel that changed after a rev.
type MessagePage struct {
	Channel  string
	Reader   string // must be a member
	AfterRev int64
	Limit    int
}

// ListMessages reads a page in order of rev and reports whether more follow. ErrNotFound where the reader is not a member.
func (s *Store) ListMessages(ctx context.Context, page MessagePage) (messages []Message, more bool, err error) {
	member := false
	err = s.do(ctx, func(b *pgx.Batch) {
		queueExists(b, &member, sqlIsMember, page.Channel, page.Reader)
		b.Queue(sqlListMessages, page.Channel, page.Reader, page.AfterRev, page.Limit+1).Query(func(rows pgx.Rows) (err error) {
			messages, err = pgx.CollectRows(rows, scanMessage)
			return err
		})
	})
	if err == nil && !member {
		err = ErrNotFound
	}
	if err != nil {
		return nil, false, wrapf(err, "list messages of channel %s", page.Channel)
	}
	if len(messages) > page.Limit {
		return messages[:page.Limit], true, nil
	}
	return messages, false, nil
}

// AppendMessage makes a message, once per author and client id: a repeat returns the first one with inserted = false, also
// where its turn has settled since. Outside a turn it is deliverable at once; inside one it is held until the turn settles.
// touched is what the transaction made deliverable: publish it after the return.
//
// ErrNotFound: no such channel, or the author is not a member. ErrPrecondition: the channel is archived, or the turn is
// settled. ErrConflict: the author used the client id for something else. ErrStale: the session is not current.
func (s *Store) AppendMessage(ctx context.Context, n NewMessage) (m Message, inserted bool, touched []Touched, err error) {
	p, err := s.post(ctx, n, KindMessage)
	return p.message, p.inserted, p.touched, wrapf(err, "post in channel %s", n.Channel)
}

// AppendAsk makes a question. It takes its position at once, also inside a turn, and so does what its author said before
// it in that turn and channel: the question does not arrive before its context, and nobody waits for himself. The errors
// are those of AppendMessage.
func (s *Store) AppendAsk(ctx context.Context, n NewMessage) (m Message, inserted bool, touched []Touched, err error) {
	p, err := s.post(ctx, n, KindAsk)
	return p.message, p.inserted, p.touched, wrapf(err, "ask in channel %s", n.Channel)
}

// post tries twice: two posts of one client id in two channels do not see each other, the second fails on the unique key,
// and finds the first when it looks again.
func (s *Store) post(ctx context.Context, n NewMessage, kind MessageKind) (*posting, error) {
	try := func() (*posting, error) {
		p, err := newPosting(n, kind)
		if err != nil {
			return p, err
		}
		if n.In != nil {
			return p, s.inTenantTx(ctx, func(ctx context.Context, tx pgx.Tx) error { return p.inSession(ctx, tx) })
		}
		err = s.do(ctx, func(b *pgx.Batch) { p.queue(b) })
		if err != nil {
			return p, err
		}
		return p, p.verdict()
	}
	p, err := try()
	if errors.Is(err, ErrConflict) && !p.found {
		p, err = try()
	}
	return p, err
}

// posting is one message on its way in, and what came of it.
type posting struct {
	NewMessage
	kind    MessageKind
	content string // the blocks as jsonb
	held    bool
	session string // with In
	turn    string

	member   bool
	inserted bool
	found    bool
	message  Message
	touched  []Touched
}

func newPosting(n NewMessage, kind MessageKind) (*posting, error) {
	content, err := json.Marshal(n.Blocks)
	return &posting{NewMessage: n, kind: kind, content: string(content)}, err
}

// queue makes the message where it may be made and reads it back. verdict says what came of it.
func (p *posting) queue(b *pgx.Batch) {
	queueExists(b, &p.member, sqlLockChannel, p.Channel, p.Author)
	queueExists(b, &p.inserted, sqlAppend, p.args()...)
	p.queueRead(b)
}

func (p *posting) args() []any {
	return []any{p.ID, p.Channel, p.Author, p.ClientID, p.kind, p.content, Mentions(p.Blocks), p.session, p.turn, p.held}
}

func (p *posting) queueRead(b *pgx.Batch) {
	b.Queue(sqlMessageByClientID, p.Author, p.ClientID).Query(func(rows pgx.Rows) error {
		found, err := pgx.CollectRows(rows, scanMessage)
		if len(found) == 1 {
			p.found, p.message = true, found[0]
		}
		return err
	})
}

// verdict judges what a closed batch of queue has left behind.
func (p *posting) verdict() error {
	switch {
	case !p.found && !p.member:
		return ErrNotFound
	case !p.found:
		return fmt.Errorf("%w: the channel is archived", ErrPrecondition)
	case p.message.Channel != p.Channel || p.message.Kind != p.kind:
		return fmt.Errorf("%w: client id %q names another message", ErrConflict, p.ClientID)
	case p.inserted && !p.message.Held():
		p.touch(MessageRef{ID: p.message.ID, Pos: p.message.Pos})
	}
	return nil
}

func (p *posting) touch(ref MessageRef) {
	p.touched = merge(append(p.touched, Touched{Channel: p.Channel, Messages: []MessageRef{ref}})...)
}

// inSession is post for a call of a session: event, client id, turn, head, row, in that order.
func (p *posting) inSession(ctx context.Context, tx pgx.Tx) error {
	if done, err := p.begin(ctx, tx); done || err != nil {
		return err
	}
	if p.kind == KindAsk && p.turn != "" {
		return p.askInTurn(ctx, tx)
	}
	p.held = p.turn != ""
	if p.held {
		touched, err := openTurn(ctx, tx, turnKey{p.session, p.turn}, sqlTurnShare, p.Channel)
		if err != nil {
			return err
		}
		p.touched = touched
	}
	if err := sendBatch(ctx, tx, p.queue); err != nil {
		return err
	}
	return p.verdict()
}

// begin takes the event and looks the client id up before anything else is judged: a repeat is answered even where its
// turn has settled or the session's event was taken before.
func (p *posting) begin(ctx context.Context, tx pgx.Tx) (done bool, err error) {
	binding, repeat, err := takeEvent(ctx, tx, p.In.Event)
	if err != nil {
		return false, err
	}
	p.Author, p.session, p.turn = binding.Agent, binding.Session, p.In.Turn
	if p.turn == "" {
		p.session = "" // a message belongs to a turn or to neither
	}
	if err := sendBatch(ctx, tx, p.queueRead); err != nil {
		return false, err
	}
	if p.found {
		return true, p.verdict()
	}
	if repeat {
		return false, fmt.Errorf("%w: event %d was another call", ErrConflict, p.In.Event.N)
	}
	return false, nil
}

func queueExists(b *pgx.Batch, found *bool, sql string, args ...any) {
	b.Queue(sql, args...).Exec(func(tag pgconn.CommandTag) error {
		*found = tag.RowsAffected() > 0
		return nil
	})
}

func scanMessage(row pgx.CollectableRow) (m Message, err error) {
	err = row.Scan(m.columns()...)
	return m, err
}

// columns are where sqlMessageColumns go.
func (m *Message) columns() []any {
	return []any{
		&m.ID, &m.Channel, &m.Author, &m.Session, &m.Turn, &m.Kind, &m.Seq, &m.Rev,
		&m.Pos, &m.Blocks, &m.ClientID, &m.CreatedAtUnixMs, &m.Ask, &m.Answer,
	}
}
