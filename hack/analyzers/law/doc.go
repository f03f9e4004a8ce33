// Package law holds the parts of the law of event delivery that are an order of statements or a place in the tree, which no
// type can hold. docs/events.md says which code each of them holds.
//
//	eventorder  in package internal/event, what leads to the bus is the emitter or the bridge; in the bridge the own echo
//	            is dropped by the envelope's producer (DELIVERY-3) and the digest is claimed (DELIVERY-4), in that order,
//	            before the digest is read and before anything is told
//	eventlane   nothing is published on the broadcast or the queue lane but by the emitter (DELIVERY-2)
//	eventlisten who listens knows no envelope and no digest, and passes over nothing that he was told (DELIVERY-4)
//
// They look at no tests: those try what is forbidden. What a rule cannot see is not claimed: eventlisten knows the usual
// ways to remember what was told, not every one.
package law
