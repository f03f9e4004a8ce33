package schema_test

import (
	"context"
	"crypto/rand"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/rigelbuild/compass-operator/internal/store/pg"
	"github.com/rigelbuild/compass-operator/internal/store/schema"
	"github.com/rigelbuild/compass-operator/internal/store/storetest"
	"github.com/rigelbuild/compass-operator/migrations"
)

func runner(t *testing.T, db *storetest.Database) *schema.Runner {
	t.Helper()
	return runnerOf(t, schema.Options{DSN: db.Admin, Migrations: load(t)})
}

func runnerOf(t *testing.T, o schema.Options) *schema.Runner {
	t.Helper()
	r, err := schema.New(o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func load(t *testing.T) []schema.Migration {
	t.Helper()
	all, err := schema.Load(migrations.FS)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// What the migrations leave is what the audit wants.
func TestMigrationsPassTheAudit(t *testing.T) {
	t.Parallel()
	db := storetest.NewDatabase(t)
	audit, err := runner(t, db).Audit(t.Context())
	if err != nil || audit.Skipped {
		t.Fatalf("Audit = %+v, %v", audit, err)
	}
	for _, f := range audit.Findings {
		t.Error(f)
	}
}

// Holds REQ-242, lessons 45 and B47: each way out of the shape is found and put back, and found only once.
func TestAuditFindsAndRepairs(t *testing.T) { //nolint:tparallel // one drift after the other, on one database
	t.Parallel()
	db := storetest.NewDatabase(t)
	super := storetest.Connect(t, db.Super)
	app, system, owner := pg.Ident(db.Roles.App), pg.Ident(db.Roles.System), pg.Ident(db.Roles.Owner)
	stranger := "x" + strings.ToLower(rand.Text()[:12])
	if _, err := super.Exec(t.Context(), `create role `+stranger); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_, _ = super.Exec(context.WithoutCancel(t.Context()), `drop owned by `+stranger+`; drop role `+stranger, pgx.QueryExecModeSimpleProtocol)
	})
	const mine = `tenant_id = (select nullif(current_setting('compass.tenant_id', true), ''))`
	for _, drift := range []struct{ name, sql, says string }{ //nolint:paralleltest // see above
		{"not forced", `alter table compass.messages no force row level security`, "messages: row-level security is not forced"},
		{"not enabled", `alter table compass.messages disable row level security`, "messages: row-level security is not enabled"},
		{"tenants itself", `alter table compass.tenants no force row level security`, "tenants: row-level security is not forced"},
		{"policy gone", `drop policy app_scope on compass.turns`, "turns: policy app_scope is missing"},
		{"system policy gone", `drop policy system_all on compass.turns`, "turns: policy system_all is missing"},
		{"second policy that widens", `create policy more on compass.asks to ` + app + ` using (true)`, "asks: policy more is none"},
		{"same name, other roles", `alter policy app_scope on compass.asks to ` + app + `, ` + system, "asks: policy app_scope is not"},
		{"to public", `alter policy app_scope on compass.asks to public`, "asks: policy app_scope is not"},
		{"check widened", `alter policy app_scope on compass.pins with check (true)`, "pins: policy app_scope is not"},
		{"or true", `alter policy app_scope on compass.pins using (` + mine + ` or true)`, "pins: policy app_scope is not"},
		{"without the guard", `alter policy app_scope on compass.pins using (tenant_id = (select current_setting('compass.tenant_id', true)))`, "pins: policy app_scope is not"},
		{"wrong setting", `alter policy app_scope on compass.pins using (tenant_id = (select nullif(current_setting('compass.other', true), '')))`, "pins: policy app_scope is not"},
		{"wrong column", `alter policy app_scope on compass.pins using (channel_id = (select nullif(current_setting('compass.tenant_id', true), '')))`, "pins: policy app_scope is not"},
		{"restrictive instead", `drop policy app_scope on compass.pins; create policy app_scope on compass.pins as restrictive to ` + app + `, ` + owner + ` using (` + mine + `) with check (` + mine + `)`, "pins: policy app_scope is not"},
		{"for select only", `drop policy app_scope on compass.pins; create policy app_scope on compass.pins for select to ` + app + `, ` + owner + ` using (` + mine + `)`, "pins: policy app_scope is not"},
		{"provision on content", `create policy provision_all on compass.messages to ` + pg.Ident(db.Roles.Provision) + ` using (true) with check (true)`, "messages: policy provision_all is none"},
		{"login by setting", `drop policy tenant_login on compass.messages; create policy tenant_login on compass.messages for select to ` + pg.Ident(db.Roles.Tenant) + ` using (` + mine + `)`, "messages: policy tenant_login is none"},
		{"new table", `create table compass.extra (tenant_id text not null); alter table compass.extra owner to ` + owner, "extra: row-level security is not enabled"},
		{"view as owner", `create view compass.peek as select * from compass.messages; alter view compass.peek owner to ` + owner, "peek: is a view that reads as its owner"},
		{"a blank for nothing", `alter policy app_scope on compass.pins using (tenant_id = (select nullif(current_setting('compass.tenant_id', true), ' ')))`, "pins: policy app_scope is not"},
		{"a setting that looks alike", `alter policy app_scope on compass.pins using (tenant_id = (select nullif(current_setting('compass.(tenant_id)', true), '')))`, "pins: policy app_scope is not"},
		{"truncate", `grant truncate on compass.messages to ` + app, "messages: " + db.Roles.App + " holds TRUNCATE on the table"},
		{"triggers", `grant references, trigger on compass.messages to ` + app, "messages: " + db.Roles.App + " holds REFERENCES on the table"},
		{"everybody", `grant select on compass.messages to public`, "messages: public holds SELECT on the table"},
		{"a column", `grant select (blocks) on compass.messages to ` + pg.Ident(db.Roles.Provision), "messages: " + db.Roles.Provision + " holds SELECT on the table"},
		{"leases", `grant update on compass.delivery_leases to ` + app, "delivery_leases: " + db.Roles.App + " holds UPDATE on the table"},
		{"heads", `grant update on compass.channel_heads to ` + app, "channel_heads: " + db.Roles.App + " holds UPDATE on the table"},
		{"tokens to logins", `grant select on compass.account_tokens to ` + pg.Ident(db.Roles.Tenant), "account_tokens: " + db.Roles.Tenant + " holds SELECT on the table"},
		{"writes across tenants", `grant update on compass.messages to ` + system, "messages: " + db.Roles.System + " holds UPDATE on the table"},
		{"objects of their own", `grant create on schema compass to ` + pg.Ident(db.Roles.Tenant), "compass: " + db.Roles.Tenant + " holds CREATE on the schema"},
		{"an open schema", `grant usage on schema compass to public`, "compass: public holds USAGE on the schema"},
		{"a function for everybody", `grant execute on function compass.purge_tenant(text) to public`, "purge_tenant(p_tenant text): public holds EXECUTE on the function"},
		{"a sequence", `grant usage on sequence compass.audit_log_id_seq to ` + app, "audit_log_id_seq: " + db.Roles.App + " holds USAGE on the sequence"},
		{"a function led astray", `alter function compass.purge_tenant(text) reset search_path`, "purge_tenant(p_tenant text): lends its owner's rights and goes by its caller's search_path"},
		{"a name that is a statement", `create function compass."x(); select 1; --"() returns int language sql return 1; alter function compass."x(); select 1; --"() owner to ` + owner + `;
			grant execute on function compass."x(); select 1; --"() to ` + pg.Ident(db.Roles.Tenant) + `, ` + stranger, `"x(); select 1; --"(): ` + stranger + ` holds EXECUTE on the function`},
		{"trigger off", `alter table compass.accounts disable trigger frozen`, "accounts: trigger frozen does not fire"},
		{"impostor of a function", `create schema evil; create function evil.current_setting(text, boolean) returns text language sql return 'x';
			alter policy app_scope on compass.pins using (tenant_id = (select nullif(evil.current_setting('compass.tenant_id', true), '')))`, "pins: policy app_scope is not"},
	} {
		t.Run(drift.name, func(t *testing.T) {
			if _, err := super.Exec(t.Context(), drift.sql, pgx.QueryExecModeSimpleProtocol); err != nil {
				t.Fatal(err)
			}
			audit, err := runner(t, db).Audit(t.Context())
			if err != nil || !strings.Contains(says(audit.Findings), drift.says) {
				t.Errorf("audit found %q (%v), want %q", says(audit.Findings), err, drift.says)
			}
			if audit.Err() == nil {
				t.Error("a finding is no error")
			}
			repaired, err := runner(t, db).Repair(t.Context())
			if err != nil || repaired.Skipped || len(repaired.Left) > 0 || !strings.Contains(says(repaired.Done), drift.says) {
				t.Errorf("Repair = %+v, %v", repaired, err)
			}
			again, err := runner(t, db).Repair(t.Context())
			if err != nil || len(again.Done)+len(again.Left) > 0 {
				t.Errorf("a second repair did something: %+v, %v", again, err)
			}
		})
	}
}

// What the owner may not undo is found, and left to a person.
func TestAuditLeavesWhatIsBeyondTheOwner(t *testing.T) {
	t.Parallel()
	db := storetest.NewDatabase(t)
	super := storetest.Connect(t, db.Super)
	for _, drift := range []struct{ sql, says, undo string }{
		{`alter function compass.login_tenant() owner to postgres`, "login_tenant(): is owned by postgres",
			`alter function compass.login_tenant() owner to ` + pg.Ident(db.Roles.Owner)},
		{`alter table compass.messages disable trigger all`, "messages: foreign keys are not checked", `alter table compass.messages enable trigger all`},
		{`create extension postgres_fdw; create server away foreign data wrapper postgres_fdw; create foreign table compass.away (x text) server away`,
			"away: is a foreign table", `drop extension postgres_fdw cascade`},
	} {
		if _, err := super.Exec(t.Context(), drift.sql, pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Fatal(err)
		}
		repaired, err := runner(t, db).Repair(t.Context())
		if err != nil || !strings.Contains(says(repaired.Left), drift.says) {
			t.Errorf("Repair = %+v, %v; want %q left", repaired, err, drift.says)
		}
		if _, err := super.Exec(t.Context(), drift.undo); err != nil {
			t.Fatal(err)
		}
	}
}

// Whoever has no operator is told what to run, and it is the cure.
func TestFindingsNameTheirCure(t *testing.T) {
	t.Parallel()
	db := storetest.NewDatabase(t)
	super := storetest.Connect(t, db.Super)
	const drift = `alter table compass.messages disable row level security; drop policy app_scope on compass.turns;
		create policy more on compass.asks to ${app} using (true)`
	if _, err := super.Exec(t.Context(), strings.ReplaceAll(drift, "${app}", pg.Ident(db.Roles.App)), pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatal(err)
	}
	audit, err := runner(t, db).Audit(t.Context())
	if err != nil || audit.Err() == nil {
		t.Fatalf("%+v, %v", audit, err)
	}
	_, cure, said := strings.Cut(audit.Err().Error(), "run as the owner of the schema:")
	if !said {
		t.Fatalf("no cure in %q", audit.Err())
	}
	if _, err := super.Exec(t.Context(), `set role `+pg.Ident(db.Roles.Owner)+`;`+cure, pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatalf("%v: %s", err, cure)
	}
	if audit, err = runner(t, db).Audit(t.Context()); err != nil || len(audit.Findings) > 0 {
		t.Errorf("after the cure: %+v, %v", audit, err)
	}
}

// What only a person can put right is left, and said, while the rest is repaired.
func TestRepairLeavesWhatItMayNot(t *testing.T) {
	t.Parallel()
	db := storetest.NewDatabase(t)
	super := storetest.Connect(t, db.Super)
	for _, sql := range []string{
		`create table compass.aaa (tenant_id text)`, // owned by the superuser
		`alter table compass.turns no force row level security`,
	} {
		if _, err := super.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	repaired, err := runner(t, db).Repair(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(says(repaired.Left), "aaa: is owned by postgres") || !strings.Contains(says(repaired.Done), "turns: ") {
		t.Errorf("left %q, done %q", says(repaired.Left), says(repaired.Done))
	}
}

// Holds REQ-242: audit and repair step aside for a migration and for readers.
func TestAuditStepsAside(t *testing.T) {
	t.Parallel()
	db := storetest.NewDatabase(t)
	super := storetest.Connect(t, db.Super)
	if _, err := super.Exec(t.Context(), `alter table compass.turns no force row level security`); err != nil {
		t.Fatal(err)
	}
	hold := func(sql string) func() {
		tx, err := super.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
		return func() {
			if err := tx.Rollback(context.WithoutCancel(t.Context())); err != nil {
				t.Error(err)
			}
		}
	}
	release := hold(`lock table compass.schema_migrations in exclusive mode`)
	audit, err := runner(t, db).Audit(t.Context())
	if err != nil || !audit.Skipped {
		t.Errorf("during a migration: Audit = %+v, %v", audit, err)
	}
	repaired, err := runner(t, db).Repair(t.Context())
	if err != nil || !repaired.Skipped {
		t.Errorf("during a migration: Repair = %+v, %v", repaired, err)
	}
	release()

	release = hold(`select count(*) from compass.turns`) // a reader that takes its time
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	repaired, err = runner(t, db).Repair(ctx)
	if err != nil || !repaired.Skipped {
		t.Errorf("behind a reader: Repair = %+v, %v; want it to give up its place", repaired, err)
	}
	release()
	repaired, err = runner(t, db).Repair(t.Context())
	if err != nil || len(repaired.Done) != 1 {
		t.Errorf("afterwards: Repair = %+v, %v", repaired, err)
	}
}

// Holds REQ-242: a repair that waits for one table keeps nobody from another, and what it could do stays done.
func TestRepairHoldsOneTableAtATime(t *testing.T) {
	t.Parallel()
	db := storetest.NewDatabase(t)
	super, watch := storetest.Connect(t, db.Super), storetest.Connect(t, db.Super)
	for _, table := range []string{"accounts", "turns"} {
		if _, err := super.Exec(t.Context(), `alter table compass.`+table+` no force row level security`); err != nil {
			t.Fatal(err)
		}
	}
	reader, err := super.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := reader.Exec(t.Context(), `select count(*) from compass.turns`); err != nil {
		t.Fatal(err)
	}
	var repaired schema.Repaired
	done, r := make(chan error, 1), runner(t, db)
	go func() {
		var err error
		repaired, err = r.Repair(t.Context())
		done <- err
	}()
	await(t, watch, `select count(*) > 0 from pg_locks where not granted and relation = 'compass.turns'::regclass`)
	err = pgx.BeginFunc(t.Context(), watch, func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), `lock table compass.accounts in access share mode nowait`)
		return err
	})
	if err != nil {
		t.Errorf("a reader of a table that is done, while it waits for another: %v", err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if !repaired.Skipped || len(repaired.Left) > 0 || !strings.Contains(says(repaired.Done), "accounts: ") {
		t.Errorf("behind a reader of one of two: %+v", repaired)
	}
	if err := reader.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func says(findings []schema.Finding) string {
	var all []string
	for _, f := range findings {
		all = append(all, f.String())
	}
	return strings.Join(all, "; ")
}
