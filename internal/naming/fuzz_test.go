package naming_test

import (
	"crypto/rand"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/rigelbuild/compass-operator/internal/naming"
)

// clean fails for whatever a NATS server could read as more than one literal subject of n tokens.
func clean(t *testing.T, subject string, n int) {
	t.Helper()
	for _, r := range subject {
		if r <= ' ' || r > '~' || r == '*' || r == '>' {
			t.Fatalf("subject %q holds %q", subject, r)
		}
	}
	parts := strings.Split(subject, ".")
	for _, p := range parts {
		if p == "" || len(p) > 64 {
			t.Fatalf("subject %q has a token of %d bytes", subject, len(p))
		}
	}
	if len(parts) != n {
		t.Fatalf("subject %q has %d tokens, want %d", subject, len(parts), n)
	}
}

func wantInvalid(t *testing.T, err error) {
	t.Helper()
	if !errors.Is(err, naming.ErrInvalid) {
		t.Fatalf("err = %v, want ErrInvalid", err)
	}
}

func FuzzQueueAndBroadcast(f *testing.F) {
	for _, s := range []string{"main", tenant, "message_posted", "*", ">", "a.b", "a b", "", "\x00", "compass"} {
		f.Add("main", tenant, s)
		f.Add(s, tenant, "message_posted")
		f.Add("main", s, "message_posted")
	}
	f.Fuzz(func(t *testing.T, stream, ten, kind string) {
		if s, err := naming.QueueSubject(stream, ten, kind); err != nil {
			wantInvalid(t, err)
		} else {
			clean(t, s, 5)
			a, b, c, err := naming.ParseQueueSubject(s)
			if err != nil || a != stream || b != ten || c != kind {
				t.Fatalf("%s came back as %s, %s, %s, %v", s, a, b, c, err)
			}
		}
		s, err := naming.BroadcastSubject(ten, kind)
		logical, err2 := naming.CommsSubject(ten, kind)
		if (err == nil) != (err2 == nil) {
			t.Fatalf("broadcast and logical subject disagree on %q, %q", ten, kind)
		}
		if err != nil {
			wantInvalid(t, err)
			return
		}
		clean(t, s, 4)
		clean(t, logical, 4)
		a, b, err := naming.ParseBroadcastSubject(s)
		c, d, err2 := naming.ParseCommsSubject(logical)
		if err != nil || err2 != nil || a != ten || b != kind || c != ten || d != kind {
			t.Fatalf("%s came back as %s, %s, %v", s, a, b, err)
		}
	})
}

func FuzzDeadLetter(f *testing.F) {
	digest := naming.DeadLetterRow("s", nil)
	f.Add("main", tenant, "message_posted", message, account, int64(1), int64(0))
	f.Add("main", "", "", digest, "", int64(0), int64(3))
	f.Add("main", "-", "-", "-", "-", int64(-1), int64(-1))
	f.Add("a.b", tenant, "*", ">", " ", int64(1), int64(0))
	f.Fuzz(func(t *testing.T, stream, ten, kind, row, recipient string, version, replay int64) {
		d := naming.DeadLetter{
			Stream: stream, Tenant: ten, Kind: kind, Row: row, Recipient: recipient, Version: version, Replay: replay,
		}
		s, err := naming.DeadLetterSubject(d)
		if err != nil {
			wantInvalid(t, err)
			return
		}
		clean(t, s, 9)
		if back, err := naming.ParseDeadLetterSubject(s); err != nil || back != d {
			t.Fatalf("%s came back as %+v, %v", s, back, err)
		}
	})
}

func FuzzRunner(f *testing.F) {
	f.Add("shared", runner, "cmd", "")
	f.Add(tenant, runner, "state", "main")
	f.Add("*", "*", ">", "*")
	f.Fuzz(func(t *testing.T, fleet, id, leg, stream string) {
		a := naming.RunnerAddress{Fleet: fleet, ID: id, Leg: naming.RunnerLeg(leg), Stream: stream}
		tokens := 4
		if a.Leg == naming.RunnerState {
			tokens = 5
		}
		if s, err := naming.RunnerOwnSubject(a); err != nil {
			wantInvalid(t, err)
		} else {
			clean(t, s, tokens)
			own := a
			own.Fleet = ""
			if back, err := naming.ParseRunnerOwnSubject(s); err != nil || back != own {
				t.Fatalf("%s came back as %+v, %v", s, back, err)
			}
		}
		s, err := naming.RunnerSubject(a)
		if err != nil {
			wantInvalid(t, err)
			return
		}
		clean(t, s, tokens+1)
		if back, err := naming.ParseRunnerSubject(s); err != nil || back != a {
			t.Fatalf("%s came back as %+v, %v", s, back, err)
		}
	})
}

