package flow

import (
	"strings"
	"time"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/rigelbuild/compass-operator/api/v1alpha1"
	"github.com/rigelbuild/compass-operator/internal/fault"
)

// Notes say more of a condition that is True than Applied does, by condition type.
type Notes map[string]Note

// Note is what a condition that is True says.
type Note struct{ Reason, Message string }

const (
	timeGrain  = time.Second // of metav1.Time
	maxMessage = 1024
)

// conditionsOf judges every condition of a pass.
func conditionsOf(outcomes []outcome, notes Notes) []metav1.Condition {
	var out []metav1.Condition
	for _, o := range outcomes {
		c := conditionOf(o.condition, o.err)
		switch {
		case o.err != nil:
		case o.skipped:
			c.Status, c.Reason = metav1.ConditionUnknown, v1alpha1.ReasonWaitingForDependency
			c.Message = "not looked at, because something it needs is not ready"
		default:
			if note, ok := notes[o.condition]; ok {
				c.Reason, c.Message = note.Reason, note.Message
			}
		}
		out = append(out, c)
	}
	return out
}

// conditionOf is the condition that an error amounts to: False is known not to be so, Unknown could not be told.
func conditionOf(kind string, err error) metav1.Condition {
	c := metav1.Condition{Type: kind, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonApplied}
	if err == nil {
		return c
	}
	c.Reason, c.Message = fault.ReasonOf(err), err.Error()
	switch fault.ClassOf(err) {
	case fault.ClassWaiting:
		c.Status = metav1.ConditionFalse
		setReason(&c, v1alpha1.ReasonWaitingForDependency)
	case fault.ClassTerminal, fault.ClassPoison:
		c.Status = metav1.ConditionFalse
		setReason(&c, v1alpha1.ReasonInvalidSpec)
	default:
		c.Status = metav1.ConditionUnknown
		setReason(&c, v1alpha1.ReasonReconcileFailed)
	}
	return c
}

func setReason(c *metav1.Condition, reason string) {
	if c.Reason == "" {
		c.Reason = reason
	}
}

// readyOf sums up: any False is False, else any Unknown is Unknown, else True. Reason and message are those of the worst
// part, terminal before transient before waiting, and of several the first: later ones follow from it.
func readyOf(parts []metav1.Condition, outcomes []outcome) metav1.Condition {
	ready := metav1.Condition{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonAvailable}
	if len(parts) == 0 {
		ready.Status, ready.Reason = metav1.ConditionUnknown, v1alpha1.ReasonReconcileFailed
		return ready
	}
	worst, at := fault.None, -1
	for i, part := range parts {
		switch {
		case part.Status == metav1.ConditionFalse:
			ready.Status = metav1.ConditionFalse
		case part.Status == metav1.ConditionUnknown && ready.Status == metav1.ConditionTrue:
			ready.Status = metav1.ConditionUnknown
		}
		class := fault.ClassOf(outcomes[i].err)
		if class > worst || at < 0 && part.Status != metav1.ConditionTrue {
			worst, at = class, i
		}
	}
	if at >= 0 {
		ready.Reason = parts[at].Reason
		ready.Message = strings.TrimSuffix(parts[at].Type+": "+parts[at].Message, ": ")
	}
	return ready
}

func pausedCondition(deleting bool) metav1.Condition {
	msg := "Nothing is looked at or written: remove the annotation " + v1alpha1.AnnotationPaused + " to go on"
	if deleting {
		msg += " with the deletion"
	}
	return metav1.Condition{Type: v1alpha1.ConditionReady, Status: metav1.ConditionUnknown, Reason: v1alpha1.ReasonPaused, Message: msg}
}

func blockedCondition(err error) metav1.Condition {
	c := metav1.Condition{Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonDeleting}
	switch {
	case err == nil:
	case fault.ReasonOf(err) == v1alpha1.ReasonDeleting:
		c.Message = err.Error()
	default:
		c.Reason = v1alpha1.ReasonDeletionBlocked
		c.Message = err.Error() + "; set the annotation " + v1alpha1.AnnotationForceRelease + `="true" to let go without it`
	}
	return c
}

// needsAttention: reasons that somebody has to act on. The others pass by themselves.
func needsAttention(reason string) bool {
	for _, form := range []string{"Unreachable", "Failed", "Invalid", "Conflict", "Reserved", "Blocked", "Contested", "Drift", "Unfit", v1alpha1.ReasonReleased} {
		if strings.Contains(reason, form) {
			return true
		}
	}
	return false
}

// clip bounds a message without cutting a character.
func clip(s string) string {
	if len(s) <= maxMessage {
		return s
	}
	cut := maxMessage - len("…")
	for !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + "…"
}

// Rounded is a figure for a status: one significant digit, so that a busy system is not written all the time and an idle
// one never. Exact figures are metrics.
func Rounded(n int64) int64 {
	scale := int64(1)
	for n/scale >= 10 {
		scale *= 10
	}
	return n / scale * scale
}
