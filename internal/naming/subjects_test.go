package naming_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rigelbuild/compass-operator/internal/naming"
)

// Holds REQ-008, REQ-009, REQ-033, REQ-113, REQ-114 and REQ-123: the subjects, exactly.
func TestSubjects(t *testing.T) {
	t.Parallel()
	ok := must(t)
	row := naming.DeadLetterRow("compass.q.main.x", []byte("{"))
	at := func(leg naming.RunnerLeg) naming.RunnerAddress {
		return naming.RunnerAddress{Fleet: "shared", ID: runner, Leg: leg}
	}
	state := naming.RunnerAddress{Fleet: tenant, ID: runner, Leg: naming.RunnerState, Stream: "main"}
	for want, got := range map[string]string{
		"compass." + tenant + ".comms.message_posted":  ok(naming.CommsSubject(tenant, "message_posted")),
		"compass.q.main." + tenant + ".message_posted": ok(naming.QueueSubject("main", tenant, "message_posted")),
		"compass.q.main.>":                                        ok(naming.QueueFilter("main")),
		"compass.q.main.*.message_posted":                         ok(naming.QueueKindFilter("main", "message_posted")),
		"compass.bcast." + tenant + ".message_visible":            ok(naming.BroadcastSubject(tenant, "message_visible")),
		"compass.bcast." + tenant + ".*":                          ok(naming.BroadcastTenantFilter(tenant)),
		"client." + conn:                                          ok(naming.ClientSubject(conn)),
		"compass.worker.main":                                     ok(naming.WorkerSubject("main")),
		"compass.runner.shared." + runner + ".cmd":                ok(naming.RunnerSubject(at(naming.RunnerCmd))),
		"compass.runner.shared." + runner + ".events":             ok(naming.RunnerSubject(at(naming.RunnerEvents))),
		"compass.runner.shared." + runner + ".call":               ok(naming.RunnerSubject(at(naming.RunnerCall))),
		"compass.runner." + tenant + "." + runner + ".state.main": ok(naming.RunnerSubject(state)),
		"compass.runner." + runner + ".cmd":                       ok(naming.RunnerOwnSubject(at(naming.RunnerCmd))),
		"compass.runner." + runner + ".state.main":                ok(naming.RunnerOwnSubject(state)),
		"compass.runner.*.*.events":                               ok(naming.RunnerFilter(naming.RunnerEvents)),
		"compass.runner.*.*.state.*":                              ok(naming.RunnerFilter(naming.RunnerState)),
		"compass.runner.*.*.state.main":                           ok(naming.RunnerStateFilter("main")),
		"compass.runner." + tenant + ".*.call":                    ok(naming.RunnerFleetFilter(tenant, naming.RunnerCall)),
		"compass.runner.*.call":                                   ok(naming.RunnerOwnFilter(naming.RunnerCall)),
		"compass.runner.{{tag(id)}}.cmd":                          ok(naming.RunnerTemplate(naming.RunnerCmd)),
		"compass.runner.{{tag(id)}}.state.*":                      ok(naming.RunnerTemplate(naming.RunnerState)),
		"_INBOX_r." + runner:                                      ok(naming.RunnerInbox(runner)),
		"_INBOX_r.{{tag(id)}}.>":                                  naming.RunnerInboxTemplate(),
		"CMP_main":                                                ok(naming.StreamName("main")),
		"CMP_main_DLQ":                                            ok(naming.DeadLetterStreamName("main")),
		tenant + ".message_posted." + message + ".7":              ok(naming.MsgID(tenant, "message_posted", message, 7)),
		"compass.dlq.main.>":                                      ok(naming.DeadLetterFilter("main")),
		"compass.dlq.main." + tenant + ".>":                       ok(naming.DeadLetterTenantFilter("main", tenant)),
		"compass.dlq.main.-.-." + row + ".-.-.0":                  ok(naming.DeadLetterSubject(naming.DeadLetter{Stream: "main", Row: row})),
		"compass.dlq.main." + tenant + ".message_posted.m_1." + account + ".9.2": ok(naming.DeadLetterSubject(naming.DeadLetter{
			Stream: "main", Tenant: tenant, Kind: "message_posted", Row: "m_1", Recipient: account, Version: 9, Replay: 2,
		})),
	} {
		if got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

func TestSubjectsRefuse(t *testing.T) {
	t.Parallel()
	for _, bad := range []string{"", "*", ">", "a.b", "a b", "a\n", "a\x00", "ä", strings.Repeat("a", 100), "."} {
		for name, err := range map[string]error{
			"comms tenant":    second(naming.CommsSubject(bad, "message_posted")),
			"comms kind":      second(naming.CommsSubject(tenant, bad)),
			"queue stream":    second(naming.QueueSubject(bad, tenant, "message_posted")),
			"queue tenant":    second(naming.QueueSubject("main", bad, "message_posted")),
			"queue kind":      second(naming.QueueSubject("main", tenant, bad)),
			"queue filter":    second(naming.QueueFilter(bad)),
			"kind filter":     second(naming.QueueKindFilter("main", bad)),
			"bcast tenant":    second(naming.BroadcastSubject(bad, "a")),
			"bcast event":     second(naming.BroadcastSubject(tenant, bad)),
			"bcast filter":    second(naming.BroadcastTenantFilter(bad)),
			"client":          second(naming.ClientSubject(bad)),
			"worker":          second(naming.WorkerSubject(bad)),
			"runner fleet":    second(naming.RunnerSubject(naming.RunnerAddress{Fleet: bad, ID: runner, Leg: naming.RunnerCmd})),
			"runner id":       second(naming.RunnerOwnSubject(naming.RunnerAddress{ID: bad, Leg: naming.RunnerCmd})),
			"runner leg":      second(naming.RunnerFilter(naming.RunnerLeg(bad))),
			"runner state":    second(naming.RunnerOwnSubject(naming.RunnerAddress{ID: runner, Leg: naming.RunnerState, Stream: bad})),
			"runner inbox":    second(naming.RunnerInbox(bad)),
			"state filter":    second(naming.RunnerStateFilter(bad)),
			"fleet filter":    second(naming.RunnerFleetFilter(bad, naming.RunnerCmd)),
			"dlq filter":      second(naming.DeadLetterFilter(bad)),
			"dlq tenant":      second(naming.DeadLetterTenantFilter("main", bad)),
			"dlq row":         second(naming.DeadLetterSubject(naming.DeadLetter{Stream: "main", Tenant: tenant, Kind: "a", Row: bad, Version: 1})),
			"msgID row":       second(naming.MsgID(tenant, "a", bad, 1)),
			"stream name":     second(naming.StreamName(bad)),
			"dlq stream name": second(naming.DeadLetterStreamName(bad)),
		} {
			if !errors.Is(err, naming.ErrInvalid) {
				t.Errorf("%s took %q: %v", name, bad, err)
			}
		}
	}
	stray := naming.RunnerAddress{Fleet: "shared", ID: runner, Leg: naming.RunnerCmd, Stream: "main"}
	if _, err := naming.RunnerSubject(stray); !errors.Is(err, naming.ErrInvalid) {
		t.Errorf("a cmd subject took a stream: %v", err)
	}
	if _, err := naming.MsgID(tenant, "a", message, 0); !errors.Is(err, naming.ErrInvalid) {
		t.Errorf("a message id without a version: %v", err)
	}
}

func TestDeadLetterNeedsItsDigest(t *testing.T) {
	t.Parallel()
	full := naming.DeadLetter{Stream: "main", Tenant: tenant, Kind: "message_posted", Row: message, Version: 1}
	digest := naming.DeadLetterRow("s", []byte("b"))
	edit := func(f func(*naming.DeadLetter)) naming.DeadLetter { d := full; f(&d); return d }
	tests := map[string]struct {
		d  naming.DeadLetter
		ok bool
	}{
		"all known, recipient not looked up": {full, true},
		"tenant unknown":                     {edit(func(d *naming.DeadLetter) { d.Tenant = "" }), false},
		"kind unknown":                       {edit(func(d *naming.DeadLetter) { d.Kind = "" }), false},
		"version unknown":                    {edit(func(d *naming.DeadLetter) { d.Version = 0 }), false},
		"tenant unknown, digest":             {edit(func(d *naming.DeadLetter) { d.Tenant, d.Row = "", digest }), true},
		"row unknown":                        {edit(func(d *naming.DeadLetter) { d.Row = "" }), false},
		"negative version":                   {edit(func(d *naming.DeadLetter) { d.Version = -1 }), false},
		"negative replay":                    {edit(func(d *naming.DeadLetter) { d.Replay = -1 }), false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if _, err := naming.DeadLetterSubject(tt.d); (err == nil) != tt.ok {
				t.Errorf("err = %v, want ok %v", err, tt.ok)
			}
		})
	}
	if naming.DeadLetterRow("a", []byte("bc")) == naming.DeadLetterRow("ab", []byte("c")) {
		t.Error("where the subject ends does not enter the digest")
	}
}

// The two views of a Runner's subject never parse as each other, and no logical comms subject is one of ours.
func TestViewsDoNotMix(t *testing.T) {
	t.Parallel()
	ok := must(t)
	a := naming.RunnerAddress{Fleet: "shared", ID: runner, Leg: naming.RunnerState, Stream: "state"}
	platform, own := ok(naming.RunnerSubject(a)), ok(naming.RunnerOwnSubject(a))
	if _, err := naming.ParseRunnerOwnSubject(platform); err == nil {
		t.Errorf("%s parses as a Runner's own", platform)
	}
	if _, err := naming.ParseRunnerSubject(own); err == nil {
		t.Errorf("%s parses as the platform's", own)
	}
	comms := ok(naming.CommsSubject(tenant, "cmd"))
	if _, err := naming.ParseRunnerSubject(comms); err == nil {
		t.Errorf("%s parses as a Runner's", comms)
	}
	back, err := naming.ParseRunnerSubject(platform)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(a, back); diff != "" {
		t.Error(diff)
	}
}
