package admin

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/rigelbuild/compass-operator/internal/naming"
	"github.com/rigelbuild/compass-operator/internal/store/pg"
)

// LoginSpec is the login of one tenant's own tools in one database: it reads, and belongs to the group of such logins alone.
type LoginSpec struct {
	Database    string
	Login       string // from naming.TenantLogin
	Password    string
	Connections int
}

// OwnsError says: a login cannot go, because it made objects that would be lost.
type OwnsError struct {
	Role  string
	Count int
}

func (e OwnsError) Error() string { return fmt.Sprintf("role %s owns %d objects", e.Role, e.Count) }

// loginSettings bound what a tool does; its own SET can lift them, which costs its own connections alone.
var loginSettings = append([]string{
	"default_transaction_read_only=on", "idle_in_transaction_session_timeout=60s", "search_path=compass, pg_catalog, pg_temp", "statement_timeout=60s",
}, keepalive...)

// EnsureLogin makes the login as spec says and returns what it changed.
func (a *Admin) EnsureLogin(ctx context.Context, spec LoginSpec) (changed []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, a.o.Timeout)
	defer cancel()
	roles, err := naming.RolesOf(spec.Database)
	if err == nil {
		err = naming.ValidTenantLogin(spec.Login)
	}
	if err != nil {
		return nil, fmt.Errorf("ensure login: %w", err)
	}
	conn, err := a.connect(ctx, "")
	if err != nil {
		return nil, fmt.Errorf("ensure login %s: %w", spec.Login, err)
	}
	defer conn.Close(ctx)
	changed, err = a.converge(ctx, conn, func(ctx context.Context, q querier) ([]change, error) {
		return loginMissing(ctx, q, spec, roles)
	})
	if err == nil {
		var set bool
		set, err = a.ensurePassword(ctx, conn, spec.Database, credential{spec.Login, spec.Password})
		if set {
			changed = append(changed, "set password of role "+spec.Login)
		}
	}
	if err != nil {
		return changed, fmt.Errorf("ensure login %s: %w", spec.Login, err)
	}
	return changed, nil
}

func loginMissing(ctx context.Context, q querier, spec LoginSpec, roles naming.Roles) ([]change, error) {
	seen := Observation{}
	var err error
	if seen.Roles, err = collect(ctx, q, pgx.RowToStructByPos[Role], sqlRoles, []string{spec.Login}); err != nil {
		return nil, err
	}
	if seen.Memberships, err = collect(ctx, q, pgx.RowToStructByPos[Membership], sqlMemberships, []string{spec.Login}); err != nil {
		return nil, err
	}
	return loginChanges(seen, spec, roles), nil
}

// loginChanges is pure.
func loginChanges(seen Observation, spec LoginSpec, roles naming.Roles) []change {
	is := seen.role(spec.Login)
	limit := is.ConnectionLimit
	is.ConnectionLimit = -1 // judged below
	out := attributeChanges(is, true)
	name := pg.Ident(spec.Login)
	if !is.Exists || limit != spec.Connections {
		out = append(out, change{what: fmt.Sprintf("allow role %s %d connections", spec.Login, spec.Connections),
			sql: fmt.Sprintf("alter role %s connection limit %d", name, spec.Connections)})
	}
	out = append(out, settingsMissing(is, loginSettings)...)
	group := Membership{Member: spec.Login, Of: roles.Tenant}
	if !slices.Contains(seen.Memberships, group) {
		out = append(out, change{what: "make role " + spec.Login + " a member of " + roles.Tenant,
			sql: fmt.Sprintf("grant %s to %s", pg.Ident(roles.Tenant), name)})
	}
	for _, m := range seen.Memberships {
		if m != group {
			out = append(out, change{what: "end membership of " + m.Member + " in " + m.Of,
				sql: fmt.Sprintf("revoke %s from %s", pg.Ident(m.Of), pg.Ident(m.Member))})
		}
	}
	return out
}

// RemoveLogin ends the login's sessions and drops it. Absent is success. What it owns is never dropped with it: OwnsError.
func (a *Admin) RemoveLogin(ctx context.Context, login string) error {
	ctx, cancel := context.WithTimeout(ctx, a.o.Timeout)
	defer cancel()
	if err := naming.ValidTenantLogin(login); err != nil {
		return fmt.Errorf("remove login: %w", err)
	}
	conn, err := a.connect(ctx, "")
	if err != nil {
		return fmt.Errorf("remove login %s: %w", login, err)
	}
	defer conn.Close(ctx)
	err = removeLogin(ctx, conn, login)
	if owns := (OwnsError{}); errors.As(err, &owns) || err == nil {
		return err
	}
	return fmt.Errorf("remove login %s: %w", login, pg.Interpret(err))
}

func removeLogin(ctx context.Context, conn *pgx.Conn, login string) error {
	seen, err := collect(ctx, conn, pgx.RowToStructByPos[Role], sqlRoles, []string{login})
	if err != nil || len(seen) == 0 {
		return err
	}
	name := pg.Ident(login)
	for _, sql := range []string{
		"alter role " + name + " nologin",
		"grant " + name + " to current_user", // to be allowed to end its sessions
	} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return err
		}
	}
	if _, err := conn.Exec(ctx, `select pg_terminate_backend(pid) from pg_stat_activity where usename = $1`, login); err != nil {
		return err
	}
	_, err = conn.Exec(ctx, "drop role if exists "+name)
	if pg.Code(err) != "2BP01" {
		return err
	}
	owns := OwnsError{Role: login}
	err = conn.QueryRow(ctx, `
select count(*) from pg_shdepend d join pg_roles r on r.oid = d.refobjid
 where d.refclassid = 'pg_authid'::regclass and d.deptype = 'o' and r.rolname = $1`, login).Scan(&owns.Count)
	if err != nil {
		return err
	}
	return owns
}
