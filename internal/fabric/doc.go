// Package fabric is all of NATS: connections, references, broadcasts, Runner subjects, streams and dead letters, accounts
// and keys.
//
// The fabric is a transport whose state may be thrown away at any time. Nothing in it is a truth: what it loses is found
// again in Postgres by the sweep that OnReconnect asks for and by the floor tick (REQ-001, REQ-002).
//
// Two lanes, never mixed (design section 3). The queue lane (EventFabric) is JetStream: a reference is stored, claimed by
// one consumer, and acked, put off, or parked. The broadcast lane (Broadcaster, RunnerFabric) is core NATS: at most once,
// to whoever listens. One Fabric holds one connection and serves both (REQ-115).
//
// The life of a reference in the queue lane; delivered counts what JetStream delivered, excused the naks by RetryAfter:
//
//	stored ──▶ delivered ──▶ callback ── nil ───────────────────────────────▶ acked
//	              │              ├── RetryAfter(d) ── nak after d, excused ──▶ stored
//	              │              ├── Poison ─────────────────────────────────▶ parked, acked
//	              │              ├── other, attempts ≥ MaxDeliver ───────────▶ parked, acked
//	              │              └── other ── nak after Backoff ─────────────▶ stored
//	              ├── not decodable, or of another tenant ───────────────────▶ parked, acked
//	              └── beyond MaxDeliver and unknown to this process ─────────▶ parked unworked, acked
//
// Parked means that a dead letter is stored; the original is acked only after that, and parking twice stores one.
//
// The embedded server lives in internal/fabric/embedded and the twin with the conformance suites in
// internal/fabric/fabrictest, so that a binary that needs neither does not link nats-server.
//
// This package is the only one that imports nats-io. It must never import controller-runtime, a Kubernetes client or
// Postgres, and its exported names carry no type of NATS except Config.Options.
package fabric
