// Package fabrictest holds the conformance suites of the fabric's ports and an in-memory twin that passes them, so that
// what is tested on the twin may be believed of the real thing.
//
// A suite is handed a Ground: one broker, on which it opens as many instances (processes) as it needs. The twin's Broker
// is one ground, an embedded nats-server another.
//
// It is imported by tests only, of this package and of those that publish or consume.
package fabrictest
