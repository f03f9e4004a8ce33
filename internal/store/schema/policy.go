package schema

import (
	"fmt"
	"slices"
	"strings"

	"github.com/rigelbuild/compass-operator/internal/naming"
	"github.com/rigelbuild/compass-operator/internal/store/pg"
)

// The names of the canonical policies; compass.protect() of the first migration makes them.
const (
	policyApp       = "app_scope"
	policySystem    = "system_all"
	policyProvision = "provision_all"
	policyLogin     = "tenant_login"
	policyLookup    = "login_lookup"
)

// provisioned are the tables that the operator and CreateTenant work on across tenants. Nothing that a tenant's people
// wrote is among them.
var provisioned = []string{"tenants", "placements", "accounts", "account_tokens", "audit_log", "sql_logins"}

// form is a canonical policy: permissive, and in one of the shapes that keep tenants apart.
type form struct {
	name     string
	command  string // * or r
	roles    []string
	using    string
	check    string
	optional bool // a table may do without; a wrong one is dropped, not mended
}

// canonical returns the one form that a policy of this name may have on this table.
func canonical(table, name string, roles naming.Roles) (form, bool) {
	column := "tenant_id"
	if table == "tenants" {
		column = "id"
	}
	mine := column + " = (SELECT NULLIF(current_setting('" + naming.TenantGUC + "', true), ''))"
	switch {
	case name == policyApp:
		return form{name: name, command: "*", roles: []string{roles.App, roles.Owner}, using: mine, check: mine}, true
	case name == policySystem:
		return form{name: name, command: "*", roles: []string{roles.System}, using: "true", check: "true"}, true
	case name == policyProvision && slices.Contains(provisioned, table):
		return form{name: name, command: "*", roles: []string{roles.Provision}, using: "true", check: "true", optional: true}, true
	case name == policyLogin:
		return form{name: name, command: "r", roles: []string{roles.Tenant},
			using: "tenant_id = (SELECT compass.login_tenant())", optional: true}, true
	case name == policyLookup && table == "sql_logins":
		return form{name: name, command: "r", roles: []string{roles.Owner}, using: "role_name = SESSION_USER", optional: true}, true
	}
	return form{}, false
}

func (p policy) equals(f form) bool {
	roles := slices.Clone(p.Roles)
	slices.Sort(roles)
	want := slices.Clone(f.roles)
	slices.Sort(want)
	return p.Permissive && p.Command == f.command && slices.Equal(roles, want) &&
		normal(p.Using) == normal(f.using) && normal(p.Check) == normal(f.check)
}

// create makes the policy on a quoted table.
func (f form) create(table string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "create policy %s on %s", pg.Ident(f.name), table)
	if f.command == "r" {
		b.WriteString(" for select")
	}
	quoted := make([]string, len(f.roles))
	for i, r := range f.roles {
		quoted[i] = pg.Ident(r)
	}
	fmt.Fprintf(&b, " to %s using (%s)", strings.Join(quoted, ", "), f.using)
	if f.check != "" {
		fmt.Fprintf(&b, " with check (%s)", f.check)
	}
	return b.String()
}
