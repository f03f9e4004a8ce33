// Package kube owns how the operator writes to Kubernetes: children by server-side apply under one field owner, and
// Secrets that are made once and kept.
//
// It promises that a child that is as it should be is not written, that fields nobody here set are left to whoever set
// them, that a field no longer wanted is given up, and that what is not ours is never touched (reason SecretConflict for a
// Secret, ApplyFailed for the rest, both with the way out).
//
// How it knows: the annotation naming.AnnotationApplied holds a hash of what was applied last. Same hash, and every field
// of the wish found in the live object: nothing to do. Anything else: apply.
//
// It must never import a kind's controller, the store or the fabric.
package kube
