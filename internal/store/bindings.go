package store

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// bindingColumns are the columns of session_bindings b as scanBinding reads them.
const bindingColumns = `
 b.session_id, b.agent_account_id, b.runner_id,
 coalesce((select l.fleet from compass.runner_leases l where l.runner_id = b.runner_id), ''),
 b.incarnation, b.generation, b.live, b.claimed, b.claim_counter, coalesce(b.open_turn, ''), b.last_n, b.last_command,
 b.bound_at_unix_ms `

const (
	// Reads whether the tenant is being copied to another database: a freeze stops turns, acks and starts as it stops
	// positions [T4].
	sqlNotFrozen = `not exists (select from compass.tenants t where t.frozen)`

	sqlLockBinding = `
select` + bindingColumns + `from compass.session_bindings b where b.session_id = $1 for no key update`

	// One statement takes the lock, judges and numbers; whoever waited for the lock is judged by the row as it is then.
	sqlTakeEvent = `
update compass.session_bindings b set last_n = $4
 where b.session_id = $1 and b.generation = $2 and b.runner_id = $3 and b.live and b.last_n < $4 and ` + sqlNotFrozen + `
returning` + bindingColumns

	sqlFrozen = `select exists (select from compass.tenants t where t.frozen)`
)

// scanBinding reads bindingColumns.
func scanBinding(row pgx.CollectableRow) (Binding, error) {
	var b Binding
	err := row.Scan(bindingTargets(&b)...)
	return b, err
}

func bindingTargets(b *Binding) []any {
	return []any{
		&b.Session, &b.Agent, &b.Runner, &b.Fleet, &b.Incarnation, &b.Generation, &b.Live, &b.Claimed, &b.ClaimCounter,
		&b.OpenTurn, &b.LastN, &b.LastCommand, &b.BoundAtUnixMs,
	}
}

// lockBinding locks the binding's row to commit: the second lock of the order Runner, binding, turn, heads sorted by
// channel, rows. ErrNotFound where the tenant has no such session.
func lockBinding(ctx context.Context, tx pgx.Tx, session string) (Binding, error) {
	rows, _ := tx.Query(ctx, sqlLockBinding, session)
	b, err := pgx.CollectExactlyOneRow(rows, scanBinding)
	return b, interpret(err)
}

// current reports whether the session that ref names is this binding and still runs.
func (b Binding) current(ref SessionRef) bool {
	return b.Live && b.Session == ref.Session && b.Generation == ref.Generation && b.Runner == ref.Runner
}

// lockCurrent is lockBinding for a Runner that speaks of a session of its own. Whatever is not its own, over or unknown is
// ErrStale, told apart for nobody (REQ-116).
func lockCurrent(ctx context.Context, tx pgx.Tx, ref SessionRef) (Binding, error) {
	b, err := lockBinding(ctx, tx, ref.Session)
	switch {
	case err != nil && !errors.Is(err, ErrNotFound):
		return Binding{}, err
	case err != nil, !b.current(ref):
		return Binding{}, fmt.Errorf("session %s of generation %d: %w", ref.Session, ref.Generation, ErrStale)
	}
	return b, nil
}

// takeEvent makes one call of a session happen once and in order: it locks the binding's row to commit, checks that the
// session is current and the Runner its own, and remembers the number in the same transaction (EventOrder, BindLock). A
// number that was taken before is a duplicate: the caller answers as it did then and changes nothing. ErrStale where the
// session is over, superseded, another Runner's or unknown; ErrFrozen while the tenant is being moved.
func takeEvent(ctx context.Context, tx pgx.Tx, e Event) (b Binding, duplicate bool, err error) {
	if e.N < 1 {
		return Binding{}, false, fmt.Errorf("event of session %s: %w: events are numbered from 1", e.Session, ErrPrecondition)
	}
	rows, _ := tx.Query(ctx, sqlTakeEvent, e.Session, e.Generation, e.Runner, e.N)
	b, err = pgx.CollectExactlyOneRow(rows, scanBinding)
	if err == nil {
		return b, false, nil
	}
	if !errors.Is(err, pgx.ErrNoRows) {
		return Binding{}, false, interpret(err)
	}
	if b, err = lockCurrent(ctx, tx, e.Ref()); err != nil {
		return Binding{}, false, err
	}
	if b.LastN < e.N { // current and new, so only a freeze can have refused it
		return Binding{}, false, fmt.Errorf("event of session %s: %w", e.Session, ErrFrozen)
	}
	return b, true, nil
}
