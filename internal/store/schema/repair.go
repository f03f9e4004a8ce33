package schema

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/rigelbuild/compass-operator/internal/store/pg"
)

// Repaired is what Repair found, did and had to leave.
type Repaired struct {
	// Skipped: a migration or a lock stood in the way of something. Ask again.
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

// Repair puts every table back into its shape, one after the other, each in a transaction of its own that holds the
// migration lock and waits at most two seconds for the table: whoever reads is kept waiting no longer, however many tables
// there are, and one that is busy does not keep the others from being repaired.
func (r *Runner) Repair(ctx context.Context) (out Repaired, err error) {
	conn, err := r.connect(ctx)
	if err != nil {
		return out, fmt.Errorf("repair the schema: %w", err)
	}
	defer conn.Close(ctx)
	found, err := Look(ctx, conn, r.roles)
	if err != nil || found.Skipped {
		return Repaired{Skipped: found.Skipped}, err
	}
	for _, table := range found.tables() {
		if err := r.repairTable(ctx, conn, table, &out); err != nil {
			return out, err
		}
	}
	return out, nil
}

// repairTable repairs one table, if it still needs it, and adds to out what became of it.
func (r *Runner) repairTable(ctx context.Context, conn *pgx.Conn, table string, out *Repaired) error {
	var found, left []Finding
	err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if err := actAs(ctx, tx, r.roles.Owner); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, lockHistory+" nowait"); err != nil {
			return err
		}
		audit, err := look(ctx, tx, r.roles)
		if err != nil || audit.Skipped {
			out.Skipped = out.Skipped || audit.Skipped
			return err
		}
		found = of(table, audit.Findings)
		for _, f := range found {
			if err := repair(ctx, tx, f); err != nil {
				return err
			}
		}
		after, err := readFindings(ctx, tx, r.roles)
		left = of(table, after)
		return err
	})
	if pg.Code(err) == lockNotAvailable {
		out.Skipped = true
		return nil
	}
	if err != nil {
		return fmt.Errorf("repair table %s: %w", table, pg.Interpret(err))
	}
	out.Done, out.Left = append(out.Done, without(found, left)...), append(out.Left, left...)
	return nil
}

// tables are those with findings, each once.
func (a Audit) tables() []string {
	var out []string
	for _, f := range a.Findings {
		if !slices.Contains(out, f.Table) {
			out = append(out, f.Table)
		}
	}
	return out
}

func of(table string, findings []Finding) []Finding {
	return slices.DeleteFunc(slices.Clone(findings), func(f Finding) bool { return f.Table != table })
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
	return slices.DeleteFunc(all, func(f Finding) bool {
		return slices.ContainsFunc(rest, func(r Finding) bool { return r.Table == f.Table && r.Problem == f.Problem })
	})
}

var errShape = errors.New("tables are not in the shape that keeps tenants apart")

// Err is nil where nothing was found, else names what was, and the cure.
func (a Audit) Err() error {
	if len(a.Findings) == 0 {
		return nil
	}
	const most = 8 // that a person reads
	shown, more := a.Findings, ""
	if n := len(shown) - most; n > 0 {
		shown, more = shown[:most], fmt.Sprintf(" and %d more", n)
	}
	var cure strings.Builder
	for _, f := range shown {
		for _, sql := range f.Fix {
			cure.WriteString(" " + sql + ";")
		}
	}
	err := fmt.Errorf("%w: %v%s", errShape, shown, more)
	if cure.Len() == 0 { // each says itself what to do
		return err
	}
	return fmt.Errorf("%w: the operator repairs this at its next look; where there is none, run as the owner of the schema:%s", err, cure.String())
}
