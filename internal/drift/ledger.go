package drift

import (
	"fmt"
	"slices"
	"strings"

	"github.com/rigelbuild/compass-operator/api/v1alpha1"
	"github.com/rigelbuild/compass-operator/internal/fault"
)

// Ledger of one pass over one object. The zero value, and nil, know of no drift: everything is on its way to being whole.
// It is not for concurrent use: a pass does one thing after the other.
type Ledger struct {
	settled, report bool
	repaired        []string
}

// Open begins a ledger. settled: the generation had been whole before. report: what drifted is told, not written.
func Open(settled, report bool) *Ledger { return &Ledger{settled: settled, report: report} }

// Reporting tells whoever cannot ask before each write that it must look first, and write nothing that differs.
func (l *Ledger) Reporting() bool { return l != nil && l.settled && l.report }

// Allow is asked before a difference is written. what names for the user what differs, and fields, where they are known,
// in what. An error means that nothing may be written: a condition then says what Allow was told.
func (l *Ledger) Allow(what string, fields ...string) error {
	if !l.Reporting() {
		return nil
	}
	return fault.Waiting(v1alpha1.ReasonDriftDetected, fmt.Sprintf(
		"%s is not as the spec asks, and spec.drift is Report: put it right, or set spec.drift to Repair", describe(what, fields)))
}

// Wrote is told of a difference that was written.
func (l *Ledger) Wrote(what string, fields ...string) {
	if l == nil || !l.settled {
		return
	}
	if text := describe(what, fields); !slices.Contains(l.repaired, text) {
		l.repaired = append(l.repaired, text)
	}
}

// Repaired is what was put back, in the order in which it was.
func (l *Ledger) Repaired() []string {
	if l == nil {
		return nil
	}
	return l.repaired
}

func describe(what string, fields []string) string {
	if len(fields) == 0 {
		return what
	}
	return what + " (" + strings.Join(fields, ", ") + ")"
}
