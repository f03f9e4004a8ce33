package delivery

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// loop is JetStream alone: whoever publishes is believed, the message is the truth, and every consumer gets everything.
type loop struct{ js jetstream.JetStream }

func newLoop(tb testing.TB, recipients int, m *times) *loop {
	tb.Helper()
	broker, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: -1, JetStream: true, StoreDir: tb.TempDir(), NoLog: true, NoSigs: true})
	must(tb, err)
	go broker.Start()
	tb.Cleanup(func() { broker.Shutdown(); broker.WaitForShutdown() })
	if !broker.ReadyForConnections(30 * time.Second) {
		tb.Fatal("the broker does not start")
	}
	conn, err := nats.Connect(broker.ClientURL())
	must(tb, err)
	tb.Cleanup(conn.Close)
	js, err := jetstream.New(conn)
	must(tb, err)
	stream, err := js.CreateStream(tb.Context(), jetstream.StreamConfig{Name: "BENCH", Subjects: []string{"bench"}})
	must(tb, err)
	for n := range recipients {
		consumer, err := stream.CreateConsumer(tb.Context(), jetstream.ConsumerConfig{Durable: fmt.Sprint("r", n), AckPolicy: jetstream.AckExplicitPolicy})
		must(tb, err)
		running, err := consumer.Consume(func(msg jetstream.Msg) {
			m.enter(string(msg.Data()))
			_ = msg.Ack()
		})
		must(tb, err)
		tb.Cleanup(running.Stop)
	}
	return &loop{js: js}
}

// timedLoop counts a message as committed when the broker has said so.
type timedLoop struct {
	*loop
	times *times
}

func (l timedLoop) post(ctx context.Context, words string) (string, error) {
	_, err := l.js.Publish(ctx, "bench", []byte(words))
	l.times.commit(words)
	return words, err
}
