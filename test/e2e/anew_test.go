package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rigelbuild/compass-operator/internal/fabric"
)

// NATS is made anew, with other keys, under a Runner that goes on: refused, it is not ready and says why, enrols again until
// Servers have the new keys too, and then hears commands as before.
func TestRefusedRunnerEnrolsAgain(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	s := c.server("server")
	b := c.box(s)
	health := b.listening("metrics and health")
	await(t, "the Runner is ready", func() string { return ready(t, health) })

	c.anew()
	await(t, "the Runner says that NATS refuses it", func() string {
		said := page(t, "http://"+health+"/readyz")
		return unless(strings.Contains(said, "NATS refuses"), "/readyz says %q", said)
	})
	await(t, "it enrols again", func() string {
		return unless(b.count("NATS refused this Runner's user; enrolled again") > 0, "not yet")
	})
	c.issuers(s.dir)
	c.credentials(s.dir, fabric.RoleServer, "")
	await(t, "the Runner is ready again", func() string { return ready(t, health) })
	await(t, "it is connected again", func() string {
		return unless(b.count("NATS connection restored") > 0, "not yet")
	})
	if !b.running() {
		t.Error("the Runner did not live to see it")
	}
}

// Where the installation was made anew as a whole, the token in the file is another one: the Runner reads it again, finds
// that it is another Runner now, and ends, to begin as that one.
func TestRefusedRunnerBeginsAsAnother(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	s := c.server("server")
	b := c.box(s)
	c.truth.forgetRunners()
	put(t, filepath.Dir(b.record.file), "enrolment", c.enrolment(s))
	c.anew()
	if code := b.code(); code != 1 {
		t.Errorf("exit code = %d: want 1", code)
	}
	if _, last := b.lines(); !strings.Contains(last, "another one now") {
		t.Errorf("it ended with %q", last)
	}
	c.issuers(s.dir)
	c.credentials(s.dir, fabric.RoleServer, "")
	b.again()
}

// Only the keys that sign commands are others, under the name that they had: the Runner drops what comes, learns the new ones,
// and is delivered to.
func TestRunnerLearnsNewCommandKeys(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	s := c.server("server")
	b := c.box(s)
	s.kill()
	c.commandKey = "YW5vdGhlciBzZWVkIHdpdGggaXRzIDMyIGJ5dGVzLi4="
	s = c.server("next server")
	b.web.open(host(t, s.url))
	c.worker("worker").serves()
	channel := s.api.channel(t, "general")
	s.api.start(t, s.api.agent(t, "witness", channel))
	b.record.await(s.api.post(t, channel, "signed with another key").GetId(), 1)
}

// anew replaces the broker by one with other keys, at the same address.
func (c *cluster) anew() {
	c.tb.Helper()
	c.broker.Stop()
	must(c.tb, os.RemoveAll(c.dir))
	must(c.tb, os.MkdirAll(c.dir, 0o700))
	c.openBroker()
}

// forgetRunners is what a new database knows of those that were enrolled.
func (h *truth) forgetRunners() {
	h.tb.Helper()
	_, err := h.conn.Exec(h.tb.Context(), `truncate compass.runners, compass.runner_tokens`)
	must(h.tb, err)
}
