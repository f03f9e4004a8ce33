package stream

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/rigelbuild/compass-operator/api/v1alpha1"
	"github.com/rigelbuild/compass-operator/controllers/flow"
)

// report puts what was seen into the status. What was not looked at in this pass stays as it was: the conditions say that
// nobody could tell.
func report(s *scope) flow.Notes {
	status := &s.stream.Status
	if s.placed != nil {
		status.Tenants = flow.Rounded(int64(*s.placed))
	}
	if status.Backlog == nil && (s.consumer != nil || s.backlog != nil) {
		status.Backlog = &v1alpha1.BacklogStatus{}
	}
	if s.consumer != nil {
		pending := int64(s.consumer.Pending) + int64(s.consumer.AckPending) //nolint:gosec // far below
		status.Backlog.Pending, status.Backlog.Redelivered = flow.Rounded(pending), flow.Rounded(int64(s.consumer.Redelivered))
	}
	if b := s.backlog; b != nil {
		status.Backlog.Owed, status.Backlog.Held = flow.Rounded(b.Owed+b.Pending), flow.Rounded(b.Held)
		status.DeadLetters = flow.Rounded(b.DeadLetters)
	}
	if s.lease != nil {
		status.Writer = writerOf(s, status.Writer)
	}
	worker := flow.Note{Reason: v1alpha1.ReasonAvailable}
	if s.stream.Spec.Suspend {
		worker = flow.Note{Reason: v1alpha1.ReasonSuspended, Message: "spec.suspend: nothing is delivered, what is owed stays owed"}
	}
	notes := flow.Notes{v1alpha1.ConditionWorkerAvailable: worker}
	if s.placed != nil {
		notes[v1alpha1.ConditionStreamReady] = flow.Note{Reason: v1alpha1.ReasonApplied, Message: crowded(s.stream, *s.placed)}
	}
	if s.stream.Spec.Suspend {
		notes[v1alpha1.ConditionSingleWriter], notes[v1alpha1.ConditionReady] = worker, worker
	}
	return notes
}

// recount is how soon a backlog is counted again: figures in a status move at most this often (D-050).
const recount = 5 * time.Minute

// undelivered reports whether the status shows a backlog, which nobody tells us the end of.
func undelivered(s *v1alpha1.DeliveryStream) bool {
	return s.Status.Backlog != nil && *s.Status.Backlog != v1alpha1.BacklogStatus{}
}

// writerOf is who holds the lease. An epoch goes up for reasons of its own; as long as the pod is the same, it writes since
// then.
func writerOf(s *scope, was *v1alpha1.WriterStatus) *v1alpha1.WriterStatus {
	if !s.lease.Held {
		return nil
	}
	is := &v1alpha1.WriterStatus{Pod: s.lease.Holder, Epoch: s.lease.Epoch, Since: metav1.NewTime(s.looked)}
	if was != nil && was.Pod == is.Pod && !was.Since.IsZero() {
		is.Since = was.Since
	}
	return is
}
