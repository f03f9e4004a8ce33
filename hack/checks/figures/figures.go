package figures

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/rigelbuild/compass-operator/hack/checks/sources"
)

var (
	// declared is a constant that names a figure, as OpenTelemetry or as Prometheus writes it.
	declared = regexp.MustCompile(`(?m)^\s*(?:const )?[A-Z]\w+\s*= "(compass[._][a-z0-9._]+)"`)
	named    = regexp.MustCompile(`\bcompass_[a-z0-9_]+`)
	// added is what exporters and histograms put behind a name.
	added = regexp.MustCompile(`^(_seconds)?(_total|_bucket|_count|_sum)?$`)
)

// Check returns one sentence per file of a chart and figure that no constant of the code declares.
func Check(_ context.Context, root string, _ io.Writer) ([]string, error) {
	var known []string
	err := sources.Walk(root, func(name string, text []byte) error {
		if !sources.IsTest(name) {
			for _, m := range declared.FindAllSubmatch(text, -1) {
				known = append(known, strings.ReplaceAll(string(m[1]), ".", "_"))
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	files, err := filepath.Glob(filepath.Join(root, "charts", "*", "files", "*"))
	if err != nil {
		return nil, fmt.Errorf("look for files of charts: %w", err)
	}
	var found []string
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("read what a chart shows: %w", err)
		}
		names := named.FindAllString(string(text), -1)
		slices.Sort(names)
		for _, figure := range slices.Compact(names) {
			if !slices.ContainsFunc(known, func(k string) bool { return counts(k, figure) }) {
				found = append(found, fmt.Sprintf("%s shows %s, which nothing counts", strings.TrimPrefix(file, root+string(filepath.Separator)), figure))
			}
		}
	}
	return found, nil
}

// counts reports whether a constant declares a figure.
func counts(constant, figure string) bool {
	rest, ok := strings.CutPrefix(figure, constant)
	return ok && added.MatchString(rest)
}
