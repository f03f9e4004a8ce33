package reqs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const table = "| id | requirement | state |\n|---|---|---|\n"

// run checks a checkout with these rows and this test file.
func run(t *testing.T, rows, test string) (found []string, printed string) {
	t.Helper()
	root := t.TempDir()
	for path, text := range map[string]string{
		File:                         table + rows,
		"kite/kite_test.go":          "package kite\n\n" + test,
		"kite/testdata/fake_test.go": "package fake\n\n// Holds REQ-999.\n",
		".cache/mod/foreign_test.go": "package foreign\n\n// Holds REQ-998.\n",
		"kite/kite.go":               "package kite\n\n// Holds REQ-997: no test file.\n",
	} {
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var out strings.Builder
	found, err := Check(t.Context(), root, &out)
	if err != nil {
		t.Fatal(err)
	}
	return found, out.String()
}

func TestCheck(t *testing.T) {
	t.Parallel()
	const rows = "| REQ-001 | Kites fly | built |\n| REQ-002 | Kites \\| strings hold | not yet |\n"
	built := strings.ReplaceAll(rows, "not yet", "built")
	tests := map[string]struct {
		rows, test, open string
		found            []string
	}{
		"all held, by one sentence over two lines": {
			rows: built, test: "// TestFly flies. Holds REQ-001 (in wind) and\n// REQ-002. REQ-003 is another matter.\nfunc f() {}\n",
		},
		"a row that no test holds is printed": {
			rows: rows, test: "// Holds REQ-001: it flies.\n", open: "  REQ-002  not yet    Kites \\| strings hold\n",
		},
		"a claim in a string is none": {
			rows: rows, test: "const c = `// Holds REQ-002.`\n// Holds REQ-001\n", open: "  REQ-002  not yet    Kites \\| strings hold\n",
		},
		"a held row that does not exist": {
			rows: built, test: "// Holds REQ-001, REQ-002 and REQ-017.\n",
			found: []string{"kite/kite_test.go holds REQ-017, which does not exist"},
		},
		"a row that is said to be built and is not held": {
			rows: built, test: "// Holds REQ-002.\n", open: "  REQ-001  built      Kites fly\n",
			found: []string{"REQ-001 is said to be built and no test holds it"},
		},
		"a row that is held and is said to be not yet built": {
			rows: rows, test: "// Holds REQ-001 and REQ-002.\n", found: []string{"REQ-002 is said to be not yet built and kite/kite_test.go holds it"},
		},
		"an id twice": {
			rows: built + "| REQ-001 | Kites sing | built |\n", test: "// Holds REQ-001 and REQ-002.\n", found: []string{"REQ-001 stands twice"},
		},
		"a row without a state": {
			rows: built + "| REQ-003 | Kites |\n", test: "// Holds REQ-001 and REQ-002.\n",
			found: []string{"not a row of the form | REQ-nnn | text | state |: | REQ-003 | Kites |"},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			found, printed := run(t, test.rows, test.test)
			if diff := cmp.Diff(test.found, found); diff != "" {
				t.Errorf("findings (-want +got):\n%s", diff)
			}
			open, _, _ := strings.Cut(printed, "reqs:")
			if diff := cmp.Diff(test.open, open); diff != "" {
				t.Errorf("rows that no test holds (-want +got):\n%s", diff)
			}
		})
	}
}
