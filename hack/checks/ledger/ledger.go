package ledger

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// File is where the ledger lies in a checkout.
const File = "docs/DECISIONS.md"

// A row is `| D-nnn | decision | source | [ADR-nnnn](adr/nnnn-….md) |`; further links may follow.
var (
	rowID  = regexp.MustCompile(`^\| D-(\d{3,}) \|`)
	record = regexp.MustCompile(`\[ADR-(\d{4})\]\((adr/(\d{4})-[a-z0-9-]+\.md)\)`)
)

// A row of the ledger, as it stands in the file.
type row struct {
	number int
	text   string
}

// Check returns one sentence per flaw of the ledger's form, and per row that an earlier commit had and this checkout has
// not. What is earlier: the last commit and the one before it, and where this branch left the remote's.
func Check(ctx context.Context, root string, out io.Writer) ([]string, error) {
	text, err := os.ReadFile(filepath.Join(root, File))
	if err != nil {
		return nil, fmt.Errorf("read ledger: %w", err)
	}
	rows, found := parse(string(text))
	for _, r := range rows {
		found = append(found, flaws(filepath.Join(root, filepath.Dir(File)), r)...)
	}
	if len(rows) == 0 {
		found = append(found, File+" has no row")
	}
	for _, commit := range earlier(ctx, root) {
		before, err := git(ctx, root, "show", commit+":"+File)
		if err != nil {
			continue // the ledger is younger than that
		}
		old, _ := parse(before)
		found = append(found, lost(old, rows, commit)...)
	}
	fmt.Fprintf(out, "decisions: %d rows\n", len(rows))
	return found, nil
}

// parse returns the rows, and where the ids do not go up.
func parse(text string) (rows []row, found []string) {
	last := 0
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		id := rowID.FindStringSubmatch(line)
		if id == nil {
			if strings.HasPrefix(line, "| D") {
				found = append(found, "not a row: "+line)
			}
			continue
		}
		number, err := strconv.Atoi(id[1])
		if err != nil || number <= last {
			found = append(found, fmt.Sprintf("D-%s follows D-%03d: ids go up and are never used twice", id[1], last))
		}
		last = max(last, number)
		rows = append(rows, row{number, line})
	}
	return rows, found
}

// flaws returns what is wrong with one row; docs is the ledger's folder.
func flaws(docs string, r row) []string {
	var found []string
	say := func(format string, args ...any) {
		found = append(found, fmt.Sprintf("D-%03d: ", r.number)+fmt.Sprintf(format, args...))
	}
	cells := strings.Split(strings.Trim(r.text, "|"), " | ")
	if len(cells) != 4 {
		say("%d cells, not 4: id, decision, source, record", len(cells))
		return found
	}
	for i, name := range []string{"id", "decision", "source", "record"} {
		if strings.TrimSpace(cells[i]) == "" {
			say("no %s", name)
		}
	}
	links := record.FindAllStringSubmatch(cells[3], -1)
	if len(links) == 0 {
		say("no link of the form [ADR-nnnn](adr/nnnn-title.md)")
	}
	for _, link := range links {
		if link[1] != link[3] {
			say("ADR-%s links to %s", link[1], link[2])
		}
		if _, err := os.Stat(filepath.Join(docs, link[2])); err != nil {
			say("%s does not exist", link[2])
		}
	}
	return found
}

// lost returns the rows of old that now has no more, word for word.
func lost(old, now []row, commit string) []string {
	have := make(map[string]bool, len(now))
	for _, r := range now {
		have[r.text] = true
	}
	var found []string
	for _, r := range old {
		if !have[r.text] {
			found = append(found, fmt.Sprintf("D-%03d changed or vanished since %s: write a new row that names it", r.number, commit))
		}
	}
	return found
}

// earlier names the commits to compare with, as far as this checkout has them.
func earlier(ctx context.Context, root string) []string {
	var commits []string
	for _, name := range []string{"HEAD", "HEAD~1"} {
		if _, err := git(ctx, root, "rev-parse", "--verify", "--quiet", name+"^{commit}"); err == nil {
			commits = append(commits, name)
		}
	}
	if base, err := git(ctx, root, "merge-base", "HEAD", "@{upstream}"); err == nil {
		commits = append(commits, strings.TrimSpace(base))
	}
	return commits
}

func git(ctx context.Context, root string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.Dir = root
	var out bytes.Buffer
	cmd.Stdout = &out
	err := cmd.Run()
	return out.String(), err
}