// What parses is exactly what can be built: there is one text per meaning.
func FuzzParseSubjects(f *testing.F) {
	for _, s := range []string{
		"compass.q.main." + tenant + ".message_posted", "compass.bcast." + tenant + ".x", "client." + conn, "compass.worker.main",
		"compass.dlq.main.-.-.x.-.-.0", "compass.dlq.main.-.-." + naming.DeadLetterRow("", nil) + ".-.00.0",
		"compass.runner.shared." + runner + ".state.main", "compass.runner." + runner + ".cmd", "compass.runner.*.*.cmd", "compass..",
		"compass." + tenant + ".comms.message_posted",
	} {
		f.Add(s)
		f.Add(s + ".x") // one token more is another subject
		f.Add("x." + s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		same := func(again string, err, parseErr error) {
			t.Helper()
			if parseErr != nil {
				wantInvalid(t, parseErr)
			} else if err != nil || again != s {
				t.Fatalf("%q parses, but is written %q (%v)", s, again, err)
			}
		}
		stream, ten, kind, perr := naming.ParseQueueSubject(s)
		again, err := naming.QueueSubject(stream, ten, kind)
		same(again, err, perr)
		ten, kind, perr = naming.ParseBroadcastSubject(s)
		again, err = naming.BroadcastSubject(ten, kind)
		same(again, err, perr)
		ten, kind, perr = naming.ParseCommsSubject(s)
		again, err = naming.CommsSubject(ten, kind)
		same(again, err, perr)
		connection, perr := naming.ParseClientSubject(s)
		again, err = naming.ClientSubject(connection)
		same(again, err, perr)
		stream, perr = naming.ParseWorkerSubject(s)
		again, err = naming.WorkerSubject(stream)
		same(again, err, perr)
		d, perr := naming.ParseDeadLetterSubject(s)
		again, err = naming.DeadLetterSubject(d)
		same(again, err, perr)
		a, perr := naming.ParseRunnerSubject(s)
		again, err = naming.RunnerSubject(a)
		same(again, err, perr)
		a, perr = naming.ParseRunnerOwnSubject(s)
		again, err = naming.RunnerOwnSubject(a)
		same(again, err, perr)
	})
}

func FuzzParseTokens(f *testing.F) {
	g := &naming.IDs{Now: time.Now, Rand: rand.Reader}
	for _, make1 := range []func(string) (string, error){g.Session, g.Token, g.RunnerToken} {
		s, err := make1(tenant)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(s)
		f.Add(s + "\n")
		f.Add(strings.ReplaceAll(s, "_", "__"))
	}
	f.Fuzz(func(t *testing.T, s string) {
		if ten, id, err := naming.ParseSession(s); err != nil {
			wantInvalid(t, err)
		} else if "ses_"+ten+"_"+id != s || naming.ValidTenant(ten) != nil || naming.ValidToken(s) != nil {
			t.Fatalf("session %q parsed as %q, %q", s, ten, id)
		}
		if ten, secret, err := naming.ParseToken(s); err != nil {
			wantInvalid(t, err)
		} else if "cmp_"+ten+"_"+secret != s || naming.ValidTenant(ten) != nil {
			t.Fatalf("token %q parsed as %q", s, ten)
		}
		if fleet, secret, err := naming.ParseRunnerToken(s); err != nil {
			wantInvalid(t, err)
		} else if "crt_"+fleet+"_"+secret != s || naming.ValidFleet(fleet) != nil {
			t.Fatalf("token %q parsed as %q", s, fleet)
		}
	})
}

func FuzzValid(f *testing.F) {
	for _, s := range []string{"acme", "system", "pg_a", "a\x00", tenant, "ct_", strings.Repeat("a", 64)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if naming.ValidDatabase(s) == nil {
			roles, err := naming.RolesOf(s)
			if err != nil || len(roles.Provision) > 63 || strings.ContainsAny(s, "\x00\"' ") || strings.HasPrefix(s, "pg_") {
				t.Fatalf("database %q: %+v, %v", s, roles, err)
			}
		}
		if naming.ValidName(s) == nil && (len(s) > 40 || strings.ContainsAny(s, "._ *>")) {
			t.Fatalf("name %q", s)
		}
		if naming.ValidSlug(s) == nil && (len(s) > 48 || s == "runner" || strings.ContainsAny(s, "._ *>")) {
			t.Fatalf("slug %q", s)
		}
		if naming.ValidToken(s) == nil {
			clean(t, s, 1)
		}
	})
}
