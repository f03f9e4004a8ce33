// Package storetest gives tests a real Postgres: one server per test process, one database per test, made the way the
// operator makes it (a non-superuser admin, one set of roles per database, the real migrations).
//
// The server belongs to the test process and ends with it, also when that is killed; no other cluster is ever touched.
// COMPASS_TEST_POSTGRES names a server to use instead (a superuser's URL); COMPASS_TEST_POSTGRES_BIN the folder with
// initdb and postgres to start one from; COMPASS_TEST_POSTGRES_SETTINGS more settings for it (fsync=on, for a measurement).
//
// COMPASS_TEST_POOLED puts a PgBouncer in transaction mode, COMPASS_TEST_PGBOUNCER or Debian's, before every database.
//
// It must not import package store, whose own tests use it.
package storetest
