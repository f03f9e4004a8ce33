package drift_test

import (
	"slices"
	"testing"

	"github.com/rigelbuild/compass-operator/internal/drift"
	"github.com/rigelbuild/compass-operator/internal/fault"
)

// Holds REQ-210: what differs on the way to a first whole state is written without a word; afterwards it is drift, which is
// put back and told, or only told.
func TestLedger(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		ledger   *drift.Ledger
		refuses  bool
		repaired []string
	}{
		"none":                       {},
		"on the way":                 {ledger: drift.Open(false, false)},
		"on the way, reporting":      {ledger: drift.Open(false, true)},
		"whole before":               {ledger: drift.Open(true, false), repaired: []string{"stream X (max_age)", "Service a/b"}},
		"whole before and reporting": {ledger: drift.Open(true, true), refuses: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := c.ledger
			for _, what := range []string{"stream X", "stream X", "Service a/b"} {
				fields := []string{"max_age"}
				if what == "Service a/b" {
					fields = nil
				}
				err := l.Allow(what, fields...)
				if refused := fault.ReasonOf(err) == "DriftDetected" && fault.IsWaiting(err); refused != c.refuses || l.Reporting() != c.refuses {
					t.Errorf("%v, reporting %v; want a refusal: %v", err, l.Reporting(), c.refuses)
				}
				if err == nil {
					l.Wrote(what, fields...)
				}
			}
			if !slices.Equal(l.Repaired(), c.repaired) {
				t.Errorf("repaired %v, want %v", l.Repaired(), c.repaired)
			}
		})
	}
}
