package schema

import (
	"fmt"
	"slices"
	"strings"

	"github.com/rigelbuild/compass-operator/internal/naming"
	"github.com/rigelbuild/compass-operator/internal/store/pg"
)

// right is one privilege that somebody but the owner holds.
type right struct {
	Kind      string // schema, table, sequence, function or procedure
	Object    string // as GRANT names it; a table's name alone
	Holder    string // public, or a role
	Privilege string
}

// function is one of schema compass, or a procedure.
type function struct {
	Kind, Name string // as ALTER names it, quoted where it must be
	Owner      string
	Definer    bool
	Pinned     bool // has a search path of its own
}

// trigger is one that does not fire for everybody.
type trigger struct {
	Table, Name string
	Internal    bool // a foreign key's
}

const (
	sqlRights = `
select 'schema', n.nspname::text, coalesce(g.rolname::text, 'public'), a.privilege_type
  from pg_catalog.pg_namespace n cross join lateral pg_catalog.aclexplode(n.nspacl) a left join pg_catalog.pg_roles g on g.oid = a.grantee
 where n.nspname = 'compass' and a.grantee <> n.nspowner
union all
select case c.relkind when 'S' then 'sequence' else 'table' end, c.relname::text, coalesce(g.rolname::text, 'public'), a.privilege_type
  from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace
 cross join lateral (select x.grantee, x.privilege_type from pg_catalog.aclexplode(c.relacl) x
                     union select x.grantee, x.privilege_type from pg_catalog.pg_attribute t cross join lateral pg_catalog.aclexplode(t.attacl) x
                     where t.attrelid = c.oid and not t.attisdropped) a
  left join pg_catalog.pg_roles g on g.oid = a.grantee
 where n.nspname = 'compass' and a.grantee <> c.relowner
union all
select case p.prokind when 'p' then 'procedure' else 'function' end,
       pg_catalog.quote_ident(p.proname) || '(' || pg_catalog.pg_get_function_identity_arguments(p.oid) || ')', coalesce(g.rolname::text, 'public'), a.privilege_type
  from pg_catalog.pg_proc p join pg_catalog.pg_namespace n on n.oid = p.pronamespace
 cross join lateral pg_catalog.aclexplode(coalesce(p.proacl, pg_catalog.acldefault('f', p.proowner))) a
  left join pg_catalog.pg_roles g on g.oid = a.grantee
 where n.nspname = 'compass' and a.grantee <> p.proowner and (p.prosecdef or a.grantee <> 0)
 order by 1, 2, 3, 4`
	sqlFunctions = `
select case p.prokind when 'p' then 'procedure' else 'function' end,
       pg_catalog.quote_ident(p.proname) || '(' || pg_catalog.pg_get_function_identity_arguments(p.oid) || ')', pg_catalog.pg_get_userbyid(p.proowner)::text, p.prosecdef,
       exists (select from pg_catalog.unnest(p.proconfig) c where c like 'search\_path=pg\_catalog%')
  from pg_catalog.pg_proc p join pg_catalog.pg_namespace n on n.oid = p.pronamespace
 where n.nspname = 'compass' order by 2`
	sqlSleepers = `
select c.relname::text, t.tgname::text, t.tgisinternal
  from pg_catalog.pg_trigger t join pg_catalog.pg_class c on c.oid = t.tgrelid join pg_catalog.pg_namespace n on n.oid = c.relnamespace
 where n.nspname = 'compass' and t.tgenabled not in ('O', 'A') order by 1, 2`
)

// grants are the verbs of each of our roles on a table: s select, i insert, u update, d delete.
type grants struct{ app, system, provision, login string }

