package store

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/rigelbuild/compass-operator/internal/naming"
)

// Heartbeat is one heartbeat of a Runner: it renews the lease and says how its sessions are (D13).
type Heartbeat struct {
	Runner      string
	Incarnation int64
	Counter     int64 // rises with every heartbeat of the incarnation
	Sessions    []SessionState
	Lease       time.Duration // until when to renew, from now by each database's clock
}

// TenantEnded is a session that ended, or a turn that settled, in a tenant's name.
type TenantEnded struct {
	Tenant TenantID
	Ended
}

// TenantAgent is an agent of a tenant.
type TenantAgent struct {
	Tenant TenantID
	Agent  string
}

// HeartbeatAnswer is what a heartbeat did and what the Runner should do.
type HeartbeatAnswer struct {
	// Expired: the incarnation is over. The Runner drops every session and says hello again; nothing else is set.
	Expired bool
	Orders  []SessionOrders
	// Healed are the sessions that ended or settled by this heartbeat. Publish what they made deliverable.
	Healed []TenantEnded
	// Back are the agents whose sessions are to be sent to again: the lease had run out before this heartbeat, or the claim
	// was forgotten. Nothing else would make a worker look before its tick.
	Back []TenantAgent
	// Skipped are tenants whose state could not be read or written now; the next heartbeat tries again.
	Skipped map[TenantID]error

	lapsed bool // the lease had run out
}

const (
	sqlTenantsOfRunner = `select distinct b.tenant_id from compass.session_bindings b where b.runner_id = $1 and b.live`

	sqlSessionsOfRunner = `
select` + bindingColumns + `from compass.session_bindings b where b.runner_id = $1 and b.live order by b.session_id`

	// The oldest of them: an ack of those makes room for the others.
	sqlUnackedOfRunner = `
select b.session_id, c.n, c.prev, c.kind, '', coalesce(c.message_id, ''), coalesce(c.pos, 0)
  from compass.session_bindings b
 cross join lateral (select c.n, c.prev, c.kind, c.message_id, c.pos from compass.session_commands c
                      where c.tenant_id = b.tenant_id and c.session_id = b.session_id order by c.n limit $2) c
 where b.runner_id = $1 and b.live`

	sqlHeardOf = `
update compass.session_bindings b
   set claimed = true, claim_counter = case when b.claimed then b.claim_counter else greatest(b.claim_counter, $2) end,
       last_n = greatest(b.last_n, $3)
 where b.session_id = $1`
)

// maxUnacked bounds how many unacknowledged commands of a session one answer names.
const maxUnacked = 50

// Heartbeat renews the Runner's lease in every database and heals, tenant by tenant, what its state contradicts: an edge
// that was lost is found by any later heartbeat (REQ-229). An idle one reads and writes nothing but the lease.
//
// It fails only where database 0 does not answer; a tenant that cannot be served is in Skipped.
func (s *Store) Heartbeat(ctx context.Context, h Heartbeat) (HeartbeatAnswer, error) {
	lease, err := s.renew(ctx, h)
	if err != nil {
		return HeartbeatAnswer{}, wrapf(err, "renew lease of Runner %s", h.Runner)
	}
	if !lease.Alive {
		return HeartbeatAnswer{Expired: true}, nil
	}
	listed, answer := h.byTenant()
	answer.lapsed = lease.Lapsed
	s.findTenants(ctx, h.Runner, listed, &answer)
	for _, tenant := range slices.Sorted(maps.Keys(listed)) {
		if err := s.heal(WithTenant(ctx, tenant), tenant, h, listed[tenant], &answer); err != nil {
			answer.skip(tenant, err)
		}
	}
	slices.SortFunc(answer.Orders, func(a, b SessionOrders) int { return strings.Compare(a.Session, b.Session) })
	return answer, nil
}

// renewed says of a lease whether it is this incarnation's still, and whether it had run out before.
type renewed struct{ Alive, Lapsed bool }

