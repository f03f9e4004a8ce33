package storetwin

import (
	"context"
	"slices"
	"strings"

	"github.com/rigelbuild/compass-operator/internal/store"
)

// ready returns the session of an agent that may be sent to: live, claimed, its Runner's lease not over and of its
// incarnation. live says that there is any. Called in a statement.
func (t *tx) ready(agent string) (s store.LiveSession, ready, live bool) {
	b, live := t.liveOf(agent)
	if !live {
		return s, false, false
	}
	l, ok := t.leases.get(t, b.Runner)
	ready = b.Claimed && ok && l.incarnation == b.Incarnation && l.expires.After(t.clock())
	return store.LiveSession{Session: b.Session, Generation: b.Generation, Agent: agent, Runner: b.Runner, Fleet: l.fleet}, ready, true
}

// ChannelOwed is store.ChannelOwed: one snapshot of all that a drain decides by.
func (c *Client) ChannelOwed(ctx context.Context, q store.ChannelQuery) (v store.ChannelView, err error) {
	err = c.do(ctx, "read what a channel owes", func(t *tx) error {
		t.about(q.Channel)
		return t.stmt("select owed", func() error { v = t.channelOwed(q); return nil })
	})
	return v, err
}

func (t *tx) channelOwed(q store.ChannelQuery) (v store.ChannelView) {
	p, ok := t.placements.get(t, t.tenant)
	if !ok || p.Stream != q.Stream {
		return v
	}
	head, _ := t.heads.get(t, t.key(q.Channel))
	v.Mine, v.Draining, v.Claim, v.Head = true, p.Draining, p.Claim, head.lastPos
	if p.Draining {
		return v
	}
	var agents []string
	t.cursors.all(t, func(k pair, c cursorRow) bool {
		if k.tenant == t.tenant && k.b == q.Channel && c.acked < head.lastPos {
			agents = append(agents, k.a)
		}
		return true
	})
	slices.Sort(agents)
	var rows []messageRow
	for _, agent := range agents {
		member, is := t.members.get(t, t.pair(q.Channel, agent))
		if !is {
			continue
		}
		s, ready, live := t.ready(agent)
		if !live {
			if a, _ := t.accounts.get(t, t.key(agent)); a.Wake == store.WakeOnOwed && a.DeletedAtUnixMs == 0 {
				v.Asleep = append(v.Asleep, agent)
			}
			continue
		}
		if !ready {
			continue
		}
		if rows == nil {
			rows = t.placedIn(q.Channel)
		}
		cursor, _ := t.cursors.get(t, t.pair(agent, q.Channel))
		v.Sessions = append(v.Sessions, t.owedTo(s, cursor.acked, max(cursor.acked, member.joinedAt, q.Passed[s.Session]), rows, q.Page))
	}
	return v
}

// placedIn lists a channel's messages that have a position, in that order. Called in a statement.
func (t *tx) placedIn(channel string) []messageRow {
	rows := []messageRow{}
	t.messages.all(t, func(k key, m messageRow) bool {
		if t.sees(k.tenant) && m.Channel == channel && !m.Held() {
			rows = append(rows, m)
		}
		return true
	})
	slices.SortFunc(rows, func(a, b messageRow) int { return int(a.Pos - b.Pos) })
	return rows
}

func (t *tx) owedTo(s store.LiveSession, acked, after int64, rows []messageRow, page int) store.OwedSession {
	out := store.OwedSession{LiveSession: s, Acked: acked}
	for _, m := range rows {
		if m.Pos <= after {
			continue
		}
		if len(out.Rows) >= page {
			break
		}
		_, dead := t.dead.get(t, t.pair(m.ID, s.Agent))
		_, owed := t.owed.get(t, t.pair(s.Agent, m.ID))
		row := store.OwedRow{ID: m.ID, Pos: m.Pos, Skip: dead || owed || m.Author == s.Agent}
		row.Attempts, row.IdleMs = t.tried(m.ID, s.Agent)
		out.Rows = append(out.Rows, row)
	}
	out.Cut = len(out.Rows) >= page
	return out
}

