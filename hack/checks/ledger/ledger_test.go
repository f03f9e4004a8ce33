package ledger

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const (
	first  = "| D-001 | Water the plants | habit | [ADR-0001](adr/0001-plants.md) |\n"
	second = "| D-003 | Close the window | rain | [ADR-0001](adr/0001-plants.md), [ADR-0002](adr/0002-rain.md) |\n"
)

// checkout makes a folder with two records and the given rows.
func checkout(t *testing.T, rows string) string {
	t.Helper()
	root := t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "docs/adr"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"0001-plants.md", "0002-rain.md"} {
		write(t, filepath.Join(root, "docs/adr", name), "x")
	}
	write(t, filepath.Join(root, File), "# Decisions\n\n| id | decision | source | ADR |\n|---|---|---|---|\n"+rows)
	return root
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func check(t *testing.T, root string) []string {
	t.Helper()
	found, err := Check(t.Context(), root, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func TestForm(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		rows string
		want []string
	}{
		"well formed, with a gap":         {rows: first + second},
		"an id twice":                     {rows: first + first, want: []string{"D-001 follows D-001: ids go up and are never used twice"}},
		"ids that go down":                {rows: second + first, want: []string{"D-001 follows D-003: ids go up and are never used twice"}},
		"a cell missing":                  {rows: "| D-001 | Water | [ADR-0001](adr/0001-plants.md) |\n", want: []string{"D-001: 3 cells, not 4: id, decision, source, record"}},
		"an empty cell":                   {rows: "| D-001 |  | habit | [ADR-0001](adr/0001-plants.md) |\n", want: []string{"D-001: no decision"}},
		"no record":                       {rows: "| D-001 | Water | habit | later |\n", want: []string{"D-001: no link of the form [ADR-nnnn](adr/nnnn-title.md)"}},
		"a record that does not exist":    {rows: "| D-001 | Water | habit | [ADR-0009](adr/0009-sun.md) |\n", want: []string{"D-001: adr/0009-sun.md does not exist"}},
		"a record of another number":      {rows: "| D-001 | Water | habit | [ADR-0002](adr/0001-plants.md) |\n", want: []string{"D-001: ADR-0002 links to adr/0001-plants.md"}},
		"a row whose id has another form": {rows: first + "| D2 | Water | habit | x |\n", want: []string{"not a row: | D2 | Water | habit | x |"}},
		"no row at all":                   {rows: "", want: []string{File + " has no row"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(test.want, check(t, checkout(t, test.rows))); diff != "" {
				t.Errorf("findings (-want +got):\n%s", diff)
			}
		})
	}
}

func TestRowsAreNeverLost(t *testing.T) {
	t.Parallel()
	root := checkout(t, first)
	run := func(args ...string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "git", append([]string{"-c", "user.name=a", "-c", "user.email=a@example.org"}, args...)...)
		cmd.Dir = root
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v: %s", args, err, out)
		}
	}
	ledger := filepath.Join(root, File)
	run("init", "-q")
	run("add", ".")
	run("commit", "-q", "-m", "one")

	write(t, ledger, first+second)
	if found := check(t, root); found != nil {
		t.Errorf("a new row was refused: %v", found)
	}
	reworded := strings.Replace(first, "Water", "Drown", 1) + second
	write(t, ledger, reworded)
	want := []string{"D-001 changed or vanished since HEAD: write a new row that names it"}
	if diff := cmp.Diff(want, check(t, root)); diff != "" {
		t.Errorf("a reworded row in the work tree (-want +got):\n%s", diff)
	}
	run("commit", "-q", "-a", "-m", "two")
	want = []string{"D-001 changed or vanished since HEAD~1: write a new row that names it"}
	if diff := cmp.Diff(want, check(t, root)); diff != "" {
		t.Errorf("a reworded row that was committed (-want +got):\n%s", diff)
	}
	run("branch", "left")
	run("branch", "--set-upstream-to", "left")
	write(t, ledger, reworded[:len(reworded)-len(second)])
	if found := check(t, root); len(found) != 3 { // gone since HEAD and since left; the other reworded since HEAD~1
		t.Errorf("a row gone since the upstream branch: %v", found)
	}
}

// Holds REQ-066: what the record of delivery decided stands in this ledger under the numbers that it ended with.
func TestLedgerHasTheDeliveryRecord(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join("../../..", File))
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"DL-331", "DL-332", "DL-333", "DL-334", "DL-335", "DL-336", "DL-337"} {
		if !strings.Contains(string(text), id) {
			t.Errorf("no row names %s", id)
		}
	}
}
