package fabric_test

import (
	"context"
	"errors"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/rigelbuild/compass-operator/internal/fabric"
	"github.com/rigelbuild/compass-operator/internal/fabric/fabrictest"
)

// publishFor publishes a row of a tenant.
func publishFor(t *testing.T, f fabric.EventFabric, tenant, row string) error {
	t.Helper()
	subject, err := fabric.CommsSubject(tenant, fabric.KindMessagePosted)
	if err != nil {
		t.Fatal(err)
	}
	return f.Publish(t.Context(), subject, fabrictest.Ref(tenant, row))
}

// Ruling S1. A tenant has room for so many references that wait; more of them are refused to it alone, and what is acked
// makes room. A limit on everything that was ever published would stop a healthy tenant.
func TestATenantFillsItsOwnRoomAlone(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	cfg := b.config(t, short())
	cfg.Spec.MaxPerTenant = 10
	f := open(t, cfg)
	for i := range 10 {
		if err := publish(t, f, "m_"+strconv.Itoa(i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := publish(t, f, "m_10"); !errors.Is(err, fabric.ErrFull) {
		t.Errorf("one too many: got %v, want ErrFull", err)
	}
	if err := publishFor(t, f, fabrictest.TenantB, "m_0"); err != nil {
		t.Errorf("another tenant: %v", err)
	}
	var done atomic.Int64
	if _, err := f.SubscribeKind(t.Context(), fabric.KindMessagePosted, func(context.Context, fabric.EventRef) error {
		done.Add(1)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	fabrictest.Eventually(t, "what waited is done", func() bool { return done.Load() == 11 })
	for i := range 50 { // five times its room, one after the other
		fabrictest.Eventually(t, "the next is acked", func() bool {
			queue, _, _, err := f.ObserveStream(t.Context(), fabric.StreamSpec{Name: fabrictest.Stream})
			return err == nil && queue.Messages == 0
		})
		if err := publish(t, f, "n_"+strconv.Itoa(i)); err != nil {
			t.Fatalf("with room: %v", err)
		}
	}
}

// Ruling S2. Sequences begin anew when the queue's volume is lost; a dead letter's place does not depend on them.
func TestDeadLettersDoNotCollideAfterALoss(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	f := open(t, b.config(t, short()))
	if _, err := f.SubscribeKind(t.Context(), fabric.KindMessagePosted, func(context.Context, fabric.EventRef) error { return poison() }); err != nil {
		t.Fatal(err)
	}
	if err := publish(t, f, "first"); err != nil {
		t.Fatal(err)
	}
	fabrictest.Eventually(t, "the first is parked", func() bool { return len(deadRows(t, f)) == 1 })
	js, err := jetstream.New(b.client(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := js.DeleteStream(t.Context(), "CMP_main"); err != nil {
		t.Fatal(err)
	}
	fabrictest.Eventually(t, "publish", func() bool { return publish(t, f, "second") == nil })
	fabrictest.Eventually(t, "the second, of the same sequence, is parked beside it", func() bool { return len(deadRows(t, f)) == 2 })
}

// Holds REQ-126. What a queue is on the broker: ruling S1, and no flag that lets a publisher remove
// or delay what others published.
func TestQueueIsAsDocumented(t *testing.T) {
	t.Parallel()
	h := heals(t, nil)
	s, err := h.js.Stream(t.Context(), "CMP_main")
	if err != nil {
		t.Fatal(err)
	}
	c := s.CachedInfo().Config
	if c.Retention != jetstream.WorkQueuePolicy || c.Storage != jetstream.FileStorage || c.Discard != jetstream.DiscardNew ||
		!c.DiscardNewPerSubject || c.MaxMsgsPerSubject <= 0 || c.MaxBytes <= 0 || c.Duplicates != 30*time.Second || c.Replicas != 1 {
		t.Errorf("%+v", c)
	}
	if c.AllowRollup || c.AllowMsgTTL || c.AllowMsgCounter || c.AllowMsgSchedules || c.AllowAtomicPublish || c.NoAck || c.Sealed {
		t.Errorf("a flag is on: %+v", c)
	}
	if len(c.Subjects) != 1 || c.Subjects[0] != "compass.q.main.>" {
		t.Errorf("subjects %v, want one that does not grow with tenants (ruling T2)", c.Subjects)
	}
}
