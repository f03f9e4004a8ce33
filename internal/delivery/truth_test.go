package delivery

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/rigelbuild/compass-operator/internal/store"
)

// truth is what Postgres would hold, for tests: it answers a worker's questions from state, as the statements do.
type truth struct {
	mu       sync.Mutex
	last     int64 // newest number given out
	places   map[store.TenantID]*store.Placement
	channels map[string]*channelRow
	sessions map[string]*sessionRow // by agent
	messages map[string]*messageRow
	owed     map[string]map[string]*owedRowT // agent → message
	commands map[string][]store.SessionCommand
	attempts map[store.Delivery]int
	tried    map[store.Delivery]time.Time
	dead     map[store.Delivery]*store.Parked
	wakers   map[string]bool // agents that wish to be woken
	unrouted map[store.TenantID][]string
	fence    store.Fence // the current one
	drained  map[store.TenantID]int64

	log     []string                               // questions, in order
	down    map[int]error                          // database → what every question gets
	onRead  func(message string) error             // before a message's content is read
	onOwed  func()                                 // after a channel's list was read
	onWrite func(ctx context.Context, what string) // before a write
}

type channelRow struct {
	tenant  store.TenantID
	members map[string]int64 // agent → joined at
	acked   map[string]int64
	lastPos int64
	order   []string // messages
}

type sessionRow struct {
	store.LiveSession
	tenant  store.TenantID
	claimed bool
	live    bool
}

type messageRow struct {
	store.Message
	tenant store.TenantID
}

type owedRowT struct {
	store.PendingOwed
	tenant store.TenantID
	done   bool
}

const acme, beta = store.TenantID("t_00000000000000000000000001"), store.TenantID("t_00000000000000000000000002")

func newTruth() *truth {
	return &truth{
		last: 1000, places: map[store.TenantID]*store.Placement{}, channels: map[string]*channelRow{},
		sessions: map[string]*sessionRow{}, messages: map[string]*messageRow{}, owed: map[string]map[string]*owedRowT{},
		commands: map[string][]store.SessionCommand{}, attempts: map[store.Delivery]int{}, tried: map[store.Delivery]time.Time{}, dead: map[store.Delivery]*store.Parked{},
		wakers: map[string]bool{}, unrouted: map[store.TenantID][]string{}, drained: map[store.TenantID]int64{}, down: map[int]error{},
		fence: store.Fence{Stream: "main", Epoch: 500, Nonce: "n"},
	}
}

func (tr *truth) number() int64 { tr.last++; return tr.last }

func (tr *truth) tenant(id store.TenantID, claim int64) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.places[id] = &store.Placement{Stream: "main", Claim: claim}
}

func (tr *truth) channel(t store.TenantID, id string, agents ...string) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	c := &channelRow{tenant: t, members: map[string]int64{}, acked: map[string]int64{}}
	for _, a := range agents {
		c.members[a], c.acked[a] = 0, 0
	}
	tr.channels[id] = c
}

func (tr *truth) join(channel, agent string) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	c := tr.channels[channel]
	c.members[agent] = c.lastPos
	c.acked[agent] = max(c.acked[agent], c.lastPos)
}

func (tr *truth) leave(channel, agent string) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	delete(tr.channels[channel].members, agent)
}

func (tr *truth) start(t store.TenantID, agent, runner string) store.LiveSession {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	n := tr.number()
	s := store.LiveSession{Session: fmt.Sprintf("ses_%s_%d", agent, n), Generation: n, Agent: agent, Runner: runner, Fleet: "shared"}
	tr.sessions[agent] = &sessionRow{LiveSession: s, tenant: t, claimed: true, live: true}
	return s
}

func (tr *truth) end(agent string) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.sessions[agent].live = false
}

// mid makes message ids that are valid and sort by n.
func mid(n int64) string { return fmt.Sprintf("m_%026d", n) }

func (tr *truth) post(channel, author string, mentions ...string) store.Message {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return tr.put(channel, author, false, mentions)
}

func (tr *truth) hold(channel, author string) store.Message {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return tr.put(channel, author, true, nil)
}

func (tr *truth) put(channel, author string, held bool, mentions []string) store.Message {
	c := tr.channels[channel]
	n := tr.number()
	m := &messageRow{tenant: c.tenant, Message: store.Message{ID: mid(n), Channel: channel, Author: author, Seq: n,
		Kind: store.KindMessage, Blocks: []store.Block{store.Text(fmt.Sprint("text ", n))}}}
	tr.messages[m.ID] = m
	c.order = append(c.order, m.ID)
	if !held {
		m.Pos, c.lastPos = n, n
	}
	for _, agent := range mentions {
		tr.owe(agent, m, store.CommandMention)
	}
	return m.Message
}

