// Package comms is what happens to a message on its way in: it is admitted, committed to Postgres, and only then told.
//
//	admit ──▶ commit (store) ──▶ bus and broadcast ──▶ hand over the reference
//
// It owns the order of these steps (REQ-003, REQ-004), which is the same for a call of a client and for one that a Runner
// relays: the hub calls the same methods with a NewMessage that names its event and turn. It promises that a repeat tells
// nothing (REQ-068), that what happens to a fact after the commit is never the caller's error (REQ-011), and that a held
// message is handed over to nobody: its settle will be.
//
// It also owns reading: pages, and the live stream that is resumed by rev and reads membership in the statement that reads
// the messages (B2). Streams that keep up read together: what became visible is read for all of them before they wake
// (herald.go), whoever first needs something else asks for all, and the answer, which says who was a member when it was read, is
// handed on until the burst is over (shared.go). Heads are looked at together too (seats.go). A stream that is behind, or slow,
// reads alone until it has caught up (follower.go).
//
// How a fact travels is the emitter's decision, by its catalogue. comms must not import the fabric, and knows of Postgres
// what the store says.
package comms
