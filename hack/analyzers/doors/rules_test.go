package doors

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

var backquoted = regexp.MustCompile("`[^`]*`")

// Each rule about text has a line in the fixtures that breaks it, and TestDoors holds that line to be refused; so a rule
// cannot be added without one, nor lost without a red test.
func TestEveryRuleHasAFixture(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("testdata/src/example/internal/store/bad.go")
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for line := range strings.Lines(string(text)) {
		if sql := backquoted.FindString(line); sql != "" && strings.Contains(line, "// want") {
			lines = append(lines, strings.Trim(sql, "`"))
		}
	}
	for _, r := range rules {
		found := false
		for _, sql := range lines {
			found = found || r.pattern.MatchString(sql)
		}
		if !found {
			t.Errorf("no fixture breaks the rule %q (%s)", r.says, r.pattern)
		}
	}
}
