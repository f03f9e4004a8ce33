// Package flow is the frame of every reconciler: what happens around the steps, once.
//
//	Begin ── paused ──────────────────────────────────────────────▶ End: Ready Unknown/Paused, nothing else
//	  ├──── deleting ─ Teardown (the steps, reversed) ─ finalizer off ▶ End: nothing left to write
//	  └──── EnsureFinalizer ─ Steps ──────────────────────────────▶ End: conditions, figures, one patch
//
// A step is one system and one condition. It runs when the steps that it needs have succeeded in this pass; a failed one
// keeps back those that need it and nobody else, so independent systems advance while one is down. What a step returns is
// judged here and nowhere else:
//
//	nil        the condition is True: it was looked at and is so
//	waiting    False, reason WaitingFor… or …Conflict; polled, no error, no backoff
//	transient  Unknown, reason …Unreachable or …Failed; tried again with backoff, counted as an error
//	terminal   False, reason Invalid…; not tried again until the object or something watched changes
//
// A conflict of versions is tried again quietly, and a pass that ends because the process ends writes nothing. Steps have a
// shorter deadline than the pass, so End can always write what it knows. status.observedGeneration moves only when every
// step ended without error.
//
// The frame knows no kind. It must never import one, nor the store or the fabric.
package flow
