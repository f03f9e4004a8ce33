package storetwin

import (
	"context"
	"slices"
	"strings"

	"github.com/rigelbuild/compass-operator/internal/store"
)

// write is a worker's batch on a row, led by assert_writer: a share of the lease, then the lease as it is after that.
func (c *Client) write(ctx context.Context, what, on string, fence store.Fence, body func(t *tx) error) error {
	return c.do(ctx, what, func(t *tx) error {
		t.about(on)
		err := t.stmt("assert writer", func() error {
			w, ok := t.writers.get(t, fence.Stream)
			p, placed := t.placements.get(t, t.tenant)
			named := ok && w.epoch == fence.Epoch && w.nonce == fence.Nonce && placed && p.Stream == fence.Stream
			switch {
			case named && w.expires.After(t.clock()):
			case t.rules.NoWriter, named && t.rules.LeaseForEver:
				t.note(Fact{Kind: FactStale})
			default:
				return store.ErrStaleWriter
			}
			return t.frozen()
		}, want{lockKey{"writer", "", fence.Stream, ""}, false})
		if err != nil {
			return err
		}
		return body(t)
	})
}

// BeginAttempt is store.BeginAttempt.
func (c *Client) BeginAttempt(ctx context.Context, fence store.Fence, d store.Delivery) error {
	return c.write(ctx, "begin attempt", d.MessageID, fence, func(t *tx) error {
		return t.stmt("insert attempt", func() error {
			if _, ok := t.messages.get(t, t.key(d.MessageID)); !ok {
				return nil
			}
			at := t.pair(d.MessageID, d.Recipient)
			a, ok := t.attempts.get(t, at)
			if !ok {
				a.firstMs = t.unixMs()
			}
			a.n, a.lastMs = a.n+1, t.unixMs()
			t.attempts.put(t, at, a)
			return nil
		})
	})
}

// SurvivedAttempt is store.SurvivedAttempt.
func (c *Client) SurvivedAttempt(ctx context.Context, fence store.Fence, d store.Delivery) error {
	return c.write(ctx, "survive attempt", d.MessageID, fence, func(t *tx) error {
		return t.stmt("delete attempt", func() error {
			at := t.pair(d.MessageID, d.Recipient)
			if _, ok := t.attempts.get(t, at); ok && !t.rules.KeepAttempts {
				t.attempts.del(t, at)
			}
			return nil
		})
	})
}

// CountRejections is store.CountRejections.
func (c *Client) CountRejections(ctx context.Context, fence store.Fence, r store.Rejections) error {
	return c.write(ctx, "count rejections", r.MessageID, fence, func(t *tx) error {
		return t.stmt("upsert attempts", func() error {
			m, ok := t.messages.get(t, t.key(r.MessageID))
			if !ok || m.Pos != r.Pos || r.Count <= r.Known {
				return nil
			}
			at := t.pair(r.MessageID, r.Recipient)
			a, known := t.attempts.get(t, at)
			switch {
			case !known:
				a = attemptRow{n: r.Count - max(r.Known, 0), firstMs: t.unixMs()}
			case r.Known < 0:
				a.n = max(a.n, r.Count)
			default:
				a.n += r.Count - r.Known
			}
			a.lastMs = t.unixMs()
			t.attempts.put(t, at, a)
			return nil
		})
	})
}

// ParkDelivery is store.ParkDelivery.
func (c *Client) ParkDelivery(ctx context.Context, fence store.Fence, d store.Delivery, reason string, atLeast int) (parked *store.Parked, err error) {
	err = c.write(ctx, "set aside", d.MessageID, fence, func(t *tx) error {
		return t.stmt("park", func() error {
			at := t.pair(d.MessageID, d.Recipient)
			a, ok := t.attempts.get(t, at)
			if !ok || a.n < atLeast {
				return nil
			}
			t.attempts.del(t, at)
			row, known := t.dead.get(t, at)
			if !known {
				row = store.DeadLetter{Message: d.MessageID, Recipient: d.Recipient, Channel: d.Channel, Pos: d.Pos, FirstUnixMs: a.firstMs}
			}
			row.Attempts, row.Reason, row.LastUnixMs = a.n, reason, a.lastMs
			t.dead.put(t, at, row)
			t.giveUpReplay(d)
			parked = &store.Parked{
				Delivery: d, Attempts: row.Attempts, Reason: reason, Replayed: row.Replayed, FirstUnixMs: row.FirstUnixMs, LastUnixMs: row.LastUnixMs}
			return nil
		})
	})
	if err != nil {
		return nil, err
	}
	return parked, nil
}

