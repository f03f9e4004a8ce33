package runner

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	compassv1 "github.com/rigelbuild/compass-operator/api/proto/compass/v1"
)

func link(prev, pos int64) *compassv1.Deliver {
	return &compassv1.Deliver{Prev: prev, Pos: pos}
}

// Holds REQ-227: the Runner accepts only the successor of what it holds.
func TestChainTakesOnlyTheSuccessor(t *testing.T) {
	t.Parallel()
	type step struct {
		prev, pos int64
		takes     bool
		held      int64
	}
	for name, tc := range map[string]struct {
		reason string
		steps  []step
	}{
		"in order": {"the plain case", []step{{0, 10, true, 10}, {10, 12, true, 12}, {12, 20, true, 20}}},
		"overtaken": {"p2 came before p1: taking it would lose p1 (FreshZero)", []step{
			{10, 12, false, 0}, {0, 10, true, 10}, {10, 12, true, 12},
		}},
		"doubled": {"the same link twice", []step{{0, 10, true, 10}, {0, 10, false, 10}, {10, 12, true, 12}, {10, 12, false, 12}}},
		"gap":     {"p2 was lost on the way", []step{{0, 10, true, 10}, {12, 20, false, 10}, {10, 12, true, 12}, {12, 20, true, 20}}},
		"base":    {"a new worker begins at the cursor with prev 0", []step{{0, 10, true, 10}, {0, 12, true, 12}, {0, 11, false, 12}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var c chain
			for i, s := range tc.steps {
				if took := c.take(link(s.prev, s.pos)); took != s.takes || c.held != s.held {
					t.Fatalf("%s: step %d (prev %d, pos %d): took %t and holds %d, want %t and %d", tc.reason, i, s.prev, s.pos, took, c.held, s.takes, s.held)
				}
			}
		})
	}
}

func TestChainTellsARefusalOnceAndFromProgress(t *testing.T) {
	t.Parallel()
	var c chain
	c.take(link(0, 10))
	c.take(link(0, 10))
	if c.state("c").GetRefused() {
		t.Error("progress and a duplicate were told as a refusal: the gate would send again what is on its way")
	}
	c.take(link(12, 20))
	if !c.state("c").GetRefused() || c.state("c").GetRefused() {
		t.Error("a gap must be told as a refusal, once")
	}
}

func TestChainAcksAgainOnlyWhatWasConsumed(t *testing.T) {
	t.Parallel()
	var c chain
	c.take(link(0, 10))
	c.take(link(0, 10))
	if c.owesAck() {
		t.Error("a duplicate of something that the agent has not consumed was to be acknowledged (AckConsumed)")
	}
	c.consume(10)
	c.acked = 10
	c.take(link(0, 10))
	if !c.owesAck() {
		t.Error("a duplicate of something consumed did not make the Runner acknowledge again (DupReack)")
	}
}

// D-314: what is said is no longer much; what is consumed after it is gathered anew.
func TestMuchBeginsAnewWithEachAck(t *testing.T) {
	t.Parallel()
	s := newSession(&Runner{}, &compassv1.Start{}, &compassv1.ClaimStartResponse{})
	for pos := range int64(ackMost) {
		s.chainOf("c").take(link(pos, pos+1))
		if _, much := s.muchToAck(); much {
			t.Fatalf("%d consumed are much", pos)
		}
		s.chainOf("c").consume(pos + 1)
	}
	if _, much := s.muchToAck(); !much {
		t.Fatalf("%d consumed are not much", ackMost)
	}
	s.takeAck()
	s.chainOf("c").take(link(ackMost, ackMost+1))
	s.chainOf("c").consume(ackMost + 1)
	if _, much := s.muchToAck(); much {
		t.Error("one is much after an ack")
	}
}

func TestRejectGivesBackTheRest(t *testing.T) {
	t.Parallel()
	var c chain
	for _, d := range []*compassv1.Deliver{link(0, 10), link(10, 12), link(12, 20)} {
		c.take(d)
	}
	m := &compassv1.Message{Id: "m_b", ChannelId: "c", Pos: 12}
	c.reject(m, "no")
	if c.held != 10 {
		t.Errorf("held = %d after rejecting 12: want 10, which the agent still has", c.held)
	}
	if !c.take(link(10, 12)) {
		t.Error("the rejected message was not taken when it came again")
	}
	c.reject(m, "still no")
	if got := c.rejected["m_b"].GetCount(); got != 2 {
		t.Errorf("count = %d, want 2: the worker counts each new count once", got)
	}
	if !c.take(link(10, 20)) {
		t.Error("the message after a dead letter was not taken")
	}
	c.consume(20)
	if len(c.rejected) != 0 {
		t.Error("the rejection is still told after the chain went past it")
	}
}

