// Package doors keeps every statement of the store on the doors (design section 5): what would reach a connection in
// another way, outlive its transaction, or be put together at run time is reported.
//
//	connection   a pool, a connection or what holds or returns one, outside the files that make the doors
//	constant SQL text handed to a door or a transaction that is not a compile-time constant, or not one statement that selects,
//	             inserts, updates or deletes
//	scope        the tenant's setting, outside the doors
//	session      SET without LOCAL, set_config whose third argument is not true, session locks, LISTEN, temporary tables, PREPARE, DISCARD
//	role         SET ROLE anywhere, SET LOCAL ROLE outside the migration runner and the admin
//	copy         CopyFrom, which row-level security does not support
//	loop         a SystemLoop that is not one of the list in system.go (REQ-101)
//	leaky        in a statement marked //compass:hot, what keeps a predicate off an index under row-level security
//
// It looks at package internal/store and the folders below it, and not at tests: those try what is forbidden.
package doors
