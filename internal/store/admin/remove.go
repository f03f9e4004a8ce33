package admin

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/rigelbuild/compass-operator/internal/naming"
	"github.com/rigelbuild/compass-operator/internal/store/pg"
)

// Remove drops a database with everything in it, and its roles. Absent is success. A database of that name that is not
// ours is ErrForeign.
func (a *Admin) Remove(ctx context.Context, database string) error {
	ctx, cancel := context.WithTimeout(ctx, a.o.Timeout)
	defer cancel()
	roles, err := naming.RolesOf(database)
	if err != nil {
		return fmt.Errorf("remove database: %w", err)
	}
	if err := a.remove(ctx, database, roles); err != nil {
		return fmt.Errorf("remove database %s: %w", database, pg.Interpret(err))
	}
	return nil
}

// remove closes the logins first, so that nobody comes back between the drop of the database and that of the roles.
func (a *Admin) remove(ctx context.Context, database string, roles naming.Roles) error { //nolint:gocyclo // steps that only go on after the one before
	conn, err := a.connect(ctx, "")
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	seen, err := observe(ctx, conn, database, roles)
	if err != nil {
		return err
	}
	if seen.Exists && seen.DatabaseOwner != roles.Owner {
		return fmt.Errorf("%w: it is owned by %s, not by %s", ErrForeign, seen.DatabaseOwner, roles.Owner)
	}
	for _, r := range seen.Roles {
		if r.Login {
			if _, err := conn.Exec(ctx, "alter role "+pg.Ident(r.Name)+" nologin"); err != nil {
				return err
			}
		}
	}
	if seen.Exists {
		if err := dropDatabase(ctx, conn, database, roles); err != nil {
			return err
		}
	}
	logins, err := collect(ctx, conn, pgx.RowTo[string], sqlTenantLogins, roles.Tenant)
	if err != nil {
		return err
	}
	logins = slices.DeleteFunc(logins, func(l string) bool { return naming.ValidTenantLogin(l) != nil })
	for _, name := range append(logins, names(roles)...) {
		if _, err := conn.Exec(ctx, "drop role if exists "+pg.Ident(name)); err != nil {
			return fmt.Errorf("drop role %s: %w", name, err)
		}
	}
	return nil
}

const sqlTenantLogins = `
select m.rolname::text from pg_auth_members am join pg_roles m on m.oid = am.member join pg_roles g on g.oid = am.roleid
 where g.rolname = $1 and m.rolname <> current_user`

// dropDatabase ends the sessions of our roles, for which the admin must be a member of each, and drops.
func dropDatabase(ctx context.Context, conn *pgx.Conn, database string, roles naming.Roles) error {
	for _, name := range names(roles) {
		if _, err := conn.Exec(ctx, fmt.Sprintf("grant %s to current_user", pg.Ident(name))); err != nil {
			return err
		}
	}
	_, err := conn.Exec(ctx, fmt.Sprintf("drop database if exists %s with (force)", pg.Ident(database)))
	return err
}
