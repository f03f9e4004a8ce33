package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// NewAnswer is the answer of a question that is to be made. Its channel is the question's.
type NewAnswer struct {
	ID       string // from naming.IDs
	Ask      string
	Author   string // with In, whoever the session is bound to instead
	ClientID string
	Blocks   []Block
	In       *InTurn // nil: no call of a session
}

const (
	sqlAskChannel = `select q.channel_id from compass.asks q where q.message_id = $1`

	// Answers of one question are serial by the head's lock, which is taken in the statement before.
	sqlAnswerOf = `select coalesce(q.answer_id, '') from compass.asks q where q.message_id = $1`

	// sqlAnswered links the answer and makes it owed to the agent that asked, beside the chain: in the chain it would wait
	// behind what the asking agent cannot take while it waits [K4]. It runs after the answer was made, in the same
	// transaction; an answer that also mentions the asker stays one owed row, of kind answer.
	sqlAnswered = `
with answered as (
    update compass.asks q set answer_id = $2 where q.message_id = $1 and q.answer_id is null
    returning q.tenant_id, q.asker_id
)
insert into compass.owed_mentions (tenant_id, agent_id, message_id, channel_id, pos, kind)
select m.tenant_id, a.id, m.id, m.channel_id, m.pos, 'answer'
  from answered w
  join compass.messages m on m.tenant_id = w.tenant_id and m.id = $2
  join compass.accounts a on a.tenant_id = w.tenant_id and a.id = w.asker_id
 where a.kind = 'agent' and a.deleted_at_unix_ms is null and a.id <> m.author_id
on conflict (tenant_id, agent_id, message_id) do update set kind = 'answer'`
)

// askInTurn gives positions to what the author holds in this turn and channel, and the next one to the question. The turn
// is taken alone, so nothing is being added to it meanwhile (D4), and stays open.
func (p *posting) askInTurn(ctx context.Context, tx pgx.Tx) error {
	touched, err := openTurn(ctx, tx, turnKey{p.session, p.turn}, sqlTurnUpdate, p.Channel)
	if err != nil {
		return err
	}
	p.touched = touched
	held, err := p.lockForAsk(ctx, tx)
	if err != nil {
		return err
	}
	var first int64
	before := &heldInChannel{channel: p.Channel}
	if len(held) == 1 {
		before = held[0]
	}
	err = tx.QueryRow(ctx, sqlTake, p.Channel, len(before.ids)+1, true).Scan(&first)
	if err != nil {
		return err
	}
	before.first = first
	said, err := place(ctx, tx, held)
	if err != nil {
		return err
	}
	p.touched = append(p.touched, said...)
	err = sendBatch(ctx, tx, func(b *pgx.Batch) {
		queueExists(b, &p.inserted, sqlAppendAt, append(p.args(), first+int64(len(before.ids)))...)
		p.queueRead(b)
	})
	if err != nil {
		return err
	}
	return p.verdict()
}

// lockForAsk locks the head, then checks membership and archival and lists what is held before the question.
func (p *posting) lockForAsk(ctx context.Context, tx pgx.Tx) (held []*heldInChannel, err error) {
	archived := false
	err = sendBatch(ctx, tx, func(b *pgx.Batch) {
		queueExists(b, &p.member, sqlLockChannel, p.Channel, p.Author)
		queueExists(b, &archived, sqlIsArchived, p.Channel)
		b.Queue(sqlHeldInChannel, p.session, p.turn, p.Channel).Query(func(rows pgx.Rows) (err error) {
			held, err = pgx.CollectRows(rows, scanHeld)
			return err
		})
	})
	switch {
	case err != nil:
		return nil, err
	case !p.member:
		return nil, ErrNotFound
	case archived:
		return nil, fmt.Errorf("%w: the channel is archived", ErrPrecondition)
	}
	return held, nil
}

// AnswerAsk makes the one answer of a question, deliverable at once, and owes it to the agent that asked. A repeat by
// author and client id returns the first one with inserted = false. The author must be a member of the question's channel.
//
// ErrNotFound: no such question, or none that the author may see. ErrPrecondition: it has another answer, or the channel
// is archived. The other errors are those of AppendMessage.
func (s *Store) AnswerAsk(ctx context.Context, n NewAnswer) (m Message, inserted bool, touched []Touched, err error) {
	content, err := json.Marshal(n.Blocks)
	if err != nil {
		return Message{}, false, nil, err
	}
	try := func() (*posting, error) {
		p := &posting{
			NewMessage: NewMessage{ID: n.ID, Author: n.Author, ClientID: n.ClientID, Blocks: n.Blocks, In: n.In},
			kind:       KindAnswer, content: string(content),
		}
		return p, s.inTenantTx(ctx, func(ctx context.Context, tx pgx.Tx) error { return p.answer(ctx, tx, n.Ask) })
	}
	p, err := try()
	if errors.Is(err, ErrConflict) && !p.found {
		p, err = try()
	}
	return p.message, p.inserted, p.touched, wrapf(err, "answer %s", n.Ask)
}

func (p *posting) answer(ctx context.Context, tx pgx.Tx, ask string) error {
	if err := tx.QueryRow(ctx, sqlAskChannel, ask).Scan(&p.Channel); err != nil {
		return err
	}
	if done, err := p.beginAnswer(ctx, tx, ask); done || err != nil {
		return err
	}
	var answer string
	err := sendBatch(ctx, tx, func(b *pgx.Batch) {
		queueExists(b, &p.member, sqlLockChannel, p.Channel, p.Author)
		b.Queue(sqlAnswerOf, ask).QueryRow(func(row pgx.Row) error { return row.Scan(&answer) })
	})
	switch {
	case err != nil:
		return err
	case !p.member:
		return ErrNotFound
	case answer != "":
		return fmt.Errorf("%w: it has an answer", ErrPrecondition)
	}
	if err := sendBatch(ctx, tx, p.queue); err != nil {
		return err
	}
	if err := p.verdict(); err != nil {
		return err
	}
	if err := sendBatch(ctx, tx, func(b *pgx.Batch) { b.Queue(sqlAnswered, ask, p.message.ID) }); err != nil {
		return err
	}
	p.message.Ask = ask
	return nil
}

// beginAnswer looks for a repeat, and opens the turn of a session's call: an answer is not held by it, but the turn that
// it names is open from then on.
func (p *posting) beginAnswer(ctx context.Context, tx pgx.Tx, ask string) (done bool, err error) {
	if p.In == nil {
		if err := sendBatch(ctx, tx, p.queueRead); err != nil {
			return false, err
		}
		return p.found, p.repeated(ask)
	}
	if done, err := p.begin(ctx, tx); done || err != nil || p.turn == "" {
		return done, errors.Join(err, p.repeated(ask))
	}
	p.touched, err = openTurn(ctx, tx, turnKey{p.session, p.turn}, sqlTurnShare, p.Channel)
	return false, err
}

// repeated is the verdict on a message that was there before.
func (p *posting) repeated(ask string) error {
	switch {
	case !p.found:
		return nil
	case p.message.Ask != ask:
		return fmt.Errorf("%w: client id %q names another message", ErrConflict, p.ClientID)
	}
	return p.verdict()
}
