package reqs

import (
	"context"
	"fmt"
	"go/parser"
	"go/token"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/rigelbuild/compass-operator/hack/checks/sources"
)

// File is where the requirements lie in a checkout.
const File = "docs/REQUIREMENTS.md"

var (
	rowForm = regexp.MustCompile(`^\| (REQ-\d{3}) \| (.+) \| ([^|]+) \|$`)
	id      = regexp.MustCompile(`REQ-\d+`)
	// A claim ends with its sentence, so that what a test does not hold may be spoken of in the next.
	claim = regexp.MustCompile(`(?s)\bHolds (REQ-\d+.*?)(?:\.\s|\.?$)`)
)

// A requirement is one row.
type requirement struct{ id, text, state string }

// Check prints the rows that no test holds and returns one sentence per claim or row that cannot be right.
func Check(_ context.Context, root string, out io.Writer) ([]string, error) {
	text, err := os.ReadFile(filepath.Join(root, File))
	if err != nil {
		return nil, fmt.Errorf("read requirements: %w", err)
	}
	rows, found := parse(string(text))
	held, err := holders(root)
	if err != nil {
		return nil, err
	}
	known := map[string]bool{}
	var open []requirement
	for _, r := range rows {
		known[r.id] = true
		switch tests := held[r.id]; {
		case len(tests) > 0 && r.state == "not yet":
			found = append(found, fmt.Sprintf("%s is said to be not yet built and %s holds it", r.id, strings.Join(tests, ", ")))
		case len(tests) > 0:
		case r.state == "built":
			found = append(found, r.id+" is said to be built and no test holds it")
			fallthrough
		default:
			open = append(open, r)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(held)) {
		if !known[id] {
			found = append(found, fmt.Sprintf("%s holds %s, which does not exist", strings.Join(held[id], ", "), id))
		}
	}
	report(out, rows, open)
	return found, nil
}

// report lists the rows that no test holds, then how many those are.
func report(out io.Writer, rows, open []requirement) {
	for _, r := range open {
		fmt.Fprintf(out, "  %s  %-9s  %s\n", r.id, r.state, short(r.text))
	}
	fmt.Fprintf(out, "reqs: %d rows, %d held by a test, %d not\n", len(rows), len(rows)-len(open), len(open))
}

// short cuts a text to what fits on a line of a terminal.
func short(text string) string {
	runes := []rune(text)
	if len(runes) <= 90 {
		return text
	}
	return string(runes[:89]) + "…"
}

// parse returns the rows, and which lines look like one and are not, or have an id again.
func parse(text string) (rows []requirement, found []string) {
	seen := map[string]bool{}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "| REQ-") {
			continue
		}
		cells := rowForm.FindStringSubmatch(line)
		if cells == nil {
			found = append(found, "not a row of the form | REQ-nnn | text | state |: "+line)
			continue
		}
		r := requirement{cells[1], cells[2], strings.TrimSpace(cells[3])}
		if seen[r.id] {
			found = append(found, r.id+" stands twice")
		}
		seen[r.id] = true
		rows = append(rows, r)
	}
	if len(rows) == 0 {
		found = append(found, File+" has no row")
	}
	return rows, found
}

// holders returns, per id, the test files that hold it.
func holders(root string) (map[string][]string, error) {
	held := map[string][]string{}
	err := sources.Walk(root, func(name string, text []byte) error {
		if !sources.IsTest(name) {
			return nil
		}
		ids, err := claims(name, text)
		for _, id := range ids {
			held[id] = append(held[id], name)
		}
		return err
	})
	return held, err
}

// claims returns the ids that the comments of one test file hold, each once. Only comments count: a claim in a string, as in the
// test of this package, is none.
func claims(name string, text []byte) ([]string, error) {
	file, err := parser.ParseFile(token.NewFileSet(), name, text, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	var ids []string
	for _, comment := range file.Comments {
		for _, sentence := range claim.FindAllStringSubmatch(comment.Text(), -1) {
			ids = append(ids, id.FindAllString(sentence[1], -1)...)
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids), nil
}