func TestRejectOfTheFirstGivesBackAll(t *testing.T) {
	t.Parallel()
	var c chain
	c.take(link(0, 10))
	c.take(link(10, 12))
	c.reject(&compassv1.Message{Id: "m_a", ChannelId: "c", Pos: 10}, "no")
	if c.held != 0 || !c.take(link(0, 10)) {
		t.Errorf("held = %d after the first was rejected: want nothing", c.held)
	}
}

// Holds REQ-228: a Runner refuses a lower epoch, per tenant, and keeps the proof.
func TestFenceIsPerTenantAndOrdered(t *testing.T) {
	t.Parallel()
	proof := &compassv1.SessionsResponse{KeyId: "k"}
	f := fences{}
	for i, tc := range []struct {
		tenant       string
		claim, lease int64
		admitted     bool
	}{
		{"a", 5, 100, true},
		{"a", 5, 99, false},
		{"a", 4, 900, false}, // an older claim loses, however new the lease
		{"a", 6, 1, true},    // a newer claim wins, however old the lease
		{"a", 5, 999, false},
		{"b", 1, 1, true}, // another tenant's fence is another matter (TenantFence)
		{"a", 6, 1, true}, // the same fence again is the same worker
	} {
		if got := f.admit(tc.tenant, &compassv1.Fence{Claim: tc.claim, Lease: tc.lease}, proof); got != tc.admitted {
			t.Errorf("step %d: tenant %s (%d, %d) admitted = %t", i, tc.tenant, tc.claim, tc.lease, got)
		}
	}
	if f["a"].proof != proof || f["a"].seen.GetClaim() != 6 {
		t.Errorf("mark = %+v: want the highest fence with its proof", f["a"])
	}
}

func command(n, prev int64, message string, pos int64) *compassv1.SessionCommand {
	c := &compassv1.SessionCommand{N: n, Prev: prev}
	if message != "" {
		c.Message = &compassv1.Message{Id: message, Pos: pos}
	}
	return c
}

func numbers(c *commandChain) (out []int64) {
	for cmd := c.next(); cmd != nil; cmd = c.next() {
		out = append(out, cmd.GetN())
		c.consume(cmd)
	}
	return out
}

// Holds REQ-234: commands of one session are applied in the order of their rows, each once.
func TestCommandsApplyInTheOrderOfTheirRows(t *testing.T) {
	t.Parallel()
	c := newCommandChain()
	if c.push(command(10, 0, "", 0)) {
		t.Fatal("the first command asked for a fetch")
	}
	if !c.push(command(30, 20, "", 0)) {
		t.Fatal("a gap did not ask for a fetch")
	}
	c.fetched([]*compassv1.SessionCommand{command(30, 20, "", 0), command(20, 10, "", 0), command(10, 0, "", 0)})
	if diff := cmp.Diff([]int64{10, 20, 30}, numbers(&c)); diff != "" {
		t.Error(diff)
	}
}

func TestCommandAcksNameOnlyConsequences(t *testing.T) {
	t.Parallel()
	c := newCommandChain()
	c.push(command(10, 0, "m_a", 7))
	c.push(command(10, 0, "m_a", 7))
	if len(c.acks) != 0 {
		t.Fatal("a command was acknowledged before the agent took it (AckConsumed)")
	}
	cmd := c.next()
	c.consume(cmd)
	c.push(cmd)
	c.push(cmd)
	if len(c.acks) != 1 || c.acks[0].GetMessageId() != "m_a" || c.acks[0].GetPos() != 7 {
		t.Errorf("acks = %v: want one, that names number, message and position (AckOnce, AckPos)", c.acks)
	}
	c.acks = nil
	// A lossy failover forgot the row; it was made again under a new number.
	c.push(command(40, 10, "m_a", 7))
	if got := c.next(); got != nil {
		t.Errorf("the agent was steered twice by one message (SteerDedupe): %v", got)
	}
	if len(c.acks) != 1 || c.acks[0].GetN() != 40 {
		t.Errorf("acks = %v: the new row must be acknowledged all the same", c.acks)
	}
	// A late hint of a number that never came is no proof that it was applied.
	c.push(command(5, 0, "m_z", 1))
	if len(c.acks) != 1 {
		t.Errorf("acks = %v: a number below the newest was acknowledged though it never came", c.acks)
	}
}
