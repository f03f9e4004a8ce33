package e2e

import (
	"bytes"
	"cmp"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// The layers that make one writer out of several workers, each taken away while the others stand. Those of Kubernetes (shape,
// drift, admission) are away in every test of this package: nothing here keeps a second worker from being started. What is
// left is the lease, the check of each write, the worker's own deadline and the Runner's refusal.

// sqlNoLease gives the lease to everybody who asks, for as long as he likes.
const sqlNoLease = `
create or replace function compass.lease_acquire(p_stream text, p_holder text, p_nonce text, p_ttl interval, p_above bigint,
        out acquired boolean, out epoch bigint, out careful boolean, out remaining interval)
    language sql volatile security definer set search_path = pg_catalog, pg_temp as $$ select true, greatest(compass.number(), p_above + 1), false, p_ttl $$;
create or replace function compass.lease_renew(p_stream text, p_epoch bigint, p_nonce text, p_ttl interval) returns boolean
    language sql volatile security definer set search_path = pg_catalog, pg_temp as $$ select true $$;
create or replace function compass.lease_raise(p_stream text, p_epoch bigint, p_nonce text, p_new_nonce text, p_above bigint) returns bigint
    language sql volatile security definer set search_path = pg_catalog, pg_temp as $$ select greatest(compass.number(), p_above + 1) $$;`

// sqlNoCheck lets everybody write.
const sqlNoCheck = `
create or replace function compass.assert_writer(p_stream text, p_epoch bigint, p_nonce text, p_tenant text) returns void
    language sql volatile security definer set search_path = pg_catalog, pg_temp as $$ $$;`

// without replaces functions of the database by weaker ones.
func (h *truth) without(sql string) {
	h.tb.Helper()
	_, err := h.conn.Exec(h.tb.Context(), sql)
	must(h.tb, err)
}

// change is one place of the source in other words.
type change struct{ file, from, to string }

// altered builds the program with changed sources, which stay as they are.
func altered(t *testing.T, changes ...change) (path string) {
	t.Helper()
	dir := t.TempDir()
	root, err := filepath.Abs("../..")
	must(t, err)
	replace := map[string]string{}
	for _, c := range changes {
		file := filepath.Join(root, c.file)
		text, err := os.ReadFile(cmp.Or(replace[file], file))
		must(t, err)
		if bytes.Count(text, []byte(c.from)) != 1 {
			t.Fatalf("%s does not say once: %s", c.file, c.from)
		}
		replace[file] = put(t, dir, strings.ReplaceAll(c.file, "/", "-"), strings.Replace(string(text), c.from, c.to, 1))
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	must(t, err)
	path = filepath.Join(dir, "compass")
	build := exec.CommandContext(t.Context(), "go", "build", "-overlay", put(t, dir, "overlay.json", string(overlay)), "-o", path, "./cmd/compass")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	return path
}

// Without the lease two workers are the writer at once, each with a fence of its own that it raises as it likes. The Runner
// refuses the lower one, and takes from both what is next, once.
//
// Holds REQ-209: the Runner's refusal alone.
func TestRunnerHoldsWithoutTheLease(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.lease = time.Minute // the deadline of a worker's own is another layer
	c.tick = time.Second  // a reference is claimed by one of the two, and either may be refused
	s, w1 := newSceneIn(t, c, "worker 1")
	w1.kill()
	s.truth.without(sqlNoLease + sqlNoCheck)
	w2, w3 := s.worker("worker 2").serves(), s.worker("worker 3").serves()
	s.talk.goesOn(t, 60)
	refused := func(w *worker) float64 { return metrics(t, w.metrics, "compass_delivery_fence_refused_total") }
	await(t, "the Runner refuses the lower fence", func() string {
		return unless(refused(w2)+refused(w3) > 0, "not yet")
	})
	for _, w := range []*worker{w2, w3} {
		if !w.running() || w.nats.connections() != 1 {
			t.Errorf("%s does not serve: this is not two at once", w.name)
		}
	}
	s.end()
}

// Without the check of each write, or the Runner's refusal, or the worker's own deadline: a worker that was frozen for longer
// than its lease, and wakes up beside the next one, moves nothing all the same, and ends.
//
// Holds REQ-209: each of these layers taken away alone.
func TestFrozenWorkerWithoutOneLayer(t *testing.T) {
	t.Parallel()
	for name, without := range map[string]struct {
		sql            string
		worker, runner []change
	}{
		"the check of each write": {sql: sqlNoCheck},
		"the Runner's refusal": {runner: []change{{
			"internal/runner/fence.go", "if compare(fence, f[tenant].seen) < 0 {\n\t\treturn false\n\t}", "",
		}}},
		"the worker's deadline": {worker: []change{
			{"internal/store/lease.go", "l.fence.Epoch != 0 && l.options.Now().Before(l.deadline)", "l.fence.Epoch != 0"},
			// Nor does it hear from Postgres that somebody else is the writer.
			{"internal/store/lease.go", "case !ok:\n\t\tl.fence = Fence{}\n\t\treturn ErrLeaseLost\n\t}\n\tl.hold(sent)", "}\n\tl.hold(sent)"},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			c.tick = time.Second // the reference that a stale worker acks is lost to the other
			if without.worker != nil {
				c.programs.worker = altered(t, without.worker...)
			}
			if without.runner != nil {
				c.programs.runner = altered(t, without.runner...)
			}
			s, w1 := newSceneIn(t, c, "worker 1")
			s.truth.without(without.sql)
			old := s.truth.lease()
			c.programs.worker = ""
			w2 := s.waits("worker 2")
			w1.freeze()
			held := s.holds(w2, old.Epoch)
			s.delivers("by the second")
			w1.thaw()
			s.talk.goesOn(t, 20)
			if code := w1.code(); code == 0 {
				t.Error("the first ended as if nothing had happened")
			}
			if now := s.truth.lease(); now.Holder != held.Holder {
				t.Errorf("the lease went from %v to %v when the first woke up", held, now)
			}
			s.delivers("still by the second")
			s.end()
		})
	}
}
