package e2e

import (
	"strings"
	"testing"
)

// A minute without Postgres costs the worker one start: it ends with its lease, and the next one waits inside the process
// until Postgres is back, alive and not ready, and delivers then. An exit would leave the waiting to a kubelet, whose back-off
// grows with each and goes on when the outage is over.
//
// Holds REQ-239.
func TestWorkerWaitsForPostgres(t *testing.T) {
	t.Parallel()
	s, w := newScene(t, "worker 1")
	w.pg.refuse()
	if code := w.code(); code == 0 {
		t.Error("the worker ended as if nothing had happened")
	}
	w = s.workerBehind(w.pg, w.nats, stream, w.name) // as a container is started again
	w.waitsFor(w.metrics, "Postgres")
	w.pg.open(host(t, s.world.Database.App))
	s.delivers("when Postgres is back")
	if !w.running() {
		t.Error("the worker did not live to see it")
	}
	s.end()
}

// waitsFor waits until the process has found something away more than once and still lives, not ready and saying why.
func (p *process) waitsFor(metrics, what string) {
	p.tb.Helper()
	await(p.tb, p.name+" waits for "+what, func() string {
		if !p.running() {
			_, last := p.lines()
			p.tb.Fatalf("%s ended: %s", p.name, last)
		}
		return unless(p.count(what+" cannot be reached, trying again") > 1, "not yet")
	})
	if got := page(p.tb, "http://"+metrics+"/healthz"); got != "ok\n" {
		p.tb.Errorf("/healthz says %q while %s waits", got, p.name)
	}
	if got := page(p.tb, "http://"+metrics+"/readyz"); !strings.Contains(got, what) {
		p.tb.Errorf("/readyz says %q: want what %s waits for", got, p.name)
	}
}

// count is how often something was logged.
func (p *process) count(msg string) (n int) {
	p.tb.Helper()
	records, _ := p.lines()
	for _, r := range records {
		if r["msg"] == msg {
			n++
		}
	}
	return n
}

// A Server that begins without Postgres, or without NATS, waits too, and serves when they are there.
func TestServerWaitsForPostgresAndNATS(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	pg, nats := c.postgres(), newProxy(t, c.address)
	pg.refuse()
	nats.refuse()
	s := c.serverBehind(pg, nats, "server")
	s.waitsFor(s.metrics, "Postgres")
	pg.open(host(t, c.world.Database.App))
	s.waitsFor(s.metrics, "NATS")
	nats.open(c.address)
	s.opens(c.tenant.Token).api.channel(t, "general")
	await(t, "the Server is ready", func() string { return ready(t, s.metrics) })
}

// Whichever step of a worker's boot Postgres goes away under, the process waits there and goes on.
func TestWorkerWaitsAtEveryStep(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	for _, step := range []struct {
		name, mark string
		skip       int // connections that say the mark
	}{
		{"the first connection", "pg_backend_pid", 0},
		{"its role", "pg_has_role", 0},
		{"the version of the schema", "compass.schema_migrations", 0},
		{"the audit of the schema", "pg_policy", 0},
		{"another right", "pg_backend_pid", 1},
		{"the databases once more, for starts of sessions", "pg_backend_pid", 3},
		{"the connection of the lease", "pg_backend_pid", 4},
		{"the lease", "compass.lease_acquire", 0},
	} {
		t.Run(step.name, func(t *testing.T) {
			pg, went := c.postgres(), make(chan struct{})
			pg.open(host(t, c.world.Database.App), vanish(step.mark, step.skip, went))
			w := c.workerBehind(pg, newProxy(t, c.address), stream, "worker")
			<-went
			await(t, "the worker has noticed", func() string {
				n := w.count("Postgres cannot be reached, trying again") + w.count("Waiting for the lease")
				return unless(n > 1 || !w.running(), "not yet")
			})
			pg.open(host(t, c.world.Database.App))
			await(t, "the worker serves", func() string {
				if !w.running() {
					_, last := w.lines()
					t.Fatalf("it ended: %s", last)
				}
				return ready(t, w.metrics)
			})
			w.terminate()
		})
	}
}

// vanish lets the target go, with all connections, when one of them has said the mark after so many others.
func vanish(mark string, skip int, went chan<- struct{}) *trap {
	said := map[*link]bool{}
	return &trap{mark: mark, stays: true, act: func(p *proxy, l *link) {
		if said[l] = true; len(said) <= skip || p.target == "" {
			return
		}
		p.target = ""
		for l := range p.links {
			l.close()
		}
		close(went)
	}}
}

// A Postgres that takes the connection and then says nothing is one that is away, also for the boot.
func TestWorkerWaitsForASilentPostgres(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	pg := c.postgres()
	pg.onMark("compass.schema_migrations", holdAnswer)
	w := c.workerBehind(pg, newProxy(t, c.address), stream, "worker")
	await(t, "the worker serves", func() string {
		if !w.running() {
			_, last := w.lines()
			t.Fatalf("it ended: %s", last)
		}
		return ready(t, w.metrics)
	})
}
