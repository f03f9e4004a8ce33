package storetwin

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rigelbuild/compass-operator/internal/store"
)

// current finds a session that is live and what the Runner says of it. Called in a statement.
func (t *tx) current(ref store.SessionRef) (bindingRow, bool) {
	row, ok := t.bindings.get(t, t.key(ref.Session))
	return row, ok && row.Live && row.Generation == ref.Generation && row.Runner == ref.Runner
}

// Ack is store.Ack: the one statement that moves a cursor.
func (c *Client) Ack(ctx context.Context, ref store.SessionRef, acks []store.ChannelAck) (acked store.Acked, err error) {
	acks = slices.SortedFunc(slices.Values(acks), func(a, b store.ChannelAck) int { return strings.Compare(a.Channel, b.Channel) })
	found, alive, frozen := 0, false, false
	err = c.do(ctx, "acknowledge", func(t *tx) error {
		t.about(ref.Session)
		for _, a := range acks {
			if err := t.ack(ref, a, &acked, &found); err != nil {
				return err
			}
		}
		return t.stmt("is the session live", func() error {
			_, alive = t.current(ref)
			frozen = t.frozen() != nil
			return nil
		})
	})
	switch {
	case err != nil:
	case found < len(acks) && !alive:
		err = store.ErrStale
	case found < len(acks) && frozen:
		err = store.ErrFrozen
	case len(acked.Refused) > 0:
		err = fmt.Errorf("channels %v: %w", acked.Refused, store.ErrBeyondHead)
	}
	return acked, err
}

func (t *tx) ack(ref store.SessionRef, a store.ChannelAck, acked *store.Acked, found *int) error {
	agent := ""
	if err := t.stmt("find cursor", func() error {
		row, _ := t.current(ref)
		agent = row.Agent
		return nil
	}); err != nil {
		return err
	}
	at := t.pair(agent, a.Channel)
	return t.stmt("move cursor", func() error {
		row, ok := t.current(ref)
		cursor, known := t.cursors.get(t, at)
		if !ok || !known || t.frozen() != nil {
			return nil //nolint:nilerr // a frozen tenant's cursor is not found, as in the statement
		}
		*found++
		acked.Agent = row.Agent
		head, _ := t.heads.get(t, t.key(a.Channel))
		if a.Pos > head.lastPos {
			acked.Refused = append(acked.Refused, a.Channel)
			return nil
		}
		if cursor.acked >= a.Pos {
			return nil
		}
		acked.Moved = append(acked.Moved, a.Channel)
		acked.Ages = append(acked.Ages, time.Duration(t.number()-a.Pos)*time.Microsecond)
		t.moveCursor(row.Agent, a.Channel, a.Pos)
		return nil
	}, want{lockKey{"cursor", t.tenant, agent, a.Channel}, true})
}

// moveCursor moves it up, and drops the owed rows that it has passed and that are done. Called in a statement.
func (t *tx) moveCursor(agent, channel string, pos int64) {
	t.cursors.put(t, t.pair(agent, channel), cursorRow{pos})
	t.note(Fact{Kind: FactAcked, Agent: agent, Channel: channel, Pos: pos})
	t.owed.all(t, func(k pair, o owedRow) bool {
		if k.tenant == t.tenant && k.a == agent && o.channel == channel && o.pos <= pos && o.done {
			t.owed.del(t, k)
		}
		return true
	})
}

// AckCommands is store.AckCommands.
func (c *Client) AckCommands(ctx context.Context, ref store.SessionRef, acks []store.CommandAck) (agent string, done int, err error) {
	err = c.do(ctx, "acknowledge commands", func(t *tx) error {
		t.about(ref.Session)
		for _, a := range acks {
			err := t.stmt("delete command", func() error {
				row, ok := t.current(ref)
				if !ok {
					return store.ErrStale
				}
				agent = row.Agent
				if t.ackCommand(row, a) {
					done++
				}
				return nil
			}, t.alone("binding", ref.Session))
			if err != nil {
				return err
			}
		}
		return nil
	})
	return agent, done, err
}

// ackCommand deletes the command and settles what backed it, if it is still the delivery that was acknowledged. Called in
// a statement.
func (t *tx) ackCommand(b bindingRow, a store.CommandAck) (done bool) {
	if k := (nth{t.tenant, b.Session, a.N}); t.has(k) {
		t.commands.del(t, k)
	}
	at := t.pair(b.Agent, a.MessageID)
	o, ok := t.owed.get(t, at)
	if !ok || o.done || o.pos != a.Pos && !t.rules.AckAnyPos {
		return false
	}
	o.done = true
	t.owed.put(t, at, o)
	if t.rules.SteerMoves {
		if cursor, known := t.cursors.get(t, t.pair(b.Agent, o.channel)); known && cursor.acked < o.pos {
			t.moveCursor(b.Agent, o.channel, o.pos)
		}
	}
	if o.kind == store.CommandReplay {
		t.dead.del(t, t.pair(a.MessageID, b.Agent))
	}
	return true
}

func (t *tx) has(k nth) bool {
	_, ok := t.commands.get(t, k)
	return ok
}

// FetchCommands is store.FetchCommands.
func (c *Client) FetchCommands(ctx context.Context, f store.Fetch) (out []store.SessionCommand, err error) {
	err = c.do(ctx, "fetch commands", func(t *tx) error {
		mine := false
		err := t.stmt("is hosted", func() error {
			row, ok := t.bindings.get(t, t.key(f.Session))
			mine = ok && row.Live && row.Runner == f.Runner
			return nil
		})
		if err == nil {
			err = t.stmt("select commands", func() error {
				out = t.commandsOf(f.Session, func(cmd store.SessionCommand) bool { return cmd.N > f.After })
				out = out[:min(len(out), store.MaxFetch)]
				return nil
			})
		}
		if err == nil && !mine {
			err = store.ErrStale
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// commandsOf lists a session's commands in order, with their content. Called in a statement.
func (t *tx) commandsOf(session string, want func(store.SessionCommand) bool) (out []store.SessionCommand) {
	t.commands.all(t, func(k nth, cmd store.SessionCommand) bool {
		if k.tenant != t.tenant || k.session != session || !want(cmd) {
			return true
		}
		if m, ok := t.messages.get(t, t.key(cmd.MessageID)); ok {
			content := t.content(m)
			cmd.Message = &content
		}
		out = append(out, cmd)
		return true
	})
	slices.SortFunc(out, func(a, b store.SessionCommand) int { return int(a.N - b.N) })
	return out
}
