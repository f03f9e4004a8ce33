// Package server reconciles CompassServers: one installation of Compass, on the user's Postgres, with a NATS of its own.
//
//	DatabaseReady ──▶ SchemaReady ──┐
//	FabricReady (identity ─▶ NATS ─▶ accounts)
//	                                └▶ ServerAvailable (certificates ─▶ platform ─▶ Servers)
//
// Database and NATS do not need each other, except that an installation begins with a database that can be used: until then
// there are no keys, and without keys nothing else is made. Servers need the schema, because a new binary must not meet an
// old one, and nothing of NATS but its keys, because they wait for it themselves.
//
// What is random is stored before it is used: passwords in <name>-databases, keys in <name>-keys, <name>-command-key and
// <name>-ca, tokens in <name>-admin and <name>-runner-enrol. <name>-keys has no owner: garbage collection knows nothing of
// Retain (ruling O1).
//
// It must never import another kind.
package server
