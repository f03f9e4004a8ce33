// Package counting decides what becomes of one delivery of a reference: acked, put off or parked. It is pure, so that the
// fabric and its twin cannot judge differently.
//
// The rules are protocol.md's, "The fabric's own counting" (REQ-026, REQ-077 to REQ-079).
package counting
