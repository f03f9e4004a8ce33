package fabrictest

import (
	"context"
	"crypto/ed25519"
	"errors"
	"strconv"
	"sync"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	compassv1 "github.com/rigelbuild/compass-operator/api/proto/compass/v1"
	"github.com/rigelbuild/compass-operator/internal/fabric"
	"github.com/rigelbuild/compass-operator/internal/naming"
)

// RunRunnerFabric is the conformance suite of RunnerFabric and RunnerConn. ground is called once per case.
func RunRunnerFabric(t *testing.T, ground func(t *testing.T) Ground) {
	t.Helper()
	cases := map[string]func(*testing.T, Ground){
		"CommandReachesItsRunner":        commandReachesItsRunner,
		"BodiesTravelUnopened":           bodiesTravelUnopened,
		"NobodyListeningIsRunnerGone":    nobodyListeningIsGone,
		"UnsignedAndForeignAreDropped":   unsignedAndForeignAreDropped,
		"TwoKeysDuringARotation":         twoKeysDuringARotation,
		"EventIsAnsweredAfterTheEffect":  eventIsAnsweredAfterTheEffect,
		"EventErrorsKeepTheirCode":       eventErrorsKeepTheirCode,
		"EventOfAnotherRunnerIsRefused":  eventOfAnotherRunner,
		"OneOfTwoServersAnswers":         oneOfTwoServersAnswers,
		"NobodyAnswering":                nobodyAnswering,
		"CallKeepsStatus":                callKeepsStatus,
		"PanicTakesNobodyElseDown":       panicTakesNobodyElseDown,
		"StateReachesItsStreamsWorker":   stateReachesItsStream,
		"RunnersSurviveAnOutage":         runnersSurvive,
		"UnsubscribeWaitsForTheAnswers":  unsubscribeWaitsForAnswers,
		"RequestsRunSideBySide":          requestsRunSideBySide,
		"RunnerAddressesAreValidatedToo": runnerAddresses,
	}
	for name, run := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run(t, ground(t))
		})
	}
}

// TestSigner is a command key for tests, and TestCommandKeys its public half.
func TestSigner(id string) fabric.Signer {
	seed := make([]byte, ed25519.SeedSize)
	copy(seed, id)
	return fabric.Signer{KeyID: id, Key: ed25519.NewKeyFromSeed(seed)}
}

// TestCommandKeys are the public halves of TestSigner.
func TestCommandKeys(ids ...string) map[string]ed25519.PublicKey {
	keys := map[string]ed25519.PublicKey{}
	for _, id := range ids {
		keys[id], _ = TestSigner(id).Key.Public().(ed25519.PublicKey)
	}
	return keys
}

func server(t *testing.T, g Ground) Instance {
	t.Helper()
	return g.Open(t, Options{Commands: TestSigner("k1")})
}

