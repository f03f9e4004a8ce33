package controllers_test

import (
	"testing"

	"github.com/rigelbuild/compass-operator/api/v1alpha1"
	"github.com/rigelbuild/compass-operator/internal/store/storetest"
)

// Lesson 41: somebody plants an operator and a function that lie, and a search_path that finds them first. What the operator
// reads of the catalogue is what is there, and its roles have their own path again; that of the database reaches none of them.
func TestLesson41PlantedOperators(t *testing.T) {
	t.Parallel()
	th := newThread(t, v1alpha1.DeletionPolicyRetain)
	super := storetest.Connect(t, th.superDSN(t))
	app := th.database + "_app"
	for _, sql := range []string{
		"create schema planted", "grant usage on schema planted to public",
		"create function planted.lies(name, name) returns boolean language sql immutable return true",
		"create function planted.lies(name, text) returns boolean language sql immutable return true",
		"create function planted.lies(text, text) returns boolean language sql immutable return true",
		"create operator planted.= (leftarg = name, rightarg = name, function = planted.lies)",
		"create operator planted.= (leftarg = name, rightarg = text, function = planted.lies)",
		"create operator planted.= (leftarg = text, rightarg = text, function = planted.lies)",
		"create function planted.current_setting(text, boolean) returns text language sql immutable return 't_somebody'",
		"alter database " + th.database + " set search_path = planted, pg_catalog, compass",
		"alter role " + app + " set search_path = planted, pg_catalog, compass",
		"alter role " + app + " createdb",
	} {
		if _, err := super.Exec(t.Context(), sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	th.pool.Forget(th.place(t).Server) // connections of before have the path of before
	for range 2 {
		th.settle(t, th.server, th.tenant, th.stream)
	}
	th.mustBeReady(t, th.server, th.tenant, th.stream)
	var left int
	err := super.QueryRow(t.Context(), `
select (select count(*) from pg_catalog.pg_db_role_setting s, unnest(s.setconfig) c where s.setrole <> 0 and c operator(pg_catalog.~~) '%planted%')
     + (select count(*) from pg_catalog.pg_roles r where r.rolname operator(pg_catalog.=) $1::name and r.rolcreatedb)`, app).Scan(&left)
	if err != nil || left != 0 {
		t.Errorf("%d of what was planted is in force, %v", left, err)
	}
}