// renew extends the lease in every database; it is not alive where the incarnation is over in one of them. A database that is
// away delays its own tenants alone (REQ-239): their sessions are judged there when it is back.
func (s *Store) renew(ctx context.Context, h Heartbeat) (whole renewed, err error) {
	for _, database := range s.DatabaseIDs() {
		lease, err := only(platformQuery(ctx, s, database, pgx.RowToStructByPos[renewed], sqlRenewRunner, h.Runner, h.Incarnation, h.Lease, len(h.Sessions)))
		if database != 0 && err == nil && !lease.Alive {
			lease.Lapsed = true
			lease.Alive, err = s.catchUp(ctx, database, h)
		}
		switch {
		case err != nil && database == 0:
			return renewed{}, err
		case err != nil:
			s.config.Log.WarnContext(ctx, "Lease was not renewed in a database", "database", database, "runner", h.Runner, "error", err)
		case !lease.Alive:
			return renewed{}, nil
		default:
			whole.Lapsed = whole.Lapsed || lease.Lapsed
		}
	}
	whole.Alive = true
	return whole, nil
}

// catchUp tells a database of an incarnation that it has not heard of: it was away when the Runner said hello.
func (s *Store) catchUp(ctx context.Context, database int, h Heartbeat) (bool, error) {
	r, err := s.FindRunner(ctx, h.Runner)
	if err != nil {
		return false, err
	}
	return s.leaseIn(ctx, database, r, h.Incarnation, h.Lease)
}

// sessionKey names a session as a Runner does: an id with another generation is another session.
type sessionKey struct {
	session    string
	generation int64
}

// byTenant sorts what the Runner listed by the tenant that the session ids name. An id that names none is nobody's.
func (h Heartbeat) byTenant() (map[TenantID]map[sessionKey]SessionState, HeartbeatAnswer) {
	listed := map[TenantID]map[sessionKey]SessionState{}
	answer := HeartbeatAnswer{Skipped: map[TenantID]error{}}
	for _, st := range h.Sessions {
		tenant, _, err := naming.ParseSession(st.Session)
		if err != nil {
			answer.stop(st.Session, st.Generation)
			continue
		}
		id := TenantID(tenant)
		if listed[id] == nil {
			listed[id] = map[sessionKey]SessionState{}
		}
		listed[id][sessionKey{st.Session, st.Generation}] = st
	}
	return listed, answer
}

func (a *HeartbeatAnswer) stop(session string, generation int64) {
	a.Orders = append(a.Orders, SessionOrders{Session: session, Generation: generation, Stop: true})
}

func (a *HeartbeatAnswer) skip(tenant TenantID, err error) { a.Skipped[tenant] = err }

// findTenants adds the tenants whose sessions the Runner hosts and did not list: the only step that looks across tenants.
func (s *Store) findTenants(ctx context.Context, runner string, listed map[TenantID]map[sessionKey]SessionState, answer *HeartbeatAnswer) {
	for _, database := range s.DatabaseIDs() {
		tenants, err := systemQuery(ctx, s, LoopRunners, database, pgx.RowTo[TenantID], sqlTenantsOfRunner, runner)
		if err != nil {
			answer.skip(TenantID(fmt.Sprintf("database %d", database)), err)
			continue
		}
		for _, tenant := range tenants {
			if listed[tenant] == nil {
				listed[tenant] = nil
			}
		}
	}
}

