// Package storetwin is the twin of Postgres as the store uses it, for simulations: the methods that comms, hub and delivery
// call through their ports, on tables in memory, with what matters of a database in between.
//
//	a call ─▶ begin ─▶ statement ─▶ … ─▶ commit        each of them is one step: Steps says when it happens, and how it ends
//	              │        │
//	              │        └─ row locks and one for a stream's batches, held to commit; who waits is judged by the rows as they are then
//	              └─ read committed: a statement sees what was committed before it, and what its own transaction wrote
//
// The database can be away, and it can fail over: a promoted server that has forgotten the newest commits, whose clock may
// be behind, and whose timeline is one higher.
//
// Rules switches single rules of the protocol off. A simulation that does not turn red with one of them off shows nothing
// (the rules are named as in the executable model).
//
// The suite beside it (suite*.go) runs on the twin and on a real Postgres alike. What the suite does not ask is not
// promised: pins, tokens of accounts, dedicated databases and pages are not there.
//
// It is imported by tests only.
package storetwin
