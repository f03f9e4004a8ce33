package counting_test

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rigelbuild/compass-operator/internal/fabric/internal/counting"
	"github.com/rigelbuild/compass-operator/internal/fault"
)

var rules = counting.Rules{MaxDeliver: 3, Backoff: []time.Duration{time.Second, 5 * time.Second}}

// Holds REQ-026.
func TestVerdicts(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	parking := counting.Verdict{Outcome: counting.Park, Reason: "Kept", Err: boom}
	type answer struct {
		Outcome counting.Outcome
		Delay   time.Duration
		Reason  string
		Asked   bool
	}
	cases := map[string]struct {
		reason    string
		delivered int
		known     *counting.Record
		err       error
		want      answer
	}{
		"Done":             {"nil acks", 1, nil, nil, answer{counting.Ack, 0, "", true}},
		"FirstFailure":     {"the first delay", 1, nil, boom, answer{counting.Nak, time.Second, "", true}},
		"SecondFailure":    {"the last delay repeats", 2, &counting.Record{}, boom, answer{counting.Nak, 5 * time.Second, "", true}},
		"LastFailure":      {"attempts, not retries", 3, &counting.Record{}, boom, answer{counting.Park, 0, "Exhausted", true}},
		"Excused":          {"RetryAfter charged nothing", 5, &counting.Record{Excused: 3}, boom, answer{counting.Nak, 5 * time.Second, "", true}},
		"RetryAfter":       {"delayed as asked", 2, nil, fault.RetryAfter(time.Minute, boom), answer{counting.Retry, time.Minute, "", true}},
		"RetryAfterNever":  {"never parks", 99, &counting.Record{Excused: 1}, fault.RetryAfter(time.Minute, boom), answer{counting.Retry, time.Minute, "", true}},
		"RetryAfterAtOnce": {"a nak without delay spins", 1, nil, fault.RetryAfter(0, boom), answer{counting.Retry, time.Millisecond, "", true}},
		"Poison":           {"at once, with its reason", 1, nil, fault.Poison("NoTenant", boom), answer{counting.Park, 0, "NoTenant", true}},
		"PoisonNameless":   {"a reason anyway", 1, nil, fault.Poison("", boom), answer{counting.Park, 0, "Poison", true}},
		"Waiting":          {"no class of a callback: counted", 3, nil, fault.Waiting("WaitingForIt", "x"), answer{counting.Park, 0, "Exhausted", true}},
		"Died":             {"processes died on it", 4, nil, nil, answer{counting.Park, 0, "Unanswered", false}},
		"DiedOnTheLast":    {"the last attempt is still one", 3, nil, nil, answer{counting.Ack, 0, "", true}},
		"PutOffByUs":       {"beyond, but this process knows why", 4, &counting.Record{Excused: 2}, nil, answer{counting.Ack, 0, "", true}},
		"ParkingAgain":     {"the callback has spoken", 2, &counting.Record{Parking: &parking}, nil, answer{counting.Park, 0, "Kept", false}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v, ask := rules.OnEntry(c.delivered, c.known)
			if ask {
				v = rules.OnReturn(c.delivered, c.known, c.err)
			}
			got := answer{v.Outcome, v.Delay, v.Reason, ask}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("%s: (-want +got)\n%s", c.reason, diff)
			}
			if got.Outcome == counting.Park && v.Err == nil {
				t.Error("a dead letter must say why")
			}
		})
	}
}

func TestGuard(t *testing.T) {
	t.Parallel()
	if err := counting.Guard(func() error { panic("ouch") }); err == nil || err.Error() != "callback panic: ouch" {
		t.Errorf("a panic must be an error that says so, got %v", err)
	}
	if err := counting.Guard(func() error { return nil }); err != nil {
		t.Errorf("no panic, no error, got %v", err)
	}
}