// giveUpReplay ends what would send a parked delivery beside the chain. Called in a statement.
func (t *tx) giveUpReplay(d store.Delivery) {
	at := t.pair(d.Recipient, d.MessageID)
	if o, ok := t.owed.get(t, at); ok && o.kind == store.CommandReplay && !o.done {
		o.done = true
		t.owed.put(t, at, o)
	}
	t.commands.all(t, func(k nth, cmd store.SessionCommand) bool {
		if b, _ := t.bindings.get(t, t.key(k.session)); k.tenant == t.tenant && b.Agent == d.Recipient && cmd.MessageID == d.MessageID {
			t.commands.del(t, k)
		}
		return true
	})
}

// AppendCommands is store.AppendCommands.
func (c *Client) AppendCommands(ctx context.Context, fence store.Fence, n store.NewCommands) (out []store.SessionCommand, err error) {
	err = c.write(ctx, "append commands", n.Session, fence, func(t *tx) error {
		live := false
		err := t.stmt("lock session", func() error {
			b, ok := t.bindings.get(t, t.key(n.Session))
			live = ok && b.Live && b.Claimed && b.Agent == n.Agent
			return nil
		}, t.alone("binding", n.Session))
		if err == nil && live {
			err = t.stmt("number commands", func() error { t.numberAll(n); return nil })
		}
		if err != nil || n.Blind {
			return err
		}
		return t.stmt("select commands", func() error { out = t.toPush(store.CommandQuery{Session: n.Session}); return nil })
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// numberAll gives numbers in order of position, chained by prev. Called in a statement.
func (t *tx) numberAll(n store.NewCommands) {
	var todo []store.SessionCommand
	t.owed.all(t, func(k pair, o owedRow) bool {
		if k.tenant == t.tenant && k.a == n.Agent && !o.done && slices.Contains(n.Messages, k.b) && !t.commanded(n.Session, k.b) {
			todo = append(todo, store.SessionCommand{Kind: o.kind, MessageID: k.b, Pos: o.pos})
		}
		return true
	})
	slices.SortFunc(todo, func(a, b store.SessionCommand) int {
		if a.Pos != b.Pos {
			return int(a.Pos - b.Pos)
		}
		return strings.Compare(a.MessageID, b.MessageID)
	})
	b, _ := t.bindings.get(t, t.key(n.Session))
	for _, cmd := range todo {
		cmd.Prev, cmd.N = b.LastCommand, t.commandNumber(b.LastCommand)
		b.LastCommand = cmd.N
		t.commands.put(t, nth{t.tenant, n.Session, cmd.N}, cmd)
	}
	t.bindings.put(t, t.key(n.Session), b)
}

// RouteMissed is store.RouteMissed.
func (c *Client) RouteMissed(ctx context.Context, fence store.Fence, limit int) (routed []string, err error) {
	err = c.write(ctx, "route missed mentions", "", fence, func(t *tx) error {
		return t.stmt("stamp and route", func() error {
			t.messages.all(t, func(k key, m messageRow) bool {
				if k.tenant != t.tenant || m.Held() || m.routed {
					return true
				}
				t.routeTo(m)
				m.routed = true
				t.messages.put(t, k, m)
				routed = append(routed, m.ID)
				return len(routed) < limit
			})
			return nil
		})
	})
	return routed, err
}

// ConfirmDrain is store.ConfirmDrain.
func (c *Client) ConfirmDrain(ctx context.Context, fence store.Fence, claim int64) error {
	return c.write(ctx, "confirm drain", "", fence, func(t *tx) error {
		return t.stmt("note drained", func() error {
			w, _ := t.writers.get(t, fence.Stream)
			drained := map[string]int64{t.tenant: claim}
			for tenant, at := range w.drained {
				if tenant != t.tenant {
					drained[tenant] = at
				}
			}
			w.drained = drained
			t.writers.put(t, fence.Stream, w)
			return nil
		}, want{lockKey{"writer row", "", fence.Stream, ""}, true})
	})
}
