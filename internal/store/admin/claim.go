package admin

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/rigelbuild/compass-operator/internal/naming"
	"github.com/rigelbuild/compass-operator/internal/store/pg"
)

// ErrClaimed says: somebody else keeps this database; the error is a ClaimedError.
var ErrClaimed = errors.New("database is claimed")

// ClaimedError is ErrClaimed with the name of who claims the database, and the statement that ends that claim.
type ClaimedError struct{ By, Release string }

func (e ClaimedError) Error() string { return fmt.Sprintf("%v by %s", ErrClaimed, e.By) }

// Unwrap makes errors.Is(err, ErrClaimed) true.
func (e ClaimedError) Unwrap() error { return ErrClaimed }

// claimMark begins the comment on a database that says whose it is. A comment survives a dump and needs no table.
const claimMark = "Compass, kept by "

const sqlComment = `select coalesce(shobj_description(oid, 'pg_database'), '') from pg_database where datname = $1`

// Claim says in the database who keeps it, so that two who were pointed at it do not change each other's passwords for
// ever: the first stays. ErrClaimed where somebody else did. A database that is not there yet is claimed by nobody and
// nothing is done: call it before Ensure, to be refused before anything is written, and after.
func (a *Admin) Claim(ctx context.Context, database, owner string) error {
	ctx, cancel := context.WithTimeout(ctx, a.o.Timeout)
	defer cancel()
	roles, err := naming.RolesOf(database)
	if err != nil {
		return fmt.Errorf("claim database: %w", err)
	}
	conn, err := a.connect(ctx, "")
	if err != nil {
		return fmt.Errorf("claim database %s: %w", database, err)
	}
	defer conn.Close(ctx)
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, sqlRolesLock); err != nil {
			return err
		}
		return claim(ctx, tx, roles, database, owner)
	})
	if err != nil {
		return fmt.Errorf("claim database %s: %w", database, pg.Interpret(err))
	}
	return nil
}

func claim(ctx context.Context, tx pgx.Tx, roles naming.Roles, database, owner string) error {
	comments, err := collect(ctx, tx, pgx.RowTo[string], sqlComment, database)
	if err != nil || len(comments) == 0 {
		return err
	}
	switch by, marked := strings.CutPrefix(comments[0], claimMark); {
	case by == owner && marked:
		return nil
	case marked:
		return ClaimedError{By: by, Release: fmt.Sprintf("comment on database %s is null", pg.Ident(database))}
	case comments[0] != "": // somebody's own words are left alone, and then nobody else can be kept out
		return nil
	}
	text := strings.ReplaceAll(claimMark+owner, "'", "''") // COMMENT takes no parameters
	_, err = tx.Exec(ctx, fmt.Sprintf("set local role %s; comment on database %s is '%s'; reset role",
		pg.Ident(roles.Owner), pg.Ident(database), text), pgx.QueryExecModeSimpleProtocol)
	return err
}
