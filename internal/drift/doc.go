// Package drift tells a difference that somebody made behind our back from one that is our own doing, and keeps a list of
// what became of it.
//
// A Ledger accompanies one pass over one object. Whoever is about to change something outside asks it first: a difference
// is drift once the object's generation had been whole before, because then nothing but somebody else can have caused it.
// Under the policy Repair it is written down as repaired; under Report it is refused, with the error that a condition shows.
//
// It must never import a system, Kubernetes or a kind.
package drift
