package sim_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

var (
	codeFlag  = flag.Bool("sim.code", false, "switch off, one after the other, the rules that stand in the product's code")
	wantFlag  = flag.String("sim.want", "", "what the checker says of a rule that is off, for TestUntilRed")
	untilFlag = flag.Bool("sim.until", false, "run TestUntilRed")
)

// inCode are the rules of the model that stand in the code of the worker and of the Runner, and in no switch: each is taken
// out of a copy of its file, and the simulation is built with the copy. RaiseEpoch is not among them (D-312).
var inCode = []struct {
	rule     string
	file     string
	old, new string
	controls controls
	want     string
	within   int
}{
	{
		"LowerBound", "internal/store/storetwin/drain.go",
		"max(cursor.acked, member.joinedAt, q.Passed[s.Session])", "max(member.joinedAt, q.Passed[s.Session])",
		controls{Faults: []string{"kill worker"}}, "", 40,
	},
	{
		"FreshZero", "internal/runner/chain.go",
		"if d.GetPrev() != c.held && d.GetPrev() != 0 {", "if c.held != 0 && d.GetPrev() != c.held && d.GetPrev() != 0 {",
		controls{Faults: []string{"kill runner"}}, "LOST", 60,
	},
	{
		"TenantFence", "internal/runner/fence.go",
		"compare(fence, f[tenant].seen) < 0 {\n\t\treturn false\n\t}\n\tf[tenant]", "compare(fence, f[\"\"].seen) < 0 {\n\t\treturn false\n\t}\n\tf[\"\"]",
		controls{Faults: []string{"kill worker"}}, "LOST", 60,
	},
	{
		"GateClaim", "internal/delivery/channel.go", "(ch.claim != d.claim || ", "(",
		controls{Faults: []string{"move"}}, "", 200,
	},
	{
		"AnswersQueued", "internal/delivery/gates.go", "\tch.heard = append(ch.heard, a)\n",
		"\tif c := ch.chains[a.session]; c != nil && c.live.Generation == a.generation && len(a.rejected) == 0 {\n\t\tc.apply(a)\n\t\treturn true\n\t}\n\tch.heard = append(ch.heard, a)\n",
		controls{Faults: []string{"kill worker", "cut runner"}}, "LOST", 300,
	},
	{
		"AckConsumed", "internal/runner/chain.go", "\tc.waiting = append(c.waiting, c.held)\n",
		"\tc.waiting = append(c.waiting, c.held)\n\tc.consumed = c.held\n",
		controls{Faults: []string{"kill runner"}}, "LOST", 60,
	},
	{
		"AckConsumed of commands", "internal/runner/commands.go", "\tc.queue = append(c.queue, cmd)\n",
		"\tc.queue = append(c.queue, cmd)\n\tc.consume(cmd)\n",
		controls{Faults: []string{"kill runner"}}, "", 60,
	},
	{
		"DupReack", "internal/runner/chain.go", "c.reack = c.reack || d.GetPos() <= c.consumed", "c.reack = false",
		controls{Faults: []string{"failover"}}, "UNACKED", 100,
	},
	{
		"SteerDedupe", "internal/runner/commands.go", "if c.seen[at] {", "if false {",
		controls{Faults: []string{"failover"}}, "TWICE", 200,
	},
	{
		"EventOrder", "internal/runner/events.go", "\ts.event.Lock()\n\tdefer s.event.Unlock()\n\ts.mu.Lock()\n\tn := s.answered.n + 1\n",
		"\ts.mu.Lock()\n\tn := s.answered.n + 1\n",
		controls{Faults: []string{"kill server"}}, "", 100,
	},
	{
		"SilenceFree", "internal/delivery/channel.go", "\t\t\tcount(ctx, d.in.sent, 1, \"kind\", \"resend\")\n",
		"\t\t\tif f, e := d.Consumer.fence(d.tenant); e == nil {\n\t\t\t\t_ = d.writes.BeginAttempt(ctx, f, d.delivery(p, store.OwedRow{ID: l.id, Pos: l.pos}))\n\t\t\t}\n",
		controls{Faults: []string{"cut runner"}}, "innocent", 100,
	},
	{
		"AckOnce", "internal/delivery/agent.go", "if _, lately := s.pushed.at[cmd.N]; lately {", "if false {",
		controls{Faults: []string{"cut runner"}}, "STORM", 60,
	},
	{
		"AckOnce of the Runner", "internal/runner/commands.go", "if a.GetN() == n {", "if a.GetN() == n && false {",
		controls{Faults: []string{"cut runner", "nats away"}}, "STORM", 100,
	},
	{
		"resend at its position", "internal/store/drain.go", "if !ok || m.Pos != pos {", "if !ok {",
		controls{Faults: []string{"failover"}}, "TWICE", 400,
	},
}

// Each rule out of the code: the checker sees it, within so many seeds. The same seed with the rule is green. It builds the
// simulation once for each, so it is run by hand: hack/sim code.
func TestInCode(t *testing.T) {
	if !*codeFlag {
		return
	}
	for _, c := range inCode {
		t.Run(c.rule, func(t *testing.T) {
			program := without(t, c.file, c.old, c.new)
			//nolint:gosec // what was just built
			out, err := exec.CommandContext(t.Context(), program, "-test.run", "^TestUntilRed$", "-test.v", "-test.timeout", "30m", "-sim.until",
				"-sim.n", strconv.Itoa(c.within), "-sim.faults", strings.Join(c.controls.Faults, ","), "-sim.want", c.want).CombinedOutput()
			if err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			_, found, ok := strings.Cut(string(out), "red at seed ")
			if !ok {
				t.Fatalf("%d seeds are green without it", c.within)
			}
			found, _, _ = strings.Cut(found, "\n")
			t.Log("red at seed ", found)
			seed, err := strconv.ParseUint(found[:strings.Index(found, ":")], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			if o := schedule(t, seed, c.controls, nil); len(o.bad) > 0 {
				t.Errorf("seed %d is red with the rule too: %s\nagain: %s", seed, fmt.Sprint(o.bad), again(o, c.controls))
			}
		})
	}
}

// without builds this test with one text of one file replaced.
func without(t *testing.T, file, old, with string) (program string) {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	path, dir := filepath.Join(root, file), t.TempDir()
	source, err := os.ReadFile(path) //nolint:gosec // one of ours
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(source), old); n != 1 {
		t.Fatalf("%s has %q %d times: the rule stands elsewhere now, say where", file, old, n)
	}
	changed, overlay := filepath.Join(dir, "changed.go"), filepath.Join(dir, "overlay.json")
	program = filepath.Join(dir, "sim.test")
	say, err := json.Marshal(map[string]map[string]string{"Replace": {path: changed}})
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{changed: strings.Replace(string(source), old, with, 1), overlay: string(say)} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	//nolint:gosec // the paths are ours
	if out, err := exec.CommandContext(t.Context(), "go", "test", "-vet=off", "-c", "-overlay", overlay, "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("build: %v: %s", err, out)
	}
	return program
}

// TestUntilRed is what TestInCode runs.
func TestUntilRed(t *testing.T) {
	if !*untilFlag {
		return
	}
	for i := range *countFlag {
		o := schedule(t, *firstFlag+uint64(i), asked(), nil)
		if len(o.bad) > 0 && strings.Contains(strings.Join(o.bad, "\n"), *wantFlag) {
			t.Logf("red at seed %d: %s", o.seed, o.bad[0])
			return
		}
	}
}
