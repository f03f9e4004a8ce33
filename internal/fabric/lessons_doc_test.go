package fabric_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// docs/lessons.md says of every report which test holds it; a test that it names must be there, and name a report it names.
func TestLessonsPageNamesTests(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "lessons.md"))
	if err != nil {
		t.Fatal(err)
	}
	var tests strings.Builder
	for _, pattern := range []string{"*_test.go", "fabrictest/*.go", "../delivery/*_test.go", "../store/*_test.go", "../store/admin/*_test.go", "../store/schema/*_test.go",
		"../../controllers/*_test.go", "../../controllers/flow/*_test.go", "../../test/e2e/*_test.go"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("no file %s, %v", pattern, err)
		}
		for _, path := range files {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			tests.Write(text)
		}
	}
	all := tests.String()
	rows := 0
	for line := range strings.Lines(string(page)) {
		cells := strings.Split(line, " | ")
		if len(cells) < 4 || strings.HasPrefix(line, "| report") {
			continue
		}
		rows++
		for _, m := range regexp.MustCompile("`(Test[A-Za-z]+)`").FindAllStringSubmatch(cells[3], -1) {
			if !strings.Contains(all, "func "+m[1]+"(t *testing.T)") {
				t.Errorf("%s: there is no %s", cells[0], m[1])
			}
		}
		if suite := regexp.MustCompile("suites? `([A-Za-z]+)`").FindStringSubmatch(cells[3]); suite != nil && !strings.Contains(all, `"`+suite[1]+`":`) {
			t.Errorf("%s: no suite has %s", cells[0], suite[1])
		}
		for _, n := range regexp.MustCompile(`\b(?:[BU])?\d+\b`).FindAllString(strings.TrimPrefix(cells[0], "| "), -1) {
			if strings.TrimSpace(cells[3]) != "– |" && !regexp.MustCompile(`(?i:lessons? ?)[^\n]*\b`+n+`\b`).MatchString(all) {
				t.Errorf("no test names report %s", n)
			}
		}
	}
	if rows < 40 {
		t.Errorf("read %d rows only", rows)
	}
}
