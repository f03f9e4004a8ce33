package storetwin

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/rigelbuild/compass-operator/internal/store"
)

// takeEvent makes one call of a session happen once and in order, as store.takeEvent does.
func (t *tx) takeEvent(e store.Event) (b store.Binding, duplicate bool, err error) {
	if e.N < 1 {
		return b, false, fmt.Errorf("%w: events are numbered from 1", store.ErrPrecondition)
	}
	t.about(e.Session)
	var wants []want
	if !t.rules.BindLoose {
		wants = append(wants, t.alone("binding", e.Session))
	}
	err = t.stmt("take event", func() error {
		row, ok := t.bindings.get(t, t.key(e.Session))
		b = t.binding(row)
		if !ok || b.Generation != e.Generation || b.Runner != e.Runner || !b.Live && !t.rules.BindLoose {
			return store.ErrStale
		}
		if duplicate = b.LastN >= e.N; duplicate {
			return nil
		}
		if err := t.frozen(); err != nil {
			return err
		}
		row.LastN, b.LastN = e.N, e.N
		t.bindings.put(t, t.key(e.Session), row)
		return nil
	}, wants...)
	return b, duplicate, err
}

// binding is a session as it is read: with the fleet of its Runner. Called in a statement.
func (t *tx) binding(row bindingRow) store.Binding {
	b := row.Binding
	b.Fleet = ""
	if l, ok := t.leases.get(t, b.Runner); ok {
		b.Fleet = l.fleet
	}
	return b
}

// lockTurn locks a turn, alone or shared, and reports whether it is open; ErrNotFound where nobody named it.
func (t *tx) lockTurn(session, turn string, alone bool) (open bool, err error) {
	err = t.stmt("lock turn", func() error {
		row, ok := t.turns.get(t, t.pair(session, turn))
		open = row.settledBy == ""
		return orNotFound(ok)
	}, want{lockKey{"turn", t.tenant, session, turn}, alone})
	return open, err
}

// openTurns lists what a session has open. Called in a statement.
func (t *tx) openTurns(session string) (turns []string) {
	t.turns.all(t, func(k pair, row turnRow) bool {
		if k.tenant == t.tenant && k.a == session && row.settledBy == "" {
			turns = append(turns, k.b)
		}
		return true
	})
	return turns
}

// openTurn makes sure that the named turn is open, as store.openTurn does: the first call that names it opens it and
// settles whatever else the session has open (OneTurn).
func (t *tx) openTurn(session, turn string, alone bool, channel string) (touched []store.Touched, err error) {
	open, err := t.lockTurn(session, turn, alone)
	switch {
	case err == nil && open:
		return nil, nil
	case err == nil:
		return nil, fmt.Errorf("%w: turn %s is settled", store.ErrPrecondition, turn)
	case !is(err, store.ErrNotFound):
		return nil, err
	}
	var others []string
	if err := t.stmt("select open turns", func() error { others = t.openTurns(session); return nil }); err != nil {
		return nil, err
	}
	if t.rules.ManyTurns {
		others = nil
	}
	for _, other := range others {
		more, err := t.settle(session, other, store.SettledByNextTurn, channel)
		if err != nil {
			return nil, err
		}
		touched = append(touched, more...)
	}
	return touched, t.stmt("insert turn", func() error {
		row, _ := t.bindings.get(t, t.key(session))
		t.turns.put(t, t.pair(session, turn), turnRow{agent: row.Agent, openedMs: t.unixMs()})
		row.OpenTurn = turn
		t.bindings.put(t, t.key(session), row)
		return nil
	})
}

