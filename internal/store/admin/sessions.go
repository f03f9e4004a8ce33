package admin

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/rigelbuild/compass-operator/internal/naming"
	"github.com/rigelbuild/compass-operator/internal/store/pg"
)

// Who is connected is to be seen by everybody; what they ask is not, and is not looked at.
const sqlSessions = `select pg_catalog.count(*) from pg_catalog.pg_stat_activity where datname = $1 and usename = any ($2)`

// Sessions counts the connections that the roles of a database have to it. Logins of tenants do not count.
func (a *Admin) Sessions(ctx context.Context, database string) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, a.o.Timeout)
	defer cancel()
	n, err := a.sessions(ctx, database)
	if err != nil {
		return 0, fmt.Errorf("count sessions of database %s: %w", database, pg.Interpret(err))
	}
	return n, nil
}

func (a *Admin) sessions(ctx context.Context, database string) (int, error) {
	roles, err := naming.RolesOf(database)
	if err != nil {
		return 0, err
	}
	conn, err := a.connect(ctx, "")
	if err != nil {
		return 0, err
	}
	defer conn.Close(ctx)
	counts, err := collect(ctx, conn, pgx.RowTo[int], sqlSessions, database, names(roles))
	if err != nil {
		return 0, err
	}
	return counts[0], nil
}
