// Package delivery is the worker of one DeliveryStream: it hands every message to the sessions entitled to it, in order,
// and forgets nothing that Postgres remembers.
//
// It owns the dirty set, the gates, the recovery that fills the one and empties the other, and the leases that say whether
// this process is the stream's writer. It never decides what is owed: Postgres does, in one snapshot per drain.
//
//	reference ─┐                          ┌─ rows    → which channels, which agents
//	note ──────┤                          ├─ channel → what its chains owe ─┐
//	state ─────┼─▶ dirty set ─▶ workers ──┤                                 ├─▶ gate ─▶ command ─▶ Runner
//	tick ──────┤   one item of each       ├─ agent   → what is owed beside ─┘             │
//	reconnect ─┤   tenant in turn         ├─ session → all of one agent                   │ state: held, refused
//	start ─────┘                          └─ tenant  → confirm a drain                    ▼
//	                                                                     answers, applied between drains
//
// What holds, and where it is said:
//
//   - A reference is a hint (K2). Losing, doubling or reordering references changes latency alone: every path ends in the
//     same drain, and the tick visits every live (agent, channel) whose head is past its cursor (sweep.go).
//   - Order is that of positions, and a position never appears late (K1): a chain carries (prev, pos), the Runner takes a
//     link only on top of what it holds, and the gate goes where the Runner is (chain.go).
//   - Nothing with an open turn is sent, by any path: it has no position, so no statement lists or reads it.
//   - One writer per gate: answers of Runners are queued and applied between drains (AnswersQueued), and an item of the
//     dirty set is worked by one worker at a time (dirty.go).
//   - Whoever is not the writer any more writes nothing and sends nothing that a Runner which knows better takes: each
//     write is led by assert_writer, each command carries (claim, epoch), the deadline is looked at before each (send.go).
//   - A row that kills the worker parks: after an unclean exit each row's attempt is written down before it is read
//     (careful.go). A dependency that is away counts no attempt and keeps no reference.
//   - What this process remembers is only timing. A start sweeps everything that is owed before the first reference is
//     taken, so memory may be lost at any moment.
//
// It must not import pgx, NATS or anything of Kubernetes.
package delivery
