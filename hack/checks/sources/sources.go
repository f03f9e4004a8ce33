package sources

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Walk calls see with the name below root and the text of every Go file, in lexical order, until see returns an error.
func Walk(root string, see func(name string, text []byte) error) error {
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && path != root && skipped(entry.Name()):
			return fs.SkipDir
		case entry.IsDir() || filepath.Ext(path) != ".go":
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		return see(name, text)
	})
	if err != nil {
		return fmt.Errorf("read sources: %w", err)
	}
	return nil
}

// IsTest reports whether a file belongs to the tests.
func IsTest(name string) bool { return strings.HasSuffix(name, "_test.go") }

func skipped(folder string) bool {
	return strings.HasPrefix(folder, ".") || folder == "testdata" || folder == "build" || folder == "node_modules"
}