func (t *tx) tried(message, recipient string) (n int, idleMs int64) {
	a, ok := t.attempts.get(t, t.pair(message, recipient))
	if !ok {
		return 0, 0
	}
	return a.n, t.unixMs() - a.lastMs
}

// ChannelContent is store.ChannelContent: content and membership in one statement.
func (c *Client) ChannelContent(ctx context.Context, q store.ContentQuery) (content store.Content, err error) {
	err = c.do(ctx, "read messages of a channel", func(t *tx) error {
		t.about(q.Channel)
		return t.stmt("select content", func() error {
			var ms []store.Message
			t.messages.all(t, func(k key, m messageRow) bool {
				if t.sees(k.tenant) && m.Channel == q.Channel && !m.Held() && slices.Contains(q.Messages, m.ID) {
					ms = append(ms, t.content(m))
				}
				return true
			})
			since := map[string]int64{}
			for _, session := range q.Sessions {
				b, ok := t.bindings.get(t, t.key(session))
				m, member := t.members.get(t, t.pair(q.Channel, b.Agent))
				if ok && b.Live && b.Claimed && member {
					since[session] = m.joinedAt
				}
			}
			content = store.NewContent(ms, since)
			return nil
		})
	})
	return content, err
}

// Placement is store.Placement.
func (c *Client) Placement(ctx context.Context) (p store.Placement, err error) {
	err = c.do(ctx, "read placement", func(t *tx) error {
		return t.stmt("select placement", func() error {
			var ok bool
			p, ok = t.placements.get(t, t.tenant)
			return orNotFound(ok)
		})
	})
	return p, err
}

// refSpan is how far behind the row of a reference its channel's other mentions are looked for.
const refSpan = 1024

// RowTargets is store.RowTargets.
func (c *Client) RowTargets(ctx context.Context, ids []string) (out []store.RowTarget, err error) {
	err = c.do(ctx, "read rows", func(t *tx) error {
		return t.stmt("select rows", func() error {
			t.messages.all(t, func(k key, m messageRow) bool {
				if !t.sees(k.tenant) || !slices.Contains(ids, m.ID) {
					return true
				}
				target := store.RowTarget{ID: m.ID, Channel: m.Channel, Held: m.Held()}
				t.owed.all(t, func(o pair, row owedRow) bool {
					if o.tenant == k.tenant && row.channel == m.Channel && !row.done && row.pos <= m.Pos && row.pos >= m.Pos-refSpan {
						target.Agents = append(target.Agents, o.a)
					}
					return true
				})
				out = append(out, target)
				return true
			})
			return nil
		})
	})
	return out, err
}

// AgentOwed is store.AgentOwed.
func (c *Client) AgentOwed(ctx context.Context, q store.AgentQuery) (v store.AgentView, err error) {
	err = c.do(ctx, "read what an agent is owed", func(t *tx) error {
		t.about(q.Agent)
		return t.stmt("select owed beside", func() error { v = t.agentOwed(q); return nil })
	})
	return v, err
}

func (t *tx) agentOwed(q store.AgentQuery) (v store.AgentView) {
	p, ok := t.placements.get(t, t.tenant)
	a, known := t.accounts.get(t, t.key(q.Agent))
	if !ok || !known || p.Stream != q.Stream {
		return v
	}
	v.Mine, v.Draining, v.Claim = true, p.Draining, p.Claim
	s, ready, live := t.ready(q.Agent)
	if ready {
		v.Session = &s
	}
	v.Wake = !live && a.Wake == store.WakeOnOwed && a.DeletedAtUnixMs == 0
	if p.Draining {
		return v
	}
	t.owed.all(t, func(k pair, o owedRow) bool {
		_, dead := t.dead.get(t, t.pair(k.b, q.Agent))
		if !t.sees(k.tenant) || k.a != q.Agent || o.done || dead && o.kind != store.CommandReplay {
			return true
		}
		row := store.PendingOwed{MessageID: k.b, Channel: o.channel, Pos: o.pos, Kind: o.kind}
		row.Command = live && t.commanded(s.Session, k.b)
		row.Attempts, row.IdleMs = t.tried(k.b, q.Agent)
		v.Pending = append(v.Pending, row)
		return true
	})
	slices.SortFunc(v.Pending, func(a, b store.PendingOwed) int {
		if a.Pos != b.Pos {
			return int(a.Pos - b.Pos)
		}
		return strings.Compare(a.MessageID, b.MessageID)
	})
	v.Pending = v.Pending[:min(len(v.Pending), q.Limit)]
	v.Cut = len(v.Pending) >= q.Limit
	return v
}

