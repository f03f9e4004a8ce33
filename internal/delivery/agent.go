package delivery

import (
	"context"
	"sync"
	"time"

	compassv1 "github.com/rigelbuild/compass-operator/api/proto/compass/v1"
	"github.com/rigelbuild/compass-operator/internal/store"
	"github.com/rigelbuild/compass-operator/internal/wire"
)

// What is owed beside the chain, a mention, an answer, a replay, becomes a numbered command of the agent's session and is
// pushed. The push is a hint of the row: the Runner applies it where it follows what it applied last, else it fetches
// (CmdChain). Commands do not count in a chain's window: an agent in a turn consumes nothing, the window fills, and the
// answer that it waits for would be behind it.

// steers remember what was pushed, so that duplicates do not feed on each other (AckOnce). By agent.
type steers struct {
	mu     sync.Mutex
	agents map[item]*pushed
}

// pushed is what one session was given, and when. Its agent's worker owns it, but for stale.
type pushed struct {
	session string
	at      map[int64]time.Time
	fails   int  // pushes in a row that reached nobody
	stale   bool // under steers.mu: all of it was refused or lost
}

func (s *steers) open(it item, session string) *pushed {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.agents[it]
	if p == nil || p.session != session || p.stale {
		p = &pushed{session: session, at: map[int64]time.Time{}}
		if s.agents == nil {
			s.agents = map[item]*pushed{}
		}
		s.agents[it] = p
	}
	return p
}

func (s *steers) close(it item) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.agents, it)
}

// forget lets everything be pushed again that a session was given.
func (s *steers) forget(tenant store.TenantID, session string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for it, p := range s.agents {
		if it.tenant == tenant && p.session == session {
			p.stale = true
		}
	}
}

// drainAgent makes commands of what is owed to an agent beside the chain, and pushes them.
func (c *Consumer) drainAgent(ctx context.Context, t *tenant, w work) error {
	var view store.AgentView
	err := c.step(ctx, func(ctx context.Context) (err error) {
		view, err = c.reads.AgentOwed(ctx, store.AgentQuery{Stream: c.o.Stream, Agent: w.id, Limit: agentPage})
		return err
	})
	switch {
	case err != nil:
		return err
	case !view.Mine || view.Draining:
		c.steers.close(w.item)
		return c.notToSend(t, view.Mine, view.Draining)
	case view.Session == nil || len(view.Pending) == 0:
		c.steers.close(w.item)
		if view.Wake && len(view.Pending) > 0 {
			c.wake(ctx, t, w.id)
		}
		c.swept(t, w.item)
		return nil
	}
	if again, err := c.raise(ctx, t, view.Claim); again || err != nil {
		c.dirty.add(w.item, whyRead)
		return err
	}
	if until := t.asideUntil(view.Session.Runner, c.clock.Now()); !until.IsZero() {
		c.later.at(w.item, whyRead, until)
		return nil
	}
	s := &steer{Consumer: c, tenant: t, item: w.item, view: view, to: *view.Session, pushed: c.steers.open(w.item, view.Session.Session)}
	return s.run(ctx)
}

// steer is one look at one agent.
type steer struct {
	*Consumer
	tenant *tenant
	item   item
	view   store.AgentView
	to     store.LiveSession
	pushed *pushed
}

func (s *steer) run(ctx context.Context) error {
	fresh, due, waits, err := s.sort(ctx)
	if err != nil {
		return err
	}
	var reached bool
	if s.mustBeCareful(s.tenant, s.item) {
		reached, err = s.carefully(ctx, fresh, due)
	} else {
		reached, err = s.pushAll(ctx, fresh, due)
	}
	if err != nil {
		return err
	}
	if !reached {
		s.later.at(s.item, whyRead, s.clock.Now().Add(retryAfter(s.pushed.fails)))
		s.pushed.fails++
		return nil
	}
	s.pushed.fails = 0
	if s.view.Cut && len(fresh) > 0 { // those that have a command now make room for the next
		s.dirty.add(s.item, whyRead)
	}
	if !waits {
		s.swept(s.tenant, s.item)
	}
	s.later.at(s.item, whyRead, s.clock.Now().Add(s.o.AckWait))
	return nil
}

// sort tells what needs a command from what only needs to be pushed again, and sets aside what has used its attempts up.
func (s *steer) sort(ctx context.Context) (fresh, due []store.PendingOwed, waits bool, err error) {
	now := s.clock.Now()
	for _, p := range s.view.Pending {
		left := s.pauseAfter(s.tenant, p.Attempts, p.IdleMs)
		switch {
		case p.Attempts >= s.o.MaxDeliver:
			if err := s.setAside(ctx, s.tenant, s.delivery(p), store.ReasonWorkerDied); err != nil {
				return nil, nil, false, err
			}
		case p.Attempts > 0 && left > 0: // the others do not wait: order is that of numbers, and it has none yet
			waits = true
			s.later.at(s.item, whyRead, now.Add(left))
		case !p.Command:
			fresh = append(fresh, p)
		default:
			due = append(due, p)
		}
	}
	return fresh, due, waits, nil
}

