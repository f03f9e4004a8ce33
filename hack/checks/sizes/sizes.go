package sizes

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// The hard limits; files aim at 300 lines.
const (
	maxLines     = 500
	maxTestLines = 800
)

var (
	generated = regexp.MustCompile(`(?m)^// Code generated .* DO NOT EDIT\.$`)
	mainPkg   = regexp.MustCompile(`(?m)^package main\b`)
)

// Check returns one sentence per file that is too long and per package without a doc.go. Programs document themselves in
// main.go, packages that hold tests alone need none.
func Check(_ context.Context, root string, _ io.Writer) ([]string, error) {
	var found []string
	undocumented := map[string]bool{}
	documented := map[string]bool{}
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && path != root && skip(entry.Name()):
			return fs.SkipDir
		case entry.IsDir() || filepath.Ext(path) != ".go":
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil || generated.Match(text) {
			return err
		}
		test := strings.HasSuffix(name, "_test.go")
		if lines, limit := bytes.Count(text, []byte("\n")), limitOf(test); lines > limit {
			found = append(found, fmt.Sprintf("%s has %d lines, and %d is the limit: is there a second room in it?", name, lines, limit))
		}
		folder := filepath.Dir(name)
		documented[folder] = documented[folder] || filepath.Base(name) == "doc.go"
		undocumented[folder] = undocumented[folder] || !test && !mainPkg.Match(text)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read sources: %w", err)
	}
	for _, folder := range slices.Sorted(maps.Keys(undocumented)) {
		if undocumented[folder] && !documented[folder] {
			found = append(found, folder+" has no doc.go: what it owns, what it promises, what it must not import")
		}
	}
	return found, nil
}

func limitOf(test bool) int {
	if test {
		return maxTestLines
	}
	return maxLines
}

func skip(folder string) bool {
	return strings.HasPrefix(folder, ".") || folder == "testdata" || folder == "build" || folder == "node_modules"
}
