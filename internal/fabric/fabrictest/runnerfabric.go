package fabrictest

import (
	"context"
	"crypto/ed25519"
	"errors"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	compassv1 "github.com/rigelbuild/compass-operator/api/proto/compass/v1"
	"github.com/rigelbuild/compass-operator/internal/fabric"
	"github.com/rigelbuild/compass-operator/internal/naming"
)

// RunRunnerFabric is the conformance suite of RunnerFabric and RunnerConn. ground is called once per case.
func RunRunnerFabric(t *testing.T, ground func(t *testing.T) Ground) {
	t.Helper()
	cases := map[string]func(*testing.T, Ground){
		"CommandReachesItsRunner":        commandReachesItsRunner,
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

func eventIsAnsweredAfterTheEffect(t *testing.T, g Ground) {
	f := server(t, g)
	conn := g.Runner(t, Runner1, fabric.NewCommandKeys(nil))
	var done atomic.Bool
	var from heard[fabric.RunnerAddr]
	want := &compassv1.RunnerEvent{RunnerId: Runner1, SessionId: "s", Generation: 3, N: 9}
	_, err := f.Events(t.Context(), func(ctx context.Context, e fabric.RunnerEvent) error {
		from.add(e.From)
		if !proto.Equal(e.Event, want) {
			t.Errorf("got %v, want %v", e.Event, want)
		}
		yieldFor(ctx)
		done.Store(true)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	answer, err := conn.Event(t.Context(), want)
	if err != nil || answer.GetCode() != "" {
		t.Fatalf("got %v, %v, want done", answer, err)
	}
	if !done.Load() {
		t.Error("answered before the effect")
	}
	if diff := cmp.Diff([]fabric.RunnerAddr{addr(Runner1)}, from.got()); diff != "" {
		t.Errorf("from (-want +got)\n%s", diff)
	}
}

func eventErrorsKeepTheirCode(t *testing.T, g Ground) {
	f := server(t, g)
	conn := g.Runner(t, Runner1, fabric.NewCommandKeys(nil))
	_, err := f.Events(t.Context(), func(_ context.Context, e fabric.RunnerEvent) error {
		if e.Event.GetN() == 1 {
			return connect.NewError(connect.CodeFailedPrecondition, errors.New("the turn is settled"))
		}
		return errors.New("password=hunter2")
	})
	if err != nil {
		t.Fatal(err)
	}
	for n, want := range map[int64][2]string{1: {"failed_precondition", "the turn is settled"}, 2: {"internal", "internal error"}} {
		answer, err := conn.Event(t.Context(), &compassv1.RunnerEvent{N: n})
		if err != nil {
			t.Fatal(err)
		}
		if got := [2]string{answer.GetCode(), answer.GetDetail()}; got != want {
			t.Errorf("event %d: got %q, want %q", n, got, want)
		}
	}
}

func eventOfAnotherRunner(t *testing.T, g Ground) {
	f := server(t, g)
	conn := g.Runner(t, Runner1, fabric.NewCommandKeys(nil))
	var calls atomic.Int64
	_, err := f.Events(t.Context(), func(_ context.Context, e fabric.RunnerEvent) error {
		calls.Add(1)
		if e.Event.GetRunnerId() != Runner1 {
			t.Errorf("an event of %q got through", e.Event.GetRunnerId())
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	answer, err := conn.Event(t.Context(), &compassv1.RunnerEvent{RunnerId: Runner2})
	if err != nil || answer.GetCode() != "permission_denied" {
		t.Errorf("got %v, %v, want permission_denied", answer, err)
	}
	if answer, err = conn.Event(t.Context(), &compassv1.RunnerEvent{}); err != nil || answer.GetCode() != "" {
		t.Errorf("an event that names nobody: got %v, %v, want done", answer, err)
	}
	if calls.Load() != 1 {
		t.Errorf("the handler was asked %d times, want once", calls.Load())
	}
}

func oneOfTwoServersAnswers(t *testing.T, g Ground) {
	var total atomic.Int64
	for range 2 {
		_, err := server(t, g).Events(t.Context(), func(context.Context, fabric.RunnerEvent) error { total.Add(1); return nil })
		if err != nil {
			t.Fatal(err)
		}
	}
	conn := g.Runner(t, Runner1, fabric.NewCommandKeys(nil))
	const n = 30
	for range n {
		if _, err := conn.Event(t.Context(), &compassv1.RunnerEvent{}); err != nil {
			t.Fatal(err)
		}
	}
	never(t, "an event is handled by both", func() bool { return total.Load() > n })
}

func nobodyAnswering(t *testing.T, g Ground) {
	conn := g.Runner(t, Runner1, fabric.NewCommandKeys(nil))
	if _, err := conn.Event(t.Context(), &compassv1.RunnerEvent{}); !errors.Is(err, fabric.ErrUnavailable) {
		t.Errorf("event: got %v, want ErrUnavailable", err)
	}
	_, err := conn.Call(t.Context(), "/x", nil)
	var c *connect.Error
	if !errors.Is(err, fabric.ErrUnavailable) || errors.As(err, &c) {
		t.Errorf("call: got %v, want ErrUnavailable and no Server's word", err)
	}
	if err := conn.State(t.Context(), Stream, &compassv1.RunnerState{}); err != nil {
		t.Errorf("a state that nobody hears: got %v, want nil", err)
	}
}

func callKeepsStatus(t *testing.T, g Ground) {
	f := server(t, g)
	_, err := f.Calls(t.Context(), func(_ context.Context, call fabric.RunnerCall) ([]byte, error) {
		if call.Procedure == "/compass.v1.RunnerService/Heartbeat" && call.From == addr(Runner1) {
			return append([]byte("answer to "), call.Body...), nil
		}
		err := connect.NewError(connect.CodeResourceExhausted, errors.New("slow\ndown"))
		err.Meta().Set("Retry-After", "7")
		if d, derr := connect.NewErrorDetail(durationpb.New(7 * time.Second)); derr == nil {
			err.AddDetail(d)
		}
		return []byte("ignored"), err
	})
	if err != nil {
		t.Fatal(err)
	}
	conn := g.Runner(t, Runner1, fabric.NewCommandKeys(nil))
	got, err := conn.Call(t.Context(), "/compass.v1.RunnerService/Heartbeat", []byte("me"))
	if err != nil || string(got) != "answer to me" {
		t.Errorf("got %q, %v", got, err)
	}
	_, err = conn.Call(t.Context(), "/other", nil)
	var c *connect.Error
	if !errors.As(err, &c) {
		t.Fatalf("got %v, want a Connect error", err)
	}
	if c.Code() != connect.CodeResourceExhausted || c.Message() != "slow down" || c.Meta().Get("Retry-After") != "7" {
		t.Errorf("got code %v, message %q, meta %v", c.Code(), c.Message(), c.Meta())
	}
	if len(c.Details()) != 1 {
		t.Fatalf("got %d details, want 1", len(c.Details()))
	}
	if v, err := c.Details()[0].Value(); err != nil || !proto.Equal(v, durationpb.New(7*time.Second)) {
		t.Errorf("detail: got %v, %v", v, err)
	}
}

func panicTakesNobodyElseDown(t *testing.T, g Ground) {
	f := server(t, g)
	_, err := f.Calls(t.Context(), func(_ context.Context, call fabric.RunnerCall) ([]byte, error) {
		if call.Procedure == "/bad" {
			panic("ouch")
		}
		return []byte("fine"), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	conn := g.Runner(t, Runner1, fabric.NewCommandKeys(nil))
	ctx, cancel := context.WithTimeout(t.Context(), quiet)
	defer cancel()
	if _, err := conn.Call(ctx, "/bad", nil); err == nil || strings.Contains(err.Error(), "ouch") {
		t.Errorf("got %v, want an error that tells nothing", err)
	}
	if got, err := conn.Call(t.Context(), "/good", nil); err != nil || string(got) != "fine" {
		t.Errorf("after a panic: got %q, %v", got, err)
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
	Eventually(t, "commands arrive again", func() bool {
		_ = f.SendCommand(t.Context(), addr(Runner1), fresh)
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

func unsubscribeWaitsForAnswers(t *testing.T, g Ground) {
	f := server(t, g)
	entered, release := make(chan struct{}), make(chan struct{})
	end, err := f.Events(t.Context(), func(context.Context, fabric.RunnerEvent) error {
		close(entered)
		<-release
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	conn := g.Runner(t, Runner1, fabric.NewCommandKeys(nil))
	answered := make(chan error, 1)
	go func() { _, err := conn.Event(t.Context(), &compassv1.RunnerEvent{}); answered <- err }()
	<-entered
	ended := make(chan struct{})
	go func() { end(); close(ended) }()
	never(t, "Unsubscribe returns while an answer is due", func() bool {
		select {
		case <-ended:
			return true
		default:
			return false
		}
	})
	close(release)
	<-ended
	if err := <-answered; err != nil {
		t.Errorf("the answer was lost: %v", err)
	}
}

func requestsRunSideBySide(t *testing.T, g Ground) {
	f := server(t, g)
	const n = 8
	var together sync.WaitGroup
	together.Add(n)
	_, err := f.Calls(t.Context(), func(context.Context, fabric.RunnerCall) ([]byte, error) {
		together.Done()
		together.Wait() // returns only if all n run at once
		return nil, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	conn := g.Runner(t, Runner1, fabric.NewCommandKeys(nil))
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			if _, err := conn.Call(t.Context(), "/x", nil); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
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
