// Package presence says who is there.
//
// An agent is there while it has a live session: the binding in Postgres is the truth, so any Server answers alike and
// nothing is kept here. A change is told as a fact on the broadcast lane, where a lost one costs a stale display until the
// next look, and nothing else (REQ-016). It must not import a transport.
package presence
