package fabric

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
)

// A request for references ends after pullExpiry; a broker that is silent for two heartbeats is taken for frozen. What
// nobody answered is asked again soon, by probes that die before the next one: after a restart a broker takes requests
// before it can serve them, and such a request vanishes without a word.
const (
	pullExpiry    = 10 * time.Second
	pullHeartbeat = 2 * time.Second
	probeWait     = 50 * time.Millisecond
	probesPerPace = 8 // then half as often, down to the pace of heartbeats
)

var errPullEnded = errors.New("broker ends the requests of this consumer")

// pull takes references from one consumer one by one, and asks for more when none is left. The Consume and Messages of the
// client library would drop a request that falls due while they still send the one before; with one reference fetched
// ahead, nothing moves then until heartbeats are missed (nats.go v1.55.0, checkPending: remove pull once that is mended).
// Its Next subscribes anew for each message, and takes two heartbeats to notice a restart.
type pull struct {
	link    *link
	nc      *nats.Conn
	subject string // of requests
	batch   int
	beat    time.Duration // of a broker that has nothing to give
	take    func(*nats.Msg)
	suspect func() // consumer or broker may not be what they were

	sub     *nats.Subscription
	inbox   string // begins the subject of each answer that is no reference
	came    chan *nats.Msg
	usual   []byte          // the request of a broker that answers
	dropped <-chan struct{} // closed when the connection that the request went out on is gone
	epoch   int             // goes up with each request that is taken for lost
	reply   string          // another one in each epoch: what is said about lost requests no longer counts
	owed    int             // references it still asks for
	lost    int             // requests in a row that nobody answered
}

type pullRequest struct {
	Expires   time.Duration `json:"expires"`
	Batch     int           `json:"batch"`
	Heartbeat time.Duration `json:"idle_heartbeat,omitempty"`
}

func (r pullRequest) body() []byte {
	body, _ := json.Marshal(r) // numbers
	return body
}

func nextSubject(stream, consumer string) string {
	return "$JS.API.CONSUMER.MSG.NEXT." + stream + "." + consumer
}

func (q *pull) open() (err error) {
	q.came = make(chan *nats.Msg, 256+2*q.batch) // room for answers to requests that were taken for lost
	q.usual = pullRequest{Expires: pullExpiry, Batch: q.batch, Heartbeat: q.beat}.body()
	q.inbox = q.nc.NewInbox() + "."
	q.reply = q.inbox + "0"
	q.sub, err = q.nc.ChanSubscribe(q.inbox+"*", q.came)
	return err
}

// run returns when ctx ends or the consumer is gone. No callback runs then.
func (q *pull) run(ctx context.Context) error {
	if err := q.open(); err != nil {
		return fmt.Errorf("subscribe: %w", interpret(err))
	}
	defer q.drain()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for ctx.Err() == nil {
		if q.owed == 0 && len(q.came) == 0 {
			q.ask()
		}
		timer.Reset(q.patience())
		select {
		case <-ctx.Done():
		case <-q.dropped:
			q.lost, q.dropped = 0, nil
			q.giveUp()
		case <-timer.C:
			q.giveUp()
		case msg := <-q.came:
			if err := q.hear(msg); err != nil {
				return err
			}
		}
	}
	return nil
}

func (q *pull) ask() {
	request := q.usual
	if q.lost > 0 {
		request = pullRequest{Expires: q.patience() / 2, Batch: q.batch}.body()
	}
	q.owed, q.dropped = q.batch, q.link.dropped()
	if err := q.nc.PublishRequest(q.subject, q.reply, request); err != nil {
		q.lost = 1 // the broker is away: nothing went out, so nothing is known of how it fares
	}
}

// patience is how long the broker may say nothing.
func (q *pull) patience() time.Duration {
	if q.lost == 0 {
		return 2 * q.beat
	}
	return min(probeWait<<min(q.lost/probesPerPace, 10), 2*q.beat)
}

// giveUp takes the request for lost.
func (q *pull) giveUp() {
	q.owed = 0
	q.epoch++
	q.reply = q.inbox + strconv.Itoa(q.epoch)
	q.lost++
	if q.lost%probesPerPace == 1 {
		q.suspect()
	}
}

// hear takes a reference, which keeps its own subject and may carry any header, or the broker's word about a request.
func (q *pull) hear(msg *nats.Msg) error {
	if !strings.HasPrefix(msg.Subject, q.inbox) {
		q.owed, q.lost = max(q.owed-1, 0), 0
		q.take(msg)
		return nil
	}
	status, text := msg.Header.Get("Status"), msg.Header.Get("Description")
	switch {
	case status == "400", text == "Consumer Deleted":
		return fmt.Errorf("%w: %s %s", errPullEnded, status, text)
	case msg.Subject != q.reply:
	case status == "100": // a heartbeat
		q.lost = 0
	case status == "408": // it has ended
		q.owed, q.lost = 0, 0
	case q.lost == 0: // nobody there, or not yet, or no longer: ask again in a while
		q.lost = 1
		q.suspect()
	}
	return nil
}

// drain takes what has come already and nothing more.
func (q *pull) drain() {
	closed := make(chan struct{})
	q.sub.SetClosedHandler(func(string) { close(closed) })
	if q.nc.IsConnected() && q.sub.Drain() == nil {
		select {
		case <-closed:
		case <-time.After(q.link.cfg.Link.Drain):
		}
	}
	_ = q.sub.Unsubscribe() // fails only where it is gone already
	for {
		select {
		case msg := <-q.came:
			_ = q.hear(msg) // it is over anyway
		default:
			return
		}
	}
}