func (tr *truth) owe(agent string, m *messageRow, kind store.CommandKind) {
	if tr.owed[agent] == nil {
		tr.owed[agent] = map[string]*owedRowT{}
	}
	tr.owed[agent][m.ID] = &owedRowT{tenant: m.tenant, PendingOwed: store.PendingOwed{
		MessageID: m.ID, Channel: m.Channel, Pos: m.Pos, Kind: kind}}
}

func (tr *truth) settle(ids ...string) store.Message {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	var last store.Message
	for _, id := range ids {
		m := tr.messages[id]
		m.Pos = tr.number()
		tr.channels[m.Channel].lastPos = m.Pos
		last = m.Message
	}
	return last
}

func (tr *truth) ack(agent, channel string, pos int64) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	c := tr.channels[channel]
	c.acked[agent] = max(c.acked[agent], pos)
}

func (tr *truth) agentOf(session string) string {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	for _, s := range tr.sessions {
		if s.Session == session {
			return s.Agent
		}
	}
	return ""
}

func (tr *truth) ackCommand(session string, n int64) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.commands[session] = slices.DeleteFunc(tr.commands[session], func(c store.SessionCommand) bool {
		if c.N == n {
			for _, s := range tr.sessions {
				if s.Session == session && tr.owed[s.Agent][c.MessageID] != nil {
					tr.owed[s.Agent][c.MessageID].done = true
				}
			}
		}
		return c.N == n
	})
}

func (tr *truth) note(ctx context.Context, what string) (store.TenantID, error) {
	t, _ := store.TenantFromContext(ctx)
	tr.log = append(tr.log, what)
	db := 0
	if p := tr.places[t]; p != nil {
		db = p.Database
	}
	return t, tr.down[db]
}

func (tr *truth) ready(agent string) *sessionRow {
	if s := tr.sessions[agent]; s != nil && s.live && s.claimed {
		return s
	}
	return nil
}

// Reads.

func (tr *truth) Placement(ctx context.Context) (store.Placement, error) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	t, err := tr.note(ctx, "placement")
	if err != nil {
		return store.Placement{}, err
	}
	if p := tr.places[t]; p != nil {
		return *p, nil
	}
	return store.Placement{}, store.ErrNotFound
}

func (tr *truth) RowTargets(ctx context.Context, ids []string) ([]store.RowTarget, error) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	t, err := tr.note(ctx, "targets")
	var out []store.RowTarget
	for _, id := range ids {
		m := tr.messages[id]
		if m == nil || m.tenant != t || err != nil {
			continue
		}
		target := store.RowTarget{ID: id, Channel: m.Channel, Held: m.Held()}
		for agent, rows := range tr.owed {
			if o := rows[id]; o != nil && !o.done {
				target.Agents = append(target.Agents, agent)
			}
		}
		out = append(out, target)
	}
	return out, err
}

func (tr *truth) ChannelOwed(ctx context.Context, q store.ChannelQuery) (store.ChannelView, error) {
	tr.mu.Lock()
	t, err := tr.note(ctx, "owed")
	v := store.ChannelView{}
	p, c := tr.places[t], tr.channels[q.Channel]
	if err == nil && p != nil && p.Stream == q.Stream {
		v.Mine, v.Draining, v.Claim = true, p.Draining, p.Claim
		if c != nil && c.tenant == t && !p.Draining {
			tr.list(&v, c, q)
		}
	}
	hook := tr.onOwed
	tr.mu.Unlock()
	if hook != nil && err == nil {
		hook()
	}
	return v, err
}

func (tr *truth) list(v *store.ChannelView, c *channelRow, q store.ChannelQuery) {
	v.Head = c.lastPos
	agents := make([]string, 0, len(c.members))
	for a := range c.members {
		agents = append(agents, a)
	}
	slices.Sort(agents)
	for _, a := range agents {
		if c.acked[a] >= c.lastPos {
			continue
		}
		s := tr.ready(a)
		if s == nil {
			if tr.wakers[a] && (tr.sessions[a] == nil || !tr.sessions[a].live) {
				v.Asleep = append(v.Asleep, a)
			}
			continue
		}
		o := store.OwedSession{LiveSession: s.LiveSession, Acked: c.acked[a]}
		after := max(c.acked[a], c.members[a], q.Passed[s.Session])
		for _, m := range tr.inOrder(c) {
			if m.Pos <= after || len(o.Rows) >= q.Page {
				continue
			}
			d := store.Delivery{MessageID: m.ID, Recipient: a, Channel: m.Channel, Pos: m.Pos}
			o.Rows = append(o.Rows, store.OwedRow{ID: m.ID, Pos: m.Pos, Attempts: tr.attempts[d], IdleMs: tr.idle(d),
				Skip: m.Author == a || tr.dead[d] != nil || tr.owed[a][m.ID] != nil})
		}
		o.Cut = len(o.Rows) >= q.Page
		v.Sessions = append(v.Sessions, o)
	}
}

