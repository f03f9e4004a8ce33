package store

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/rigelbuild/compass-operator/internal/naming"
)

// ErrNoRunner says: no Runner that the tenant may use is alive. What is owed stays owed; try again later.
var ErrNoRunner = errors.New("no Runner is alive")

// LiveSessionError refuses a start because the agent has a live session. It matches ErrConflict.
type LiveSessionError struct {
	Session string
}

func (e *LiveSessionError) Error() string { return "the agent has the live session " + e.Session }

// Is makes the error match ErrConflict.
func (e *LiveSessionError) Is(target error) bool { return target == ErrConflict }

// NewSession asks for a session of an agent.
type NewSession struct {
	Session string // from naming.IDs, new for every start
	Agent   string
	// Replace ends a live session of the agent instead of refusing the start.
	Replace bool
}

// Started is a session that waits for its Runner to claim it. Touched is what ending an older one made deliverable.
type Started struct {
	Binding Binding
	Touched []Touched
}

const (
	// Starts of one agent are serial; messages and cursors that reference the account are not held up.
	sqlLockAgent = `
select a.handle from compass.accounts a
 where a.id = $1 and a.kind = 'agent' and a.deleted_at_unix_ms is null and ` + sqlNotFrozen + ` for no key update`

	// Whether the Runner's process is still the one of the start says whether the session may be running at all.
	sqlLiveOfAgent = `
select b.session_id, exists (select from compass.runner_leases l where l.runner_id = b.runner_id and l.incarnation = b.incarnation)
  from compass.session_bindings b where b.agent_account_id = $1 and b.live`

	sqlPickRunner = `select p.runner_id, p.incarnation from compass.runner_pick($1) p where p.runner_id is not null`

	// The placement is routing truth (REQ-120) and the memory of the generation, which only rises, also where a failover
	// forgot the newest (D9).
	sqlBind = `
with placed as (
    insert into compass.agent_placements as p (tenant_id, agent_id, runner_id, session_id, generation)
    select a.tenant_id, a.id, $3, $2, compass.number() from compass.accounts a where a.id = $1
    on conflict (tenant_id, agent_id) do update
       set runner_id = excluded.runner_id, session_id = excluded.session_id,
           generation = greatest(p.generation + 1, excluded.generation)
    returning p.tenant_id, p.agent_id, p.runner_id, p.session_id, p.generation
)
insert into compass.session_bindings as b (tenant_id, session_id, agent_account_id, runner_id, incarnation, generation)
select p.tenant_id, p.session_id, p.agent_id, p.runner_id, $4, p.generation from placed p
returning` + bindingColumns

	sqlDropCommands = `delete from compass.session_commands where session_id = $1`

	sqlUnbind = `update compass.session_bindings set live = false, open_turn = null where session_id = $1`
)

// StartSession records a session of the agent on the least-loaded live Runner that the tenant may use: those of its own
// fleet and the shared ones (place_agent, REQ-152). The Runner is told after commit, by whoever called, and takes the
// start by claiming it.
//
// A live session is refused with *LiveSessionError (ErrConflict) unless Replace is set, or its Runner's process is known to
// be gone: then it ends in the same transaction. An expired lease alone ends nothing here; that is the expirer's to judge
// (D6). ErrNotFound: no such agent. ErrNoRunner: nobody to place it on.
func (s *Store) StartSession(ctx context.Context, n NewSession) (Started, error) {
	var started Started
	fleets := []string{naming.SharedFleet, string(s.ResolveTenant(ctx))}
	err := s.inTenantTx(ctx, func(ctx context.Context, tx pgx.Tx) (err error) {
		started, err = startSession(ctx, tx, n, fleets)
		return err
	})
	if err != nil {
		return Started{}, wrapf(err, "start session of agent %s", n.Agent)
	}
	return started, nil
}

func startSession(ctx context.Context, tx pgx.Tx, n NewSession, fleets []string) (started Started, err error) {
	var handle, runner string
	if err := tx.QueryRow(ctx, sqlLockAgent, n.Agent).Scan(&handle); err != nil {
		return Started{}, orFrozen(ctx, tx, err)
	}
	old, err := replaceable(ctx, tx, n)
	if err != nil {
		return Started{}, err
	}
	var incarnation int64
	err = tx.QueryRow(ctx, sqlPickRunner, fleets).Scan(&runner, &incarnation)
	if errors.Is(err, pgx.ErrNoRows) {
		return Started{}, ErrNoRunner
	}
	if err != nil {
		return Started{}, err
	}
	if old != "" {
		if started.Touched, err = endSession(ctx, tx, old, SettledBySessionEnd); err != nil {
			return Started{}, err
		}
	}
	rows, _ := tx.Query(ctx, sqlBind, n.Agent, n.Session, runner, incarnation)
	started.Binding, err = pgx.CollectExactlyOneRow(rows, scanBinding)
	return started, err
}

