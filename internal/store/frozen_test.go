package store

import (
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/rigelbuild/compass-operator/internal/store/pg"
	"github.com/rigelbuild/compass-operator/internal/store/storetest"
)

// Holds T4: a frozen tenant is written to by nobody. The catalogue says which tables there are, so a new one that forgot
// compass.freezable() turns this red; placements is what a move itself changes, and tenants what it freezes.
func TestFrozenTenantTakesNoWrite(t *testing.T) {
	t.Parallel()
	s := newSeeded(t)
	s.mustExec(t, `update compass.tenants set frozen = true where id = $1`, tenantA)
	for who, dsn := range map[string]string{"app": s.db.App, "provision": s.db.Provision} {
		conn := storetest.Connect(t, s.db.Straight(t, dsn))
		s.mustExec(t, `grant select, insert, update, delete on all tables in schema compass to `+pg.Ident(s.db.Roles.Provision))
		for _, r := range s.relations {
			if r.name == "placements" || r.name == "tenants" {
				continue
			}
			for verb, sql := range map[string]string{
				"update": fmt.Sprintf(`update compass.%s set tenant_id = tenant_id where tenant_id = '%s'`, r.name, tenantA),
				"delete": fmt.Sprintf(`delete from compass.%s where tenant_id = '%s'`, r.name, tenantA),
				"insert": fmt.Sprintf(`insert into compass.%s (%s) values (%s)`, r.name, r.insert[0], r.insert[1]),
			} {
				err := pgx.BeginFunc(t.Context(), conn, func(tx pgx.Tx) error {
					if _, err := tx.Exec(t.Context(), `select set_config('compass.tenant_id', $1, true)`, tenantA); err != nil {
						return err
					}
					tag, err := tx.Exec(t.Context(), sql)
					if err == nil && tag.RowsAffected() == 0 {
						return errNothing
					}
					return err
				})
				unseen := who == "provision" && (err == errNothing || pg.Code(err) == "42501") //nolint:errorlint // its own
				if pg.Code(err) != "CP002" && !unseen {
					t.Errorf("%s, %s of %s: %v, want CP002", who, verb, r.name, err)
				}
			}
		}
	}
}

// The check of the freeze pins no path: an operator or a table of that name that stands before the system's must not answer
// for it.
func TestFrozenWhateverThePath(t *testing.T) {
	t.Parallel()
	s := newSeeded(t)
	s.mustExec(t, `update compass.tenants set frozen = true where id = $1`, tenantA)
	app := pg.Ident(s.db.Roles.App)
	for _, sql := range []string{
		`create schema evil`, `grant usage on schema evil to ` + app,
		`create function evil.never(text, text) returns boolean language sql return false`,
		`create operator evil.= (leftarg = text, rightarg = text, function = evil.never)`,
		`create view evil.tenants as select ''::text as id, false as frozen`, `grant select on evil.tenants to ` + app,
	} {
		s.mustExec(t, sql)
	}
	for verb, sql := range map[string]string{
		"update": `update compass.accounts set handle = 'other'`, "delete": `delete from compass.accounts`,
	} {
		conn := storetest.Connect(t, s.db.Straight(t, s.db.App)) // a function is planned under the path of its first call
		_, code := hostile(t.Context(), t, conn, `select set_config('compass.tenant_id', '`+string(tenantA)+`', true)`,
			`set local search_path = evil, pg_catalog; `+sql)
		if code != "CP002" {
			t.Errorf("%s under a path of somebody else's: %q, want CP002", verb, code)
		}
	}
}

var errNothing = fmt.Errorf("no row")
