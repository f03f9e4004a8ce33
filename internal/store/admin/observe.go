package admin

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/rigelbuild/compass-operator/internal/naming"
	"github.com/rigelbuild/compass-operator/internal/store/pg"
)

// MinServerVersion is the oldest Postgres that is supported, as server_version_num has it (REQ-222).
const MinServerVersion = 150000

// Observation is what the catalogue says now.
type Observation struct {
	// ServerVersion is as server_version_num has it, such as 150018.
	ServerVersion int
	// AdminSuperuser: the admin is more than it needs to be.
	AdminSuperuser bool
	// OwnerGranted: the admin may act as the owner.
	OwnerGranted  bool
	Exists        bool
	DatabaseOwner string
	Roles         []Role
	// Memberships among our roles and of others in them: everything but the admin's in the owner.
	Memberships []Membership
	// Foreign are grantees of CONNECT on the database that are not its own roles.
	Foreign []string
	// Changed says what Ensure did, without secrets.
	Changed []string
}

// Role is a role of ours as the catalogue has it.
type Role struct {
	Name                                                string
	Exists                                              bool
	Login, Super, BypassRLS, CreateRole, CreateDB, Repl bool
	Inherit                                             bool
	ConnectionLimit                                     int
	Expires                                             bool
	Settings                                            []string // name=value, in every database
	Elsewhere                                           []string // databases in which it has settings of their own
}

// Membership says: Member has what Of has.
type Membership struct{ Member, Of string }

const (
	sqlServer = `select current_setting('server_version_num')::int, r.rolsuper from pg_roles r where r.rolname = current_user`
	// Since 16 a membership says whether it allows SET ROLE; before, every one does. The privileges themselves are needed
	// too: the owner's is the admin's only way into a database that is closed to PUBLIC.
	sqlMayAct = `
select coalesce((select pg_has_role(oid, $2) and pg_has_role(oid, 'USAGE') from pg_roles where rolname = $1), false)`
	sqlRoles = `
select r.rolname, true, r.rolcanlogin, r.rolsuper, r.rolbypassrls, r.rolcreaterole, r.rolcreatedb, r.rolreplication,
       r.rolinherit, r.rolconnlimit, coalesce(r.rolvaliduntil <> 'infinity', false),
       coalesce((select array_agg(c order by c) from pg_db_role_setting s, unnest(s.setconfig) c
                  where s.setrole = r.oid and s.setdatabase = 0), '{}'),
       coalesce((select array_agg(d.datname::text order by 1) from pg_db_role_setting s
                   join pg_database d on d.oid = s.setdatabase where s.setrole = r.oid), '{}')
  from pg_roles r where r.rolname = any ($1)`
	// Since 16 whoever makes a role is a member who can only let others in; an admin of before is one.
	sqlMemberships = `
select m.rolname, g.rolname from pg_auth_members am
  join pg_roles m on m.oid = am.member join pg_roles g on g.oid = am.roleid
 where (m.rolname = any ($1) or g.rolname = any ($1)) and m.rolname <> current_user
   and (m.rolname = any ($1) or coalesce((to_jsonb(am) ->> 'set_option')::bool, true) or coalesce((to_jsonb(am) ->> 'inherit_option')::bool, true))
 group by 1, 2 order by 1, 2`
	sqlDatabase = `select pg_get_userbyid(datdba) from pg_database where datname = $1`
	sqlConnect  = `
select coalesce(g.rolname, 'PUBLIC') from pg_database d
 cross join lateral aclexplode(coalesce(d.datacl, acldefault('d', d.datdba))) acl
  left join pg_roles g on g.oid = acl.grantee
 where d.datname = $1 and acl.privilege_type = 'CONNECT' and acl.grantee <> d.datdba and coalesce(g.rolname::text, 'PUBLIC') <> all ($2)
 order by 1`
)

func names(roles naming.Roles) []string {
	return []string{roles.Owner, roles.App, roles.System, roles.Provision, roles.Tenant}
}

// Observe reads what there is of a database and its roles. It writes nothing.
func (a *Admin) Observe(ctx context.Context, database string) (Observation, error) {
	ctx, cancel := context.WithTimeout(ctx, a.o.Timeout)
	defer cancel()
	roles, err := naming.RolesOf(database)
	if err != nil {
		return Observation{}, fmt.Errorf("observe database: %w", err)
	}
	conn, err := a.connect(ctx, "")
	if err != nil {
		return Observation{}, fmt.Errorf("observe database %s: %w", database, err)
	}
	defer conn.Close(ctx)
	seen, err := observe(ctx, conn, database, roles)
	if err != nil {
		return seen, fmt.Errorf("observe database %s: %w", database, pg.Interpret(err))
	}
	return seen, nil
}

func supported(version int) error {
	if version < MinServerVersion {
		return fmt.Errorf("%w: its version is %d, and Compass needs %d or later", ErrOutdated, version/10000, MinServerVersion/10000)
	}
	return nil
}

func observe(ctx context.Context, q querier, database string, roles naming.Roles) (o Observation, err error) {
	ours := names(roles)
	if err = q.QueryRow(ctx, sqlServer).Scan(&o.ServerVersion, &o.AdminSuperuser); err != nil {
		return o, err
	}
	if err := supported(o.ServerVersion); err != nil {
		return o, err
	}
	mode := "SET"
	if o.ServerVersion < 160000 {
		mode = "MEMBER"
	}
	if err = q.QueryRow(ctx, sqlMayAct, roles.Owner, mode).Scan(&o.OwnerGranted); err != nil {
		return o, err
	}
	if o.Roles, err = collect(ctx, q, pgx.RowToStructByPos[Role], sqlRoles, ours); err != nil {
		return o, err
	}
	if o.Memberships, err = collect(ctx, q, pgx.RowToStructByPos[Membership], sqlMemberships, ours); err != nil {
		return o, err
	}
	owners, err := collect(ctx, q, pgx.RowTo[string], sqlDatabase, database)
	if err != nil {
		return o, err
	}
	if len(owners) == 1 {
		o.Exists, o.DatabaseOwner = true, owners[0]
	}
	o.Foreign, err = collect(ctx, q, pgx.RowTo[string], sqlConnect, database, ours)
	return o, err
}

// role returns a role as it was seen; one that is not there does not exist.
func (o Observation) role(name string) Role {
	for _, r := range o.Roles {
		if r.Name == name {
			return r
		}
	}
	return Role{Name: name}
}

// querier is a connection or a transaction.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

func collect[T any](ctx context.Context, q querier, scan pgx.RowToFunc[T], sql string, args ...any) ([]T, error) {
	rows, err := q.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, scan)
}
