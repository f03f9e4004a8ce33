package doors_test

import (
	"testing"

	"golang.org/x/tools/go/analysis/analysistest"

	"github.com/rigelbuild/compass-operator/hack/analyzers/doors"
)

// Each rule has a line that it rejects and one like it that it lets pass.
func TestDoors(t *testing.T) {
	t.Parallel()
	analysistest.Run(t, analysistest.TestData(), doors.Analyzer,
		"example/internal/store", "example/internal/store/schema", "example/internal/store/storetest", "example/other")
}
