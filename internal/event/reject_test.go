package event

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Holds REQ-140, REQ-141 and REQ-150: what docs/events.md calls unrepresentable is refused by the compiler.
func TestDoesNotCompile(t *testing.T) {
	t.Parallel()
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": {
		filepath.Join(here, "inside.go"): filepath.Join(here, "testdata/reject/inside.go.txt"),
	}})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "overlay.json")
	if err := os.WriteFile(file, overlay, 0o600); err != nil {
		t.Fatal(err)
	}
	tests := map[string][]string{
		"testdata/reject/outside/outside.go": {"./testdata/reject/outside"},
		"testdata/reject/inside.go.txt":      {"-overlay", file, "."},
	}
	for fixture, args := range tests {
		t.Run(filepath.Base(fixture), func(t *testing.T) {
			t.Parallel()
			refused := compile(t, args...)
			for line, want := range wanted(t, fixture) {
				if got := refused[line]; !strings.Contains(got, want) {
					t.Errorf("%s:%d: the compiler says %q, want %q", fixture, line, got, want)
				}
				delete(refused, line)
			}
			for line, got := range refused {
				t.Errorf("%s:%d: refused for another reason: %s", fixture, line, got)
			}
		})
	}
}

// compile builds and returns what the compiler refuses, by line.
func compile(t *testing.T, args ...string) map[int]string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", append([]string{"build", "-gcflags=-e"}, args...)...)
	out, err := cmd.CombinedOutput()
	if err == nil {
		t.Fatal("it compiles")
	}
	refused := map[int]string{}
	for _, m := range regexp.MustCompile(`(?m)^[^\s:]+\.go(?:\.txt)?:(\d+):\d+: (.*)$`).FindAllStringSubmatch(string(out), -1) {
		line, err := strconv.Atoi(m[1])
		if err != nil {
			t.Fatal(err)
		}
		refused[line] += m[2]
	}
	if len(refused) == 0 {
		t.Fatalf("the build failed, but not by the compiler's word: %s", out)
	}
	return refused
}

// wanted reads the marks of a fixture, by line.
func wanted(t *testing.T, fixture string) map[int]string {
	t.Helper()
	text, err := os.ReadFile(fixture)
	if err != nil {
		t.Fatal(err)
	}
	marks := map[int]string{}
	for i, line := range strings.Split(string(text), "\n") {
		if _, want, ok := strings.Cut(line, "// want: "); ok {
			marks[i+1] = strings.TrimSpace(want)
		}
	}
	if len(marks) == 0 {
		t.Fatalf("%s marks no line", fixture)
	}
	return marks
}
