package words

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// A ban is a form of text that must not stand in the repository. Each is written so that it does not find itself.
type ban struct {
	form *regexp.Regexp
	why  string
}

var bans = []ban{
	{regexp.MustCompile(`(^|[^A-Za-z0-9._/-])/[w]ork(/|\b)`), "a path of one machine"},
	{regexp.MustCompile(`(^|[^A-Za-z0-9._/-])/[t]mp/\w`), "a path of one machine: ask for a temporary folder"},
	{regexp.MustCompile(`(^|[^A-Za-z0-9._/-])/([r]oot|[h]ome/[a-z]+)/`), "a path of one machine"},
	{regexp.MustCompile(`\b([p]roxy|[s]um)\.golang\.org\b|\b[r]egistry\.(npmjs|yarnpkg)\.|\b([d]eb|[s]ecurity)\.debian\.org\b`), "the host of a package registry"},
	{regexp.MustCompile(`(?i)\b(is|if|for)?([m]ulti|[s]ingle)_?tenant(mode)?\b`), "a fork by the number of tenants: one or many, the code is the same (REQ-091)"},
	{regexp.MustCompile(`\bpg_[n]otify\b|\b[W]aitForNotification\b`), "Postgres notifications: what changed travels over NATS (REQ-151)"},
}

// exceptions are lines that have to say what is banned. A line is known by its file and a part of it.
var exceptions = []struct{ file, part, why string }{
	{"hack/cluster/node", "/" + "tmp/hostpath_pv", "kube-controller-manager makes volumes there and nowhere else"},
}

// Check returns file, line and reason of each banned word in the files that git has or would take.
func Check(ctx context.Context, root string, _ io.Writer) ([]string, error) {
	cmd := exec.CommandContext(ctx, "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	cmd.Dir = root
	list, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("list files: %w", err)
	}
	var found []string
	for name := range strings.SplitSeq(strings.TrimRight(string(list), "\x00"), "\x00") {
		text, err := os.ReadFile(filepath.Join(root, name))
		if err != nil || bytes.IndexByte(text, 0) >= 0 { // gone from the work tree, or no text
			continue
		}
		found = append(found, inspect(name, string(text))...)
	}
	return found, nil
}

func inspect(name, text string) []string {
	var found []string
	number := 0
	for line := range strings.Lines(text) {
		number++
		for _, b := range bans {
			if match := b.form.FindString(line); match != "" && !excepted(name, line) {
				found = append(found, fmt.Sprintf("%s:%d: %q: %s", name, number, strings.TrimSpace(match), b.why))
			}
		}
	}
	return found
}

func excepted(name, line string) bool {
	for _, e := range exceptions {
		if e.file == name && strings.Contains(line, e.part) {
			return true
		}
	}
	return false
}
