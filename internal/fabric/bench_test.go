package fabric_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/rigelbuild/compass-operator/internal/fabric"
	"github.com/rigelbuild/compass-operator/internal/fabric/embedded"
	"github.com/rigelbuild/compass-operator/internal/fabric/fabrictest"
	"github.com/rigelbuild/compass-operator/internal/naming"
)

// What is below gives ratios, which are what counts on a shared machine: each does with the fabric what its twin does with
// the client library alone, under the same guarantees: the message of docs/SUBJECTS.md, stored once and acked within a time;
// one at a time, looked at before it is believed, acked after that. What the twin leaves out is what the fabric adds: the
// judging of errors and panics, the deadline of a callback, and the instruments.

type benchGround struct {
	f  *fabric.Fabric
	nc *nats.Conn
	js jetstream.JetStream
}

func newBenchGround(b *testing.B) benchGround {
	b.Helper()
	ns, err := embedded.Start(embedded.Config{Dir: b.TempDir(), Logger: quietLog()})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(ns.Stop)
	f := benchFabric(b, ns, fabric.Config{InProcess: ns, Spec: fabric.StreamSpec{MaxPerTenant: 1 << 30}})
	creds, err := ns.Standalone()
	if err != nil {
		b.Fatal(err)
	}
	nc, err := nats.Connect("", nats.InProcessServer(ns), nats.UserJWT(creds.JWT, creds.Sign))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		b.Fatal(err)
	}
	return benchGround{f, nc, js}
}

// cpu reports the processor time of one operation, broker included: unlike the clock it hardly moves with what else runs.
func cpu(b *testing.B) func() {
	b.Helper()
	began := processTime(b)
	return func() { b.ReportMetric(float64((processTime(b)-began).Nanoseconds())/float64(b.N), "cpu-ns/op") }
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
	sum := sha256.Sum256(body)
	msg := nats.NewMsg("compass.q.main." + fabrictest.TenantA + ".message_posted")
	msg.Data = body
	msg.Header.Set(naming.HeaderProducer, "0123456789abcdef")
	msg.Header.Set(naming.HeaderDigest, hex.EncodeToString(sum[:]))
	msg.Header.Set(naming.HeaderVersion, "1")
	id := fabrictest.TenantA + ".message_posted." + benchRow(i) + ".1"
	ctx, cancel := context.WithTimeout(context.Background(), fabric.DefaultPublishTimeout)
	defer cancel()
	if _, err := g.js.PublishMsg(ctx, msg, jetstream.WithMsgID(id), jetstream.WithExpectStream("CMP_main")); err != nil {
		b.Fatal(err)
	}
}

// bareRead is what whoever gets a reference has to look at before it may believe it.
func bareRead(subject, reply string, header nats.Header, body []byte) error {
	var ref fabric.EventRef
	if err := json.Unmarshal(body, &ref); err != nil {
		return err
	}
	if sum := sha256.Sum256(body); header.Get(naming.HeaderDigest) != hex.EncodeToString(sum[:]) {
		return errors.New("not the body that was sent")
	}
	if parts := strings.Split(subject, "."); parts[3] != ref.Tenant || parts[4] != string(ref.Kind) {
		return errors.New("not what its subject says")
	}
	if _, err := strconv.ParseInt(header.Get(naming.HeaderVersion), 10, 64); err != nil {
		return err
	}
	_, err := strconv.Atoi(strings.Split(reply, ".")[4]) // how often it was delivered
	return err
}

// BenchmarkPublish takes turns with its twin, a short while each, so that what else the machine does meets both.
func BenchmarkPublish(b *testing.B) {
	g := newBenchGround(b)
	const turn = 100
	var took, used [2]time.Duration
	for i := 0; b.Loop(); i++ {
		for who, publish := range []func(*testing.B, int){g.publish, g.barePublish} {
			began, cpu := time.Now(), processTime(b)
			for n := range turn {
				publish(b, (2*i+who)*turn+n)
			}
			took[who] += time.Since(began)
			used[who] += processTime(b) - cpu
		}
	}
	b.ReportMetric(float64(took[1])/float64(took[0]), "of-bare")
	b.ReportMetric(float64(used[1])/float64(used[0]), "cpu-of-bare")
}

func BenchmarkHint(b *testing.B) {
	g := newBenchGround(b)
	fill(b, g)
	g.publish(b, b.N)
	ready, begin, done := make(chan struct{}), make(chan struct{}), make(chan struct{})
	var n int
	end, err := g.f.SubscribeKind(context.Background(), fabric.KindMessagePosted, func(context.Context, fabric.EventRef) error {
		switch n {
		case 0: // the one more: what comes before it is making the consumer
			close(ready)
			<-begin
		case b.N:
			close(done)
		}
		n++
		return nil
	})
	if err != nil {
		b.Fatal(err)
	}
	<-ready
	b.ResetTimer()
	report := cpu(b)
	close(begin)
	<-done
	report()
	b.StopTimer()
	end()
}

