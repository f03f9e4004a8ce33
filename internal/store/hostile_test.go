package store

import (
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/rigelbuild/compass-operator/internal/store/pg"
	"github.com/rigelbuild/compass-operator/internal/store/storetest"
)

// probe is one thing that somebody hostile says to Postgres. What it is worth is judged in one way for all of them: the
// answer must contain nothing of tenantA's, and tenantA's rows and the schema must be as they were.
type probe struct {
	name string
	sql  string
	// want is the SQLSTATE of the refusal; "" where the statement is allowed and must be harmless, "any" where either is
	// right.
	want string
}

// quiet is what one may see of another tenant.
const quiet = ""

// asApp are statements of the application role in the scope of tenantB: what an injection could say, short of setting the
// scope itself, which row-level security cannot contain (docs/security.md).
func (s *seeded) asApp() []probe {
	owner, system, provision := pg.Ident(s.db.Roles.Owner), pg.Ident(s.db.Roles.System), pg.Ident(s.db.Roles.Provision)
	app, a := pg.Ident(s.db.Roles.App), string(tenantA)
	return []probe{
		{"become the owner", `set local role ` + owner, "42501"},
		{"become system", `set local role ` + system, "42501"},
		{"become provision", `set local role ` + provision, "42501"},
		{"become the server's owner", `set local role postgres`, "42501"},
		{"another session user", `set local session authorization ` + system, "42501"},
		{"grant itself system", `grant ` + system + ` to ` + app, "42501"},
		{"row security off", `set local row_security = off; select handle from compass.accounts`, "42501"},
		{"disable row security", `alter table compass.accounts disable row level security`, "42501"},
		{"no force", `alter table compass.accounts no force row level security`, "42501"},
		{"a policy of its own", `create policy mine on compass.accounts using (true)`, "42501"},
		{"drop the policy", `drop policy app_scope on compass.accounts`, "42501"},
		{"truncate", `truncate compass.accounts cascade`, "42501"},
		{"a trigger", `create trigger t before update on compass.accounts for each row execute function suppress_redundant_updates_trigger()`, "42501"},
		{"disable triggers", `alter table compass.messages disable trigger all`, "42501"},
		{"replica role", `set local session_replication_role = replica`, "42501"},
		{"a rule", `create rule r as on select to compass.accounts do instead select 1`, "42501"},
		{"a view", `create view compass.peek as select * from compass.accounts`, "42501"},
		{"a function beside ours", `create function compass.f() returns int language sql return 1`, "42501"},
		{"a function in public", `create function public.f() returns int language sql return 1`, "42501"},
		{"a temporary table", `create temp table login_tenant (x int)`, "42501"},
		{"a schema", `create schema mine`, "42501"},
		{"an extension", `create extension dblink`, "any"},
		{"a foreign server", `create server s foreign data wrapper postgres_fdw`, "any"},
		{"copy out", `copy compass.accounts to program 'cat'`, "42501"},
		{"read a file", `select pg_read_file('/etc/passwd')`, "42501"},
		{"list a folder", `select pg_ls_dir('.')`, "42501"},
		{"import a file", `select lo_import('/etc/passwd')`, "42501"},
		{"password hashes", `select rolpassword from pg_authid`, "42501"},
		{"statistics of hidden rows", `select most_common_vals::text from pg_stats where tablename = 'accounts'`, quiet},
		{"what others run", `select query from pg_stat_activity where usename <> current_user and query not like '<%' and query <> ''`, quiet},
		{"end others", `select pg_terminate_backend(pid) from pg_stat_activity where usename = 'postgres'`, "42501"},
		{"move a head", `update compass.channel_heads set last = 0, last_pos = 0`, "42501"},
		{"a position of another's channel", `select compass.take_position('` + a + `', 'x` + a + `')`, "P0002"},
		{"lock another's head", `select compass.lock_head('` + a + `', 'x` + a + `')`, "P0002"},
		{"take a lease", `select compass.lease_acquire('main', 'me', 'n', '1 hour', 0)`, "42501"},
		{"expire a Runner", `select compass.runner_expire('r', now(), '1 hour')`, "42501"},
		{"purge a tenant", `select compass.purge_tenant('` + a + `')`, "42501"},
		{"protect a table anew", `call compass.protect('compass.accounts')`, "42501"},
		{"ask as a login", `select compass.login_tenant()`, "42501"},
		{"Runner tokens", `select hash from compass.runner_tokens`, "42501"},
		{"Runner keys", `select public_key from compass.runners`, "42501"},
		{"lease rows", `select nonce from compass.delivery_leases`, "42501"},
		{"the shared sequence", `select nextval('compass.audit_log_id_seq')`, "42501"},
		{"what the sequence is at", `select last_value from compass.audit_log_id_seq`, "42501"},
		{"an error that tells", `select 1 / (length(handle) - length(handle)) from compass.accounts where tenant_id = '` + a + `'`, quiet},
		{"a join that widens", `select x.handle from compass.accounts y right join compass.accounts x on true where x.tenant_id = '` + a + `'`, quiet},
		{"a writing CTE", `with w as (update compass.accounts set handle = 'owned' where tenant_id = '` + a + `' returning handle) select handle from w`, quiet},
		{"a merge", `merge into compass.accounts t using (select 1) x on t.tenant_id = '` + a + `' when matched then update set handle = 'owned'`, quiet},
		{"a cursor", `select handle from compass.accounts where ctid is not null and tenant_id <> '` + string(tenantB) + `'`, quiet},
		{"table, not select", `table compass.account_tokens`, "any"},
		{"rows as a whole", `select a::text from compass.accounts a where a.tenant_id = '` + a + `'`, quiet},
		{"xml of the table", `select query_to_xml('select handle from compass.accounts where tenant_id = ''` + a + `''', true, true, '')::text`, "any"},
		{"in a block", `do $$ begin if (select count(*) from compass.accounts where tenant_id = '` + a + `') > 0 then raise 'seen %', '` + a + `'; end if; end $$`, quiet},
		{"take a row over", `insert into compass.accounts (tenant_id, id, kind, handle) values ('` + a + `', 'evil', 'person', 'evil')`, "42501"},
		{"give a row away", `update compass.accounts set tenant_id = '` + a + `'`, "42501"},
		{"move a tenant", `update compass.placements set database_id = 9`, "42501"},
		{"thaw a tenant", `update compass.tenants set frozen = false`, "42501"},
		{"the database's settings", `alter database ` + pg.Ident(s.db.Name) + ` set compass.tenant_id = '` + a + `'`, "42501"},
	}
}