// granted says them for every table that this binary knows; with none, functions are asked. A migration that gives more on one
// of these serves no binary from before.
var granted = map[string]grants{
	"accounts":          {"siu", "s", "siud", "s"},
	"account_tokens":    {"siu", "s", "siud", ""},
	"agent_placements":  {"siu", "s", "", ""},
	"asks":              {"siu", "s", "", "s"},
	"audit_log":         {"si", "s", "siud", ""},
	"channel_heads":     {"si", "s", "", ""},
	"channel_members":   {"siud", "s", "", "s"},
	"channels":          {"siu", "s", "", "s"},
	"dead_letters":      {"siud", "s", "", ""},
	"delivery_attempts": {"siud", "s", "", ""},
	"delivery_cursors":  {"siu", "s", "", ""},
	"delivery_leases":   {},
	"messages":          {"siu", "s", "", "s"},
	"owed_mentions":     {"siud", "s", "", ""},
	"pins":              {"sid", "s", "", "s"},
	"placements":        {"s", "s", "siud", ""},
	"runner_leases":     {"s", "s", "", ""},
	"runner_tokens":     {},
	"runners":           {},
	"schema_migrations": {"s", "s", "s", ""},
	"session_bindings":  {"siu", "s", "", ""},
	"session_commands":  {"sid", "s", "", ""},
	"sql_logins":        {"", "s", "siud", ""},
	"tenants":           {"s", "s", "siud", ""},
	"turns":             {"siu", "s", "", "s"},
}

// unknown is for a table of a later migration.
var unknown = grants{"siud", "s", "siud", "s"}

// verbs are the privileges that row security bounds; whatever else there is reaches around it.
var verbs = map[string]string{"SELECT": "s", "INSERT": "i", "UPDATE": "u", "DELETE": "d"}

func (g grants) may(roles naming.Roles, r right) bool {
	verb := verbs[r.Privilege]
	allowed := map[string]string{roles.App: g.app, roles.System: g.system, roles.Provision: g.provision, roles.Tenant: g.login}[r.Holder]
	return verb != "" && strings.Contains(allowed, verb)
}

// judgeRights is pure: who holds more than the migrations give.
func judgeRights(rights []right, roles naming.Roles) []Finding {
	ours := []string{roles.App, roles.System, roles.Provision, roles.Tenant}
	var out []Finding
	for _, r := range rights {
		given := slices.Contains(ours, r.Holder)
		switch r.Kind {
		case "table":
			of, known := granted[r.Object]
			if !known {
				of = unknown
			}
			given = of.may(roles, r)
		case "schema":
			given = given && r.Privilege == "USAGE"
		case "sequence":
			given = false
		}
		if !given {
			out = append(out, Finding{r.Object, fmt.Sprintf("%s holds %s on the %s", r.Holder, r.Privilege, r.Kind), []string{r.revoke()}})
		}
	}
	return out
}

func (r right) revoke() string {
	holder, on := pg.Ident(r.Holder), r.Kind+" "+pg.Ident(naming.Schema, r.Object)
	if r.Holder == "public" {
		holder = "public"
	}
	switch r.Kind {
	case "schema":
		on = "schema " + pg.Ident(r.Object)
	case "function", "procedure":
		on = r.Kind + " " + naming.Schema + "." + r.Object
	}
	return fmt.Sprintf("revoke %s on %s from %s", strings.ToLower(r.Privilege), on, holder)
}

// judgeFunctions is pure: whose rights a function lends, and whose names it goes by.
func judgeFunctions(functions []function, roles naming.Roles) []Finding {
	var out []Finding
	for _, f := range functions {
		name := f.Kind + " " + naming.Schema + "." + f.Name
		if f.Owner != roles.Owner {
			// No cure: to own what a stranger wrote would lend it our rights.
			out = append(out, Finding{f.Name, "is owned by " + f.Owner + " and not by " + roles.Owner + ": drop it, or make it what the migration made", nil})
		}
		if f.Definer && !f.Pinned {
			out = append(out, Finding{f.Name, "lends its owner's rights and goes by its caller's search_path", []string{fmt.Sprintf("alter %s set search_path = pg_catalog, pg_temp", name)}})
		}
	}
	return out
}

// judgeTriggers is pure: what does not fire.
func judgeTriggers(triggers []trigger) []Finding {
	var out []Finding
	for _, t := range triggers {
		table := pg.Ident(naming.Schema, t.Table)
		if t.Internal {
			out = append(out, Finding{t.Table, "foreign keys are not checked: a superuser runs alter table " + table + " enable trigger all", nil})
			continue
		}
		out = append(out, Finding{t.Table, "trigger " + t.Name + " does not fire", []string{fmt.Sprintf("alter table %s enable trigger %s", table, pg.Ident(t.Name))}})
	}
	return out
}