// heal compares one tenant's bindings with what the Runner said, writes where they differ, and answers for each.
func (s *Store) heal(ctx context.Context, tenant TenantID, h Heartbeat, listed map[sessionKey]SessionState, answer *HeartbeatAnswer) error { //nolint:gocyclo // the protocol's own cases, in its order
	bindings, unacked, err := s.sessionsOf(ctx, h.Runner)
	if err != nil {
		return err
	}
	running := map[sessionKey]bool{}
	for _, b := range bindings {
		if b.Incarnation != h.Incarnation {
			continue // over: the expirer's, or being ended by the hello
		}
		over := false
		key := sessionKey{b.Session, b.Generation}
		state, isListed := listed[key]
		v := h.judge(b, state, isListed)
		if v != (verdict{}) {
			ended, err := s.heardOf(ctx, b.Session, h, state, isListed)
			if err != nil {
				return err
			}
			over = ended.Was || !ended.Binding.Live
			if ended.Was || len(ended.Touched) > 0 {
				answer.Healed = append(answer.Healed, TenantEnded{tenant, ended})
			}
		}
		if !over {
			running[key] = true
			if answer.lapsed || v.claim {
				answer.Back = append(answer.Back, TenantAgent{tenant, b.Agent})
			}
			answer.Orders = append(answer.Orders, SessionOrders{
				Session: b.Session, Generation: b.Generation, NewestCommand: b.LastCommand, Unacked: unacked[b.Session],
				Start: !b.Claimed && !isListed,
			})
		}
	}
	for key := range listed {
		if !running[key] {
			answer.stop(key.session, key.generation)
		}
	}
	return nil
}

// verdict is what one heartbeat makes of one live binding of the Runner and its incarnation.
type verdict struct {
	end    bool
	claim  bool
	settle bool
}

// judge is the whole rule of what a heartbeat may change (model: HbOrder, HbClaims).
func (h Heartbeat) judge(b Binding, state SessionState, listed bool) verdict {
	switch {
	case !listed:
		// It ran, and does not any more; unless this heartbeat was sent before the claim.
		return verdict{end: b.Claimed && h.Counter > b.ClaimCounter}
	case state.Over:
		return verdict{end: true}
	}
	return verdict{
		// Whoever runs it has claimed it: the claim was forgotten by a failover.
		claim: !b.Claimed,
		// Only a state that is not older than what we know says that a turn is over.
		settle: state.N >= b.LastN && b.OpenTurn != "" && b.OpenTurn != state.OpenTurn,
	}
}

// heardOf applies the verdict under the binding's lock, by the row as it is then. Ended.Was is true where it ended.
func (s *Store) heardOf(ctx context.Context, session string, h Heartbeat, state SessionState, listed bool) (Ended, error) {
	var ended Ended
	err := s.inTenantTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		b, err := lockBinding(ctx, tx, session)
		ended = Ended{Binding: b}
		if err != nil || !b.Live || b.Runner != h.Runner || b.Incarnation != h.Incarnation {
			return err
		}
		v := h.judge(b, state, listed)
		switch {
		case v.end:
			ended.Was = true
			ended.Touched, err = endBinding(ctx, tx, b, SettledByHeartbeat)
			return err
		case v.settle:
			if ended.Touched, err = settleOthers(ctx, tx, session, state.OpenTurn, SettledByHeartbeat); err != nil {
				return err
			}
		case !v.claim:
			return nil
		}
		n := b.LastN
		if v.settle {
			n = state.N
		}
		_, err = tx.Exec(ctx, sqlHeardOf, session, h.Counter, n)
		return err
	})
	if err != nil {
		return Ended{}, wrapf(err, "heal session %s", session)
	}
	return ended, nil
}

// sessionsOf reads the tenant's live sessions on a Runner and their commands that wait for an ack.
func (s *Store) sessionsOf(ctx context.Context, runner string) (bindings []Binding, unacked map[string][]SessionCommand, err error) {
	unacked = map[string][]SessionCommand{}
	err = s.do(ctx, func(b *pgx.Batch) {
		b.Queue(sqlSessionsOfRunner, runner).Query(func(rows pgx.Rows) (err error) {
			bindings, err = pgx.CollectRows(rows, scanBinding)
			return err
		})
		b.Queue(sqlUnackedOfRunner, runner, maxUnacked).Query(func(rows pgx.Rows) error {
			for rows.Next() {
				var session string
				c, err := scanCommand(lead{rows, []any{&session}})
				if err != nil {
					return err
				}
				unacked[session] = append(unacked[session], c)
			}
			return rows.Err()
		})
	})
	return bindings, unacked, wrapf(err, "read sessions of Runner %s", runner)
}
