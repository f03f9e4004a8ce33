package words

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Holds REQ-091, REQ-151.
func TestInspect(t *testing.T) {
	t.Parallel()
	// Written with a gap, which is closed before use, so that this file passes its own check.
	tests := map[string]string{
		"cd /w~ork/main":                   `"/w~ork/"`,
		"cd /w~ork":                        `"/w~ork"`,
		"see docs/w~ork/x and framew~ork/": "",
		"a/w~ork/tree":                     "",
		"TMP=/t~mp/x":                      `"=/t~mp/x"`,
		"mountPath: /t~mp":                 "", // a pod's own
		"mktemp in build/t~mp/x":           "",
		"/r~oot/.cache":                    `"/r~oot/"`,
		"/h~ome/kim/x":                     `"/h~ome/kim/"`,
		"GOPROXY=https://pr~oxy.golang.org,direct":        `"pr~oxy.golang.org"`,
		"\"resolved\": \"https://reg~istry.npmjs.org/x\"": `"reg~istry.npmjs."`,
		"deb http://d~eb.debian.org bookworm":             `"d~eb.debian.org"`,
		"import \"golang.org/x/net\"":                     "",
		"if cfg.Mul~tiTenant {":                           `"Mul~tiTenant"`,
		"SIN~GLE_TENANT=1":                                `"SIN~GLE_TENANT"`,
		"select pg_n~otify('x', '')":                      `"pg_n~otify"`,
		"a single tenant's rows, for many tenants":        "",
	}
	for line, want := range tests {
		line, want = strings.ReplaceAll(line, "~", ""), strings.ReplaceAll(want, "~", "")
		found := inspect("x", "fine\n"+line+"\n")
		if want == "" && len(found) > 0 || want != "" && (len(found) != 1 || !strings.HasPrefix(found[0], "x:2: "+want)) {
			t.Errorf("%q: found %v, want %s", line, found, want)
		}
	}
}

// Every exception still has the line that it excuses.
func TestExceptionsAreNeeded(t *testing.T) {
	t.Parallel()
	for _, e := range exceptions {
		text, err := os.ReadFile(filepath.Join("../../..", e.file))
		if err != nil || !strings.Contains(string(text), e.part) {
			t.Errorf("%s has no %q: take the exception away (%v)", e.file, e.part, err)
		}
		if found := inspect(e.file, string(text)); len(found) > 0 {
			t.Errorf("not excused: %v", found)
		}
		if len(inspect("another", string(text))) == 0 {
			t.Errorf("%s needs no exception for %q", e.file, e.part)
		}
	}
}

func TestCheckSeesWhatGitWouldTake(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	if out, err := exec.CommandContext(t.Context(), "git", "init", "-q", root).CombinedOutput(); err != nil {
		t.Fatalf("git init: %v: %s", err, out)
	}
	bad := "cd /w" + "ork/x\n"
	for name, text := range map[string]string{".gitignore": "build\n", "build": bad, "new.txt": bad, "binary": "\x00" + bad} {
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	found, err := Check(t.Context(), root, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{`new.txt:1: "/w` + `ork/": a path of one machine`}
	if diff := cmp.Diff(want, found); diff != "" {
		t.Errorf("findings (-want +got):\n%s", diff)
	}
}
