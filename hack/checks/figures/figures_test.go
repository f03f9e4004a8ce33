package figures

import (
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Holds REQ-216: what the chart's alerts and dashboard show is counted by somebody.
func TestCheck(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	for path, text := range map[string]string{
		"a/names.go":           "package a\n\nconst (\n\tMetricTick = \"compass.a.tick.seconds\" // age\n\tMetricSent = \"compass.a.sent\"\n)\n",
		"a/hop.go":             "package a\n\nconst Hop = \"compass.a.hop\"\n",
		"a/a_test.go":          "package a\n\nconst Other = \"compass.a.tested\"\n",
		"charts/c/files/a.yml": "compass_a_tick_seconds > 1, rate(compass_a_sent_total[5m]), compass_a_hop_seconds_bucket, compass_a_sent\n",
		"charts/c/files/b.yml": "compass_a_sent_today, compass_a_tick, compass_a_tested, compass_a_tick\n",
		"charts/c/other.yml":   "compass_nobody\n",
	} {
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	found, err := Check(t.Context(), root, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"charts/c/files/b.yml shows compass_a_sent_today, which nothing counts",
		"charts/c/files/b.yml shows compass_a_tested, which nothing counts",
		"charts/c/files/b.yml shows compass_a_tick, which nothing counts",
	}
	if diff := cmp.Diff(want, found); diff != "" {
		t.Errorf("findings (-want +got):\n%s", diff)
	}
}
