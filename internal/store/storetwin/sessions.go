package storetwin

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rigelbuild/compass-operator/internal/naming"
	"github.com/rigelbuild/compass-operator/internal/store"
)

// IssueRunnerToken is store.IssueRunnerToken.
func (c *Client) IssueRunnerToken(ctx context.Context, hash [32]byte, fleet string) error {
	return c.asLoop(ctx, "issue Runner token", func(t *tx) error {
		return t.stmt("insert token", func() error { t.tokens.put(t, hash, tokenRow{fleet: fleet}); return nil })
	})
}

// EnrollRunner is store.EnrollRunner.
func (c *Client) EnrollRunner(ctx context.Context, e store.Enrolment) (r store.Runner, err error) {
	var refused error
	err = c.asLoop(ctx, "enroll Runner", func(t *tx) error {
		return t.stmt("bind token", func() error {
			token, ok := t.tokens.get(t, e.TokenHash)
			switch {
			case !ok:
				return store.ErrNotFound
			case token.bound != "" && token.bound != e.PublicKey:
				token.disabled = true
				t.tokens.put(t, e.TokenHash, token)
				refused = store.ErrTokenStolen
				return nil
			case token.disabled:
				return store.ErrTokenDisabled
			}
			token.bound = e.PublicKey
			t.tokens.put(t, e.TokenHash, token)
			t.runners.all(t, func(_ string, row runnerRow) bool {
				if row.PublicKey == e.PublicKey {
					r = row.Runner
				}
				return true
			})
			if r.ID == "" {
				r = store.Runner{ID: e.ID, Fleet: token.fleet, PublicKey: e.PublicKey}
				t.runners.put(t, e.ID, runnerRow{r})
			}
			r.Incarnation = 0
			return nil
		})
	})
	return r, orErr(err, refused)
}

// FindRunner is store.FindRunner.
func (c *Client) FindRunner(ctx context.Context, id string) (r store.Runner, err error) {
	err = c.asLoop(ctx, "find Runner", func(t *tx) error {
		return t.stmt("select Runner", func() error {
			row, ok := t.runners.get(t, id)
			r = row.Runner
			return orNotFound(ok)
		})
	})
	return r, err
}

func platformLock(of, id string) want { return want{lockKey{of, "", id, ""}, true} }

// HelloRunner is store.HelloRunner.
func (c *Client) HelloRunner(ctx context.Context, id string, lease time.Duration) (incarnation int64, err error) {
	err = c.asLoop(ctx, "hello", func(t *tx) error {
		return t.stmt("begin incarnation", func() error {
			row, ok := t.runners.get(t, id)
			if !ok {
				return store.ErrNotFound
			}
			row.Incarnation = max(row.Incarnation+1, t.number())
			incarnation = row.Incarnation
			t.runners.put(t, id, row)
			t.leases.put(t, id, runnerLeaseRow{fleet: row.Fleet, incarnation: incarnation, expires: t.clock().Add(lease)})
			return nil
		}, platformLock("runner", id), platformLock("runner lease", id))
	})
	return incarnation, err
}

// StartSession is store.StartSession.
func (c *Client) StartSession(ctx context.Context, n store.NewSession) (started store.Started, err error) {
	err = c.do(ctx, "start session", func(t *tx) (err error) {
		started, err = t.startSession(n)
		return err
	})
	return started, err
}

func (t *tx) startSession(n store.NewSession) (started store.Started, err error) {
	t.about(n.Agent)
	err = t.stmt("lock agent", func() error {
		a, ok := t.accounts.get(t, t.key(n.Agent))
		if err := t.frozen(); err != nil {
			return err
		}
		return orNotFound(ok && a.Kind == store.KindAgent && a.DeletedAtUnixMs == 0)
	}, t.alone("account", n.Agent))
	if err != nil {
		return started, err
	}
	old := ""
	err = t.stmt("select live session", func() error {
		b, ok := t.liveOf(n.Agent)
		if !ok {
			return nil
		}
		l, leased := t.leases.get(t, b.Runner)
		if leased && l.incarnation == b.Incarnation && !n.Replace {
			return &store.LiveSessionError{Session: b.Session}
		}
		old = b.Session
		return nil
	})
	if err != nil {
		return started, err
	}
	runner, incarnation, err := t.pickRunner()
	if err != nil {
		return started, err
	}
	if old != "" {
		if started.Touched, err = t.endSession(old, store.SettledBySessionEnd); err != nil {
			return started, err
		}
	}
	err = t.stmt("bind", func() error {
		p, _ := t.placed.get(t, t.key(n.Agent))
		p = placedRow{runner: runner, session: n.Session, generation: max(p.generation+1, t.number())}
		t.placed.put(t, t.key(n.Agent), p)
		row := bindingRow{store.Binding{
			Session: n.Session, Agent: n.Agent, Runner: runner, Incarnation: incarnation, Generation: p.generation, Live: true,
			BoundAtUnixMs: t.unixMs(),
		}}
		t.bindings.put(t, t.key(n.Session), row)
		t.note(Fact{Kind: FactBound, Agent: n.Agent, Session: n.Session, Pos: p.generation})
		started.Binding = t.binding(row)
		return nil
	})
	return started, err
}

