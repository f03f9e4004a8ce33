package storetwin

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/rigelbuild/compass-operator/internal/naming"
	"github.com/rigelbuild/compass-operator/internal/store"
)

// maxUnacked bounds how many unacknowledged commands of a session one answer names.
const maxUnacked = 50

type sessionKey struct {
	session    string
	generation int64
}

// Heartbeat is store.Heartbeat.
func (c *Client) Heartbeat(ctx context.Context, h store.Heartbeat) (store.HeartbeatAnswer, error) {
	alive, lapsed := false, false
	err := c.asLoop(ctx, "renew Runner", func(t *tx) error {
		return t.stmt("renew lease", func() error {
			l, ok := t.leases.get(t, h.Runner)
			if alive = ok && l.incarnation == h.Incarnation; alive {
				lapsed = !l.expires.After(t.clock())
				l.expires, l.sessions = t.clock().Add(h.Lease), len(h.Sessions)
				t.leases.put(t, h.Runner, l)
			}
			return nil
		}, platformLock("runner lease", h.Runner))
	})
	if err != nil {
		return store.HeartbeatAnswer{}, err
	}
	if !alive {
		return store.HeartbeatAnswer{Expired: true}, nil
	}
	answer := store.HeartbeatAnswer{Skipped: map[store.TenantID]error{}}
	listed := map[store.TenantID]map[sessionKey]store.SessionState{}
	for _, st := range h.Sessions {
		tenant, _, err := naming.ParseSession(st.Session)
		if err != nil {
			answer.Orders = append(answer.Orders, store.SessionOrders{Session: st.Session, Generation: st.Generation, Stop: true})
			continue
		}
		id := store.TenantID(tenant)
		if listed[id] == nil {
			listed[id] = map[sessionKey]store.SessionState{}
		}
		listed[id][sessionKey{st.Session, st.Generation}] = st
	}
	c.findTenants(ctx, h.Runner, listed, &answer)
	for _, tenant := range slices.Sorted(maps.Keys(listed)) {
		if err := c.heal(store.WithTenant(ctx, tenant), tenant, h, lapsed, listed[tenant], &answer); err != nil {
			answer.Skipped[tenant] = err
		}
	}
	slices.SortFunc(answer.Orders, func(a, b store.SessionOrders) int { return strings.Compare(a.Session, b.Session) })
	return answer, nil
}

// findTenants adds the tenants whose sessions the Runner hosts and did not list.
func (c *Client) findTenants(
	ctx context.Context, runner string, listed map[store.TenantID]map[sessionKey]store.SessionState, answer *store.HeartbeatAnswer,
) {
	err := c.asLoop(ctx, "find tenants of Runner", func(t *tx) error {
		return t.stmt("select tenants", func() error {
			t.bindings.all(t, func(k key, b bindingRow) bool {
				if id := store.TenantID(k.tenant); b.Live && b.Runner == runner && listed[id] == nil {
					listed[id] = nil
				}
				return true
			})
			return nil
		})
	})
	if err != nil {
		answer.Skipped["database 0"] = err
	}
}

// heal compares one tenant's bindings with what the Runner said, and writes where they differ.
func (c *Client) heal(
	ctx context.Context, tenant store.TenantID, h store.Heartbeat, lapsed bool, listed map[sessionKey]store.SessionState,
	answer *store.HeartbeatAnswer,
) error {
	bindings, unacked, err := c.sessionsOf(ctx, h.Runner)
	if err != nil {
		return err
	}
	running := map[sessionKey]bool{}
	for _, b := range bindings {
		if b.Incarnation != h.Incarnation {
			continue
		}
		at := sessionKey{b.Session, b.Generation}
		state, isListed := listed[at]
		over := false
		v := c.judge(h, b, state, isListed)
		if v != (verdict{}) {
			ended, err := c.heardOf(ctx, b.Session, h, state, isListed)
			if err != nil {
				return err
			}
			over = ended.Was || !ended.Binding.Live
			if ended.Was || len(ended.Touched) > 0 {
				answer.Healed = append(answer.Healed, store.TenantEnded{Tenant: tenant, Ended: ended})
			}
		}
		if over {
			continue
		}
		running[at] = true
		if lapsed || v.claim {
			answer.Back = append(answer.Back, store.TenantAgent{Tenant: tenant, Agent: b.Agent})
		}
		o := store.SessionOrders{Session: b.Session, Generation: b.Generation, Start: !b.Claimed && !isListed}
		if !c.db.rules.SilentHeads {
			o.NewestCommand, o.Unacked = b.LastCommand, unacked[b.Session]
		}
		answer.Orders = append(answer.Orders, o)
	}
	for _, at := range slices.SortedFunc(maps.Keys(listed), func(a, b sessionKey) int { return strings.Compare(a.session, b.session) }) {
		if !running[at] {
			answer.Orders = append(answer.Orders, store.SessionOrders{Session: at.session, Generation: at.generation, Stop: true})
		}
	}
	return nil
}

