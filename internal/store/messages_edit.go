package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// ErrTooLarge refuses a message that would grow beyond what the caller allows.
var ErrTooLarge = errors.New("message too large")

// Edit changes a message whose turn is open.
type Edit struct {
	Message  string
	Author   string // with In, whoever the session is bound to instead
	Blocks   []Block
	Append   bool    // after what is there, instead of in its place
	MaxBytes int     // of the content after the edit; 0: no bound
	In       *InTurn // nil: no call of a session
}

const (
	// sqlEditTarget finds a message of the author's own in a channel that he is still a member of.
	sqlEditTarget = `
select m.channel_id, coalesce(m.session_id, ''), coalesce(m.turn_id, ''), m.pos is null
  from compass.messages m
  join compass.channel_members cm on cm.tenant_id = m.tenant_id and cm.channel_id = m.channel_id and cm.account_id = m.author_id
 where m.id = $1 and m.author_id = $2`

	// The head before the row, or it deadlocks with an ask.
	sqlEdit = `
update compass.messages m
   set rev = $2,
       blocks = case when $4 then m.blocks || $3::jsonb else $3::jsonb end,
       mentions = case when $4 then array(select distinct unnest(m.mentions || $5::text[])) else $5::text[] end
 where m.id = $1 and m.pos is null
returning octet_length(m.blocks::text)`
)

// EditMessage changes a message of the author's own while its turn is open, and gives it a new rev. An event that was
// taken before changes nothing and returns the message as it stands.
//
// ErrNotFound: no such message of this author. ErrPrecondition: it has its position, and so cannot change. ErrTooLarge.
// ErrStale: the session is not current.
func (s *Store) EditMessage(ctx context.Context, e Edit) (m Message, err error) {
	err = s.inTenantTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		repeat := false
		if e.In != nil {
			binding, taken, err := takeEvent(ctx, tx, e.In.Event)
			if err != nil {
				return err
			}
			e.Author, repeat = binding.Agent, taken
		}
		if !repeat {
			if err := e.apply(ctx, tx); err != nil {
				return err
			}
		}
		m, err = readMessage(ctx, tx, e.Message)
		if err == nil && m.Author != e.Author {
			err = ErrNotFound
		}
		return err
	})
	return m, wrapf(err, "edit message %s", e.Message)
}

// apply goes turn, head, row.
func (e *Edit) apply(ctx context.Context, tx pgx.Tx) error {
	content, err := json.Marshal(e.Blocks)
	if err != nil {
		return err
	}
	channel, err := e.lockTurn(ctx, tx)
	if err != nil {
		return err
	}
	var rev int64
	if err := tx.QueryRow(ctx, sqlTake, channel, 1, false).Scan(&rev); err != nil {
		return err
	}
	var size int
	err = tx.QueryRow(ctx, sqlEdit, e.Message, rev, string(content), e.Append, Mentions(e.Blocks)).Scan(&size)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return errPlaced
	case err == nil && e.MaxBytes > 0 && size > e.MaxBytes:
		return ErrTooLarge
	}
	return err
}

var errPlaced = fmt.Errorf("%w: the message has its position", ErrPrecondition)

// lockTurn finds the message and shares its turn, which must be open, so that it cannot settle before the edit commits.
func (e *Edit) lockTurn(ctx context.Context, tx pgx.Tx) (channel string, err error) {
	var key turnKey
	var held bool
	err = tx.QueryRow(ctx, sqlEditTarget, e.Message, e.Author).Scan(&channel, &key.session, &key.turn, &held)
	switch {
	case err != nil:
		return "", err
	case !held:
		return "", errPlaced
	case e.In != nil && e.In.Turn != "" && e.In.Turn != key.turn:
		return "", fmt.Errorf("%w: the message belongs to another turn", ErrPrecondition)
	}
	open, err := turnOpen(ctx, tx, key, sqlTurnShare)
	if err == nil && !open {
		err = fmt.Errorf("%w: the turn is settled", ErrPrecondition)
	}
	return channel, err
}

// Frame is a piece of a message that a session writes: the first frame of a client id makes the message, later ones
// replace or append.
type Frame struct {
	NewMessage // In names the turn (required)
	Append     bool
	MaxBytes   int
}

// CommitFrame makes or changes a message in one transaction, so that the event is taken once for both. created says that
// this frame made it. Errors as AppendMessage and EditMessage.
func (s *Store) CommitFrame(ctx context.Context, f Frame) (m Message, created bool, touched []Touched, err error) {
	if f.In == nil || f.In.Turn == "" {
		return Message{}, false, nil, fmt.Errorf("%w: a frame belongs to a turn", ErrPrecondition)
	}
	p, err := newPosting(f.NewMessage, KindMessage)
	if err != nil {
		return Message{}, false, nil, err
	}
	err = s.inTenantTx(ctx, func(ctx context.Context, tx pgx.Tx) error { return f.commit(ctx, tx, p) })
	return p.message, p.inserted, p.touched, wrapf(err, "write frame in channel %s", f.Channel)
}

func (f *Frame) commit(ctx context.Context, tx pgx.Tx, p *posting) error {
	binding, repeat, err := takeEvent(ctx, tx, f.In.Event)
	if err != nil {
		return err
	}
	p.Author, p.session, p.turn, p.held = binding.Agent, binding.Session, f.In.Turn, true
	if err := sendBatch(ctx, tx, p.queueRead); err != nil {
		return err
	}
	switch {
	case repeat && p.found:
		return p.verdict()
	case repeat:
		return fmt.Errorf("%w: event %d was another call", ErrConflict, f.In.Event.N)
	}
	p.touched, err = openTurn(ctx, tx, turnKey{p.session, p.turn}, sqlTurnShare, p.Channel)
	if err != nil {
		return err
	}
	if !p.found {
		if err := sendBatch(ctx, tx, p.queue); err != nil {
			return err
		}
		return p.verdict()
	}
	return f.change(ctx, tx, p)
}

func (f *Frame) change(ctx context.Context, tx pgx.Tx, p *posting) error {
	if err := p.verdict(); err != nil {
		return err
	}
	if p.message.Session != p.session || p.message.Turn != p.turn {
		return fmt.Errorf("%w: the message belongs to another turn", ErrPrecondition)
	}
	edit := Edit{Message: p.message.ID, Author: p.Author, Blocks: f.Blocks, Append: f.Append, MaxBytes: f.MaxBytes}
	err := edit.apply(ctx, tx)
	if err != nil {
		return err
	}
	p.message, err = readMessage(ctx, tx, p.message.ID)
	return err
}

func readMessage(ctx context.Context, tx pgx.Tx, id string) (Message, error) {
	rows, _ := tx.Query(ctx, sqlMessageByID, id)
	return pgx.CollectExactlyOneRow(rows, scanMessage)
}
