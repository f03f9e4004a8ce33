package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// SettledByNextTurn is how a turn was settled when its session opened another one (OneTurn).
const SettledByNextTurn = "next_turn"

// InTurn says that a call belongs to a session of a Runner. The author is then whoever the session is bound to: a Runner
// asserts no account.
type InTurn struct {
	Event Event
	Turn  string // opened by the first call that names it; empty: outside a turn
}

// turnKey names a turn.
type turnKey struct{ session, turn string }

const (
	// Post and edit share the turn's row, so they go side by side; settle and ask take it alone, so neither can miss a
	// message that is being made (D4).
	sqlTurnShare  = `select t.settled_by is null from compass.turns t where t.session_id = $1 and t.id = $2 for share`
	sqlTurnUpdate = `select t.settled_by is null from compass.turns t where t.session_id = $1 and t.id = $2 for update`

	sqlOpenTurns = `select t.id from compass.turns t where t.session_id = $1 and t.settled_by is null`

	sqlInsertTurn = `
insert into compass.turns (tenant_id, session_id, id, agent_id)
select b.tenant_id, b.session_id, $2, b.agent_account_id from compass.session_bindings b where b.session_id = $1`

	sqlBindTurn = `update compass.session_bindings set open_turn = $2 where session_id = $1`

	sqlCloseTurn = `
update compass.turns set settled_by = $3, settled_at_unix_ms = compass.unix_ms()
 where session_id = $1 and id = $2 and settled_by is null`

	sqlUnbindTurn = `update compass.session_bindings set open_turn = null where session_id = $1 and open_turn = $2`

	sqlHeldOfTurn = `
select m.channel_id, array_agg(m.id order by m.seq) from compass.messages m
 where m.session_id = $1 and m.turn_id = $2 and m.pos is null
 group by m.channel_id order by m.channel_id`

	sqlHeldInChannel = `
select m.channel_id, array_agg(m.id order by m.seq) from compass.messages m
 where m.session_id = $1 and m.turn_id = $2 and m.channel_id = $3 and m.pos is null
 group by m.channel_id`

	sqlTake     = `select compass.take_position(c.tenant_id, c.id, $2, $3) from compass.channels c where c.id = $1`
	sqlLockHead = `select compass.lock_head(c.tenant_id, c.id) from compass.channels c where c.id = $1`

	// The critical section between giving a position and routing (REQ-048, RouteInTx): one statement gives positions from
	// $2 on in the order of $1, stamps, and makes owed what the messages mention. Only agents of this tenant, never the
	// author; people read by subscribing. Row-level security keeps foreign handles out of sight.
	sqlPlace = `
with placed as (
    update compass.messages m
       set pos = $2 + x.i - 1, rev = $2 + x.i - 1, mentions_routed_at = clock_timestamp()
      from unnest($1::text[]) with ordinality as x (id, i)
     where m.id = x.id and m.pos is null
    returning m.tenant_id, m.id, m.channel_id, m.author_id, m.pos, m.mentions
), owed as (
    insert into compass.owed_mentions (tenant_id, agent_id, message_id, channel_id, pos, kind)
    select p.tenant_id, a.id, p.id, p.channel_id, p.pos, 'mention'` + sqlMentioned + `
    on conflict do nothing
)
select p.id, p.pos from placed p order by p.pos`

	// sqlMentioned joins what was placed with the agents that it names.
	sqlMentioned = `
      from placed p join compass.accounts a on a.tenant_id = p.tenant_id and a.handle = any (p.mentions)
     where p.pos is not null and a.kind = 'agent' and a.deleted_at_unix_ms is null and a.id <> p.author_id`
)

// openTurn makes sure that the named turn of the session is open and locked to commit, with sqlTurnShare or
// sqlTurnUpdate. The first call that names a turn opens it, so no opening edge can be lost, and settles whatever else the
// session has open; what that made deliverable is returned. ErrPrecondition where the turn is settled. The caller holds
// the binding's row lock (BindLock); channel is the one that it will write to next, whose head must be locked in order.
func openTurn(ctx context.Context, tx pgx.Tx, key turnKey, sqlLock, channel string) ([]Touched, error) {
	open, err := turnOpen(ctx, tx, key, sqlLock)
	switch {
	case err == nil && open:
		return nil, nil
	case err == nil:
		return nil, fmt.Errorf("turn %s: %w: it is settled", key.turn, ErrPrecondition)
	case !errors.Is(err, ErrNotFound):
		return nil, err
	}
	rows, _ := tx.Query(ctx, sqlOpenTurns, key.session)
	others, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, err
	}
	var touched []Touched
	for _, other := range others { // at most one: turns_one_open
		more, err := settle(ctx, tx, turnKey{key.session, other}, SettledByNextTurn, channel)
		if err != nil {
			return nil, err
		}
		touched = append(touched, more...)
	}
	return touched, sendBatch(ctx, tx, func(b *pgx.Batch) {
		b.Queue(sqlInsertTurn, key.session, key.turn)
		b.Queue(sqlBindTurn, key.session, key.turn)
	})
}

