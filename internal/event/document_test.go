package event

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"text/template"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write docs/events.md")

const documentPath = "../../docs/events.md"

// code is one line of the table of what holds each code. A proof is "file: name", and must exist.
type code struct {
	Code, Question, Where, Tier string
	proofs                      []string
	open                        string // what is not proved yet, said in its place
}

// Proofs renders the proofs of the table.
func (c code) Proofs() string {
	var parts []string
	for _, p := range c.proofs {
		parts = append(parts, "`"+strings.TrimPrefix(p, "../../")+"`")
	}
	if c.open != "" {
		parts = append(parts, c.open)
	}
	return strings.Join(parts, ", ")
}

const (
	tierUnrepresentable = "unrepresentable"
	tierEnforced        = "enforced"
	tierDocumented      = "documented"
	fixturesOutside     = "testdata/reject/outside/outside.go"
	fixturesInside      = "testdata/reject/inside.go.txt"
	fixturesAnalyzed    = "../../hack/analyzers/law/testdata/src/"
	processes           = "../../test/e2e/broadcast_test.go"
)

func codes() []code {
	return []code{
		{"DELIVERY-1", "What would let me see that two envelopes are one?", "`envelope.go`", tierUnrepresentable,
			[]string{fixturesOutside + ": DELIVERY-1", "envelope_test.go: TestEnvelopeRoundTrip", "envelope_test.go: TestDigest"}, ""},
		{"DELIVERY-2", "Who must react: this process, or all?", "`catalogue.go`, `entry.go`", tierUnrepresentable,
			[]string{
				fixturesInside + ": DELIVERY-2", fixturesOutside + ": DELIVERY-2", fixturesAnalyzed + "tree/lane/lane.go: DELIVERY-2",
				"catalogue_test.go: TestIncompleteEntryIsNamed", "emitter_test.go: TestCatalogueDecidesTheWay",
			}, ""},
		{"DELIVERY-3", "Does the producer's identity come from the envelope, and before the emit?", "`bridge.go`", tierEnforced,
			[]string{
				fixturesAnalyzed + "unguarded/internal/event/bridge.go: DELIVERY-3", fixturesAnalyzed + "guardlate/internal/event/bridge.go: DELIVERY-3",
				fixturesAnalyzed + "subject/internal/event/bridge.go: DELIVERY-3", fixturesAnalyzed + "conditional/internal/event/bridge.go: DELIVERY-3",
				"bridge_test.go: TestBridgeDropsItsOwnEcho", "lane_test.go: TestTwoInstancesTellOnce",
			}, ""},
		{"DELIVERY-4", "Is anything told between reading the digest and recording it?", "`bridge.go`, `claims.go`, and no listener", tierEnforced,
			[]string{
				fixturesAnalyzed + "unclaimed/internal/event/bridge.go: DELIVERY-4", fixturesAnalyzed + "claimlate/internal/event/bridge.go: DELIVERY-4",
				fixturesAnalyzed + "tree/listen/listen.go: DELIVERY-4", "bridge_test.go: TestClaimPrecedesEmit", "bridge_test.go: TestBridgeTellsCopiesOnce",
				"bridge_test.go: TestClaimIsReleasedWhenEmitFails", "lane_test.go: TestRepeatedAndForgedEnvelopes",
			}, ""},
		{"DELIVERY-5", "Would one more subscriber turn the test red?", "the tests of listeners", tierDocumented,
			[]string{"emitter_test.go: TestOncePerInstance", processes + ": TestToldOnceOnEveryServer"}, ""},
		{"DELIVERY-6", "Would a deleted guard turn the test red?", "the tests on two instances", tierDocumented,
			[]string{"lane_test.go: TestTwoInstancesTellOnce", processes + ": TestToldOnceOnEveryServer"}, ""},
	}
}

// block is one output block of the law.
type block struct {
	Event, File, Fact, Transport, Situation, Identity, Idempotency, Proof, Reason string
}