func (s *steer) delivery(p store.PendingOwed) store.Delivery {
	return store.Delivery{MessageID: p.MessageID, Recipient: s.item.id, Channel: p.Channel, Pos: p.Pos}
}

// pushAll numbers what is fresh and pushes what was not pushed lately, in one round trip.
func (s *steer) pushAll(ctx context.Context, fresh, due []store.PendingOwed) (reached bool, err error) {
	var commands []store.SessionCommand
	switch {
	case len(fresh) > 0:
		commands, err = s.number(ctx, fresh, false)
	case s.anyDue(len(due)):
		err = s.step(ctx, func(ctx context.Context) error {
			commands, err = s.reads.CommandsToPush(ctx, store.CommandQuery{Session: s.to.Session})
			return err
		})
	}
	if err != nil {
		return false, err
	}
	return s.push(ctx, commands)
}

// anyDue reports whether something was not pushed within AckWait. n is how many pending rows have a command.
func (s *steer) anyDue(n int) bool {
	now := s.clock.Now()
	lately := 0
	for _, at := range s.pushed.at {
		if at.Add(s.o.AckWait).After(now) {
			lately++
		}
	}
	return lately < n
}

func (s *steer) number(ctx context.Context, fresh []store.PendingOwed, blind bool) (commands []store.SessionCommand, err error) {
	fence, err := s.fence(s.tenant)
	if err != nil {
		return nil, err
	}
	n := store.NewCommands{Agent: s.item.id, Session: s.to.Session, Blind: blind}
	for _, p := range fresh {
		n.Messages = append(n.Messages, p.MessageID)
	}
	err = s.step(ctx, func(ctx context.Context) error {
		commands, err = s.writes.AppendCommands(ctx, fence, n)
		return err
	})
	return commands, err
}

// carefully numbers without reading, then reads and pushes row by row, each with its attempt written first.
func (s *steer) carefully(ctx context.Context, fresh, due []store.PendingOwed) (reached bool, err error) {
	if len(fresh) > 0 {
		if _, err := s.number(ctx, fresh, true); err != nil {
			return false, err
		}
	}
	for _, p := range append(fresh, due...) {
		var commands []store.SessionCommand
		err = s.attempt(ctx, s.tenant, s.delivery(p), p.Attempts > 0, func(ctx context.Context) (err error) {
			commands, err = s.reads.CommandsToPush(ctx, store.CommandQuery{Session: s.to.Session, Messages: []string{p.MessageID}})
			return err
		})
		if err == nil {
			reached, err = s.push(ctx, commands)
		}
		if err != nil || !reached {
			return false, err
		}
	}
	return true, nil
}

// push sends commands that were not sent within AckWait, in order, until one reaches nobody. Whether they were taken is in
// the row: the ack deletes it.
func (s *steer) push(ctx context.Context, commands []store.SessionCommand) (reached bool, err error) {
	now := s.clock.Now()
	for n, at := range s.pushed.at {
		if !at.Add(s.o.AckWait).After(now) {
			delete(s.pushed.at, n)
		}
	}
	for _, cmd := range commands {
		if _, lately := s.pushed.at[cmd.N]; lately {
			continue
		}
		out := s.command(s.tenant, s.to, s.view.Claim)
		out.Kind = &compassv1.Command_Command{Command: commandOf(cmd)}
		if reached, err := s.send(ctx, s.tenant, s.to, out); !reached {
			return false, err
		}
		count(ctx, s.in.sent, 1, "kind", string(cmd.Kind))
		s.pushed.at[cmd.N] = now
	}
	return true, nil
}

func commandOf(c store.SessionCommand) *compassv1.SessionCommand {
	out := &compassv1.SessionCommand{N: c.N, Prev: c.Prev, Text: c.Text}
	switch c.Kind {
	case store.CommandSteer:
		out.Kind = compassv1.SessionCommandKind_SESSION_COMMAND_KIND_STEER
	case store.CommandMention:
		out.Kind = compassv1.SessionCommandKind_SESSION_COMMAND_KIND_MENTION
	case store.CommandAnswer:
		out.Kind = compassv1.SessionCommandKind_SESSION_COMMAND_KIND_ANSWER
	case store.CommandReplay:
		out.Kind = compassv1.SessionCommandKind_SESSION_COMMAND_KIND_REPLAY
	}
	if c.Message != nil {
		out.Message = wire.Message(*c.Message)
	}
	return out
}
