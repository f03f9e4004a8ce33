package fabric_test

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/rigelbuild/compass-operator/internal/fabric"
	"github.com/rigelbuild/compass-operator/internal/fabric/fabrictest"
)

// Holds REQ-222: a NATS server older than those that the suite runs on is refused by name.
func TestSupportedVersions(t *testing.T) {
	t.Parallel()
	for v, want := range map[string]bool{
		"2.14.1": true, "2.15.2": true, "3.0.0": true, "2.14.0": false, "2.9.99": false, "2.14.1-RC.1": true, "": false, "x": false,
	} {
		if fabric.Supported(v) != want {
			t.Errorf("%q: got %v, want %v", v, !want, want)
		}
	}
}

// What JetStream says of our streams wakes the operator; what it says of others does not.
func TestAdvisories(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1, nil)
	c.base(t)
	c.makeStream(t, "main")
	op := c.fabric(t, c.admin(t), nil)
	var mu sync.Mutex
	var got []fabric.Advisory
	if _, err := op.Advisories(t.Context(), func(a fabric.Advisory) {
		mu.Lock()
		defer mu.Unlock()
		got = append(got, a)
	}); err != nil {
		t.Fatal(err)
	}
	// What it does itself it need not be told.
	spec := fabric.StreamSpec{Name: "main", MaxBytes: 2 << 30, AckWait: time.Minute}
	_, queue, err1 := op.EnsureStream(t.Context(), spec, false)
	_, durable, err2 := op.EnsureConsumer(t.Context(), spec, false)
	if err := errors.Join(err1, err2); err != nil || len(queue) == 0 || len(durable) == 0 {
		t.Fatalf("wrote %v and %v, %v", queue, durable, err)
	}
	nc, err := c.dialAs(c.standalone(t))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "OTHER", Subjects: []string{"other"}}); err != nil {
		t.Fatal(err)
	}
	if err := js.DeleteConsumer(t.Context(), "CMP_main", "deliver"); err != nil {
		t.Fatal(err)
	}
	if err := js.DeleteStream(t.Context(), "CMP_main_DLQ"); err != nil {
		t.Fatal(err)
	}
	fabrictest.Eventually(t, "both deletions are told", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return slices.Contains(got, fabric.Advisory{Stream: "main", Change: "DELETED", What: "CONSUMER"}) &&
			slices.Contains(got, fabric.Advisory{Stream: "main", Change: "DELETED", What: "STREAM"})
	})
	mu.Lock()
	defer mu.Unlock()
	if slices.ContainsFunc(got, func(a fabric.Advisory) bool { return a.Stream != "main" }) {
		t.Errorf("told of foreign streams: %v", got)
	}
	if slices.ContainsFunc(got, func(a fabric.Advisory) bool { return a.Change == "UPDATED" }) {
		t.Errorf("told of its own changes: %v", got)
	}
}

// Lessons operator 2, 21. Ensuring is observe, compare, write a difference, look again; what is not ours or cannot be changed is said.
func TestStreamsAreEnsuredStepByStep(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1, nil)
	c.base(t)
	c.makeStream(t, "main")
	op := c.fabric(t, c.admin(t), nil)
	spec := fabric.StreamSpec{Name: "main"}
	if _, wrote, err := op.EnsureStream(t.Context(), spec, false); err != nil || wrote != nil {
		t.Errorf("an unchanged stream: wrote %v, %v", wrote, err)
	}
	if _, wrote, err := op.EnsureConsumer(t.Context(), spec, false); err != nil || wrote != nil {
		t.Errorf("an unchanged consumer: wrote %v, %v", wrote, err)
	}
	spec.MaxBytes, spec.AckWait = 2<<30, time.Minute
	queue, _, consumer, err := op.ObserveStream(t.Context(), spec)
	if err != nil || !slices.Equal(queue.Drift, []string{"maxBytes"}) || !slices.Equal(consumer.Drift, []string{"ackWait"}) {
		t.Errorf("drift %v and %v, %v", queue.Drift, consumer.Drift, err)
	}
	seen, wrote, err := op.EnsureStream(t.Context(), spec, false)
	if err != nil || !slices.Equal(wrote, []string{"maxBytes"}) || len(seen.Drift) != 0 {
		t.Errorf("wrote %v, then sees %+v, %v", wrote, seen, err)
	}

	nc, err := c.dialAs(c.standalone(t))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	foreign := jetstream.StreamConfig{Name: "CMP_theirs", Subjects: []string{"theirs"}}
	if _, err := js.CreateStream(t.Context(), foreign); err != nil {
		t.Fatal(err)
	}
	theirs := fabric.StreamSpec{Name: "theirs"}
	if _, _, err := op.EnsureStream(t.Context(), theirs, false); !errors.Is(err, fabric.ErrForeign) {
		t.Errorf("a foreign stream: got %v, want ErrForeign", err)
	}
	if err := op.RemoveStream(t.Context(), "theirs"); !errors.Is(err, fabric.ErrForeign) {
		t.Errorf("removing a foreign stream: got %v, want ErrForeign", err)
	}
	if _, err := js.Publish(t.Context(), "theirs", []byte("precious")); err != nil {
		t.Fatal(err)
	}
	if _, _, err := op.EnsureStream(t.Context(), theirs, true); !errors.Is(err, fabric.ErrImmutable) { // Limits, not WorkQueue
		t.Errorf("adopting what holds messages and cannot be changed: got %v, want ErrImmutable", err)
	}
	for range 2 {
		if err := op.RemoveStream(t.Context(), "main"); err != nil {
			t.Errorf("remove: %v", err)
		}
	}
}

