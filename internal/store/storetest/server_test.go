package storetest_test

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/rigelbuild/compass-operator/internal/store/storetest"
)

func TestPostgresIsOnePerProcess(t *testing.T) {
	t.Parallel()
	s := storetest.Postgres(t)
	if again := storetest.Postgres(t); again != s {
		t.Fatal("a second server was started")
	}
	conn, err := pgx.Connect(t.Context(), s.AdminDSN)
	if err != nil {
		t.Fatalf("connect as admin: %v", err)
	}
	defer conn.Close(t.Context())
	var super, createRole, createDB bool
	err = conn.QueryRow(t.Context(),
		"select rolsuper, rolcreaterole, rolcreatedb from pg_roles where rolname = current_user").Scan(&super, &createRole, &createDB)
	if err != nil {
		t.Fatal(err)
	}
	if super || !createRole || !createDB {
		t.Errorf("admin: superuser=%v createrole=%v createdb=%v, want false, true, true", super, createRole, createDB)
	}
}
