package storetwin

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/rigelbuild/compass-operator/internal/store"
)

// take is take_position(): k consecutive numbers of a channel, whose head the caller has locked. Called in a statement.
func (t *tx) take(channel string, k int64, deliverable bool) (first int64, err error) {
	head, ok := t.heads.get(t, t.key(channel))
	if !ok {
		return 0, store.ErrNotFound
	}
	if err := t.frozen(); err != nil {
		return 0, err
	}
	if t.rules.Sequence {
		return t.fromSequence(channel, k), nil
	}
	first = max(head.last+1, t.number())
	head.last = first + k - 1
	if deliverable {
		head.lastPos = head.last
	}
	t.heads.put(t, t.key(channel), head)
	return first, nil
}

// fromSequence numbers without a lock; the head only follows, in a statement before the commit.
func (t *tx) fromSequence(channel string, k int64) (first int64) {
	t.serial = max(t.serial, t.number())
	first = t.serial + 1
	t.serial += k
	last := t.serial
	t.before = func() error {
		return t.stmt("touch head", func() error {
			head, _ := t.heads.get(t, t.key(channel))
			t.heads.put(t, t.key(channel), headRow{max(head.last, last), max(head.lastPos, last)})
			return nil
		}, t.alone("head", channel))
	}
	return first
}

// posting is one message on its way in, and what came of it.
type posting struct {
	store.NewMessage
	kind    store.MessageKind
	held    bool
	session string
	turn    string

	member   bool
	inserted bool
	found    bool
	message  store.Message
	touched  []store.Touched
}

// AppendMessage is store.AppendMessage.
func (c *Client) AppendMessage(ctx context.Context, n store.NewMessage) (store.Message, bool, []store.Touched, error) {
	return c.post(ctx, n, store.KindMessage)
}

// AppendAsk is store.AppendAsk.
func (c *Client) AppendAsk(ctx context.Context, n store.NewMessage) (store.Message, bool, []store.Touched, error) {
	return c.post(ctx, n, store.KindAsk)
}

func (c *Client) post(ctx context.Context, n store.NewMessage, kind store.MessageKind) (store.Message, bool, []store.Touched, error) {
	var p *posting
	var err error
	for range 2 { // two posts of one client id in two channels do not see each other before the unique key
		p = &posting{NewMessage: n, kind: kind}
		err = c.do(ctx, "post", func(t *tx) error {
			if n.In != nil {
				return p.inSession(t)
			}
			return p.append(t)
		})
		if !is(err, store.ErrConflict) || p.found {
			break
		}
	}
	return p.message, p.inserted, p.touched, err
}

// append makes the message where it may be made and reads it back.
func (p *posting) append(t *tx) (err error) {
	t.about(p.ClientID)
	if p.member, err = t.lockChannel(p.Channel, p.Author); err != nil {
		return err
	}
	err = t.stmt("insert message", func() error {
		channel, ok := t.channels.get(t, t.key(p.Channel))
		if !p.member || !ok || channel.Archived || p.read(t) {
			return nil
		}
		if _, still := t.members.get(t, t.pair(p.Channel, p.Author)); !still {
			return nil
		}
		at, err := t.take(p.Channel, 1, !p.held || t.rules.PosAtPost)
		if err != nil {
			return err
		}
		return p.insert(t, at)
	}, p.unique(t))
	if err == nil {
		err = t.stmt("select message", func() error { p.read(t); return nil })
	}
	if err != nil {
		return err
	}
	return p.verdict()
}

// unique is the key of author and client id: who makes it waits for who is making it.
func (p *posting) unique(t *tx) want {
	return want{lockKey{"client id", t.tenant, p.Author, p.ClientID}, true}
}

// insert makes the row with its number. Called in a statement that has locked its unique key.
func (p *posting) insert(t *tx, at int64) error {
	taken := false
	for k, rows := range t.messages.rows {
		taken = taken || k.tenant == t.tenant && rows.Author == p.Author && rows.ClientID == p.ClientID
	}
	if taken {
		return store.ErrConflict
	}
	m := messageRow{
		Message: store.Message{
			ID: p.ID, Channel: p.Channel, Author: p.Author, Session: p.session, Turn: p.turn, Kind: p.kind, Seq: at, Rev: at,
			Blocks: slices.Clone(p.Blocks), ClientID: p.ClientID, CreatedAtUnixMs: t.unixMs(),
		},
		mentions: store.Mentions(p.Blocks),
	}
	p.inserted = true
	if p.kind == store.KindAsk {
		t.asks.put(t, t.key(p.ID), askRow{channel: p.Channel, asker: p.Author, session: p.session})
	}
	if p.held {
		t.messages.put(t, t.key(p.ID), m)
		return nil
	}
	t.place(m, at)
	return nil
}

