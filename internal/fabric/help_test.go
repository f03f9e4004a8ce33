package fabric_test

import (
	"testing"

	"github.com/rigelbuild/compass-operator/internal/fabric"
	"github.com/rigelbuild/compass-operator/internal/fabric/fabrictest"
	"github.com/rigelbuild/compass-operator/internal/fault"
)

// seldom is how often test servers sync. A nats-server notes its timer after it has started it and without a lock (v2.15.2,
// setSyncTimer): on a slow machine the default of 100ms is over by then, and the race detector says so.
const seldom = "10s"

func poison() error { return fault.Poison("Bad", fabrictest.ErrBoom) }

func deadRows(t *testing.T, f fabric.DeadLetterBox) []string {
	t.Helper()
	var out []string
	err := f.List(t.Context(), fabrictest.Stream, "", func(d fabric.DeadLetter) bool {
		out = append(out, d.Ref.RowID)
		return true
	})
	if err != nil {
		t.Logf("list dead letters: %v", err)
	}
	return out
}
