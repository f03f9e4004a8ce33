package admin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/rigelbuild/compass-operator/internal/naming"
	"github.com/rigelbuild/compass-operator/internal/store/pg"
)

const (
	// Changes of roles touch shared catalogue rows; side by side they fail with "tuple concurrently updated".
	sqlRolesLock = `select pg_advisory_xact_lock(hashtextextended('compass.roles', 0))`
	applyTries   = 5
	// rolesWait is how long they wait for each other, in milliseconds. Whoever may connect can hold the number, so then they go
	// on without; what collides is tried again.
	rolesWait = "3000"
)

// settings bound every statement of a login that no transaction bounds closer, and keep its names those of the system. A
// statement is planned once for all of its parameters, which is the plan that the golden ones show: left to itself Postgres
// plans those that take arrays anew at each call, which costs several times what they do.
var settings = append([]string{
	"idle_in_transaction_session_timeout=60s", "jit=off", "plan_cache_mode=force_generic_plan",
	"search_path=pg_catalog, pg_temp", "statement_timeout=60s",
}, keepalive...)

// keepalive ends a connection within 10 s of its network. No timeout covers a batch of which half has arrived, and it keeps
// the locks of what it has done.
var keepalive = []string{"tcp_keepalives_count=5", "tcp_keepalives_idle=5", "tcp_keepalives_interval=1", "tcp_user_timeout=10000"}

// change is one statement and what it does, which has no secret in it.
type change struct {
	what, sql string
	role      string // whom the admin acts as; "" for itself
}

// run is the statement as the admin sends it.
func (c change) run() string {
	if c.role == "" {
		return c.sql
	}
	return fmt.Sprintf("set local role %s; %s; reset role", pg.Ident(c.role), c.sql)
}

// ensureRoles makes the five roles what they must be, and nothing else of them.
func (a *Admin) ensureRoles(ctx context.Context, conn *pgx.Conn, spec Spec, roles naming.Roles) ([]string, error) {
	return a.converge(ctx, conn, func(ctx context.Context, q querier) ([]change, error) {
		seen, err := observe(ctx, q, spec.Database, roles)
		if err != nil {
			return nil, err
		}
		return roleChanges(seen, roles), nil
	})
}

// roleChanges is pure: what is missing between the roles seen and the roles wanted.
func roleChanges(seen Observation, roles naming.Roles) []change {
	var out []change
	for _, name := range names(roles) {
		login := name != roles.Owner && name != roles.Tenant
		out = append(out, attributeChanges(seen.role(name), login)...)
		out = append(out, settingChanges(seen.role(name), login)...)
	}
	for _, m := range seen.Memberships {
		if unwanted(m, roles) {
			out = append(out, change{what: "end membership of " + m.Member + " in " + m.Of,
				sql: fmt.Sprintf("revoke %s from %s", pg.Ident(m.Of), pg.Ident(m.Member))})
		}
	}
	if !seen.OwnerGranted {
		grant := fmt.Sprintf("grant %s to current_user", pg.Ident(roles.Owner))
		if seen.ServerVersion >= 160000 {
			grant += " with inherit true, set true"
		}
		out = append(out, change{what: "let the admin act as " + roles.Owner, sql: grant})
	}
	return out
}