// place gives a message its position and routes what it mentions, in one statement (RouteInTx). Called in a statement.
func (t *tx) place(m messageRow, pos int64) {
	m.Pos, m.Rev = pos, max(m.Rev, pos)
	if !t.rules.RouteLater {
		t.routeTo(m)
		m.routed = true
	}
	t.messages.put(t, t.key(m.ID), m)
}

// routeTo makes a message owed to the agents that it names, never to its author.
func (t *tx) routeTo(m messageRow) {
	if len(m.mentions) == 0 {
		return
	}
	t.accounts.all(t, func(k key, a store.Account) bool {
		if k.tenant == t.tenant && a.Kind == store.KindAgent && a.DeletedAtUnixMs == 0 && a.ID != m.Author && slices.Contains(m.mentions, a.Handle) {
			if _, there := t.owed.get(t, t.pair(a.ID, m.ID)); !there {
				t.owed.put(t, t.pair(a.ID, m.ID), owedRow{channel: m.Channel, pos: m.Pos, kind: store.CommandMention})
			}
		}
		return true
	})
}

// read looks for the message of the author and client id. Called in a statement.
func (p *posting) read(t *tx) bool {
	p.found = false
	t.messages.all(t, func(k key, m messageRow) bool {
		if k.tenant == t.tenant && m.Author == p.Author && m.ClientID == p.ClientID {
			p.found, p.message = true, t.content(m)
		}
		return !p.found
	})
	return p.found
}

// content is a message as it is read: with the links of asks and answers. Called in a statement.
func (t *tx) content(m messageRow) store.Message {
	out := m.Message
	switch m.Kind { //nolint:exhaustive // the others are linked to nothing
	case store.KindAsk:
		q, _ := t.asks.get(t, t.key(m.ID))
		out.Answer = q.answer
	case store.KindAnswer:
		t.asks.all(t, func(k key, q askRow) bool {
			if k.tenant == t.tenant && q.answer == m.ID {
				out.Ask = k.id
			}
			return true
		})
	}
	return out
}

func (p *posting) verdict() error {
	switch {
	case !p.found && !p.member:
		return store.ErrNotFound
	case !p.found:
		return fmt.Errorf("%w: the channel is archived", store.ErrPrecondition)
	case p.message.Channel != p.Channel || p.message.Kind != p.kind:
		return fmt.Errorf("%w: client id %q names another message", store.ErrConflict, p.ClientID)
	case p.inserted && !p.message.Held():
		p.touched = merge(append(p.touched, store.Touched{
			Channel: p.Channel, Messages: []store.MessageRef{{ID: p.message.ID, Pos: p.message.Pos}}})...)
	}
	return nil
}

// inSession goes event, client id, turn, head, row.
func (p *posting) inSession(t *tx) error {
	if done, err := p.begin(t); done || err != nil {
		return err
	}
	if p.kind == store.KindAsk && p.turn != "" {
		return p.askInTurn(t)
	}
	if p.held = p.turn != ""; p.held {
		touched, err := t.openTurn(p.session, p.turn, false, p.Channel)
		if err != nil {
			return err
		}
		p.touched = touched
	}
	return p.append(t)
}

// begin takes the event and looks the client id up before anything else is judged.
func (p *posting) begin(t *tx) (done bool, err error) {
	b, repeat, err := t.takeEvent(p.In.Event)
	if err != nil {
		return false, err
	}
	p.Author, p.session, p.turn = b.Agent, b.Session, p.In.Turn
	if p.turn == "" {
		p.session = ""
	}
	if err := t.stmt("select message", func() error { p.read(t); return nil }); err != nil {
		return false, err
	}
	if p.found {
		return true, p.verdict()
	}
	if repeat {
		return false, fmt.Errorf("%w: event %d was another call", store.ErrConflict, p.In.Event.N)
	}
	return false, nil
}

// EditMessage is store.EditMessage.
func (c *Client) EditMessage(ctx context.Context, e store.Edit) (m store.Message, err error) {
	err = c.do(ctx, "edit", func(t *tx) error {
		repeat := false
		if e.In != nil {
			b, taken, err := t.takeEvent(e.In.Event)
			if err != nil {
				return err
			}
			e.Author, repeat = b.Agent, taken
		}
		if !repeat {
			if err := t.edit(e); err != nil {
				return err
			}
		}
		return t.stmt("select message", func() error {
			row, ok := t.messages.get(t, t.key(e.Message))
			if !ok || row.Author != e.Author {
				return store.ErrNotFound
			}
			m = t.content(row)
			return nil
		})
	})
	return m, err
}

