package admin

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/rigelbuild/compass-operator/internal/naming"
	"github.com/rigelbuild/compass-operator/internal/store/pg"
)

// ensureDatabase makes the database if it is not there. One that belongs to another role is ErrForeign.
func (a *Admin) ensureDatabase(ctx context.Context, conn *pgx.Conn, spec Spec, roles naming.Roles) ([]string, error) {
	var did []string
	for try := 1; ; try++ {
		owners, err := collect(ctx, conn, pgx.RowTo[string], sqlDatabase, spec.Database)
		if err != nil {
			return did, pg.Interpret(err)
		}
		if len(owners) == 1 {
			if owners[0] != roles.Owner {
				return did, fmt.Errorf("%w: database %s is owned by %s, not by %s", ErrForeign, spec.Database, owners[0], roles.Owner)
			}
			return did, nil
		}
		if a.o.Dry || spec.MustExist {
			return nil, fmt.Errorf("database %s: %w", spec.Database, ErrAbsent)
		}
		_, err = conn.Exec(ctx, fmt.Sprintf("create database %s owner %s template template0 encoding 'UTF8'",
			pg.Ident(spec.Database), pg.Ident(roles.Owner)))
		if err == nil {
			did = append(did, "create database "+spec.Database)
			continue
		}
		// Somebody else made it just now (42P04, 23505), or the template is busy (55006).
		if try == applyTries || !slices.Contains([]string{"42P04", "23505", "55006"}, pg.Code(err)) {
			return did, fmt.Errorf("create database: %w", pg.Interpret(err))
		}
	}
}

const (
	// What PUBLIC may do in the database, in schema public, and with functions that the owner is yet to make.
	sqlPublic = `
select exists (select from pg_database d cross join lateral aclexplode(coalesce(d.datacl, acldefault('d', d.datdba))) acl
                where d.datname = current_database() and acl.grantee = 0),
       exists (select from pg_namespace n cross join lateral aclexplode(coalesce(n.nspacl, acldefault('n', n.nspowner))) acl
                where n.nspname = 'public' and acl.grantee = 0),
       not exists (select from pg_default_acl a join pg_roles r on r.oid = a.defaclrole
                    where r.rolname = $1 and a.defaclnamespace = 0 and a.defaclobjtype = 'f'
                      and not exists (select from aclexplode(a.defaclacl) acl where acl.grantee = 0))`
	sqlGranted = `
select r.rolname from pg_database d
 cross join lateral aclexplode(coalesce(d.datacl, acldefault('d', d.datdba))) acl
  join pg_roles r on r.oid = acl.grantee
 where d.datname = current_database() and acl.privilege_type = 'CONNECT'`
	// Settings of the database reach every login; none of ours has a place there.
	sqlDatabaseSettings = `
select split_part(c, '=', 1) from pg_db_role_setting s join pg_database d on d.oid = s.setdatabase, unnest(s.setconfig) c
 where d.datname = current_database() and s.setrole = 0 and c like 'compass.%'`
)

// ensurePrivileges takes away what PUBLIC has by default and lets the database's own roles connect, and only those (T7).
func (a *Admin) ensurePrivileges(ctx context.Context, _ *pgx.Conn, spec Spec, roles naming.Roles) ([]string, error) {
	conn, err := a.connect(ctx, spec.Database) // schemas and default privileges are each database's own
	if err != nil {
		return nil, err
	}
	defer conn.Close(ctx)
	return a.converge(ctx, conn, func(ctx context.Context, q querier) ([]change, error) {
		return privilegeChanges(ctx, q, spec.Database, roles)
	})
}

func privilegeChanges(ctx context.Context, q querier, database string, roles naming.Roles) ([]change, error) {
	var inDatabase, inSchema, functions bool
	if err := q.QueryRow(ctx, sqlPublic, roles.Owner).Scan(&inDatabase, &inSchema, &functions); err != nil {
		return nil, err
	}
	granted, err := collect(ctx, q, pgx.RowTo[string], sqlGranted)
	if err != nil {
		return nil, err
	}
	set, err := collect(ctx, q, pgx.RowTo[string], sqlDatabaseSettings)
	if err != nil {
		return nil, err
	}
	var out []change
	asOwner := func(what, sql string) {
		out = append(out, change{what: what, sql: sql, role: roles.Owner})
	}
	name := pg.Ident(database)
	if inDatabase {
		asOwner("close the database to PUBLIC", "revoke all on database "+name+" from public")
	}
	if inSchema {
		asOwner("close schema public to PUBLIC", "revoke all on schema public from public")
	}
	if functions {
		asOwner("keep new functions from PUBLIC", "alter default privileges revoke execute on functions from public")
	}
	for _, role := range []string{roles.App, roles.System, roles.Provision, roles.Tenant} {
		if !slices.Contains(granted, role) {
			asOwner("let role "+role+" connect", fmt.Sprintf("grant connect on database %s to %s", name, pg.Ident(role)))
		}
	}
	for _, setting := range set {
		asOwner("reset "+setting+" of the database", fmt.Sprintf("alter database %s reset %s", name, pg.Ident(setting)))
	}
	return out, nil
}