// replaceable returns the agent's live session, "" for none, or refuses the start for its sake.
func replaceable(ctx context.Context, tx pgx.Tx, n NewSession) (old string, err error) {
	var running bool
	err = tx.QueryRow(ctx, sqlLiveOfAgent, n.Agent).Scan(&old, &running)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return "", nil
	case err != nil:
		return "", err
	case running && !n.Replace:
		return "", &LiveSessionError{Session: old}
	}
	return old, nil
}

// orFrozen tells a tenant that is being moved from a row that is not there.
func orFrozen(ctx context.Context, tx pgx.Tx, err error) error {
	if !errors.Is(err, pgx.ErrNoRows) {
		return err
	}
	var frozen bool
	if err := tx.QueryRow(ctx, sqlFrozen).Scan(&frozen); err != nil {
		return err
	}
	if frozen {
		return ErrFrozen
	}
	return ErrNotFound
}

// endSession locks the binding and ends it: its open turn settles as it stands, its commands go. A session that is over
// stays as it is; ErrNotFound where there never was one.
func endSession(ctx context.Context, tx pgx.Tx, session, by string) ([]Touched, error) {
	b, err := lockBinding(ctx, tx, session)
	if err != nil || !b.Live {
		return nil, err
	}
	return endBinding(ctx, tx, b, by)
}

// endBinding is endSession for a binding that the caller has locked and found live.
func endBinding(ctx context.Context, tx pgx.Tx, b Binding, by string) ([]Touched, error) {
	touched, err := settleOthers(ctx, tx, b.Session, "", by)
	if err != nil {
		return nil, err
	}
	return touched, sendBatch(ctx, tx, func(batch *pgx.Batch) {
		batch.Queue(sqlDropCommands, b.Session)
		batch.Queue(sqlUnbind, b.Session)
	})
}

// endSessionOf ends the live session of an agent, if it has one: for an account that is deleted.
func endSessionOf(ctx context.Context, tx pgx.Tx, agent, by string) ([]Touched, error) {
	var session string
	var running bool
	err := tx.QueryRow(ctx, sqlLiveOfAgent, agent).Scan(&session, &running)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, interpret(err)
	}
	return endSession(ctx, tx, session, by)
}

// settleOthers settles every open turn of the session except the one named. The caller holds the binding's row lock.
func settleOthers(ctx context.Context, tx pgx.Tx, session, except, by string) ([]Touched, error) {
	rows, _ := tx.Query(ctx, sqlOpenTurns, session)
	turns, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, err
	}
	var touched []Touched
	for _, turn := range turns {
		if turn == except {
			continue
		}
		more, err := settleTurn(ctx, tx, session, turn, by)
		if err != nil {
			return nil, fmt.Errorf("settle turn %s: %w", turn, err)
		}
		touched = append(touched, more...)
	}
	return merge(touched...), nil
}

// Ended is a session that is over and what ending it made deliverable.
type Ended struct {
	Binding Binding // as it was before
	Was     bool    // it was live until now
	Touched []Touched
}

// StopSession ends a session by hand; its open turn settles as it stands. Stopping what is over does nothing. The Runner
// is told after commit and, if that is lost, by the answer to its next heartbeat. ErrNotFound: no such session.
// It is also what the source calls DeleteSessionBinding (REQ-133): the row stays as history and resolves to nobody.
func (s *Store) StopSession(ctx context.Context, session string) (Ended, error) {
	return s.end(ctx, session, SettledBySessionEnd, func(context.Context, pgx.Tx, Binding) (bool, error) { return true, nil })
}

// end locks a binding, asks judge whether it is to end, and ends it.
func (s *Store) end(ctx context.Context, session, by string, judge func(context.Context, pgx.Tx, Binding) (bool, error)) (Ended, error) {
	var ended Ended
	err := s.inTenantTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		b, err := lockBinding(ctx, tx, session)
		if err != nil {
			return err
		}
		ended = Ended{Binding: b, Was: b.Live}
		if !b.Live {
			return nil
		}
		if ended.Was, err = judge(ctx, tx, b); err != nil || !ended.Was {
			return err
		}
		ended.Touched, err = endBinding(ctx, tx, b, by)
		return err
	})
	if err != nil {
		return Ended{}, wrapf(err, "end session %s", session)
	}
	return ended, nil
}
