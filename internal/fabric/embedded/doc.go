// Package embedded runs nats-server inside this process, for `compass standalone` and for tests.
//
// It is a package of its own so that binaries which reach NATS over the network do not link the server.
package embedded
