package imports

import (
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// A fixture is a module of this one's name. Each import that must be found has a comment on its line: // want REASON.
func TestFixtures(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"good", "bad"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := filepath.Join("testdata", name)
			found, err := Check(t.Context(), root, io.Discard)
			if err != nil {
				t.Fatal(err)
			}
			want := wanted(t, root)
			if (name == "bad") != (len(want) > 0) {
				t.Fatalf("fixture %s wants %d findings", name, len(want))
			}
			if diff := cmp.Diff(want, found); diff != "" {
				t.Errorf("findings (-want +got):\n%s", diff)
			}
		})
	}
}

// Every rule must have been seen to refuse something, or nobody knows that it can.
func TestEveryRuleRefusesSomething(t *testing.T) {
	t.Parallel()
	packages, err := list(t.Context(), filepath.Join("testdata", "bad"))
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range rules {
		refused := slices.ContainsFunc(packages, func(p pkg) bool {
			folder := strings.TrimPrefix(strings.TrimPrefix(p.ImportPath, module), "/")
			return r.holds(folder) && len(r.judge(p)) > 0
		})
		if !refused {
			t.Errorf("rule %d (%s, for %v) refuses nothing in testdata/bad", i, r.why, r.folders)
		}
	}
}

func TestAnEmptyTreeIsAnError(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	if err := os.WriteFile(filepath.Join(root, "go.mod"), []byte("module "+module+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Check(t.Context(), root, io.Discard); err == nil {
		t.Error("no package was looked at and nothing was said")
	}
}

// wanted reads the want comments below root and words them as Check would.
func wanted(t *testing.T, root string) []string {
	t.Helper()
	var want []string
	err := filepath.WalkDir(root, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() || filepath.Ext(path) != ".go" {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		folder, err := filepath.Rel(root, filepath.Dir(path))
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(text)) {
			code, finding, ok := strings.Cut(strings.TrimSpace(line), "// want ")
			if !ok {
				continue
			}
			verb := "imports " + strings.Split(code, `"`)[1]
			if through, reason, ok := strings.Cut(finding, " through: "); ok {
				verb, finding = "brings along "+through, reason
			}
			want = append(want, module+"/"+folder+" "+verb+": "+finding)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(want)
	return want
}
