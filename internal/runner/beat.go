package runner

import (
	"context"
	"errors"
	"fmt"
	"time"

	compassv1 "github.com/rigelbuild/compass-operator/api/proto/compass/v1"
)

// helloRetry is the pause between attempts to begin an incarnation.
const helloRetry = 500 * time.Millisecond

// missed is after how many heartbeats without an answer a Runner says that it is not ready.
const missed = 3

// beat says hello and then heartbeats until the context ends. Where the Servers say that this incarnation is over, every
// session is dropped and another hello begins the next.
func (r *Runner) beat(ctx context.Context) {
	for {
		every, ok := r.hello(ctx)
		if !ok {
			return
		}
		for r.incarnation() != 0 {
			r.heartbeat(ctx, every)
			select {
			case <-r.clock.After(every):
			case <-ctx.Done():
				return
			}
		}
	}
}

func (r *Runner) hello(ctx context.Context) (time.Duration, bool) {
	for {
		try, cancel := context.WithTimeout(ctx, eventTimeout)
		answer, err := r.server.Hello(try, request(&compassv1.HelloRequest{RunnerId: r.id}))
		cancel()
		if err == nil {
			r.mu.Lock()
			r.inc, r.counter = answer.Msg.GetIncarnation(), 0
			r.every, r.heard = time.Duration(answer.Msg.GetHeartbeatMs())*time.Millisecond, r.clock.Now()
			r.mu.Unlock()
			r.log.InfoContext(ctx, "Runner began", "incarnation", answer.Msg.GetIncarnation())
			return time.Duration(answer.Msg.GetHeartbeatMs()) * time.Millisecond, true
		}
		r.log.WarnContext(ctx, "Hello was not answered", "error", err)
		select {
		case <-r.clock.After(helloRetry):
		case <-ctx.Done():
			return 0, false
		}
	}
}

// heartbeat renews the lease and tells the state of every session; its answer heals every edge that was lost.
func (r *Runner) heartbeat(ctx context.Context, every time.Duration) {
	q, over := r.heartbeatRequest()
	try, cancel := context.WithTimeout(ctx, every)
	defer cancel()
	answer, err := r.server.Heartbeat(try, request(q))
	if err != nil {
		r.log.WarnContext(ctx, "Heartbeat was not answered", "error", err)
		return
	}
	if answer.Msg.GetExpired() {
		r.drop(ctx)
		return
	}
	r.mu.Lock()
	r.heard = r.clock.Now()
	for _, id := range over { // it was heard
		delete(r.sessions, id)
	}
	r.mu.Unlock()
	for _, orders := range answer.Msg.GetSessions() {
		r.obey(orders)
	}
}

// Ready is nil while Servers answer: without them no session starts here, and the lease on what runs is about to end.
func (r *Runner) Ready(context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.inc == 0 {
		return errors.New("no Server has answered a hello yet")
	}
	if silent := r.clock.Now().Sub(r.heard); silent > missed*r.every {
		return fmt.Errorf("no Server has answered a heartbeat for %v", silent.Round(time.Second))
	}
	return nil
}

func (r *Runner) heartbeatRequest() (q *compassv1.HeartbeatRequest, over []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.counter++
	q = &compassv1.HeartbeatRequest{RunnerId: r.id, Incarnation: r.inc, Counter: r.counter}
	for id, s := range r.sessions {
		line := s.heartbeat()
		if line.GetOver() {
			over = append(over, id)
		}
		q.Sessions = append(q.Sessions, line)
	}
	for id, start := range r.claiming { // or a heartbeat that overtakes the claim would end the session
		q.Sessions = append(q.Sessions, &compassv1.SessionState{SessionId: id, Generation: start.GetGeneration()})
	}
	return q, over
}

// drop ends everything: this incarnation is over, and so is whatever its sessions believe.
func (r *Runner) drop(ctx context.Context) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.log.WarnContext(ctx, "Runner was expired; dropping its sessions", "sessions", len(r.sessions))
	for _, s := range r.sessions {
		s.end()
	}
	r.sessions, r.inc = map[string]*Session{}, 0
}

func (r *Runner) obey(o *compassv1.HeartbeatResponse_SessionOrders) {
	if o.GetStart() != nil {
		r.claim(o.GetStart())
	}
	r.mu.Lock()
	s := r.sessions[o.GetSessionId()]
	r.mu.Unlock()
	if s == nil {
		return
	}
	if o.GetStop() {
		s.end()
		return
	}
	s.mu.Lock()
	for _, cmd := range o.GetUnacked() {
		s.commands.reack(cmd.GetN())
	}
	missing := o.GetNewestCommand() > s.commands.applied
	s.signal()
	s.mu.Unlock()
	if missing {
		s.fetch()
	}
}
