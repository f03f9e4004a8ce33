package fabrictest

import (
	"context"
	"errors"
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
)

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