// asLogin are statements of a tenant's own SQL login, bound to tenantB.
func (s *seeded) asLogin(login string) []probe {
	app, owner, a := pg.Ident(s.db.Roles.App), pg.Ident(s.db.Roles.Owner), string(tenantA)
	const mine = `select tenant_id from compass.accounts where tenant_id <> '` + string(tenantB) + `'`
	return []probe{
		{"set the scope", `set local compass.tenant_id = '` + a + `'; ` + mine, quiet},
		{"set the scope by function", `select set_config('compass.tenant_id', '` + a + `', true); ` + mine, quiet},
		{"become app", `set local role ` + app, "42501"},
		{"become the owner", `set local role ` + owner, "42501"},
		{"become its group", `set local role ` + pg.Ident(s.db.Roles.Tenant) + `; ` + mine, quiet},
		{"another session user", `set local session authorization ` + app, "42501"},
		{"reset the session user", `reset session authorization; ` + mine, quiet},
		{"let others in", `grant ` + pg.Ident(s.db.Roles.Tenant) + ` to ` + app, "42501"},
		{"row security off", `set local row_security = off; ` + mine, "42501"},
		{"a path of its own", `set local search_path = pg_temp, public, compass; ` + mine, quiet},
		{"a temporary impostor", `create temp table sql_logins (tenant_id text, role_name name)`, "42501"},
		{"an operator", `create operator public.= (leftarg = text, rightarg = text, function = texteq)`, "42501"},
		{"an impostor of a function", `create function public.current_setting(text, boolean) returns text language sql return 'x'`, "42501"},
		{"write", `insert into compass.messages (tenant_id, id) values ('` + string(tenantB) + `', 'x')`, "42501"},
		{"edit", `update compass.messages set blocks = '[]'`, "42501"},
		{"delete", `delete from compass.messages`, "42501"},
		{"lock for update", `select id from compass.messages for update`, "42501"},
		{"lock the table", `lock table compass.messages in row exclusive mode`, "42501"},
		{"the mapping", `select tenant_id from compass.sql_logins`, "42501"},
		{"map itself", `update compass.sql_logins set tenant_id = '` + a + `'`, "42501"},
		{"tokens", `select hash from compass.account_tokens`, "42501"},
		{"the audit log", `select actor from compass.audit_log`, "42501"},
		{"tenants", `select slug from compass.tenants`, "42501"},
		{"placements", `select stream from compass.placements`, "42501"},
		{"cursors", `select acked from compass.delivery_cursors`, "42501"},
		{"sessions", `select session_id from compass.session_bindings`, "42501"},
		{"a position", `select compass.take_position('` + string(tenantB) + `', 'x')`, "42501"},
		{"the worker's fence", `select compass.assert_writer('main', 1, 'n', '` + string(tenantB) + `')`, "42501"},
		{"a Runner", `select compass.runner_find('r')`, "42501"},
		{"who it is", `select compass.login_tenant() where compass.login_tenant() <> '` + string(tenantB) + `'`, quiet},
		{"no limit of connections", `alter role ` + login + ` connection limit 100`, "42501"},
		{"more rights", `alter role ` + login + ` createrole`, "42501"},
		{"read a file", `select pg_read_file('/etc/passwd')`, "42501"},
		{"statistics", `select most_common_vals::text from pg_stats where schemaname = 'compass' and most_common_vals::text like '%` + a + `%'`, quiet},
	}
}