// attributeChanges never alters what is right already: a no-op that only a superuser may say would fail.
func attributeChanges(r Role, login bool) []change {
	role := pg.Ident(r.Name)
	if !r.Exists {
		word := map[bool]string{true: "login", false: "nologin"}[login]
		return []change{{what: "create role " + r.Name, sql: fmt.Sprintf(
			"create role %s %s nosuperuser nobypassrls nocreaterole nocreatedb noreplication inherit", role, word)}}
	}
	var words []string
	for _, a := range []struct {
		is, want bool
		word     string
	}{
		{r.Login, login, "login"}, {r.Super, false, "superuser"}, {r.BypassRLS, false, "bypassrls"},
		{r.CreateRole, false, "createrole"}, {r.CreateDB, false, "createdb"}, {r.Repl, false, "replication"},
		{r.Inherit, true, "inherit"},
	} {
		switch {
		case a.is && !a.want:
			words = append(words, "no"+a.word)
		case !a.is && a.want:
			words = append(words, a.word)
		}
	}
	if r.ConnectionLimit != -1 {
		words = append(words, "connection limit -1")
	}
	if r.Expires {
		words = append(words, "valid until 'infinity'")
	}
	var out []change
	for _, w := range words { // one statement each: what the admin may not do must not keep it from the rest
		out = append(out, change{what: "make role " + r.Name + " " + w, sql: "alter role " + role + " " + w})
	}
	return out
}

func settingChanges(r Role, login bool) []change {
	if login {
		return settingsMissing(r, settings)
	}
	return settingsMissing(r, nil)
}

func settingsMissing(r Role, want []string) []change {
	role := pg.Ident(r.Name)
	var out []change
	for _, s := range r.Settings {
		name, _, _ := strings.Cut(s, "=")
		if !slices.ContainsFunc(want, func(w string) bool { return strings.HasPrefix(w, name+"=") }) {
			out = append(out, change{what: "reset " + name + " of role " + r.Name,
				sql: "alter role " + role + " reset " + pg.Ident(strings.Split(name, ".")...)})
		}
	}
	for _, w := range want {
		if !slices.Contains(r.Settings, w) {
			name, value, _ := strings.Cut(w, "=")
			if name != "search_path" { // a list of names, each its own word
				value = "'" + value + "'"
			}
			out = append(out, change{what: "set " + name + " of role " + r.Name,
				sql: fmt.Sprintf("alter role %s set %s = %s", role, name, value)})
		}
	}
	for _, d := range r.Elsewhere {
		out = append(out, change{what: "reset role " + r.Name + " in database " + d,
			sql: fmt.Sprintf("alter role %s in database %s reset all", role, pg.Ident(d))})
	}
	return out
}

// unwanted: policies apply by membership, so nobody but the admin is in a role that reads rows or is one of our own in another,
// and none but tenants' logins in their group. Whom somebody lets act as the owner, to migrate, is theirs to decide, and is shown.
func unwanted(m Membership, roles naming.Roles) bool {
	login := naming.ValidTenantLogin(m.Member) == nil
	switch {
	case slices.Contains(names(roles), m.Member):
		return true
	case m.Of == roles.Tenant:
		return !login
	case m.Of == roles.Owner:
		return login
	}
	return slices.Contains(names(roles), m.Of) || login
}

// converge asks what is missing and, only if something is, takes the lock, asks again, does it, and asks once more: what
// is then still missing is beyond this admin.
func (a *Admin) converge(ctx context.Context, conn *pgx.Conn, missing func(context.Context, querier) ([]change, error)) ([]string, error) {
	todo, err := missing(ctx, conn)
	if err != nil || len(todo) == 0 {
		return nil, pg.Interpret(err)
	}
	var did []string
	if a.o.Dry {
		for _, c := range todo {
			did = append(did, c.what)
		}
		return did, nil
	}
	for try := 1; ; try++ {
		did, err = applyLocked(ctx, conn, missing)
		if err == nil {
			break
		}
		if try == applyTries || !slices.Contains([]string{"XX000", "23505", "42710", "40001", "40P01"}, pg.Code(err)) {
			return nil, pg.Interpret(err)
		}
	}
	rest, err := missing(ctx, conn)
	if err != nil {
		return did, pg.Interpret(err)
	}
	if len(rest) > 0 {
		return did, fmt.Errorf("%w: %s; run as one: %s", ErrBeyondAdmin, rest[0].what, rest[0].sql)
	}
	return did, nil
}