// liveOf finds an agent's live session. Called in a statement.
func (t *tx) liveOf(agent string) (b bindingRow, ok bool) {
	t.bindings.all(t, func(k key, row bindingRow) bool {
		if k.tenant == t.tenant && row.Agent == agent && row.Live {
			b, ok = row, true
		}
		return !ok
	})
	return b, ok
}

// pickRunner chooses the live Runner with the fewest sessions that the tenant may use, and counts the new one.
func (t *tx) pickRunner() (id string, incarnation int64, err error) {
	var found runnerLeaseRow
	err = t.stmt("pick Runner", func() error {
		t.leases.all(t, func(runner string, l runnerLeaseRow) bool {
			usable := (l.fleet == naming.SharedFleet || l.fleet == t.tenant) && l.expires.After(t.clock())
			if usable && (id == "" || l.sessions < found.sessions || l.sessions == found.sessions && runner < id) {
				id, found = runner, l
			}
			return true
		})
		if id == "" {
			return store.ErrNoRunner
		}
		return nil
	})
	if err != nil {
		return "", 0, err
	}
	err = t.stmt("count session", func() error {
		l, _ := t.leases.get(t, id)
		l.sessions++
		incarnation = l.incarnation
		t.leases.put(t, id, l)
		return nil
	}, platformLock("runner lease", id))
	return id, incarnation, err
}

// lockBinding locks a session's row to commit; ErrNotFound where the tenant has no such session.
func (t *tx) lockBinding(session string) (b store.Binding, err error) {
	t.about(session)
	err = t.stmt("lock binding", func() error {
		row, ok := t.bindings.get(t, t.key(session))
		b = t.binding(row)
		return orNotFound(ok)
	}, t.alone("binding", session))
	return b, err
}

// endSession ends a session; one that is over stays as it is.
func (t *tx) endSession(session, by string) ([]store.Touched, error) {
	b, err := t.lockBinding(session)
	if err != nil || !b.Live {
		return nil, err
	}
	return t.endBinding(session, by)
}

// endBinding is endSession for a binding that the caller has locked and found live.
func (t *tx) endBinding(session, by string) ([]store.Touched, error) {
	touched, err := t.settleOthers(session, "", by)
	if err != nil {
		return nil, err
	}
	return touched, t.stmt("end session", func() error {
		t.commands.all(t, func(k nth, _ store.SessionCommand) bool {
			if k.tenant == t.tenant && k.session == session {
				t.commands.del(t, k)
			}
			return true
		})
		t.note(Fact{Kind: FactEnded, Session: session, By: by})
		row, _ := t.bindings.get(t, t.key(session))
		row.Live, row.OpenTurn = false, ""
		t.bindings.put(t, t.key(session), row)
		return nil
	})
}

// end locks a binding, asks judge whether it is to end, and ends it.
func (c *Client) end(ctx context.Context, session, by string, judge func(t *tx, b store.Binding) (bool, error)) (ended store.Ended, err error) {
	err = c.do(ctx, "end session", func(t *tx) error {
		b, err := t.lockBinding(session)
		if err != nil {
			return err
		}
		ended = store.Ended{Binding: b, Was: b.Live}
		if !b.Live {
			return nil
		}
		if ended.Was, err = judge(t, b); err != nil || !ended.Was {
			return err
		}
		ended.Touched, err = t.endBinding(session, by)
		return err
	})
	if err != nil {
		return store.Ended{}, err
	}
	return ended, nil
}

// StopSession is store.StopSession.
func (c *Client) StopSession(ctx context.Context, session string) (store.Ended, error) {
	return c.end(ctx, session, store.SettledBySessionEnd, func(*tx, store.Binding) (bool, error) { return true, nil })
}