// BenchmarkHintBare asks for one, acks it and asks for the next: the least that the same guarantees cost. It is what stands
// beside Hint, because the library's Consume stalls with one fetched ahead, and its Next subscribes for each.
func BenchmarkHintBare(b *testing.B) {
	g := newBenchGround(b)
	fill(b, g)
	c := g.bareConsumer(b)
	sub, err := g.nc.SubscribeSync(g.nc.NewInbox())
	if err != nil {
		b.Fatal(err)
	}
	b.ResetTimer()
	report := cpu(b)
	for range b.N {
		if err := g.nc.PublishRequest("$JS.API.CONSUMER.MSG.NEXT."+c.CachedInfo().Stream+"."+c.CachedInfo().Name, sub.Subject,
			[]byte(`{"batch":1,"expires":10000000000,"idle_heartbeat":2000000000}`)); err != nil {
			b.Fatal(err)
		}
		msg, err := sub.NextMsg(5 * time.Second)
		if err != nil {
			b.Fatal(err)
		}
		if err := bareRead(msg.Subject, msg.Reply, msg.Header, msg.Data); err != nil {
			b.Fatal(err)
		}
		if err := msg.Ack(); err != nil {
			b.Fatal(err)
		}
	}
	report()
}

// BenchmarkHintLibrary is the client library's own way to the same: one at a time, none fetched ahead.
func BenchmarkHintLibrary(b *testing.B) {
	g := newBenchGround(b)
	fill(b, g)
	c := g.bareConsumer(b)
	b.ResetTimer()
	report := cpu(b)
	for range b.N {
		msg, err := c.Next()
		if err != nil {
			b.Fatal(err)
		}
		if err := bareRead(msg.Subject(), msg.Reply(), msg.Headers(), msg.Data()); err != nil {
			b.Fatal(err)
		}
		if err := msg.Ack(); err != nil {
			b.Fatal(err)
		}
	}
	report()
}

func (g benchGround) bareConsumer(b *testing.B) jetstream.Consumer {
	b.Helper()
	c, err := g.js.CreateOrUpdateConsumer(context.Background(), "CMP_main", jetstream.ConsumerConfig{
		Durable: "bare", FilterSubject: "compass.q.main.>", AckPolicy: jetstream.AckExplicitPolicy, AckWait: fabric.DefaultAckWait,
		MaxAckPending: fabric.DefaultMaxAckPending, MaxDeliver: -1,
	})
	if err != nil {
		b.Fatal(err)
	}
	return c
}

func fill(b *testing.B, g benchGround) {
	b.Helper()
	for i := range b.N {
		g.publish(b, i)
	}
}

// BenchmarkGap is the time from when a restarted server takes connections until a reference published then is delivered, the
// worst of all.
func BenchmarkGap(b *testing.B) {
	dir, listen := b.TempDir(), "127.0.0.1:"+strconv.Itoa(freePort(b))
	start := func() *embedded.Server {
		ns, err := embedded.Start(embedded.Config{Dir: dir, Listen: listen, Logger: quietLog()})
		if err != nil {
			b.Fatal(err)
		}
		return ns
	}
	ns := start()
	defer func() { ns.Stop() }()
	f := benchFabric(b, ns, fabric.Config{URLs: []string{ns.URL()}})
	arrived := make(chan string, 1024)
	if _, err := f.SubscribeKind(context.Background(), fabric.KindMessagePosted, func(_ context.Context, ref fabric.EventRef) error {
		arrived <- ref.RowID
		return nil
	}); err != nil {
		b.Fatal(err)
	}
	subject, _ := fabric.CommsSubject(fabrictest.TenantA, fabric.KindMessagePosted)
	var worst time.Duration
	for i := 0; b.Loop(); i++ {
		ns.Stop()
		ns = start()
		began := time.Now()
		for f.Publish(context.Background(), subject, fabrictest.Ref(fabrictest.TenantA, benchRow(i))) != nil {
			<-time.After(time.Millisecond)
		}
		for row := range arrived {
			if row == benchRow(i) {
				break
			}
		}
		worst = max(worst, time.Since(began))
	}
	b.ReportMetric(float64(worst.Milliseconds()), "worst-ms")
}

// BenchmarkDown is the share of one processor that a process uses while its broker is away. One operation is five seconds.
func BenchmarkDown(b *testing.B) {
	ns, err := embedded.Start(embedded.Config{Dir: b.TempDir(), Listen: "127.0.0.1:0", Logger: quietLog()})
	if err != nil {
		b.Fatal(err)
	}
	f := benchFabric(b, ns, fabric.Config{URLs: []string{ns.URL()}})
	if _, err := f.SubscribeKind(context.Background(), fabric.KindMessagePosted, func(context.Context, fabric.EventRef) error { return nil }); err != nil {
		b.Fatal(err)
	}
	p, err := fabric.NewPublisher(fabric.PublisherConfig{Fabric: f, Logger: quietLog()})
	if err != nil {
		b.Fatal(err)
	}
	ns.Stop()
	for f.Connected() {
		<-time.After(time.Millisecond)
	}
	for i := range 100 { // what was posted when it went
		if err := p.Enqueue(context.Background(), fabrictest.Ref(fabrictest.TenantA, benchRow(i))); err != nil {
			b.Fatal(err)
		}
	}
	began, used := time.Now(), processTime(b)
	for b.Loop() {
		<-time.After(5 * time.Second)
	}
	b.ReportMetric(100*float64(processTime(b)-used)/float64(time.Since(began)), "cpu-%")
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_ = p.Close(ctx)
}

// benchFabric opens a fabric with the default settings.
func benchFabric(b *testing.B, ns *embedded.Server, cfg fabric.Config) *fabric.Fabric {
	b.Helper()
	creds, err := ns.Standalone()
	if err != nil {
		b.Fatal(err)
	}
	cfg.Name, cfg.Credentials, cfg.Stream, cfg.Manage, cfg.Logger = "bench", creds, fabrictest.Stream, true, quietLog()
	f, err := fabric.New(cfg)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = f.Close(context.Background()) })
	return f
}
