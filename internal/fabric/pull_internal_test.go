package fabric

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// asked is a pull whose broker is the test: it says what it likes about requests. Heartbeats are an hour apart, so that
// nothing but what is tried makes the pull ask again.
type asked struct {
	ns       *server.Server
	nc       *nats.Conn // the test's own
	link     *link
	requests chan *nats.Msg
	ended    chan error
	suspects chan struct{}
}

func startAsked(t *testing.T) *asked {
	t.Helper()
	ns, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: -1, NoSigs: true, NoLog: true})
	if err != nil {
		t.Fatal(err)
	}
	go ns.Start()
	t.Cleanup(func() { ns.Shutdown(); ns.WaitForShutdown() })
	if !ns.ReadyForConnections(30 * time.Second) {
		t.Fatal("the server does not start")
	}
	a := &asked{ns: ns, requests: make(chan *nats.Msg, 1024), ended: make(chan error, 1), suspects: make(chan struct{}, 1024)}
	if a.nc, err = nats.Connect(ns.ClientURL()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.nc.Close)
	if _, err := a.nc.ChanSubscribe(nextSubject("S", "c"), a.requests); err != nil {
		t.Fatal(err)
	}
	if err := a.nc.Flush(); err != nil {
		t.Fatal(err)
	}
	cfg, err := Config{Name: "pull", URLs: []string{ns.ClientURL()}, Logger: slog.New(slog.DiscardHandler)}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	m, err := newMetrics(nil)
	if err != nil {
		t.Fatal(err)
	}
	l, err := dial(t.Context(), cfg, m)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.close)
	a.link = l
	q := &pull{
		link: l, nc: l.nc, subject: nextSubject("S", "c"), batch: 1, beat: time.Hour,
		take: func(*nats.Msg) {}, suspect: func() { a.suspects <- struct{}{} },
	}
	ctx, cancel := context.WithCancel(t.Context())
	go func() { a.ended <- q.run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-a.ended; err != nil {
			t.Error(err)
		}
	})
	return a
}

// next waits for a request: the usual one, or a probe, which dies soon.
func (a *asked) next(t *testing.T, probe bool) (reply string) {
	t.Helper()
	select {
	case msg := <-a.requests:
		var r pullRequest
		if err := json.Unmarshal(msg.Data, &r); err != nil {
			t.Fatal(err)
		}
		if got := r.Heartbeat == 0 && r.Expires < probeWait; got != probe || r.Batch != 1 {
			t.Fatalf("asked for %+v, want a probe: %t", r, probe)
		}
		return msg.Reply
	case <-time.After(30 * time.Second):
		t.Fatal("nothing is asked for")
	}
	return ""
}

func (a *asked) say(t *testing.T, reply, status, text string) {
	t.Helper()
	msg := &nats.Msg{Subject: reply, Header: nats.Header{"Status": {status}, "Description": {text}}}
	if err := a.nc.PublishMsg(msg); err != nil {
		t.Fatal(err)
	}
}

func TestPullAsksAnewOnANewConnection(t *testing.T) {
	t.Parallel()
	a := startAsked(t)
	first := a.next(t, false)
	cid, err := a.link.nc.GetClientID()
	if err != nil {
		t.Fatal(err)
	}
	if err := a.ns.DisconnectClientByID(cid); err != nil {
		t.Fatal(err)
	}
	second := a.next(t, true)
	if first == second {
		t.Error("what is said about the lost request counts for the new one")
	}
	a.say(t, first, "408", "Request Timeout") // about the lost one: the broker may still be silent about the new one
	a.next(t, true)
}

func TestPullProbesWhereNobodyServes(t *testing.T) {
	t.Parallel()
	a := startAsked(t)
	a.say(t, a.next(t, false), "503", "")
	select {
	case <-a.suspects:
	case <-time.After(30 * time.Second):
		t.Fatal("nobody looks what is wrong")
	}
	a.next(t, true)
}

func TestPullEndsWithItsConsumer(t *testing.T) {
	t.Parallel()
	for name, say := range map[string][2]string{"Deleted": {"409", "Consumer Deleted"}, "Refused": {"400", "Bad Request"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := startAsked(t)
			a.say(t, a.next(t, false), say[0], say[1])
			select {
			case err := <-a.ended:
				if !errors.Is(err, errPullEnded) {
					t.Errorf("got %v, want errPullEnded", err)
				}
				a.ended <- nil
			case <-time.After(30 * time.Second):
				t.Fatal("it goes on")
			}
		})
	}
}