// Holds REQ-104, REQ-107, REQ-109, REQ-206 (SQL side); docs/security.md sections 2 and 3. Every probe has a name, and each
// runs in a transaction that is undone.
func TestHostileStatements(t *testing.T) {
	t.Parallel()
	s := seed(t)
	s.mustExec(t, `analyze`)
	login := "ct_" + strings.ToLower(rand.Text())[:20]
	s.mustExec(t, fmt.Sprintf(`create role %s login password 'pw' connection limit 5 in role %s`, login, pg.Ident(s.db.Roles.Tenant)))
	t.Cleanup(func() { s.mustExecLate(t, `drop owned by `+login+`; drop role `+login) })
	s.mustExec(t, `update compass.sql_logins set role_name = $1 where tenant_id = $2`, login, tenantB)
	loginDSN, err := storetest.WithUser(s.db.Straight(t, s.db.App), login, "pw", s.db.Name)
	if err != nil {
		t.Fatal(err)
	}
	before := s.whole(t)
	for who, c := range map[string]struct {
		dsn    string
		lead   string
		probes []probe
	}{
		"app":   {s.db.Straight(t, s.db.App), `select set_config('compass.tenant_id', '` + string(tenantB) + `', true)`, s.asApp()},
		"login": {loginDSN, `select 1`, s.asLogin(login)},
	} {
		conn := storetest.Connect(t, c.dsn)
		for _, p := range c.probes {
			answer, code := hostile(t.Context(), t, conn, c.lead, p.sql)
			if p.want != "any" && code != p.want {
				t.Errorf("%s, %s: code %q, want %q", who, p.name, code, p.want)
			}
			if strings.Contains(answer, string(tenantA)) || code == "" && p.want == quiet && strings.TrimSpace(answer) != "" {
				t.Errorf("%s, %s: answered %q", who, p.name, answer)
			}
		}
		t.Logf("%d probes as %s", len(c.probes), who)
	}
	if after := s.whole(t); !slices.Equal(before, after) {
		t.Error("a probe left something behind")
	}
}

// hostile runs one probe and returns all that it was told but the answer to lead and to what only prepares it.
func hostile(ctx context.Context, t *testing.T, conn *pgx.Conn, lead, sql string) (answer, code string) {
	t.Helper()
	tx, err := conn.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(ctx) }()
	if _, err := tx.Exec(ctx, lead); err != nil {
		t.Fatal(err)
	}
	results, err := conn.PgConn().Exec(ctx, sql).ReadAll()
	if err != nil {
		return err.Error(), pg.Code(err)
	}
	for _, row := range results[len(results)-1].Rows {
		for _, v := range row {
			answer += string(v) + "\n"
		}
	}
	return answer, ""
}

// whole is every row of tenantA and the shape of the schema.
func (s *seeded) whole(t *testing.T) []string {
	t.Helper()
	var out []string
	for _, r := range s.relations {
		out = append(out, catalogue(t, s.fixture, fmt.Sprintf(`select x::text from compass.%s x where %s = '%s'`, r.name, r.key, tenantA))...)
	}
	return append(out, catalogue(t, s.fixture, `select p::text from pg_policy p union all select t::text from pg_trigger t
		union all select c.relname || c.relrowsecurity || c.relforcerowsecurity || coalesce(c.relacl::text, '') from pg_class c where c.relnamespace = 'compass'::regnamespace
		union all select m::text from pg_auth_members m join pg_roles r on r.oid in (m.roleid, m.member) and starts_with(r.rolname, current_database() || '_')
		order by 1`)...) // of this database's roles: other tests make others meanwhile
}

