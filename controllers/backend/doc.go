// Package backend is how the kinds reach what stands behind a CompassServer: its Postgres and its NATS.
//
// Place says where they are and how to enter them; it is read from the Secrets of a CompassServer in every pass and never
// kept. Pool holds what is worth keeping between passes, a store and a NATS connection per CompassServer, and implements the
// ports of all kinds. What a system answers is given its class and reason here, in one place per system (postgres.go and
// nats.go), with a message that says what to do.
//
// It is the only package of the operator that opens connections. It must never import a kind.
package backend
