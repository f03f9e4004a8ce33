package fabric_test

import (
	"context"
	"encoding/json"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/rigelbuild/compass-operator/internal/fabric"
	"github.com/rigelbuild/compass-operator/internal/fabric/embedded"
	"github.com/rigelbuild/compass-operator/internal/fabric/fabrictest"
)

// The pairs below give ratios, which are what counts on a shared machine: each does with the fabric what its twin does with
// the client library alone, under the same guarantees (stored and acked; one at a time, acked after the callback).

type benchGround struct {
	f  *fabric.Fabric
	js jetstream.JetStream
}

func newBenchGround(b *testing.B) benchGround {
	b.Helper()
	ns, err := embedded.Start(embedded.Config{Dir: b.TempDir(), Logger: quietLog()})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(ns.Stop)
	creds, err := ns.Standalone()
	if err != nil {
		b.Fatal(err)
	}
	f, err := fabric.New(fabric.Config{
		Name: "bench", InProcess: ns, Credentials: creds, Stream: fabrictest.Stream, Manage: true, Logger: quietLog(),
		Spec: fabric.StreamSpec{MaxPerTenant: 1 << 30},
	})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = f.Close(context.Background()) })
	nc, err := nats.Connect("", nats.InProcessServer(ns), nats.UserJWT(creds.JWT, creds.Sign))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		b.Fatal(err)
	}
	return benchGround{f, js}
}

// cpu reports the processor time of one operation, broker included: unlike the clock it hardly moves with what else runs.
func cpu(b *testing.B) func() {
	b.Helper()
	used := func() time.Duration {
		var r syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
			b.Fatal(err)
		}
		return time.Duration(r.Utime.Nano() + r.Stime.Nano())
	}
	began := used()
	return func() { b.ReportMetric(float64((used()-began).Nanoseconds())/float64(b.N), "cpu-ns/op") }
}

func benchRow(i int) string { return "m_" + strconv.Itoa(i) }

func (g benchGround) publish(b *testing.B, i int) {
	subject, _ := fabric.CommsSubject(fabrictest.TenantA, fabric.KindMessagePosted)
	if err := g.f.Publish(context.Background(), subject, fabrictest.Ref(fabrictest.TenantA, benchRow(i))); err != nil {
		b.Fatal(err)
	}
}

func (g benchGround) barePublish(b *testing.B, i int) {
	body, err := json.Marshal(fabrictest.Ref(fabrictest.TenantA, benchRow(i)))
	if err != nil {
		b.Fatal(err)
	}
	if _, err := g.js.Publish(context.Background(), "compass.q.main."+fabrictest.TenantA+".message_posted", body,
		jetstream.WithMsgID(benchRow(i)), jetstream.WithExpectStream("CMP_main")); err != nil {
		b.Fatal(err)
	}
}

func BenchmarkPublish(b *testing.B) {
	g := newBenchGround(b)
	defer cpu(b)()
	for i := 0; b.Loop(); i++ {
		g.publish(b, i)
	}
}

func BenchmarkPublishBare(b *testing.B) {
	g := newBenchGround(b)
	defer cpu(b)()
	for i := 0; b.Loop(); i++ {
		g.barePublish(b, i)
	}
}

func BenchmarkHint(b *testing.B) {
	g := newBenchGround(b)
	fill(b, g)
	var n atomic.Int64
	done := make(chan struct{})
	b.ResetTimer()
	report := cpu(b)
	end, err := g.f.SubscribeKind(context.Background(), fabric.KindMessagePosted, func(context.Context, fabric.EventRef) error {
		if n.Add(1) == int64(b.N) {
			close(done)
		}
		return nil
	})
	if err != nil {
		b.Fatal(err)
	}
	<-done
	report()
	b.StopTimer()
	end()
}

func BenchmarkHintBare(b *testing.B) {
	g := newBenchGround(b)
	fill(b, g)
	c, err := g.js.CreateOrUpdateConsumer(context.Background(), "CMP_main", jetstream.ConsumerConfig{
		Durable: "bare", AckPolicy: jetstream.AckExplicitPolicy, AckWait: 30 * time.Second, MaxAckPending: 256,
	})
	if err != nil {
		b.Fatal(err)
	}
	var n atomic.Int64
	done := make(chan struct{})
	b.ResetTimer()
	report := cpu(b)
	taking, err := c.Consume(func(msg jetstream.Msg) {
		var ref fabric.EventRef
		if err := json.Unmarshal(msg.Data(), &ref); err != nil {
			b.Error(err)
		}
		if err := msg.Ack(); err != nil {
			b.Error(err)
		}
		if n.Add(1) == int64(b.N) {
			close(done)
		}
	}, jetstream.PullMaxMessages(1))
	if err != nil {
		b.Fatal(err)
	}
	<-done
	report()
	b.StopTimer()
	taking.Stop()
}

func fill(b *testing.B, g benchGround) {
	b.Helper()
	for i := range b.N {
		g.publish(b, i)
	}
}
