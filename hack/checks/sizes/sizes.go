package sizes

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"regexp"
	"slices"

	"github.com/rigelbuild/compass-operator/hack/checks/sources"
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
	documented := map[string]bool{} // by folder, for packages that need a doc.go
	err := sources.Walk(root, func(name string, text []byte) error {
		if generated.Match(text) {
			return nil
		}
		if lines, limit := bytes.Count(text, []byte("\n")), limitOf(name); lines > limit {
			found = append(found, fmt.Sprintf("%s has %d lines, and %d is the limit: is there a second room in it?", name, lines, limit))
		}
		if folder := filepath.Dir(name); needsDoc(name, text) {
			documented[folder] = documented[folder] || filepath.Base(name) == "doc.go"
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	for _, folder := range slices.Sorted(maps.Keys(documented)) {
		if !documented[folder] {
			found = append(found, folder+" has no doc.go: what it owns, what it promises, what it must not import")
		}
	}
	return found, nil
}

// needsDoc reports whether a file makes its folder a package that others import.
func needsDoc(name string, text []byte) bool {
	return !sources.IsTest(name) && !mainPkg.Match(text)
}

func limitOf(name string) int {
	if sources.IsTest(name) {
		return maxTestLines
	}
	return maxLines
}
