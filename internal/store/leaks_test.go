package store

import (
	"testing"

	"github.com/rigelbuild/compass-operator/internal/store/pg"
)

// What uniques, foreign keys, grants, views and functions of the schema would tell or open although row-level security
// stands: each is one question to the catalogue, whose answer must be nothing (lab section 8).
func TestSchemaOpensNoSideDoor(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	roles := []string{f.db.Roles.App, f.db.Roles.System, f.db.Roles.Provision, f.db.Roles.Tenant}
	const tables = ` pg_class c join pg_namespace n on n.oid = c.relnamespace and n.nspname = 'compass' `
	for name, q := range map[string]struct {
		sql  string
		args []any
	}{
		// A unique or primary key that ignores the tenant tells the app role that somebody else's row exists.
		"unique without the tenant": {`select i.indexrelid::regclass::text from pg_index i join ` + tables + ` on c.oid = i.indrelid
			join pg_attribute a on a.attrelid = c.oid and a.attname = 'tenant_id'
			where i.indisunique and not a.attnum = any (i.indkey)
			  and (has_table_privilege($1, c.oid, 'INSERT') or has_any_column_privilege($1, c.oid, 'UPDATE'))`, []any{f.db.Roles.App}},
		// A foreign key that ignores the tenant accepts another tenant's parent, and cascades across.
		"foreign key without the tenant": {`select k.conname from pg_constraint k join ` + tables + ` on c.oid = k.conrelid
			join pg_attribute a on a.attrelid = c.oid and a.attname = 'tenant_id'
			where k.contype = 'f' and not a.attnum = any (k.conkey)`, nil},
		"TRUNCATE, REFERENCES or TRIGGER": {`select r || ': ' || c.relname || ': ' || p from ` + tables + `, unnest($1::text[]) r,
			unnest(array['TRUNCATE', 'REFERENCES', 'TRIGGER']) p where c.relkind in ('r', 'p', 'v') and has_table_privilege(r, c.oid, p)`, []any{roles}},
		"anything for PUBLIC": {`select c.relname::text || ': ' || acl.privilege_type from ` + tables + `
			cross join lateral aclexplode(c.relacl) acl where acl.grantee = 0
			union all select p.proname::text from pg_proc p
			cross join lateral aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) acl
			where p.pronamespace = 'compass'::regnamespace and acl.grantee = 0 and p.prorettype <> 'trigger'::regtype`, nil},
		// A standard body was resolved when it was made, so only whoever lends his rights must pin. refuse_frozen runs at every
		// row and names whose its operators are: TestFrozenWhateverThePath.
		"a function without a pinned path": {`select proname::text from pg_proc where pronamespace = 'compass'::regnamespace
			and (prosqlbody is null and proname <> 'refuse_frozen' or prosecdef)
			and not coalesce(proconfig::text, '') like '%search_path=pg_catalog, pg_temp%'`, nil},
		"a materialized view, rule or foreign table":     {`select c.relname::text from ` + tables + ` where c.relkind in ('m', 'f') or c.relhasrules and c.relkind <> 'v'`, nil},
		"a shared sequence":                              {`select c.relname::text from ` + tables + `, unnest($1::text[]) r where c.relkind = 'S' and has_sequence_privilege(r, c.oid, 'USAGE')`, []any{roles}},
		"an enum or domain, whose comparisons are leaky": {`select typname::text from pg_type where typnamespace = 'compass'::regnamespace and typtype in ('e', 'd')`, nil},
		"a membership among our roles":                   {`select m::text from pg_auth_members m where m.member in (select oid from pg_roles where rolname = any ($1))`, []any{roles}},
		// A database that has no privileges of its own yet is being made this very moment, by another test.
		"a login elsewhere": {`select d.datname::text from pg_database d, unnest($1::text[]) r where d.datname like 't%' and d.datname <> current_database()
			and d.datname not like 'template%' and d.datacl is not null and has_database_privilege(r, d.oid, 'CONNECT')`, []any{roles}},
		"a temporary table for a login": {`select r from unnest($1::text[]) r where has_database_privilege(r, current_database(), 'TEMP, CREATE')
			or has_schema_privilege(r, 'public', 'USAGE, CREATE') or has_schema_privilege(r, 'compass', 'CREATE')`, []any{roles}},
		// An empty tenant would match a setting that was reset.
		"a tenant that may be empty": {`select 'tenants' where not exists (select from pg_constraint where conrelid = 'compass.tenants'::regclass
			and contype = 'c' and pg_get_constraintdef(oid) like '%id <> %')`, nil},
	} {
		if found := catalogue(t, f, q.sql, q.args...); len(found) > 0 {
			t.Errorf("%s: %v", name, found)
		}
	}
}

// The head is written by take_position alone: a statement of the app role cannot move it (K1).
func TestHeadsAreNotTheAppsToMove(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	_, err := f.exec(WithTenant(t.Context(), tenantA), `update compass.channel_heads set last = 0, last_pos = 0`)
	if pg.Code(err) != "42501" {
		t.Errorf("the app role moved a head: %v", err)
	}
}