var errPlaced = fmt.Errorf("%w: the message has its position", store.ErrPrecondition)

// edit goes turn, head, row.
func (t *tx) edit(e store.Edit) error {
	var m messageRow
	err := t.stmt("select message to edit", func() error {
		var ok bool
		m, ok = t.messages.get(t, t.key(e.Message))
		if _, member := t.members.get(t, t.pair(m.Channel, e.Author)); !ok || m.Author != e.Author || !member {
			return store.ErrNotFound
		}
		return nil
	})
	switch {
	case err != nil:
		return err
	case !m.Held():
		return errPlaced
	case e.In != nil && e.In.Turn != "" && e.In.Turn != m.Turn:
		return fmt.Errorf("%w: the message belongs to another turn", store.ErrPrecondition)
	}
	open, err := t.lockTurn(m.Session, m.Turn, false)
	if err == nil && !open {
		err = fmt.Errorf("%w: the turn is settled", store.ErrPrecondition)
	}
	if err != nil {
		return err
	}
	var rev int64
	err = t.stmt("take rev", func() (err error) {
		rev, err = t.take(m.Channel, 1, false)
		return err
	}, t.headLock(m.Channel)...)
	if err != nil {
		return err
	}
	return t.stmt("update message", func() error {
		m, _ = t.messages.get(t, t.key(e.Message))
		if !m.Held() {
			return errPlaced
		}
		m.Rev = rev
		blocks := slices.Clone(e.Blocks)
		if e.Append {
			blocks = append(slices.Clone(m.Blocks), e.Blocks...)
		}
		m.Blocks, m.mentions = blocks, store.Mentions(blocks)
		if text, _ := json.Marshal(blocks); e.MaxBytes > 0 && len(text) > e.MaxBytes {
			return store.ErrTooLarge
		}
		t.messages.put(t, t.key(m.ID), m)
		return nil
	})
}

func (t *tx) headLock(channel string) []want {
	if t.rules.Sequence {
		return nil
	}
	return []want{t.alone("head", channel)}
}

// CommitFrame is store.CommitFrame.
func (c *Client) CommitFrame(ctx context.Context, f store.Frame) (store.Message, bool, []store.Touched, error) {
	if f.In == nil || f.In.Turn == "" {
		return store.Message{}, false, nil, fmt.Errorf("%w: a frame belongs to a turn", store.ErrPrecondition)
	}
	p := &posting{NewMessage: f.NewMessage, kind: store.KindMessage}
	err := c.do(ctx, "frame", func(t *tx) error { return p.frame(t, f) })
	return p.message, p.inserted, p.touched, err
}

func (p *posting) frame(t *tx, f store.Frame) error {
	b, repeat, err := t.takeEvent(f.In.Event)
	if err != nil {
		return err
	}
	p.Author, p.session, p.turn, p.held = b.Agent, b.Session, f.In.Turn, true
	if err := t.stmt("select message", func() error { p.read(t); return nil }); err != nil {
		return err
	}
	switch {
	case repeat && p.found:
		return p.verdict()
	case repeat:
		return fmt.Errorf("%w: event %d was another call", store.ErrConflict, f.In.Event.N)
	}
	if p.touched, err = t.openTurn(p.session, p.turn, false, p.Channel); err != nil {
		return err
	}
	if !p.found {
		return p.append(t)
	}
	if err := p.verdict(); err != nil {
		return err
	}
	if p.message.Session != p.session || p.message.Turn != p.turn {
		return fmt.Errorf("%w: the message belongs to another turn", store.ErrPrecondition)
	}
	err = t.edit(store.Edit{Message: p.message.ID, Author: p.Author, Blocks: f.Blocks, Append: f.Append, MaxBytes: f.MaxBytes})
	if err != nil {
		return err
	}
	return t.stmt("select message", func() error { p.read(t); return nil })
}

// MessageByID is store.MessageByID.
func (c *Client) MessageByID(ctx context.Context, id string) (m store.Message, err error) {
	err = c.do(ctx, "read message", func(t *tx) error {
		return t.stmt("select message", func() error {
			row, ok := t.messages.get(t, t.key(id))
			m = t.content(row)
			return orNotFound(ok)
		})
	})
	return m, err
}
