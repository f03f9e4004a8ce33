// Package hub is the Server's side of Runners and of the sessions that they host.
//
//	Runner ── Connect: signed ──┐                        ┌── facts: what settled, who is bound
//	                            ├─▶ one handler ─▶ store ┤   (after commit)
//	Runner ── NATS: by subject ─┘    answers after commit └── hint: the session has a command
//
// It owns enrolment, the proof of who a Runner is, heartbeats, claims of starts, the events of sessions, the calls that a
// Runner relays for its agents, what people do with sessions (start, stop, steer), and the expirer.
//
// It promises:
//   - A Runner asserts no account: whose agent speaks follows from the binding in Postgres, and fails closed (REQ-116).
//     Who the Runner is comes from its signature or from the subject that the broker vouches for, never from a body; a body
//     that names another is refused.
//   - One handler serves both transports, with the same status codes (REQ-119).
//   - An answer says that the effect is committed; a repeat changes nothing (REQ-229). Hints and facts follow the commit,
//     and a lost one is healed by the next heartbeat or tick.
//   - Nothing is settled by lease because we were down: the expirer acts on health that it has itself observed, by the
//     database's clock, for one whole lease (D6).
//
// It keeps no state that another Server would need. There is no cache of bindings: every call locks or reads the binding's
// row in the transaction that it needs anyway, so there is nothing to go stale (REQ-134 is met by having none). Runners'
// public keys are remembered, because they never change.
//
// It must not import a NATS or Postgres client, nor internal/edge, which mounts it.
package hub
