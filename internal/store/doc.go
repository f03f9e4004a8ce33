// Package store is all of Postgres: pools, tenant scope, placement, and every query of the product.
//
// Postgres is the only truth (REQ-001) and row-level security the tenant boundary (REQ-124). A statement reaches a
// connection through one of the doors and no other way:
//
//	query, queryOne   one statement that returns rows       1 round trip
//	exec              one statement that does not           1 round trip
//	do                independent statements, all or none   1 round trip
//	beginTenantTx     dependent statements                  k + 1 round trips
//	writerDo          what the delivery worker writes       1 round trip, led by assert_writer
//	systemQuery/Exec  named background loops                1 round trip, no tenant
//	provisionQuery/Do creating tenants                      1 round trip, no tenant
//
// The tenant comes from the context (WithTenant) and is set for the transaction alone; without one nothing is sent
// (ErrNoTenant). Which database answers follows from the tenant's placement. Errors leave as the sentinels of errors.go.
//
// Queries live in files by subject (accounts.go, messages.go, …), SQL as one const per statement with every name
// qualified (compass.messages). They must not touch a pool, a connection or a session setting: hack/analyzers refuses it.
// The store must not import any other package of ours but internal/naming and its own folders.
package store
