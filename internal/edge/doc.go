// Package edge is the Server's door for clients: the Connect and gRPC handlers of compass.v1 and everything that stands
// before them.
//
//	recover ─▶ deadline ─▶ token → account → tenant ─▶ role ─▶ handler ─▶ error → code
//
// It owns who a caller is: the bearer token says under which tenant its own hash is looked for, and nothing else of a
// request says anything about tenants, but for platform admins, whose every such call is audited (REQ-089). It promises
// that foreign and unknown things are refused alike, that a procedure without a declared role is refused to everybody, and
// that no answer quotes Postgres or a panic.
//
// Handlers check shapes, call one thing, and map its result; what a message goes through is comms' and what a session goes
// through is the hub's, which is mounted here. edge must not import the fabric, nor a driver.
package edge
