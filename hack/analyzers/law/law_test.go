package law_test

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/tools/go/analysis/analysistest"

	"github.com/rigelbuild/compass-operator/hack/analyzers/law"
)

// fixtures lays the test data out so that each broken bridge has the parts of the whole one around it.
func fixtures(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	if err := os.CopyFS(root, os.DirFS(analysistest.TestData())); err != nil {
		t.Fatal(err)
	}
	parts, err := os.ReadFile(filepath.Join(root, "src/tree/internal/event/parts.go"))
	if err != nil {
		t.Fatal(err)
	}
	bridges, err := filepath.Glob(filepath.Join(root, "src/*/internal/event/bridge.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, bridge := range bridges {
		if err := os.WriteFile(filepath.Join(filepath.Dir(bridge), "parts.go"), parts, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// Each rule has code that it rejects and code like it that it lets pass.
func TestOrder(t *testing.T) {
	t.Parallel()
	analysistest.Run(t, fixtures(t), law.Order,
		"tree/internal/event", "unguarded/internal/event", "guardlate/internal/event", "subject/internal/event",
		"unclaimed/internal/event", "claimlate/internal/event", "conditional/internal/event", "teller/internal/event")
}

func TestLane(t *testing.T) {
	t.Parallel()
	analysistest.Run(t, fixtures(t), law.Lane, "tree/internal/event", "tree/internal/fabric", "tree/cmd", "tree/lane")
}

func TestListen(t *testing.T) {
	t.Parallel()
	analysistest.Run(t, fixtures(t), law.Listen, "tree/internal/event", "tree/listener", "tree/listen")
}