// Existence must not leak: what another tenant has and what nobody has are refused in the same words. Generated from the
// catalogue: an insert of tenantB that reuses every identifier of tenantA's row must fare as one with identifiers of
// nobody's.
func TestExistenceDoesNotLeak(t *testing.T) {
	t.Parallel()
	s := newSeeded(t)
	conn := storetest.Connect(t, s.db.Straight(t, s.db.App))
	for _, r := range s.relations {
		if r.name == "tenants" || r.name == "sql_logins" { // the app role writes neither; leaks_test holds it to that
			continue
		}
		outcome := func(of TenantID) string {
			columns, values := s.rowOf(t, r, of)
			answer, code := hostile(t.Context(), t, conn, `select set_config('compass.tenant_id', '`+string(tenantB)+`', true)`,
				fmt.Sprintf(`delete from compass.%[1]s; insert into compass.%[1]s (%[2]s) values (%[3]s)`, r.name, columns, values))
			return strings.ReplaceAll(code+" "+answer, string(of), "…")
		}
		const nobody = TenantID("t_9999999999999999999999999z")
		if theirs, none := outcome(tenantA), outcome(nobody); theirs != none {
			t.Errorf("%s tells what another tenant has: %q, and %q where nobody has it", r.name, theirs, none)
		}
	}
}

// rowOf is a row of tenantB whose other values are those that the suite gave to of.
func (s *seeded) rowOf(t *testing.T, r relation, of TenantID) (columns, values string) {
	t.Helper()
	columns, values = sampleRow(t, s.fixture, r, of)
	mine := "'" + string(of) + "'"
	return columns, strings.Replace(values, mine, "'"+string(tenantB)+"'", 1)
}

// Holds REQ-090, lesson B38: a method told another tenant's id answers as it answers to an id of nobody's.
func TestForeignAndUnknownAnswerAlike(t *testing.T) {
	t.Parallel()
	f := newSessions(t)
	f.runner(t, alive)
	ctx := inB(t)
	theirs := f.start(t, inA(t), agentX, true)
	f.mustExec(t, `insert into compass.accounts (tenant_id, id, kind, handle) values ($1, 'a_other', 'person', 'other')`, tenantA)
	for name, call := range map[string]func(id string) error{
		"account": func(id string) error { _, err := f.AccountByID(ctx, id); return err },
		"role":    func(id string) error { _, err := f.SetRole(ctx, id, RoleAdmin, "a_2"); return err },
		"session": func(id string) error { _, err := f.Session(ctx, id); return err },
		"steer":   func(id string) error { _, _, err := f.Steer(ctx, id, "x"); return err },
		"stop":    func(id string) error { _, err := f.StopSession(ctx, id); return err },
		"message": func(id string) error { _, err := f.MessageByID(ctx, id); return err },
		"agent":   func(id string) error { _, err := f.SessionForAccount(ctx, id); return err },
		"revoke":  func(id string) error { return f.RevokeToken(ctx, id, "a_2") },
	} {
		id := map[string]string{"session": theirs.Session, "steer": theirs.Session, "stop": theirs.Session}[name]
		if id == "" {
			id = "a_other"
		}
		const nobody = "x_nobody"
		foreign, unknown := call(id), call(nobody)
		if foreign == nil || unknown == nil {
			t.Errorf("%s: foreign %v, unknown %v; want both refused", name, foreign, unknown)
			continue
		}
		if a, b := strings.ReplaceAll(foreign.Error(), id, "…"), strings.ReplaceAll(unknown.Error(), nobody, "…"); a != b {
			t.Errorf("%s: %q for a foreign id, %q for an unknown one", name, a, b)
		}
	}
}

// Lab section 3: under FORCE an owner's own validation of a foreign key checks what the owner sees, which is nothing, and
// calls it valid. So every such step of a migration goes between NO FORCE and FORCE; this is what it looks like.
func TestForeignKeyValidationNeedsNoForce(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.mustExec(t, `set session_replication_role = replica`)
	f.mustExec(t, `insert into compass.channel_members (tenant_id, channel_id, account_id, joined_at) values ($1, 'c_none', 'a_1', 0)`, tenantA)
	f.mustExec(t, `set session_replication_role = origin`)
	owner := storetest.Connect(t, f.db.Admin)
	const add = `alter table compass.channel_members add constraint again foreign key (tenant_id, channel_id) references compass.channels (tenant_id, id);`
	run := func(sql string) (answer, code string) {
		return hostile(t.Context(), t, owner, `set local role `+pg.Ident(f.db.Roles.Owner), sql)
	}
	if answer, code := run(add); code != "" {
		t.Errorf("under FORCE the owner validates nothing, and here it did (%s): then the rule may go", answer)
	}
	const between = `alter table compass.channel_members no force row level security; alter table compass.channels no force row level security;` +
		add + `alter table compass.channel_members force row level security; alter table compass.channels force row level security`
	if answer, code := run(between); code != "23503" {
		t.Errorf("between NO FORCE and FORCE: %q %s, want the row without a channel to be found", code, answer)
	}
}