// commanded reports whether the session has a command for the message. Called in a statement.
func (t *tx) commanded(session, message string) (found bool) {
	t.commands.all(t, func(k nth, cmd store.SessionCommand) bool {
		found = k.tenant == t.tenant && k.session == session && cmd.MessageID == message
		return !found
	})
	return found
}

// commandPage is how many commands of a session are pushed at once.
const commandPage = 100

// CommandsToPush is store.CommandsToPush.
func (c *Client) CommandsToPush(ctx context.Context, q store.CommandQuery) (out []store.SessionCommand, err error) {
	err = c.do(ctx, "read commands", func(t *tx) error {
		t.about(q.Session)
		return t.stmt("select commands", func() error { out = t.toPush(q); return nil })
	})
	return out, err
}

func (t *tx) toPush(q store.CommandQuery) []store.SessionCommand {
	b, ok := t.bindings.get(t, t.key(q.Session))
	if !ok || !b.Live || !b.Claimed {
		return nil
	}
	out := t.commandsOf(q.Session, func(cmd store.SessionCommand) bool {
		return cmd.MessageID != "" && (q.Messages == nil || slices.Contains(q.Messages, cmd.MessageID))
	})
	return out[:min(len(out), commandPage)]
}

// SessionOwes is store.SessionOwes.
func (c *Client) SessionOwes(ctx context.Context, agent string) (channels []string, err error) {
	err = c.do(ctx, "sweep agent", func(t *tx) error {
		t.about(agent)
		return t.stmt("select channels", func() error { channels = t.behind(agent); return nil })
	})
	return channels, err
}

// behind lists the channels in which an agent is behind the head, those that moved last first. Called in a statement.
func (t *tx) behind(agent string) (channels []string) {
	heads := map[string]int64{}
	t.cursors.all(t, func(k pair, c cursorRow) bool {
		head, _ := t.heads.get(t, key{k.tenant, k.b})
		if k.tenant == t.tenant && k.a == agent && head.lastPos > c.acked {
			channels = append(channels, k.b)
			heads[k.b] = head.lastPos
		}
		return true
	})
	slices.SortStableFunc(channels, func(a, b string) int { return int(heads[b] - heads[a]) })
	return channels
}

// IsOwed is store.IsOwed.
func (c *Client) IsOwed(ctx context.Context, agent string) (owed bool, err error) {
	err = c.do(ctx, "ask what an agent is owed", func(t *tx) error {
		return t.stmt("select owed", func() error {
			t.owed.all(t, func(k pair, o owedRow) bool {
				owed = k.tenant == t.tenant && k.a == agent && !o.done
				return !owed
			})
			for _, channel := range t.behind(agent) {
				m, member := t.members.get(t, t.pair(channel, agent))
				cursor, _ := t.cursors.get(t, t.pair(agent, channel))
				rows := t.owedTo(store.LiveSession{Agent: agent}, cursor.acked, max(cursor.acked, m.joinedAt), t.placedIn(channel), 1<<30).Rows
				owed = owed || member && slices.ContainsFunc(rows, func(r store.OwedRow) bool { return !r.Skip })
			}
			return nil
		})
	})
	return owed, err
}