// turnOpen locks the turn and reports whether it is open; ErrNotFound where the session never named it.
func turnOpen(ctx context.Context, tx pgx.Tx, key turnKey, sqlLock string) (open bool, err error) {
	err = tx.QueryRow(ctx, sqlLock, key.session, key.turn).Scan(&open)
	return open, interpret(err)
}

// settleTurn ends a turn and gives its messages their positions, in the order in which they were made; settling a settled
// or unknown one does nothing. It returns one Touched per channel, sorted by channel: what to publish after commit. The
// caller holds the binding's row lock.
func settleTurn(ctx context.Context, tx pgx.Tx, session, turn, by string) ([]Touched, error) {
	return settle(ctx, tx, turnKey{session, turn}, by, "")
}

// settle is settleTurn that also locks the head of one more channel in its place in the order of locks: binding, turn,
// heads sorted by channel, rows.
func settle(ctx context.Context, tx pgx.Tx, key turnKey, by, also string) ([]Touched, error) {
	open, err := turnOpen(ctx, tx, key, sqlTurnUpdate)
	if errors.Is(err, ErrNotFound) || err == nil && !open {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	// A statement after the lock: whoever shared the turn before has committed and is seen.
	held, err := heldRows(ctx, tx, sqlHeldOfTurn, key.session, key.turn)
	if err != nil {
		return nil, err
	}
	err = sendBatch(ctx, tx, func(b *pgx.Batch) {
		b.Queue(sqlCloseTurn, key.session, key.turn, by)
		b.Queue(sqlUnbindTurn, key.session, key.turn)
		queueTakes(b, held, also)
	})
	if err != nil {
		return nil, err
	}
	return place(ctx, tx, held)
}

// heldInChannel is what waits in one channel for the positions that first then gives.
type heldInChannel struct {
	channel string
	ids     []string // in the order in which they were made
	first   int64
}

func heldRows(ctx context.Context, tx pgx.Tx, sql string, args ...any) ([]*heldInChannel, error) {
	rows, _ := tx.Query(ctx, sql, args...)
	return pgx.CollectRows(rows, scanHeld)
}

func scanHeld(row pgx.CollectableRow) (*heldInChannel, error) {
	h := &heldInChannel{}
	return h, row.Scan(&h.channel, &h.ids)
}

// queueTakes takes the positions of each channel, and locks the head of also, in the order of channels.
func queueTakes(b *pgx.Batch, held []*heldInChannel, also string) {
	locked := also == ""
	lockBefore := func(channel string) {
		if !locked && also <= channel {
			locked = true
			if also < channel {
				b.Queue(sqlLockHead, also)
			}
		}
	}
	for _, h := range held {
		lockBefore(h.channel)
		b.Queue(sqlTake, h.channel, len(h.ids), true).QueryRow(func(row pgx.Row) error { return row.Scan(&h.first) })
	}
	if !locked {
		b.Queue(sqlLockHead, also)
	}
}

// place gives the held rows their positions and routes what they mention.
func place(ctx context.Context, tx pgx.Tx, held []*heldInChannel) ([]Touched, error) {
	if len(held) == 0 {
		return nil, nil
	}
	touched := make([]Touched, len(held))
	err := sendBatch(ctx, tx, func(b *pgx.Batch) {
		for i, h := range held {
			touched[i].Channel = h.channel
			b.Queue(sqlPlace, h.ids, h.first).Query(func(rows pgx.Rows) (err error) {
				touched[i].Messages, err = pgx.CollectRows(rows, pgx.RowToStructByPos[MessageRef])
				return err
			})
		}
	})
	if err != nil {
		return nil, err
	}
	for i, h := range held {
		if len(touched[i].Messages) != len(h.ids) { // the turn's lock keeps everybody else away from them
			return nil, fmt.Errorf("settle channel %s: %d of %d messages took their position", h.channel, len(touched[i].Messages), len(h.ids))
		}
	}
	return touched, nil
}

// merge joins what several steps of one transaction touched: one entry per channel, sorted, each in order of position.
func merge(touched ...Touched) []Touched {
	byChannel := map[string]int{}
	var out []Touched
	for _, t := range touched {
		i, ok := byChannel[t.Channel]
		if !ok {
			i = len(out)
			byChannel[t.Channel] = i
			out = append(out, Touched{Channel: t.Channel})
		}
		out[i].Messages = append(out[i].Messages, t.Messages...)
	}
	slices.SortFunc(out, func(a, b Touched) int { return strings.Compare(a.Channel, b.Channel) })
	return out
}

// sendBatch sends independent statements inside a transaction.
func sendBatch(ctx context.Context, tx pgx.Tx, fill func(b *pgx.Batch)) error {
	b := &pgx.Batch{}
	fill(b)
	return tx.SendBatch(ctx, b).Close()
}
