package store

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/rigelbuild/compass-operator/internal/naming"
	"github.com/rigelbuild/compass-operator/internal/store/schema"
)

// sqlWho reads what the role behind a connection could do beyond its right. Membership is asked by name, because policies
// apply by membership; a role that is not there is no membership.
const sqlWho = `
select r.rolname, r.rolsuper, r.rolbypassrls, r.rolcreaterole,
       array(select g.rolname::text from pg_catalog.pg_roles g
              where g.rolname in (current_database() || '_owner', current_database() || '_app', current_database() || '_system',
                                  current_database() || '_provision', current_database() || '_tenant')
                and g.rolname <> r.rolname and pg_catalog.pg_has_role(r.oid, g.oid, 'MEMBER')),
       exists (select from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace
                where n.nspname = 'compass' and c.relowner = r.oid),
       pg_catalog.current_database()
  from pg_catalog.pg_roles r where r.rolname = current_user`

// vet looks at a connection before its pool opens: the role must be exactly its right (REQ-100), the schema one that this
// binary serves, and every table in its shape (O4).
func (s *Store) vet(ctx context.Context, conn *pgx.Conn, r right) error {
	roles, err := vetRole(ctx, conn, r)
	if err != nil {
		return err
	}
	if err := vetSchema(ctx, conn); err != nil {
		return err
	}
	audit, err := schema.Look(ctx, conn, roles)
	if err != nil {
		return err
	}
	if audit.Skipped { // the operator's resync looks again
		s.config.Log.InfoContext(ctx, "Skipped the audit of the schema: a migration is under way", "right", r)
	}
	return audit.Err()
}

// vetRole asks the server for the database's name: a pooler may call it otherwise.
func vetRole(ctx context.Context, conn *pgx.Conn, r right) (naming.Roles, error) {
	var who struct {
		name                      string
		super, bypass, createRole bool
		member                    []string
		owns                      bool
		database                  string
	}
	err := conn.QueryRow(ctx, sqlWho).Scan(&who.name, &who.super, &who.bypass, &who.createRole, &who.member, &who.owns, &who.database)
	if err != nil {
		return naming.Roles{}, fmt.Errorf("read the role: %w", interpret(err))
	}
	roles, err := naming.RolesOf(who.database)
	if err != nil {
		return naming.Roles{}, err
	}
	want := map[right]string{rightApp: roles.App, rightSystem: roles.System, rightProvision: roles.Provision}[r]
	switch {
	case who.super || who.bypass:
		err = fmt.Errorf("role %s is a superuser or bypasses row-level security, so tenants would not be apart: use %s", who.name, want)
	case who.createRole:
		err = fmt.Errorf("role %s may make roles, so it may give itself any: use %s", who.name, want)
	case who.owns:
		err = fmt.Errorf("role %s owns tables of the schema: use %s", who.name, want)
	case who.name != want:
		err = fmt.Errorf("role %s is not %s, the %s role of this database", who.name, want, r)
	case len(who.member) > 0:
		err = fmt.Errorf("role %s is a member of %v, and policies apply by membership: revoke it", who.name, who.member)
	}
	return roles, err
}

const sqlVersion = `select coalesce(max(version), 0), coalesce(max(serves), 0) from compass.schema_migrations`

func vetSchema(ctx context.Context, conn *pgx.Conn) error {
	var version, serves int
	if err := conn.QueryRow(ctx, sqlVersion).Scan(&version, &serves); err != nil {
		if err = interpret(err); errors.Is(err, ErrSchema) {
			return fmt.Errorf("%w: the database has no Compass schema yet; run `compass migrate up` or let the operator do it", ErrSchema)
		}
		return fmt.Errorf("read the schema version: %w", err)
	}
	return schema.Fits(version, serves)
}
