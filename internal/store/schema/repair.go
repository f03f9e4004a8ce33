package schema

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/rigelbuild/compass-operator/internal/store/pg"
)

// Repaired is what Repair found, did and had to leave.
type Repaired struct {
	// Skipped: a migration or a lock stood in the way and nothing was done. Ask again.
	Skipped bool
	Done    []Finding
	// Left needs a person: a superuser's hand, or a decision.
	Left []Finding
}

// Audit judges every table by its shape, as Look does.
func (r *Runner) Audit(ctx context.Context) (Audit, error) {
	conn, err := r.connect(ctx)
	if err != nil {
		return Audit{}, fmt.Errorf("audit the schema: %w", err)
	}
	defer conn.Close(ctx)
	return Look(ctx, conn, r.roles)
}

// Repair puts every table back into its shape, in one transaction that holds the migration lock and waits at most two
// seconds for a table: whoever reads is not kept waiting longer.
func (r *Runner) Repair(ctx context.Context) (out Repaired, err error) {
	conn, err := r.connect(ctx)
	if err != nil {
		return out, fmt.Errorf("repair the schema: %w", err)
	}
	defer conn.Close(ctx)
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		found, err := look(ctx, tx, r.roles)
		if err != nil || found.Skipped || len(found.Findings) == 0 {
			out.Skipped = found.Skipped
			return err
		}
		if err := actAs(ctx, tx, r.roles.Owner); err != nil {
			return err
		}
		for _, f := range found.Findings {
			if err := repair(ctx, tx, f); err != nil {
				return err
			}
		}
		if out.Left, err = readFindings(ctx, tx, r.roles); err != nil {
			return err
		}
		out.Done = without(found.Findings, out.Left)
		return nil
	})
	skipped, err := skipOnLock(Audit{}, err)
	if skipped.Skipped {
		return Repaired{Skipped: true}, nil
	}
	return out, err
}

// repair runs the statements of one finding behind a savepoint. Where the owner may not, the rest goes on and the last
// look says so; a lock that is not to be had ends the whole.
func repair(ctx context.Context, tx pgx.Tx, f Finding) error {
	err := pgx.BeginFunc(ctx, tx, func(inner pgx.Tx) error {
		for _, sql := range f.Fix {
			if _, err := inner.Exec(ctx, sql); err != nil {
				return err
			}
		}
		return nil
	})
	if pg.Code(err) == "42501" {
		return nil
	}
	return err
}

func without(all, rest []Finding) []Finding {
	var out []Finding
	for _, f := range all {
		left := false
		for _, r := range rest {
			left = left || r.Table == f.Table && r.Problem == f.Problem
		}
		if !left {
			out = append(out, f)
		}
	}
	return out
}

var errShape = errors.New("tables are not in the shape that keeps tenants apart")

// Err is nil where nothing was found, else names what was.
func (a Audit) Err() error {
	if len(a.Findings) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %v; the operator repairs it, or run `compass migrate status`", errShape, a.Findings)
}
