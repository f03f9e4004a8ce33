package storetwin

import (
	"cmp"
	"context"
	"slices"

	"github.com/rigelbuild/compass-operator/internal/store"
)

// readable lists the messages of a channel that a member may see, changed after a rev, in order of rev: text of an open
// turn is shown to people and to its author, never to other agents. Called in a statement.
func (t *tx) readable(channel, reader string, after int64, limit int) (out []store.Message) {
	a, _ := t.accounts.get(t, t.key(reader))
	t.messages.all(t, func(k key, m messageRow) bool {
		if t.sees(k.tenant) && m.Channel == channel && m.Rev > after && (!m.Held() || a.Kind == store.KindPerson || m.Author == reader) {
			out = append(out, t.content(m))
		}
		return true
	})
	slices.SortFunc(out, func(a, b store.Message) int { return cmp.Compare(a.Rev, b.Rev) })
	return out[:min(limit, len(out))]
}

// ListMessages is store.ListMessages.
func (c *Client) ListMessages(ctx context.Context, page store.MessagePage) (out []store.Message, more bool, err error) {
	err = c.do(ctx, "list messages", func(t *tx) error {
		return t.stmt("select messages", func() error {
			if _, member := t.members.get(t, t.pair(page.Channel, page.Reader)); !member {
				return store.ErrNotFound
			}
			out = t.readable(page.Channel, page.Reader, page.AfterRev, page.Limit+1)
			return nil
		})
	})
	if len(out) > page.Limit {
		return out[:page.Limit], true, err
	}
	return out, false, err
}
