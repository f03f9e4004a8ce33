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

// A fixture is a module of this one's name. Each import that must be found has a comment on its line: // want REASON, or
// several with "; " between them.
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

// Every room has walls, and all that is ours has a room or is meant to have none.
func TestRooms(t *testing.T) {
	t.Parallel()
	for _, r := range walls() {
		room := r.folders[0]
		if len(r.judge(pkg{ImportPath: module + "/" + room, Imports: []string{module + "/cmd/compass"}})) == 0 {
			t.Errorf("%s may import cmd", room)
		}
		for _, other := range rooms[room] {
			if other == room || rooms[other] == nil {
				t.Errorf("%s allows %s, which is itself or no room", room, other)
			}
		}
	}
	packages, err := list(t.Context(), "../../..")
	if err != nil {
		t.Fatal(err)
	}
	free := []string{"cmd", "test", "hack", "build"}
	for _, p := range packages {
		folder := strings.TrimPrefix(p.ImportPath, module+"/")
		inRoom := slices.ContainsFunc(walls(), func(r rule) bool { return r.holds(folder) })
		if !inRoom && folder != "controllers" && !within(folder, free) {
			t.Errorf("%s has no room: give it a row in rooms.go and in docs/architecture.md", folder)
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
			code, findings, ok := strings.Cut(strings.TrimSpace(line), "// want ")
			if !ok {
				continue
			}
			for finding := range strings.SplitSeq(findings, "; ") {
				verb := "imports " + strings.Split(code, `"`)[1]
				if through, reason, ok := strings.Cut(finding, " through: "); ok {
					verb, finding = "brings along "+through, reason
				}
				if room, ok := strings.CutPrefix(finding, "wall of "); ok {
					finding = "the row of " + room + " in hack/checks/imports/rooms.go does not allow it"
				}
				want = append(want, module+"/"+folder+" "+verb+": "+finding)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(want)
	return want
}