// Holds REQ-126. Lessons B11, operator 48. Three servers: the same codes, a leader that dies under load loses nothing, and parking twice is still one.
func TestReplicatedStreamSurvivesItsLeader(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3, nil)
	c.base(t)
	spec := fabric.StreamSpec{Name: fabrictest.Stream, Replicas: 3, AckWait: 2 * time.Second}
	all := []string{c.url(0), c.url(1), c.url(2)}
	cfg := fabric.Config{
		Name: "test", URLs: all, Credentials: c.standalone(t).creds, Logger: quietLog(), Stream: fabrictest.Stream, Spec: spec,
		Inspect: 500 * time.Millisecond, Link: fabric.Link{Settle: 50 * time.Millisecond, ReconnectWait: 20 * time.Millisecond},
	}
	f := open(t, cfg)
	const long = 2 * time.Minute
	fabrictest.EventuallyWithin(t, long, "the stream is made", func() bool {
		_, _, err1 := f.EnsureStream(t.Context(), spec, false)
		_, _, err2 := f.EnsureDeadLetters(t.Context(), spec, false)
		_, _, err3 := f.EnsureConsumer(t.Context(), spec, false)
		return errors.Join(err1, err2, err3) == nil
	})
	var r rows
	if _, err := f.SubscribeKind(t.Context(), fabric.KindMessagePosted, r.take); err != nil {
		t.Fatal(err)
	}
	pub, err := fabric.NewPublisher(fabric.PublisherConfig{Fabric: f, Logger: quietLog(), Budget: long})
	if err != nil {
		t.Fatal(err)
	}
	const n = 60
	for i := range n {
		if err := pub.Enqueue(t.Context(), fabrictest.Ref(fabrictest.TenantA, "m"+strconv.Itoa(i))); err != nil {
			t.Fatal(err)
		}
		if i == n/2 {
			c.stop(leaderOf(t, c))
		}
	}
	fabrictest.EventuallyWithin(t, long, "all arrive without their leader", func() bool {
		for i := range n {
			if r.of("m"+strconv.Itoa(i)) == 0 {
				return false
			}
		}
		return true
	})
	fabrictest.EventuallyWithin(t, long, "what is told of the backlog is the next leader's word", func() bool {
		_, _, seen, err := f.ObserveStream(t.Context(), spec)
		return err == nil && seen.Exists && seen.Pending == 0 && seen.AckPending == 0 && seen.Delivered >= n
	})
	ctx, cancel := context.WithTimeout(t.Context(), long)
	defer cancel()
	if err := pub.Close(ctx); err != nil {
		t.Fatal(err)
	}
	letter := fabric.DeadLetter{Ref: fabrictest.Ref(fabrictest.TenantA, "bad"), Recipient: "a_0000000000000000000000000a"}
	for range 2 {
		fabrictest.EventuallyWithin(t, long, "the dead letter is stored", func() bool {
			return f.Announce(t.Context(), fabrictest.Stream, letter) == nil
		})
	}
	if got := deadRows(t, f); len(got) != 1 {
		t.Errorf("%d dead letters, want 1", len(got))
	}
}

// leaderOf is the index of the server that leads the queue.
func leaderOf(t *testing.T, c *cluster) int {
	t.Helper()
	nc, err := c.dialAs(c.standalone(t))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	s, err := js.Stream(t.Context(), "CMP_main")
	if err != nil {
		t.Fatal(err)
	}
	leader := s.CachedInfo().Cluster.Leader
	for i := range c.confs {
		if c.confs[i].Name == leader {
			return i
		}
	}
	t.Fatalf("no server is called %q", leader)
	return 0
}