func (tr *truth) idle(d store.Delivery) int64 { return time.Since(tr.tried[d]).Milliseconds() }

func (tr *truth) inOrder(c *channelRow) []store.Message {
	var out []store.Message
	for _, id := range c.order {
		if m := tr.messages[id]; m != nil && !m.Held() {
			out = append(out, m.Message)
		}
	}
	slices.SortFunc(out, func(a, b store.Message) int { return int(a.Pos - b.Pos) })
	return out
}

// read is what reading these rows does to who reads them.
func (tr *truth) read(messages []string) error {
	tr.mu.Lock()
	hook := tr.onRead
	tr.mu.Unlock()
	if hook == nil {
		return nil
	}
	for _, id := range messages {
		if err := hook(id); err != nil {
			return err
		}
	}
	return nil
}

func (tr *truth) ChannelContent(ctx context.Context, q store.ContentQuery) (store.Content, error) {
	if err := tr.read(q.Messages); err != nil {
		return store.Content{}, err
	}
	tr.mu.Lock()
	defer tr.mu.Unlock()
	t, err := tr.note(ctx, "content")
	if err != nil {
		return store.Content{}, err
	}
	var ms []store.Message
	for _, id := range q.Messages {
		if m := tr.messages[id]; m != nil && m.tenant == t && !m.Held() {
			ms = append(ms, m.Message)
		}
	}
	since := map[string]int64{}
	for _, s := range tr.sessions {
		if at, member := tr.channels[q.Channel].members[s.Agent]; member && s.live && slices.Contains(q.Sessions, s.Session) {
			since[s.Session] = at
		}
	}
	return store.NewContent(ms, since), nil
}

func (tr *truth) AgentOwed(ctx context.Context, q store.AgentQuery) (store.AgentView, error) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	t, err := tr.note(ctx, "agent")
	v := store.AgentView{}
	p := tr.places[t]
	if err != nil || p == nil || p.Stream != q.Stream {
		return v, err
	}
	v.Mine, v.Draining, v.Claim = true, p.Draining, p.Claim
	if s := tr.ready(q.Agent); s != nil {
		live := s.LiveSession
		v.Session = &live
	} else if tr.sessions[q.Agent] == nil || !tr.sessions[q.Agent].live {
		v.Wake = tr.wakers[q.Agent]
	}
	for _, o := range tr.owed[q.Agent] {
		d := store.Delivery{MessageID: o.MessageID, Recipient: q.Agent, Channel: o.Channel, Pos: o.Pos}
		if o.done || p.Draining || tr.dead[d] != nil && o.Kind != store.CommandReplay {
			continue
		}
		row := o.PendingOwed
		row.Attempts, row.IdleMs = tr.attempts[d], tr.idle(d)
		if v.Session != nil {
			row.Command = slices.ContainsFunc(tr.commands[v.Session.Session], func(c store.SessionCommand) bool { return c.MessageID == o.MessageID })
		}
		v.Pending = append(v.Pending, row)
	}
	slices.SortFunc(v.Pending, func(a, b store.PendingOwed) int { return int(a.Pos - b.Pos) })
	return v, nil
}

func (tr *truth) CommandsToPush(ctx context.Context, q store.CommandQuery) ([]store.SessionCommand, error) {
	if err := tr.read(q.Messages); err != nil {
		return nil, err
	}
	tr.mu.Lock()
	defer tr.mu.Unlock()
	if _, err := tr.note(ctx, "commands"); err != nil {
		return nil, err
	}
	return tr.toPush(q)
}

func (tr *truth) toPush(q store.CommandQuery) ([]store.SessionCommand, error) {
	var out []store.SessionCommand
	for _, c := range tr.commands[q.Session] {
		if q.Messages == nil || slices.Contains(q.Messages, c.MessageID) {
			m := tr.messages[c.MessageID].Message
			c.Message = &m
			out = append(out, c)
		}
	}
	return out, nil
}

func (tr *truth) SessionOwes(ctx context.Context, agent string) ([]string, error) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	_, err := tr.note(ctx, "session")
	var out []string
	for id, c := range tr.channels {
		if _, member := c.members[agent]; member && c.acked[agent] < c.lastPos {
			out = append(out, id)
		}
	}
	slices.Sort(out)
	return out, err
}

func (tr *truth) IsOwed(ctx context.Context, agent string) (bool, error) {
	channels, err := tr.SessionOwes(ctx, agent)
	tr.mu.Lock()
	defer tr.mu.Unlock()
	pending := false
	for _, o := range tr.owed[agent] {
		pending = pending || !o.done
	}
	return len(channels) > 0 || pending, err
}
