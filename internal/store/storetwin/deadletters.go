package storetwin

import (
	"cmp"
	"context"
	"slices"

	"github.com/rigelbuild/compass-operator/internal/store"
)

// ReplayDeadLetters is store.ReplayDeadLetters without the audit.
func (c *Client) ReplayDeadLetters(ctx context.Context, f store.DeadLetterFilter, _ string, dryRun bool) (out store.Replayed, err error) {
	err = c.do(ctx, "replay dead letters", func(t *tx) error {
		return t.stmt("make owed", func() error {
			var touched []store.Touched
			for _, d := range t.replayable(f) {
				out.Count++
				if dryRun {
					continue
				}
				touched = append(touched, store.Touched{Channel: d.Channel, Messages: []store.MessageRef{{ID: d.Message, Pos: d.Pos}}})
				at := t.pair(d.Message, d.Recipient)
				if t.rules.ReplayForgets {
					t.dead.del(t, at)
					continue
				}
				t.owed.put(t, t.pair(d.Recipient, d.Message), owedRow{channel: d.Channel, pos: d.Pos, kind: store.CommandReplay})
				d.Replayed++
				t.dead.put(t, at, d)
			}
			out.Touched = merge(touched...)
			return nil
		})
	})
	return out, err
}

// replayable leaves out what is being replayed already, and recipients that nothing entitles any more. Called in a
// statement.
func (t *tx) replayable(f store.DeadLetterFilter) (out []store.DeadLetter) {
	t.dead.all(t, func(k pair, d store.DeadLetter) bool {
		if k.tenant == t.tenant && (f.Message == "" || f.Message == d.Message) && (f.Recipient == "" || f.Recipient == d.Recipient) &&
			(f.Channel == "" || f.Channel == d.Channel) && t.entitles(d) {
			out = append(out, d)
		}
		return true
	})
	slices.SortFunc(out, func(a, b store.DeadLetter) int {
		return cmp.Or(cmp.Compare(a.Channel, b.Channel), cmp.Compare(a.Pos, b.Pos), cmp.Compare(a.Recipient, b.Recipient))
	})
	return out
}

func (t *tx) entitles(d store.DeadLetter) bool {
	o, owed := t.owed.get(t, t.pair(d.Recipient, d.Message))
	account, ok := t.accounts.get(t, t.key(d.Recipient))
	m, there := t.messages.get(t, t.key(d.Message))
	if owed && o.kind == store.CommandReplay && !o.done || !ok || account.DeletedAtUnixMs != 0 || !there {
		return false
	}
	_, member := t.members.get(t, t.pair(d.Channel, d.Recipient))
	answers := false
	t.asks.all(t, func(k key, q askRow) bool {
		answers = k.tenant == t.tenant && q.answer == d.Message && q.asker == d.Recipient
		return !answers
	})
	return member || answers || slices.Contains(m.mentions, account.Handle)
}

// DeadLetters lists the tenant's dead letters by message and recipient.
func (c *Client) DeadLetters(ctx context.Context) (out []store.DeadLetter, err error) {
	err = c.do(ctx, "list dead letters", func(t *tx) error {
		return t.stmt("select dead letters", func() error {
			t.dead.all(t, func(k pair, d store.DeadLetter) bool {
				if k.tenant == t.tenant {
					out = append(out, d)
				}
				return true
			})
			return nil
		})
	})
	slices.SortFunc(out, func(a, b store.DeadLetter) int {
		return cmp.Or(cmp.Compare(a.Message, b.Message), cmp.Compare(a.Recipient, b.Recipient))
	})
	return out, err
}
