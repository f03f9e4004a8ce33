package imports

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"
)

// A pkg is what the go command says of a package; the field names are its own.
type pkg struct {
	ImportPath                string
	Imports, Deps             []string
	TestImports, XTestImports []string
}

// Check returns one sentence per import that breaks a rule.
func Check(ctx context.Context, root string, _ io.Writer) ([]string, error) {
	packages, err := list(ctx, root)
	if err != nil {
		return nil, err
	}
	var found []string
	all := append(walls(), rules...)
	for _, p := range packages {
		folder, inside := strings.CutPrefix(p.ImportPath, module)
		if !inside {
			continue
		}
		folder = strings.TrimPrefix(folder, "/")
		for _, r := range all {
			if r.holds(folder) {
				found = append(found, r.judge(p)...)
			}
		}
	}
	slices.Sort(found)
	return slices.Compact(found), nil
}

// list asks the go command for every package below root. Packages that do not compile are listed all the same.
func list(ctx context.Context, root string) ([]pkg, error) {
	cmd := exec.CommandContext(ctx, "go", "list", "-e", "-json=ImportPath,Imports,Deps,TestImports,XTestImports", "./...")
	cmd.Dir = root
	out, err := cmd.Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return nil, fmt.Errorf("list packages: %w: %s", err, exit.Stderr)
	}
	if err != nil {
		return nil, fmt.Errorf("list packages: %w", err)
	}
	var packages []pkg
	for decoder := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p pkg
		switch err := decoder.Decode(&p); {
		case errors.Is(err, io.EOF):
			if len(packages) == 0 {
				return nil, errors.New("list packages: there are none")
			}
			return packages, nil
		case err != nil:
			return nil, fmt.Errorf("read list of packages: %w", err)
		}
		packages = append(packages, p)
	}
}

func (r rule) holds(folder string) bool {
	return within(folder, r.folders) && !within(folder, r.except)
}

// judge returns what p imports against the rule.
func (r rule) judge(p pkg) []string {
	imported := slices.Clone(p.Imports)
	if r.tests {
		imported = append(append(imported, p.TestImports...), p.XTestImports...)
	}
	var found []string
	for _, path := range imported {
		if r.forbids(path) {
			found = append(found, fmt.Sprintf("%s imports %s: %s", p.ImportPath, path, r.why))
		}
	}
	if !r.deep {
		return found
	}
	for _, path := range p.Deps {
		if r.forbids(path) && !slices.Contains(imported, path) {
			found = append(found, fmt.Sprintf("%s brings along %s: %s", p.ImportPath, path, r.why))
			break // one says it; there would be hundreds
		}
	}
	return found
}

func (r rule) forbids(path string) bool {
	if within(path, r.allow) {
		return false
	}
	if r.deny != nil {
		return within(path, r.deny)
	}
	return !standard(path)
}

// standard reports whether path belongs to the standard library: its first element is no host name.
func standard(path string) bool {
	first, _, _ := strings.Cut(path, "/")
	return !strings.Contains(first, ".")
}

// within reports whether path is one of roots or below one. The root "." has everything below it.
func within(path string, roots []string) bool {
	return slices.ContainsFunc(roots, func(root string) bool {
		return root == "." || path == root || strings.HasPrefix(path, root+"/")
	})
}
