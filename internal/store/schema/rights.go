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

// function is a function that runs with its owner's rights, a trigger's among them.
type function struct {
	Kind, Name string // as ALTER names it
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
       p.proname::text || '(' || pg_catalog.pg_get_function_identity_arguments(p.oid) || ')', coalesce(g.rolname::text, 'public'), a.privilege_type
  from pg_catalog.pg_proc p join pg_catalog.pg_namespace n on n.oid = p.pronamespace
 cross join lateral pg_catalog.aclexplode(coalesce(p.proacl, pg_catalog.acldefault('f', p.proowner))) a
  left join pg_catalog.pg_roles g on g.oid = a.grantee
 where n.nspname = 'compass' and a.grantee <> p.proowner and (p.prosecdef or a.grantee <> 0)
 order by 1, 2, 3, 4`
	sqlFunctions = `
select case p.prokind when 'p' then 'procedure' else 'function' end,
       p.proname::text || '(' || pg_catalog.pg_get_function_identity_arguments(p.oid) || ')', pg_catalog.pg_get_userbyid(p.proowner)::text, p.prosecdef,
       exists (select from pg_catalog.unnest(p.proconfig) c where c like 'search\_path=pg\_catalog%')
  from pg_catalog.pg_proc p join pg_catalog.pg_namespace n on n.oid = p.pronamespace
 where n.nspname = 'compass' order by 2`
	sqlSleepers = `
select c.relname::text, t.tgname::text, t.tgisinternal
  from pg_catalog.pg_trigger t join pg_catalog.pg_class c on c.oid = t.tgrelid join pg_catalog.pg_namespace n on n.oid = c.relnamespace
 where n.nspname = 'compass' and t.tgenabled not in ('O', 'A') order by 1, 2`
)

// applicationMay are the verbs of the application role, by table. A migration that gives it more of one that is here serves no
// binary from before; of a table that this binary does not know it may have any of the four.
var applicationMay = map[string]string{
	"accounts": "siu", "account_tokens": "siu", "agent_placements": "siu", "asks": "siu", "audit_log": "si", "channel_heads": "si",
	"channel_members": "siud", "channels": "siu", "dead_letters": "siud", "delivery_attempts": "siud", "delivery_cursors": "siu",
	"delivery_leases": "", "messages": "siu", "owed_mentions": "siud", "pins": "sid", "placements": "s", "runner_leases": "s",
	"runner_tokens": "", "runners": "", "schema_migrations": "s", "session_bindings": "siu", "session_commands": "sid",
	"sql_logins": "", "tenants": "s", "turns": "siu",
}

// verbs are the privileges that row security bounds; whatever else there is reaches around it.
var verbs = map[string]string{"SELECT": "s", "INSERT": "i", "UPDATE": "u", "DELETE": "d"}

// loginsMay read these, and what this binary does not know.
var loginsMay = []string{"accounts", "asks", "channel_members", "channels", "messages", "pins", "turns"}

// allowed are the verbs that a role of ours may have on a table; nobody else has any.
func allowed(roles naming.Roles, role, table string) string {
	app, known := applicationMay[table]
	switch role {
	case roles.App:
		if !known {
			return "siud"
		}
		return app
	case roles.System:
		if app != "" || !known || table == "runners" || table == "sql_logins" {
			return "s" // of the others it asks functions
		}
	case roles.Provision:
		if slices.Contains(provisioned, table) {
			return "siud"
		}
		if table == "schema_migrations" {
			return "s"
		}
	case roles.Tenant:
		if !known || slices.Contains(loginsMay, table) {
			return "s"
		}
	}
	return ""
}

func may(roles naming.Roles, r right) bool {
	verb := verbs[r.Privilege]
	return verb != "" && strings.Contains(allowed(roles, r.Holder, r.Object), verb)
}

// judgeRights is pure: who holds more than the migrations give.
func judgeRights(rights []right, roles naming.Roles) []Finding {
	ours := []string{roles.App, roles.System, roles.Provision, roles.Tenant}
	var out []Finding
	for _, r := range rights {
		right := slices.Contains(ours, r.Holder)
		switch r.Kind {
		case "table":
			right = may(roles, r)
		case "schema":
			right = right && r.Privilege == "USAGE"
		case "sequence":
			right = false
		}
		if !right {
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
		alter := fmt.Sprintf("alter %s %s.%s ", f.Kind, naming.Schema, f.Name)
		if f.Owner != roles.Owner {
			out = append(out, Finding{f.Name, "is owned by " + f.Owner + " and not by " + roles.Owner, []string{alter + "owner to " + pg.Ident(roles.Owner)}})
		}
		if f.Definer && !f.Pinned {
			out = append(out, Finding{f.Name, "lends its owner's rights and goes by its caller's search_path", []string{alter + "set search_path = pg_catalog, pg_temp"}})
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