func blocks() []block {
	const na = "n/a at this file"
	var all []block
	for _, e := range Catalogue() {
		all = append(all, block{
			Event: string(e.Name), File: "internal/event/catalogue.go", Fact: e.Fact, Transport: transport(e), Situation: "DELIVERY-2",
			Identity: na, Idempotency: na, Proof: "catalogue_test.go: TestCatalogue", Reason: e.Reason,
		})
	}
	const every = "every broadcast"
	const fact = "as the catalogue says"
	const both = "broadcast, and local where flagged"
	return append(all,
		block{every, "internal/event/envelope.go", fact, both, "DELIVERY-1",
			"the Instance that the factory is given", "the digest is made here, of reference and version, and claimed elsewhere",
			"envelope_test.go: TestDigest", "it builds and never emits, which excludes DELIVERY-4"},
		block{every, "internal/event/bridge.go, guard", fact, both, "DELIVERY-3",
			"the envelope's producer against this instance's id, above the heartbeat and the emit", "n/a at this statement",
			"bridge_test.go: TestBridgeDropsItsOwnEcho", "it drops an echo, not a repetition, which excludes DELIVERY-4"},
		block{every, "internal/event/bridge.go, claim", fact, both, "DELIVERY-4",
			"n/a at this statement", "read and recorded in one step before the emit, in this process, released if the emit fails",
			"bridge_test.go: TestClaimPrecedesEmit", "the digest is there already; what is settled is the order, which excludes DELIVERY-1"},
		block{every, "internal/event/emitter_test.go", fact, both, "DELIVERY-5", na, na,
			"emitter_test.go: TestOncePerInstance", "it names who was told what and who was told nothing, on a broker that is a stand-in, which excludes DELIVERY-6"},
		block{every, "internal/event/lane_test.go", fact, both, "DELIVERY-6", "the production factory on both instances",
			"the production bridge on both instances", "lane_test.go: TestTwoInstancesTellOnce",
			"the claim is that A does not echo to itself and B hears once, which no single process contains; that excludes DELIVERY-5"},
		block{every, "test/e2e/broadcast_test.go", fact, both, "DELIVERY-6", "the production factory in two processes",
			"the production bridge in two processes", processes + ": TestToldOnceOnEveryServer",
			"two booted Servers on one broker and one Postgres, seen by their clients; that excludes DELIVERY-5"},
	)
}

// shown has proofs as a reader of the page finds them.
func shown(all []block) []block {
	for i := range all {
		all[i].Proof = strings.TrimPrefix(all[i].Proof, "../../")
	}
	return all
}

func transport(e Entry) string {
	if e.Local.On {
		if e.Broker.On {
			return string(e.Lane) + " and local"
		}
		return string(LaneLocal)
	}
	return string(e.Lane)
}

// Holds REQ-149, REQ-150 and REQ-146: the page says what catalogue and code say, each file and code has one block, and
// each proof exists.
func TestDocument(t *testing.T) {
	t.Parallel()
	checkProofs(t)
	got := document(t)
	if *update {
		if err := os.WriteFile(documentPath, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(documentPath)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("docs/events.md is stale; run this test with -update: %s", diff)
	}
}

func document(t *testing.T) []byte {
	t.Helper()
	flagText := func(f Flag) string {
		if f.On {
			return "yes: " + f.Why
		}
		return "no, until " + f.Why
	}
	page, err := template.New("events.md.tmpl").Funcs(template.FuncMap{"flag": flagText}).ParseFiles("testdata/events.md.tmpl")
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := page.Execute(&out, map[string]any{
		"Entries": Catalogue(), "Codes": codes(), "Blocks": shown(blocks()), "Claims": fmt.Sprint(DefaultClaims),
	}); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func checkProofs(t *testing.T) {
	t.Helper()
	var proofs []string
	for _, c := range codes() {
		proofs = append(proofs, c.proofs...)
		fixture := regexp.MustCompile("testdata/reject/").MatchString(strings.Join(c.proofs, " "))
		if (c.Tier == tierUnrepresentable) != fixture {
			t.Errorf("%s is called %s: fixture there: %v", c.Code, c.Tier, fixture)
		}
		if c.Tier == tierEnforced && !strings.Contains(strings.Join(c.proofs, " "), fixturesAnalyzed) {
			t.Errorf("%s is called %s, and no analyzer is shown to reject anything", c.Code, c.Tier)
		}
		if len(c.proofs) == 0 && c.open == "" {
			t.Errorf("%s has no proof and does not say so", c.Code)
		}
	}
	seen := map[string]bool{}
	for _, b := range blocks() {
		proofs = append(proofs, b.Proof)
		key := b.Event + b.File
		if seen[key] {
			t.Errorf("%s has two codes in %s", b.Event, b.File)
		}
		seen[key] = true
	}
	for _, p := range proofs {
		file, name, _ := strings.Cut(p, ": ")
		text, err := os.ReadFile(filepath.FromSlash(file))
		if err != nil {
			t.Errorf("proof %s: %v", p, err)
		} else if !regexp.MustCompile(`(?m)^(func|//) ` + regexp.QuoteMeta(name) + `\b`).Match(text) {
			t.Errorf("proof %s does not exist", p)
		}
	}
}