// EndSession is store.EndSession.
func (c *Client) EndSession(ctx context.Context, e store.Event) (ended store.Ended, err error) {
	err = c.do(ctx, "end session", func(t *tx) error {
		b, duplicate, err := t.takeEvent(e)
		switch {
		case is(err, store.ErrStale):
			return t.overAlready(e, err)
		case err != nil || duplicate:
			return err
		}
		ended = store.Ended{Binding: b, Was: true}
		ended.Touched, err = t.endBinding(e.Session, store.SettledBySessionEnd)
		return err
	})
	if err != nil {
		return store.Ended{}, err
	}
	return ended, nil
}

func (t *tx) overAlready(e store.Event, refusal error) error {
	b, err := t.lockBinding(e.Session)
	if is(err, store.ErrNotFound) {
		return refusal
	}
	if err == nil && (b.Live || b.Runner != e.Runner || b.Generation != e.Generation) {
		return refusal
	}
	return err
}

// ClaimStart is store.ClaimStart; the twin has no pins.
func (c *Client) ClaimStart(ctx context.Context, q store.Claim) (claimed store.Claimed, err error) {
	err = c.do(ctx, "claim session", func(t *tx) error {
		return t.stmt("claim", func() error {
			row, ok := t.bindings.get(t, t.key(q.Session))
			l, leased := t.leases.get(t, row.Runner)
			if !ok || !row.Live || row.Generation != q.Generation || row.Runner != q.Runner || row.Incarnation != q.Incarnation ||
				!leased || l.incarnation != row.Incarnation {
				return store.ErrStale
			}
			row.Claimed, row.ClaimCounter = true, max(row.ClaimCounter, q.Counter)
			t.bindings.put(t, t.key(q.Session), row)
			agent, _ := t.accounts.get(t, t.key(row.Agent))
			claimed = store.Claimed{Binding: t.binding(row), Handle: agent.Handle}
			return nil
		}, t.alone("binding", q.Session))
	})
	return claimed, err
}

// LiveAgentSessions is store.LiveAgentSessions.
func (c *Client) LiveAgentSessions(ctx context.Context) ([]store.Binding, error) {
	return c.listSessions(ctx, func(b store.Binding) bool { return b.Live })
}

// ListSessions is store.ListSessions.
func (c *Client) ListSessions(ctx context.Context, limit int) ([]store.Binding, error) {
	all, err := c.listSessions(ctx, func(store.Binding) bool { return true })
	slices.Reverse(all)
	return all[:min(limit, len(all))], err
}

func (c *Client) listSessions(ctx context.Context, want func(store.Binding) bool) (out []store.Binding, err error) {
	err = c.do(ctx, "list sessions", func(t *tx) error {
		return t.stmt("select sessions", func() error {
			t.bindings.all(t, func(k key, row bindingRow) bool {
				if t.sees(k.tenant) && want(row.Binding) {
					out = append(out, t.binding(row))
				}
				return true
			})
			return nil
		})
	})
	slices.SortFunc(out, func(a, b store.Binding) int { return strings.Compare(a.Session, b.Session) })
	return out, err
}

// Session is store.Session.
func (c *Client) Session(ctx context.Context, session string) (b store.Binding, err error) {
	err = c.do(ctx, "read session", func(t *tx) error {
		return t.stmt("select session", func() error {
			row, ok := t.bindings.get(t, t.key(session))
			b = t.binding(row)
			return orNotFound(ok)
		})
	})
	return b, err
}

// Steer is store.Steer.
func (c *Client) Steer(ctx context.Context, session, text string) (cmd store.SessionCommand, b store.Binding, err error) {
	err = c.do(ctx, "steer", func(t *tx) error {
		if b, err = t.lockBinding(session); err != nil {
			return err
		}
		if !b.Live {
			return fmt.Errorf("%w: the session is over", store.ErrPrecondition)
		}
		return t.stmt("insert command", func() error {
			row, _ := t.bindings.get(t, t.key(session))
			cmd = store.SessionCommand{N: t.commandNumber(row.LastCommand), Prev: row.LastCommand, Kind: store.CommandSteer, Text: text}
			row.LastCommand = cmd.N
			t.bindings.put(t, t.key(session), row)
			t.commands.put(t, nth{t.tenant, session, cmd.N}, cmd)
			return nil
		})
	})
	return cmd, b, err
}

// commandNumber follows the last one, by the clock, so that a failover which forgets it does not give it away again.
func (t *tx) commandNumber(last int64) int64 {
	if t.rules.CountCommands {
		return last + 1
	}
	return max(last+1, t.number())
}