func applyLocked(ctx context.Context, conn *pgx.Conn, missing func(context.Context, querier) ([]change, error)) (did []string, err error) {
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if err := lockRoles(ctx, tx); err != nil {
			return err
		}
		todo, err := missing(ctx, tx)
		if err != nil {
			return err
		}
		did = nil
		for _, c := range todo {
			if err := try(ctx, tx, c); err != nil {
				return fmt.Errorf("%s: %w", c.what, err)
			}
			did = append(did, c.what)
		}
		return nil
	})
	return did, err
}

func lockRoles(ctx context.Context, tx pgx.Tx) error {
	err := pgx.BeginFunc(ctx, tx, func(inner pgx.Tx) error {
		if _, err := inner.Exec(ctx, `select set_config('lock_timeout', $1, true)`, rolesWait); err != nil {
			return err
		}
		if _, err := inner.Exec(ctx, sqlRolesLock); err != nil {
			return err
		}
		_, err := inner.Exec(ctx, `set local lock_timeout to default`)
		return err
	})
	if pg.Code(err) == "55P03" {
		return nil
	}
	return err
}

// try runs one change behind a savepoint. Where the admin may not, the rest goes on and the last look says so.
func try(ctx context.Context, tx pgx.Tx, c change) error {
	err := pgx.BeginFunc(ctx, tx, func(inner pgx.Tx) error {
		_, err := inner.Exec(ctx, c.run(), pgx.QueryExecModeSimpleProtocol)
		return err
	})
	if pg.Code(err) == "42501" {
		return nil
	}
	return err
}

// ensurePasswords sets a password only where a login with it is refused: the catalogue shows nobody's verifier to a
// non-superuser, so the one way to look is to try.
func (a *Admin) ensurePasswords(ctx context.Context, conn *pgx.Conn, spec Spec, roles naming.Roles) ([]string, error) {
	var did []string
	for _, p := range []credential{
		{roles.App, spec.Passwords.App}, {roles.System, spec.Passwords.System}, {roles.Provision, spec.Passwords.Provision},
	} {
		if p.password == "" {
			continue
		}
		changed, err := a.ensurePassword(ctx, conn, spec.Database, p)
		if err != nil {
			return did, err
		}
		if changed {
			did = append(did, "set password of role "+p.role)
		}
	}
	return did, nil
}

type credential struct{ role, password string }

func (a *Admin) ensurePassword(ctx context.Context, conn *pgx.Conn, database string, c credential) (bool, error) {
	if err := validPassword(c.password); err != nil {
		return false, fmt.Errorf("password of role %s: %w", c.role, err)
	}
	works, err := a.passwordWorks(ctx, database, c)
	if err != nil || works || a.o.Dry {
		return !works && err == nil, err
	}
	secret, err := verifier(c.password)
	if err != nil {
		return false, err
	}
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if err := lockRoles(ctx, tx); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, fmt.Sprintf("alter role %s password '%s'", pg.Ident(c.role), secret))
		return err
	})
	if err != nil {
		return false, fmt.Errorf("set password of role %s: %w", c.role, pg.Interpret(err))
	}
	works, err = a.passwordWorks(ctx, database, c)
	if err == nil && !works {
		err = fmt.Errorf("set password of role %s: the server still refuses it: is pg_hba.conf set to scram-sha-256 or md5?", c.role)
	}
	return true, err
}

// passwordWorks logs in. The server checks the password first, so every refusal that comes after it means yes.
func (a *Admin) passwordWorks(ctx context.Context, database string, c credential) (bool, error) {
	config, err := pgx.ParseConfig(a.DSN(database, c.role, c.password))
	if err != nil {
		return false, errors.New("the role's DSN cannot be read")
	}
	conn, err := pgx.ConnectConfig(ctx, config)
	if err == nil {
		return true, conn.Close(ctx)
	}
	switch pg.Code(err) {
	case "28P01":
		return false, nil
	case "42501", "3D000", "53300": // no CONNECT, no such database, too many connections
		return true, nil
	}
	return false, fmt.Errorf("try the login of role %s: %w", c.role, pg.Interpret(err))
}
