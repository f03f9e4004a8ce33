// Package runner is the reference Runner: a trusted box that hosts agent sessions and asserts no account. It is what the
// product's demo and tests deliver to, and what somebody who writes a Runner reads first.
//
// It owns the recipient's half of the protocol (K3, K4): the fence per tenant, the chain per channel, the chain of session
// commands, numbered events that are sent one after the other, and heartbeats that carry the state of the last answered
// event. It keeps nothing on disk but its key: a new process is a new incarnation, and the sessions of the old one end.
//
//	command ── fence lower? ── refuse, with the proof of what was seen
//	   │
//	   ├─ deliver ── prev fits? ── take: inbox ── agent ── consumed ── ack (50 ms) ── cursor
//	   │                └─ no: answer with what is held; the gate rewinds
//	   ├─ command ── prev fits? ── apply: steers ── agent ── ack by (n, message, pos)
//	   │                └─ no: fetch everything after the last one applied
//	   └─ start ── claim over Connect ── a new session holds nothing
//
// The state machines (fence.go, chain.go, commands.go) are values without I/O. The package knows no broker and no
// database: it imports the API's generated code and what its ports name.
package runner