func (c *Client) sessionsOf(ctx context.Context, runner string) (bindings []store.Binding, unacked map[string][]store.SessionCommand, err error) {
	unacked = map[string][]store.SessionCommand{}
	err = c.do(ctx, "read sessions of Runner", func(t *tx) error {
		err := t.stmt("select sessions", func() error {
			t.bindings.all(t, func(k key, b bindingRow) bool {
				if k.tenant == t.tenant && b.Live && b.Runner == runner {
					bindings = append(bindings, t.binding(b))
				}
				return true
			})
			slices.SortFunc(bindings, func(a, b store.Binding) int { return strings.Compare(a.Session, b.Session) })
			return nil
		})
		if err != nil {
			return err
		}
		return t.stmt("select unacked commands", func() error {
			for _, b := range bindings {
				for _, cmd := range t.commandsOf(b.Session, func(store.SessionCommand) bool { return true }) {
					cmd.Message, cmd.Text = nil, ""
					if len(unacked[b.Session]) < maxUnacked {
						unacked[b.Session] = append(unacked[b.Session], cmd)
					}
				}
			}
			return nil
		})
	})
	return bindings, unacked, err
}

// verdict is what one heartbeat makes of one live binding of the Runner and its incarnation.
type verdict struct{ end, claim, settle bool }

func (c *Client) judge(h store.Heartbeat, b store.Binding, state store.SessionState, listed bool) verdict {
	rules := c.db.rules
	switch {
	case !listed:
		return verdict{end: b.Claimed && (h.Counter > b.ClaimCounter || rules.HbAnyOrder)}
	case state.Over:
		return verdict{end: true}
	}
	return verdict{
		claim:  !b.Claimed && !rules.HbNoClaims,
		settle: (state.N >= b.LastN || rules.HbAnyOrder) && b.OpenTurn != "" && b.OpenTurn != state.OpenTurn,
	}
}

// heardOf applies the verdict under the binding's lock, by the row as it is then.
func (c *Client) heardOf(ctx context.Context, session string, h store.Heartbeat, state store.SessionState, listed bool) (ended store.Ended, err error) {
	err = c.do(ctx, "heal session", func(t *tx) error {
		b, err := t.lockBinding(session)
		ended = store.Ended{Binding: b}
		if err != nil || !b.Live || b.Runner != h.Runner || b.Incarnation != h.Incarnation {
			return err
		}
		v := c.judge(h, b, state, listed)
		switch {
		case v.end:
			ended.Was = true
			ended.Touched, err = t.endBinding(session, store.SettledByHeartbeat)
			return err
		case v.settle:
			if ended.Touched, err = t.settleOthers(session, state.OpenTurn, store.SettledByHeartbeat); err != nil {
				return err
			}
		case !v.claim:
			return nil
		}
		return t.stmt("heard of session", func() error {
			row, _ := t.bindings.get(t, t.key(session))
			if !row.Claimed {
				row.Claimed, row.ClaimCounter = true, max(row.ClaimCounter, h.Counter)
			}
			if v.settle {
				row.LastN = max(row.LastN, state.N)
			}
			t.bindings.put(t, t.key(session), row)
			return nil
		})
	})
	if err != nil {
		return store.Ended{}, err
	}
	return ended, nil
}
