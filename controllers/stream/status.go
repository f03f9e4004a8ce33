package stream

import (
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
	if s.consumer != nil {
		pending := int64(s.consumer.Pending) + int64(s.consumer.AckPending) //nolint:gosec // far below
		status.Backlog = &v1alpha1.BacklogStatus{Pending: flow.Rounded(pending), Redelivered: flow.Rounded(int64(s.consumer.Redelivered))}
	}
	if s.dead != nil {
		status.DeadLetters = flow.Rounded(*s.dead)
	}
	if s.lease != nil {
		status.Writer = nil
		if s.lease.Held {
			status.Writer = &v1alpha1.WriterStatus{Pod: s.lease.Holder, Epoch: s.lease.Epoch}
		}
	}
	worker := flow.Note{Reason: v1alpha1.ReasonAvailable}
	if s.stream.Spec.Suspend {
		worker = flow.Note{Reason: v1alpha1.ReasonSuspended, Message: "spec.suspend: nothing is delivered, what is owed stays owed"}
	}
	notes := flow.Notes{v1alpha1.ConditionWorkerAvailable: worker}
	if s.stream.Spec.Suspend {
		notes[v1alpha1.ConditionSingleWriter] = worker
	}
	return notes
}
