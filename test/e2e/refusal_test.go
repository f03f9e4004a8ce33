package e2e

import (
	"net"
	"strings"
	"testing"
)

// An address that is taken, and flags with which nothing could work, are said at once; nothing is left hanging.
func TestStandaloneEndsWhereItCannotListen(t *testing.T) {
	t.Parallel()
	var listen net.ListenConfig
	taken, err := listen.Listen(t.Context(), "tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { _ = taken.Close() })
	for name, tc := range map[string]struct{ args, words []string }{
		"the API's address":   {[]string{"--listen", taken.Addr().String()}, []string{"Connect API", "another process listens at"}},
		"the metrics address": {[]string{"--metrics-listen", taken.Addr().String()}, []string{"metrics and health", "another process listens at"}},
		"no address":          {[]string{"--listen", "nonsense"}, []string{"Connect API", "nonsense"}},
		"no such agent":       {[]string{"--agent", "nonsense"}, []string{`no agent "nonsense"`, "echo"}},
		"a lease of no time":  {[]string{"--session-lease", "-5s"}, []string{"--session-lease", "at least 1s"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHome(t)
			p := launch(t, h.secrets, "standalone", append(h.args(), tc.args...)...)
			if code := p.code(); code != 1 {
				t.Errorf("exit code = %d: want 1", code)
			}
			_, last := p.lines()
			for _, w := range tc.words {
				if !strings.Contains(last, w) {
					t.Errorf("the last line lacks %q: %s", w, last)
				}
			}
		})
	}
}

// A second process in one data folder would share NATS's files and the lease with the first; one in another folder with the same
// database would take its passwords and its lease. The first notices neither.
func TestOneStandalonePerFolderAndDatabase(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	first := h.start()
	refuses(t, h.secrets, h.args(), "another compass standalone works in "+h.data(), "--data")
	refuses(t, h.secrets, append(h.args(), "--data", t.TempDir()), "another process works in database "+h.db.Name, "--database")
	if !first.running() {
		t.Error("the first has ended")
	}
	first.kill()
	h.start("--floor-tick", "1h") // a lock is its process's, however that ended
}
