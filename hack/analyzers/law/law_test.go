package law_test

import (
	"testing"

	"golang.org/x/tools/go/analysis/analysistest"

	"github.com/rigelbuild/compass-operator/hack/analyzers/law"
)

// Each rule has code that it rejects and code like it that it lets pass.
func TestOrder(t *testing.T) {
	t.Parallel()
	analysistest.Run(t, analysistest.TestData(), law.Order,
		"tree/internal/event", "unguarded/internal/event", "guardlate/internal/event", "subject/internal/event",
		"unclaimed/internal/event", "claimlate/internal/event", "conditional/internal/event", "teller/internal/event")
}

func TestLane(t *testing.T) {
	t.Parallel()
	analysistest.Run(t, analysistest.TestData(), law.Lane, "tree/internal/event", "tree/internal/fabric", "tree/cmd", "tree/lane")
}

func TestListen(t *testing.T) {
	t.Parallel()
	analysistest.Run(t, analysistest.TestData(), law.Listen, "tree/internal/event", "tree/listener", "tree/listen")
}