func runner(t *testing.T, g Ground, id string) (fabric.RunnerConn, *heard[*compassv1.Command]) {
	t.Helper()
	conn := g.Runner(t, id, fabric.NewCommandKeys(TestCommandKeys("k1")))
	h := &heard[*compassv1.Command]{}
	_, err := conn.Commands(t.Context(), func(_ context.Context, c *compassv1.Command, signed *compassv1.SessionsResponse) {
		if len(signed.GetSignature()) > 0 {
			h.add(c)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return conn, h
}

func addr(id string) fabric.RunnerAddr { return fabric.RunnerAddr{Fleet: naming.SharedFleet, ID: id} }

func body(t *testing.T, c *compassv1.Command) *compassv1.SessionsResponse {
	t.Helper()
	b, err := proto.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	return &compassv1.SessionsResponse{Body: b}
}

func commandReachesItsRunner(t *testing.T, g Ground) {
	f := server(t, g)
	_, one := runner(t, g, Runner1)
	_, two := runner(t, g, Runner2)
	const n = 50
	for i := range n {
		c := &compassv1.Command{RunnerId: Runner1, SessionId: strconv.Itoa(i)}
		if err := f.SendCommand(t.Context(), addr(Runner1), body(t, c)); err != nil {
			t.Fatal(err)
		}
	}
	Eventually(t, "all arrive", func() bool { return len(one.got()) == n })
	for i, c := range one.got() {
		if c.GetSessionId() != strconv.Itoa(i) {
			t.Fatalf("command %d is %s: the order of one sender must be kept", i, c.GetSessionId())
		}
	}
	never(t, "another Runner hears it", func() bool { return len(two.got()) > 0 })
}

// What a box is made of, and what is scheduled on it, is said in bodies; the fabric owns subjects, envelope and order.
func bodiesTravelUnopened(t *testing.T, g Ground) {
	f := server(t, g)
	conn := g.Runner(t, Runner1, fabric.NewCommandKeys(TestCommandKeys("k1")))
	var bodies heard[string]
	_, err := conn.Commands(t.Context(), func(_ context.Context, _ *compassv1.Command, signed *compassv1.SessionsResponse) {
		bodies.add(string(signed.GetBody()))
	})
	if err != nil {
		t.Fatal(err)
	}
	sent := body(t, &compassv1.Command{RunnerId: Runner1, SessionId: "s"})
	sent.Body = protowire.AppendTag(sent.GetBody(), 9000, protowire.BytesType) // a field that this version does not know
	sent.Body = protowire.AppendString(sent.GetBody(), "gpu: 2")
	if err := f.SendCommand(t.Context(), addr(Runner1), sent); err != nil {
		t.Fatal(err)
	}
	Eventually(t, "it arrives", func() bool { return len(bodies.got()) == 1 })
	if got := bodies.got()[0]; got != string(sent.GetBody()) {
		t.Errorf("it arrived as %q, want %q", got, sent.GetBody())
	}
}

func nobodyListeningIsGone(t *testing.T, g Ground) {
	f := server(t, g)
	c := body(t, &compassv1.Command{RunnerId: Runner1})
	if err := f.SendCommand(t.Context(), addr(Runner1), c); !errors.Is(err, fabric.ErrRunnerGone) {
		t.Errorf("no Runner at all: got %v, want ErrRunnerGone", err)
	}
	conn := g.Runner(t, Runner1, fabric.NewCommandKeys(TestCommandKeys("k1")))
	if err := f.SendCommand(t.Context(), addr(Runner1), c); !errors.Is(err, fabric.ErrRunnerGone) {
		t.Errorf("connected, but not listening: got %v, want ErrRunnerGone", err)
	}
	end, err := conn.Commands(t.Context(), func(context.Context, *compassv1.Command, *compassv1.SessionsResponse) {})
	if err != nil {
		t.Fatal(err)
	}
	if err := f.SendCommand(t.Context(), addr(Runner1), c); err != nil {
		t.Errorf("listening: got %v, want nil", err)
	}
	var wg sync.WaitGroup
	for range 20 { // side by side, each is told its own
		wg.Go(func() {
			if err := f.SendCommand(t.Context(), addr(Runner2), c); !errors.Is(err, fabric.ErrRunnerGone) {
				t.Errorf("the absent one: got %v, want ErrRunnerGone", err)
			}
			if err := f.SendCommand(t.Context(), addr(Runner1), c); err != nil {
				t.Errorf("the present one: got %v, want nil", err)
			}
		})
	}
	wg.Wait()
	end()
	Eventually(t, "it is gone again", func() bool {
		return errors.Is(f.SendCommand(t.Context(), addr(Runner1), c), fabric.ErrRunnerGone)
	})
}

func unsignedAndForeignAreDropped(t *testing.T, g Ground) {
	f := server(t, g)
	_, one := runner(t, g, Runner1)
	forged, err := TestSigner("stranger").Sign(&compassv1.Command{RunnerId: Runner1, SessionId: "forged"})
	if err != nil {
		t.Fatal(err)
	}
	forgedID := proto.Clone(forged).(*compassv1.SessionsResponse) //nolint:forcetypeassert // a clone
	forgedID.KeyId = "k1"
	foreign, err := TestSigner("k1").Sign(&compassv1.Command{RunnerId: Runner2, SessionId: "foreign"})
	if err != nil {
		t.Fatal(err)
	}
	changed, err := TestSigner("k1").Sign(&compassv1.Command{RunnerId: Runner1, SessionId: "changed"})
	if err != nil {
		t.Fatal(err)
	}
	changed.Body = append(changed.GetBody(), body(t, &compassv1.Command{Generation: 7}).GetBody()...)
	good, err := TestSigner("k1").Sign(&compassv1.Command{RunnerId: Runner1, SessionId: "good"})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []*compassv1.SessionsResponse{forged, forgedID, foreign, changed, good} {
		if err := f.SendCommand(t.Context(), addr(Runner1), c); err != nil {
			t.Fatal(err)
		}
	}
	Eventually(t, "the good one arrives", func() bool { return len(one.got()) > 0 })
	if got := one.got(); len(got) != 1 || got[0].GetSessionId() != "good" {
		t.Errorf("got %v, want the good one alone", got)
	}
	unsigned := g.Open(t, Options{})
	if err := unsigned.SendCommand(t.Context(), addr(Runner1), body(t, &compassv1.Command{})); !errors.Is(err, fabric.ErrConfig) {
		t.Errorf("a fabric without a key: got %v, want ErrConfig", err)
	}
}

func twoKeysDuringARotation(t *testing.T, g Ground) {
	old, renewed := g.Open(t, Options{Commands: TestSigner("k1")}), g.Open(t, Options{Commands: TestSigner("k2")})
	keys := fabric.NewCommandKeys(TestCommandKeys("k1", "k2"))
	conn := g.Runner(t, Runner1, keys)
	var h heard[string]
	_, err := conn.Commands(t.Context(), func(_ context.Context, c *compassv1.Command, _ *compassv1.SessionsResponse) { h.add(c.GetSessionId()) })
	if err != nil {
		t.Fatal(err)
	}
	send := func(f fabric.RunnerFabric, id string) {
		if err := f.SendCommand(t.Context(), addr(Runner1), body(t, &compassv1.Command{RunnerId: Runner1, SessionId: id})); err != nil {
			t.Fatal(err)
		}
	}
	send(old, "old")
	send(renewed, "renewed")
	Eventually(t, "both are taken", func() bool { return len(h.got()) == 2 })
	keys.Set(TestCommandKeys("k2"))
	send(old, "too late")
	send(renewed, "last")
	Eventually(t, "the new key is taken", func() bool { return len(h.got()) >= 3 })
	if got := h.got()[2]; got != "last" {
		t.Errorf("got %q after the old key was withdrawn", got)
	}
}

func stateReachesItsStream(t *testing.T, g Ground) {
	f := server(t, g)
	var mine, other heard[*compassv1.RunnerState]
	for stream, h := range map[string]*heard[*compassv1.RunnerState]{Stream: &mine, "second": &other} {
		_, err := f.States(t.Context(), stream, func(from fabric.RunnerAddr, s *compassv1.RunnerState) {
			if from != addr(Runner1) {
				t.Errorf("from %v", from)
			}
			h.add(s)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	conn := g.Runner(t, Runner1, fabric.NewCommandKeys(nil))
	for _, s := range []*compassv1.RunnerState{
		{RunnerId: Runner1, SessionId: "a"}, {RunnerId: Runner2, SessionId: "forged"}, {SessionId: "b"},
	} {
		if err := conn.State(t.Context(), Stream, s); err != nil {
			t.Fatal(err)
		}
	}
	Eventually(t, "its own states arrive", func() bool { return len(mine.got()) >= 2 })
	never(t, "a forged one arrives, or at another stream", func() bool { return len(mine.got()) > 2 || len(other.got()) > 0 })
	if got := mine.got(); got[0].GetSessionId() != "a" || got[1].GetSessionId() != "b" || got[1].GetRunnerId() != Runner1 {
		t.Errorf("got %v", got)
	}
}

func runnersSurvive(t *testing.T, g Ground) {
	f := server(t, g)
	if _, err := f.Events(t.Context(), func(context.Context, fabric.RunnerEvent) error { return nil }); err != nil {
		t.Fatal(err)
	}
	conn, h := runner(t, g, Runner1)
	restore := g.Outage(t)
	c := body(t, &compassv1.Command{RunnerId: Runner1, SessionId: "stale"})
	if err := f.SendCommand(t.Context(), addr(Runner1), c); !errors.Is(err, fabric.ErrUnavailable) {
		t.Errorf("a command while away: got %v, want ErrUnavailable", err)
	}
	restore()
	fresh := body(t, &compassv1.Command{RunnerId: Runner1, SessionId: "fresh"})
	var refused error
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the last command: %v", refused)
		}
	})
	Eventually(t, "commands arrive again", func() bool {
		refused = f.SendCommand(t.Context(), addr(Runner1), fresh)
		return len(h.got()) > 0
	})
	if got := h.got()[0].GetSessionId(); got != "fresh" {
		t.Errorf("a %s command came after the outage", got)
	}
	Eventually(t, "events are answered again", func() bool {
		_, err := conn.Event(t.Context(), &compassv1.RunnerEvent{})
		return err == nil
	})
}

func runnerAddresses(t *testing.T, g Ground) {
	f := server(t, g)
	for _, a := range []fabric.RunnerAddr{{}, {Fleet: "shared", ID: "*"}, {Fleet: "*", ID: Runner1}, {Fleet: "acme", ID: Runner1}, {Fleet: "shared", ID: "r_1"}} {
		if err := f.SendCommand(t.Context(), a, body(t, &compassv1.Command{})); !errors.Is(err, fabric.ErrBadRef) {
			t.Errorf("%v: got %v, want ErrBadRef", a, err)
		}
	}
	if _, err := f.States(t.Context(), "*", func(fabric.RunnerAddr, *compassv1.RunnerState) {}); !errors.Is(err, fabric.ErrBadRef) {
		t.Errorf("states of every stream: got %v, want ErrBadRef", err)
	}
}
