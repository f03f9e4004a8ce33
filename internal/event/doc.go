// Package event carries facts that are already decided: to listeners in this process and, where the catalogue says so, to
// every other instance that must notice.
//
//	decider ── Fact ──▶ Emitter ──┬── local ──▶ Bus ──▶ listeners
//	                              ├── broadcast ──▶ broker ──▶ Bridge of each other instance ──▶ its Bus
//	                              └── queue ──▶ one worker, through the fabric
//
// It owns the catalogue, which alone says how a fact travels; the envelope, made in one place; the bridge, which drops an
// instance's own echo, then claims the digest, then emits; and the in-process bus with its sequence, epoch, lag and
// replay. The law of event delivery (DELIVERY-1 to 6) governs the broadcast lane whole; docs/events.md says which tier
// holds each code and lists the output blocks. The queue lane has no bridge: its claimer may be the poster's own
// instance, so an echo guard there would lose messages (X4), and its duplicates are judged by cursors (X5).
//
// It promises:
//   - A fact that is undeclared, has no version or chooses its own transport does not compile. A catalogue that is
//     incomplete is refused at start, by the event's name.
//   - A local consequence happens at most once per fact and instance, within the bounds of the claims (two minutes and a
//     count), whatever the broker repeats (REQ-147).
//   - A decider knows no transport; a listener knows no producer, digest or redelivery (REQ-148).
//   - Nothing here is durable. A lost broadcast costs latency, never correctness: listeners re-read Postgres, and heads are
//     polled (ruling B2).
//
// What is addressed to one receiver by name is no event and is not in the catalogue: Runner commands, notes to the worker
// of a stream (compass.worker.<stream>) and to one connection (client.<connection>).
//
// It must never import the fabric, the store or any Kubernetes package. The broker and the queue are interfaces here.
package event
