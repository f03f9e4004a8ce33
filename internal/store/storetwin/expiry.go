package storetwin

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/rigelbuild/compass-operator/internal/store"
)

// DatabaseIDs is store.DatabaseIDs: the twin is one database.
func (c *Client) DatabaseIDs() []int { return []int{0} }

// PingDatabase is store.PingDatabase.
func (c *Client) PingDatabase(ctx context.Context, _ int) (at time.Time, err error) {
	if c.db.rules.BlindHealth {
		c.db.mu.Lock()
		defer c.db.mu.Unlock()
		return c.db.clock(), nil
	}
	err = c.asLoop(ctx, "ping", func(t *tx) error {
		return t.stmt("select clock", func() error { at = t.clock(); return nil })
	})
	return at, err
}

// OverdueRunners is store.OverdueRunners.
func (c *Client) OverdueRunners(ctx context.Context, _ int) (ids []string, err error) {
	err = c.asLoop(ctx, "list overdue Runners", func(t *tx) error {
		return t.stmt("select leases", func() error {
			t.leases.all(t, func(id string, l runnerLeaseRow) bool {
				if !l.expires.After(t.clock()) && t.hosts(id, l.incarnation) {
					ids = append(ids, id)
				}
				return true
			})
			return nil
		})
	})
	slices.Sort(ids)
	return ids, err
}

// hosts reports whether a Runner's process has live sessions. Called in a statement.
func (t *tx) hosts(runner string, incarnation int64) (found bool) {
	t.bindings.all(t, func(_ key, b bindingRow) bool {
		found = b.Live && b.Runner == runner && b.Incarnation == incarnation
		return !found
	})
	return found
}

// ExpireRunner is store.ExpireRunner: it judges again under the Runner's lock.
func (c *Client) ExpireRunner(ctx context.Context, e store.Expiry) (expired bool, err error) {
	err = c.asLoop(ctx, "expire Runner", func(t *tx) error {
		return t.stmt("raise incarnation", func() error {
			l, ok := t.leases.get(t, e.Runner)
			now := t.clock()
			if !ok || !t.rules.NoRecheck && (l.expires.After(now) || e.Probe.Before(now.Add(-e.Fresh))) {
				return nil
			}
			if l.expires.After(now) {
				t.note(Fact{Kind: FactAlive, By: e.Runner})
			}
			expired = true
			l.incarnation++
			row, known := t.runners.get(t, e.Runner)
			if known {
				l.incarnation = max(l.incarnation, t.number())
				row.Incarnation = l.incarnation
				t.runners.put(t, e.Runner, row)
			}
			t.leases.put(t, e.Runner, l)
			return nil
		}, platformLock("runner", e.Runner), platformLock("runner lease", e.Runner))
	})
	return expired, err
}

// stale reports whether the process that a session was started in is gone. Called in a statement.
func (t *tx) stale(b store.Binding) bool {
	l, ok := t.leases.get(t, b.Runner)
	if t.rules.AnyIncarnate {
		return !ok || !l.expires.After(t.clock())
	}
	return !ok || l.incarnation != b.Incarnation
}

// StaleSessions is store.StaleSessions.
func (c *Client) StaleSessions(ctx context.Context, _ int, runner string) (out []store.TenantSession, err error) {
	err = c.asLoop(ctx, "list stale sessions", func(t *tx) error {
		return t.stmt("select sessions", func() error {
			t.bindings.all(t, func(k key, b bindingRow) bool {
				if b.Live && (runner == "" || b.Runner == runner) && t.stale(b.Binding) {
					out = append(out, store.TenantSession{Tenant: store.TenantID(k.tenant), Session: b.Session})
				}
				return true
			})
			return nil
		})
	})
	sortTenantSessions(out)
	return out, err
}

func sortTenantSessions(out []store.TenantSession) {
	slices.SortFunc(out, func(a, b store.TenantSession) int {
		return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Session, b.Session))
	})
}

// EndStaleSession is store.EndStaleSession.
func (c *Client) EndStaleSession(ctx context.Context, session string) (store.Ended, error) {
	return c.end(ctx, session, store.SettledByExpiry, func(t *tx, b store.Binding) (stale bool, err error) {
		err = t.stmt("is stale", func() error { stale = t.stale(b); return nil })
		return stale, err
	})
}

// OverlongTurns is store.OverlongTurns.
func (c *Client) OverlongTurns(ctx context.Context, _ int, age time.Duration) (out []store.TenantSession, err error) {
	err = c.asLoop(ctx, "list overlong turns", func(t *tx) error {
		return t.stmt("select turns", func() error {
			t.turns.all(t, func(k pair, row turnRow) bool {
				if row.settledBy == "" && row.openedMs < t.unixMs()-age.Milliseconds() {
					out = append(out, store.TenantSession{Tenant: store.TenantID(k.tenant), Session: k.a, Turn: k.b})
				}
				return true
			})
			return nil
		})
	})
	sortTenantSessions(out)
	return out, err
}

// SettleOverlongTurn is store.SettleOverlongTurn.
func (c *Client) SettleOverlongTurn(ctx context.Context, session, turn string, age time.Duration) (touched []store.Touched, err error) {
	err = c.do(ctx, "settle overlong turn", func(t *tx) error {
		if _, err := t.lockBinding(session); err != nil {
			return err
		}
		overlong := false
		err := t.stmt("is overlong", func() error {
			row, ok := t.turns.get(t, t.pair(session, turn))
			overlong = ok && row.settledBy == "" && row.openedMs < t.unixMs()-age.Milliseconds()
			return nil
		})
		if err != nil || !overlong {
			return err
		}
		touched, err = t.settle(session, turn, store.SettledByMaxAge, "")
		return err
	})
	return touched, err
}