// settle ends a turn and gives its messages their positions, in the order in which they were made, as store.settle does:
// turn, heads sorted by channel, with the head of also in its place, rows in a later statement.
func (t *tx) settle(session, turn, by, also string) ([]store.Touched, error) {
	open, err := t.lockTurn(session, turn, true)
	if is(err, store.ErrNotFound) || err == nil && !open {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var held map[string][]messageRow
	err = t.stmt("select held messages", func() error { held = t.heldOf(session, turn, ""); return nil })
	if err != nil {
		return nil, err
	}
	err = t.stmt("close turn", func() error {
		row, _ := t.turns.get(t, t.pair(session, turn))
		row.settledBy = by
		t.turns.put(t, t.pair(session, turn), row)
		b, _ := t.bindings.get(t, t.key(session))
		if b.OpenTurn == turn {
			b.OpenTurn = ""
			t.bindings.put(t, t.key(session), b)
		}
		t.note(Fact{Kind: FactSettled, Session: session, Agent: row.agent, By: by})
		return nil
	})
	if err != nil {
		return nil, err
	}
	var touched []store.Touched
	for _, channel := range sortedWith(held, also) {
		more, err := t.placeAll(channel, held[channel])
		if err != nil {
			return nil, err
		}
		touched = append(touched, more...)
	}
	return touched, nil
}

// heldOf lists what waits in a turn, by channel in the order in which it was made. Called in a statement.
func (t *tx) heldOf(session, turn, channel string) map[string][]messageRow {
	held := map[string][]messageRow{}
	t.messages.all(t, func(k key, m messageRow) bool {
		if k.tenant == t.tenant && m.Session == session && m.Turn == turn && m.Held() && (channel == "" || m.Channel == channel) {
			held[m.Channel] = append(held[m.Channel], m)
		}
		return true
	})
	for _, rows := range held {
		slices.SortFunc(rows, func(a, b messageRow) int { return int(a.Seq - b.Seq) })
	}
	return held
}

func sortedWith(held map[string][]messageRow, also string) (channels []string) {
	for channel := range held {
		channels = append(channels, channel)
	}
	if also != "" && held[also] == nil {
		channels = append(channels, also)
	}
	slices.Sort(channels)
	return channels
}

// placeAll gives the held rows of a channel their positions; none: it only locks the head.
func (t *tx) placeAll(channel string, held []messageRow) (touched []store.Touched, err error) {
	err = t.stmt("give positions", func() error {
		if len(held) == 0 {
			return nil
		}
		first := int64(0)
		if !t.rules.PosAtPost {
			if first, err = t.take(channel, int64(len(held)), true); err != nil {
				return err
			}
		}
		out := store.Touched{Channel: channel}
		for i, m := range held {
			pos := first + int64(i)
			if t.rules.PosAtPost {
				pos = m.Seq
			}
			m, _ = t.messages.get(t, t.key(m.ID))
			t.place(m, pos)
			out.Messages = append(out.Messages, store.MessageRef{ID: m.ID, Pos: pos})
		}
		touched = []store.Touched{out}
		return nil
	}, t.headLock(channel)...)
	return touched, err
}

// settleOthers settles every open turn of the session except the one named.
func (t *tx) settleOthers(session, except, by string) (touched []store.Touched, err error) {
	var turns []string
	if err := t.stmt("select open turns", func() error { turns = t.openTurns(session); return nil }); err != nil {
		return nil, err
	}
	for _, turn := range turns {
		if turn == except {
			continue
		}
		more, err := t.settle(session, turn, by, "")
		if err != nil {
			return nil, err
		}
		touched = append(touched, more...)
	}
	return merge(touched...), nil
}

// merge joins what several steps of one transaction touched.
func merge(touched ...store.Touched) []store.Touched {
	at := map[string]int{}
	var out []store.Touched
	for _, x := range touched {
		i, ok := at[x.Channel]
		if !ok {
			i = len(out)
			at[x.Channel] = i
			out = append(out, store.Touched{Channel: x.Channel})
		}
		out[i].Messages = append(out[i].Messages, x.Messages...)
	}
	slices.SortFunc(out, func(a, b store.Touched) int { return strings.Compare(a.Channel, b.Channel) })
	return out
}

// SettleTurn is store.SettleTurn.
func (c *Client) SettleTurn(ctx context.Context, e store.Event, turn string) (touched []store.Touched, err error) {
	err = c.do(ctx, "settle turn", func(t *tx) error {
		_, duplicate, err := t.takeEvent(e)
		if err != nil || duplicate {
			return err
		}
		touched, err = t.settle(e.Session, turn, store.SettledByAuthor, "")
		return err
	})
	return touched, err
}

// askInTurn gives positions to what the author holds in this turn and channel, and the next one to the question.
func (p *posting) askInTurn(t *tx) error {
	touched, err := t.openTurn(p.session, p.turn, true, p.Channel)
	if err != nil {
		return err
	}
	p.touched = touched
	if p.member, err = t.lockChannel(p.Channel, p.Author); err != nil {
		return err
	}
	if !p.member {
		return store.ErrNotFound
	}
	err = t.stmt("place and ask", func() error {
		if ch, _ := t.channels.get(t, t.key(p.Channel)); ch.Archived {
			return fmt.Errorf("%w: the channel is archived", store.ErrPrecondition)
		}
		before := t.heldOf(p.session, p.turn, p.Channel)[p.Channel]
		first, err := t.take(p.Channel, int64(len(before)+1), true)
		if err != nil {
			return err
		}
		said := store.Touched{Channel: p.Channel}
		for i, m := range before {
			t.place(m, first+int64(i))
			said.Messages = append(said.Messages, store.MessageRef{ID: m.ID, Pos: first + int64(i)})
		}
		if len(before) > 0 {
			p.touched = append(p.touched, said)
		}
		if err := p.insert(t, first+int64(len(before))); err != nil {
			return err
		}
		p.read(t)
		return nil
	}, p.unique(t))
	if err != nil {
		return err
	}
	return p.verdict()
}

// AnswerAsk is store.AnswerAsk.
func (c *Client) AnswerAsk(ctx context.Context, n store.NewAnswer) (store.Message, bool, []store.Touched, error) {
	var p *posting
	var err error
	for range 2 {
		p = &posting{kind: store.KindAnswer, NewMessage: store.NewMessage{
			ID: n.ID, Author: n.Author, ClientID: n.ClientID, Blocks: n.Blocks, In: n.In}}
		err = c.do(ctx, "answer", func(t *tx) error { return p.answer(t, n.Ask) })
		if !is(err, store.ErrConflict) || p.found {
			break
		}
	}
	return p.message, p.inserted, p.touched, err
}

func (p *posting) answer(t *tx, ask string) error {
	err := t.stmt("select question", func() error {
		q, ok := t.asks.get(t, t.key(ask))
		p.Channel = q.channel
		return orNotFound(ok)
	})
	if err != nil {
		return err
	}
	if done, err := p.beginAnswer(t, ask); done || err != nil {
		return err
	}
	if p.member, err = t.lockChannel(p.Channel, p.Author); err != nil {
		return err
	}
	if !p.member {
		return store.ErrNotFound
	}
	err = t.stmt("select answer", func() error {
		if q, _ := t.asks.get(t, t.key(ask)); q.answer != "" {
			return fmt.Errorf("%w: it has an answer", store.ErrPrecondition)
		}
		return nil
	})
	if err == nil {
		err = p.append(t)
	}
	if err != nil {
		return err
	}
	p.message.Ask = ask
	return t.stmt("link answer", func() error {
		q, _ := t.asks.get(t, t.key(ask))
		if q.answer != "" {
			return nil
		}
		q.answer = p.message.ID
		t.asks.put(t, t.key(ask), q)
		asker, _ := t.accounts.get(t, t.key(q.asker))
		if asker.Kind != store.KindAgent || asker.DeletedAtUnixMs != 0 || asker.ID == p.Author {
			return nil
		}
		at := t.pair(asker.ID, p.message.ID)
		row, there := t.owed.get(t, at)
		if !there {
			row = owedRow{channel: p.Channel, pos: p.message.Pos}
		}
		row.kind = store.CommandAnswer
		t.owed.put(t, at, row)
		return nil
	})
}

// beginAnswer looks for a repeat, and opens the turn of a session's call.
func (p *posting) beginAnswer(t *tx, ask string) (done bool, err error) {
	if p.In == nil {
		err := t.stmt("select message", func() error { p.read(t); return nil })
		return p.found, orErr(err, p.repeated(ask))
	}
	if done, err := p.begin(t); done || err != nil || p.turn == "" {
		return done, orErr(err, p.repeated(ask))
	}
	p.touched, err = t.openTurn(p.session, p.turn, false, p.Channel)
	return false, err
}

func (p *posting) repeated(ask string) error {
	switch {
	case !p.found:
		return nil
	case p.message.Ask != ask:
		return fmt.Errorf("%w: client id %q names another message", store.ErrConflict, p.ClientID)
	}
	return p.verdict()
}
