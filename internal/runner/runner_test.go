package runner_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"

	compassv1 "github.com/rigelbuild/compass-operator/api/proto/compass/v1"
	"github.com/rigelbuild/compass-operator/api/proto/compass/v1/compassv1connect"
	"github.com/rigelbuild/compass-operator/internal/fabric"
	"github.com/rigelbuild/compass-operator/internal/runner"
)

const (
	tenant  = "t_a"
	session = "ses_t_a_1"
)

// world is a Server and a broker that hold state and can be told to stay silent.
type world struct {
	compassv1connect.UnimplementedRunnerServiceHandler

	mu       sync.Mutex
	deliver  func(context.Context, *compassv1.Command, *compassv1.SessionsResponse)
	states   []*compassv1.RunnerState
	events   []*compassv1.RunnerEvent
	calls    []*compassv1.RelayCommsCallRequest
	claims   int
	claimErr error
	silent   int // so many calls are applied but not answered
	beats    []*compassv1.HeartbeatRequest
	orders   []*compassv1.HeartbeatResponse_SessionOrders
	expired  bool
	away     bool // heartbeats reach nobody
	fetch    []*compassv1.SessionCommand
	changed  chan struct{}
}

func newWorld() *world { return &world{changed: make(chan struct{}, 1)} }

func (w *world) note(fn func()) {
	w.mu.Lock()
	fn()
	w.mu.Unlock()
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

// until waits for a condition on the world; the deadline only bounds a hang.
func (w *world) until(t *testing.T, what string, cond func() bool) {
	t.Helper()
	hang := time.After(20 * time.Second)
	for {
		w.mu.Lock()
		ok := cond()
		w.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-w.changed:
		case <-time.After(20 * time.Millisecond):
		case <-hang:
			t.Fatalf("never: %s", what)
		}
	}
}

func (w *world) Commands(_ context.Context, fn func(context.Context, *compassv1.Command, *compassv1.SessionsResponse)) (fabric.Unsubscribe, error) {
	w.note(func() { w.deliver = fn })
	return func() {}, nil
}

func (w *world) State(_ context.Context, _ string, s *compassv1.RunnerState) error {
	w.note(func() { w.states = append(w.states, s) })
	return nil
}

func (w *world) Event(_ context.Context, e *compassv1.RunnerEvent) (*compassv1.RunnerEventAnswer, error) {
	silent := false
	w.note(func() {
		w.events = append(w.events, e)
		if silent = w.silent > 0; silent {
			w.silent--
		}
	})
	if silent {
		return nil, errors.New("no answer")
	}
	return &compassv1.RunnerEventAnswer{}, nil
}

type client struct {
	compassv1connect.RunnerServiceClient
	w *world
}

func (c client) Hello(context.Context, *connect.Request[compassv1.HelloRequest]) (*connect.Response[compassv1.HelloResponse], error) {
	c.w.note(func() { c.w.expired = false })
	return connect.NewResponse(&compassv1.HelloResponse{Incarnation: 7, HeartbeatMs: 10, LeaseMs: 30}), nil
}

func (c client) Heartbeat(_ context.Context, q *connect.Request[compassv1.HeartbeatRequest]) (*connect.Response[compassv1.HeartbeatResponse], error) {
	answer, away := &compassv1.HeartbeatResponse{}, false
	c.w.note(func() {
		if away = c.w.away; away {
			return
		}
		c.w.beats = append(c.w.beats, q.Msg)
		answer.Expired = c.w.expired
		answer.Sessions = c.w.orders
		c.w.orders = nil
	})
	if away {
		return nil, connect.NewError(connect.CodeUnavailable, errors.New("away"))
	}
	return connect.NewResponse(answer), nil
}

func (c client) ClaimStart(context.Context, *connect.Request[compassv1.ClaimStartRequest]) (*connect.Response[compassv1.ClaimStartResponse], error) {
	var err error
	c.w.note(func() { c.w.claims++; err = c.w.claimErr })
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&compassv1.ClaimStartResponse{AgentId: "a_1", AgentHandle: "bot", TenantId: tenant}), nil
}

func (c client) FetchCommands(context.Context, *connect.Request[compassv1.FetchCommandsRequest]) (*connect.Response[compassv1.FetchCommandsResponse], error) {
	answer := &compassv1.FetchCommandsResponse{}
	c.w.note(func() { answer.Commands = c.w.fetch })
	return connect.NewResponse(answer), nil
}

func (c client) SendEvent(context.Context, *connect.Request[compassv1.SendEventRequest]) (*connect.Response[compassv1.SendEventResponse], error) {
	return nil, connect.NewError(connect.CodeUnavailable, errors.New("down as well"))
}

func (c client) RelayCommsCall(_ context.Context, q *connect.Request[compassv1.RelayCommsCallRequest]) (*connect.Response[compassv1.RelayCommsCallResponse], error) {
	c.w.note(func() { c.w.calls = append(c.w.calls, q.Msg) })
	return connect.NewResponse(&compassv1.RelayCommsCallResponse{Message: &compassv1.Message{Id: "m_" + q.Msg.GetTurnId(), ChannelId: "c"}}), nil
}

func start(t *testing.T, w *world, agent runner.Agent) *runner.Runner {
	return startBy(t, w, agent, nil)
}

func startBy(t *testing.T, w *world, agent runner.Agent, clock runner.Clock) *runner.Runner {
	t.Helper()
	r, err := runner.New(runner.Options{ID: "r-1", Server: client{w: w}, Link: w, Agent: agent, Log: slog.New(slog.DiscardHandler), Clock: clock})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = r.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	w.until(t, "the Runner heartbeats", func() bool { return w.deliver != nil && len(w.beats) > 0 })
	return r
}

func (w *world) send(ctx context.Context, cmd *compassv1.Command) {
	cmd.RunnerId, cmd.TenantId, cmd.SessionId, cmd.Generation = "r-1", tenant, session, 3
	w.sendAs(ctx, cmd)
}

func (w *world) sendAs(ctx context.Context, cmd *compassv1.Command) {
	w.mu.Lock()
	deliver := w.deliver
	w.mu.Unlock()
	deliver(ctx, cmd, &compassv1.SessionsResponse{KeyId: "k"})
}

func (w *world) startSession(ctx context.Context) {
	w.send(ctx, &compassv1.Command{Kind: &compassv1.Command_Start{Start: &compassv1.Start{SessionId: session, Generation: 3}}})
}

func (w *world) link(ctx context.Context, lease, prev, pos int64, id string) {
	w.send(ctx, &compassv1.Command{Stream: "main", Fence: &compassv1.Fence{Claim: 1, Lease: lease}, Kind: &compassv1.Command_Deliver{Deliver: &compassv1.Deliver{
		Prev: prev, Pos: pos, Message: &compassv1.Message{Id: id, ChannelId: "c", Pos: pos, Blocks: []*compassv1.Block{runner.Text(id)}},
	}}})
}

func (w *world) acked() (pos int64) {
	for _, e := range w.events {
		for _, a := range e.GetAck().GetChannels() {
			pos = max(pos, a.GetPos())
		}
	}
	return pos
}

// took is an agent that only consumes, and says what.
func took(w *world, into *[]string) runner.Agent {
	return func(ctx context.Context, s *runner.Session) error {
		for {
			item, err := s.Next(ctx)
			if err != nil {
				return err
			}
			w.note(func() { *into = append(*into, item.Message.GetId()+item.Text) })
			s.Done(item)
		}
	}
}

func TestDeliveriesAreTakenInOrderAndAcked(t *testing.T) {
	t.Parallel()
	w := newWorld()
	var got []string
	start(t, w, took(w, &got))
	w.startSession(t.Context())
	w.startSession(t.Context()) // a replayed start
	w.until(t, "the session is claimed", func() bool { return w.claims > 0 && len(w.beats[len(w.beats)-1].GetSessions()) == 1 })

	w.link(t.Context(), 5, 10, 12, "m_b") // overtook m_a
	w.link(t.Context(), 5, 0, 10, "m_a")
	w.link(t.Context(), 5, 10, 12, "m_b")
	w.link(t.Context(), 4, 12, 14, "m_stale") // a worker that was replaced
	w.until(t, "both are acknowledged", func() bool { return w.acked() == 12 })
	w.until(t, "the stale worker is refused with a proof", func() bool {
		for _, s := range w.states {
			if s.GetRefused() && s.GetSeen().GetLease() == 5 && s.GetSeenProof() != nil {
				return true
			}
		}
		return false
	})
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(got) != 2 || got[0] != "m_a" || got[1] != "m_b" {
		t.Errorf("agent took %v: want m_a and m_b, each once", got)
	}
	if w.claims != 1 {
		t.Errorf("claims = %d: a replayed start must not be claimed again by a session that runs", w.claims)
	}
}

// patient is the wall clock, but the time to gather acks is never over.
type patient struct{}

func (patient) Now() time.Time { return time.Now() }

func (patient) After(d time.Duration) <-chan time.Time {
	if d == 50*time.Millisecond {
		return nil
	}
	return time.After(d)
}

// Acks are gathered for a while, and no longer than until half a window is consumed: what follows waits for room.
func TestMuchIsAckedAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld()
	var got []string
	startBy(t, w, took(w, &got), patient{})
	w.startSession(t.Context())
	w.until(t, "the session is claimed", func() bool { return len(w.beats[len(w.beats)-1].GetSessions()) == 1 })
	for pos := range int64(8) {
		w.link(t.Context(), 5, pos, pos+1, fmt.Sprint("m_", pos))
	}
	w.until(t, "eight are acknowledged", func() bool { return w.acked() == 8 })
	w.link(t.Context(), 5, 8, 9, "m_8")
	w.until(t, "the ninth is consumed", func() bool { return len(got) == 9 })
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.events) != 1 {
		t.Errorf("%d acks: the ninth message alone must still wait for others", len(w.events))
	}
}

// Holds REQ-229: an event keeps its number until it is answered, so that a repeat is not applied twice; the next one waits.
func TestEventsKeepTheirNumberUntilAnswered(t *testing.T) {
	t.Parallel()
	w := newWorld()
	w.silent = 2
	start(t, w, func(ctx context.Context, s *runner.Session) error {
		for range 2 {
			err := s.Turn(ctx, func(ctx context.Context, turn *runner.Turn) error {
				_, err := turn.Post(ctx, "c", runner.Text("hello"))
				return err
			})
			if err != nil {
				return err
			}
		}
		<-ctx.Done()
		return nil
	})
	w.startSession(t.Context())
	settled := func() (ns []int64) {
		for _, e := range w.events {
			if e.GetTurnSettled() != nil {
				ns = append(ns, e.GetN())
			}
		}
		return ns
	}
	w.until(t, "two turns settle", func() bool { ns := settled(); return len(ns) > 0 && ns[len(ns)-1] == 4 })
	w.mu.Lock()
	defer w.mu.Unlock()
	if ns := settled(); len(ns) != 4 || ns[0] != 2 || ns[1] != 2 || ns[2] != 2 {
		t.Errorf("settles had the numbers %v: want 2 three times (two were not answered), then 4", ns)
	}
	if w.calls[0].GetTurnId() == w.calls[1].GetTurnId() {
		t.Error("two turns have one name")
	}
}

func TestHeartbeatAnswerHealsWhatWasLost(t *testing.T) {
	t.Parallel()
	w := newWorld()
	var got []string
	start(t, w, took(w, &got))
	// The start command was lost.
	w.note(func() {
		w.orders = []*compassv1.HeartbeatResponse_SessionOrders{{SessionId: session, Start: &compassv1.Start{SessionId: session, Generation: 3}}}
	})
	w.until(t, "the session runs", func() bool { return len(w.beats[len(w.beats)-1].GetSessions()) == 1 && w.claims == 1 })
	// Both hints of commands were lost.
	w.note(func() {
		w.fetch = []*compassv1.SessionCommand{{N: 9, Prev: 8, Text: "second"}, {N: 8, Text: "first"}}
		w.orders = []*compassv1.HeartbeatResponse_SessionOrders{{SessionId: session, NewestCommand: 9}}
	})
	w.until(t, "both steers are taken", func() bool { return len(got) == 2 })
	w.mu.Lock()
	if got[0] != "first" || got[1] != "second" {
		t.Errorf("steers = %v: want the order of their rows", got)
	}
	w.expired = true
	w.mu.Unlock()
	w.until(t, "an expired Runner drops its sessions", func() bool {
		return !w.expired && len(w.beats[len(w.beats)-1].GetSessions()) == 0
	})
}

// A delivery for another Runner, another tenant or another life of the session moves nothing; the sender hears that the
// session is gone, unless it spoke to somebody else.
func TestDeliveriesOfAnotherLife(t *testing.T) {
	t.Parallel()
	w := newWorld()
	var got []string
	start(t, w, took(w, &got))
	w.startSession(t.Context())
	w.until(t, "the session is claimed", func() bool { return len(w.beats[len(w.beats)-1].GetSessions()) == 1 })
	for _, to := range []*compassv1.Command{
		{RunnerId: "r-2", TenantId: tenant, SessionId: session, Generation: 3},
		{RunnerId: "r-1", TenantId: "t_b", SessionId: session, Generation: 3},
		{RunnerId: "r-1", TenantId: tenant, SessionId: session, Generation: 2},
		{RunnerId: "r-1", TenantId: tenant, SessionId: "ses_t_a_0", Generation: 3},
	} {
		to.Stream, to.Kind = "main", &compassv1.Command_Deliver{Deliver: &compassv1.Deliver{
			Pos: 1, Message: &compassv1.Message{Id: "m_wrong", ChannelId: "c", Pos: 1}}}
		w.sendAs(t.Context(), to)
	}
	w.link(t.Context(), 5, 0, 1, "m_right")
	w.until(t, "one is taken", func() bool { return len(got) > 0 })
	w.until(t, "three are told to be gone", func() bool {
		gone := 0
		for _, s := range w.states {
			if s.GetGone() {
				gone++
			}
		}
		return gone == 3
	})
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(got) != 1 || got[0] != "m_right" {
		t.Errorf("took %v", got)
	}
}

// What a Server says of a session in the answer to a heartbeat: that an ack was forgotten, and that it shall stop. A start
// that comes again claims nothing.
func TestHeartbeatAnswerAsksAndStops(t *testing.T) {
	t.Parallel()
	w := newWorld()
	var got []string
	start(t, w, took(w, &got))
	w.startSession(t.Context())
	w.until(t, "the session is claimed", func() bool { return len(w.beats[len(w.beats)-1].GetSessions()) == 1 })
	w.startSession(t.Context())
	w.send(t.Context(), &compassv1.Command{Kind: &compassv1.Command_Command{Command: &compassv1.SessionCommand{N: 5, Text: "steer"}}})
	acks := func() (n int) {
		for _, e := range w.events {
			n += len(e.GetAck().GetCommands())
		}
		return n
	}
	w.until(t, "the steer is acknowledged", func() bool { return acks() == 1 })
	w.note(func() {
		w.orders = []*compassv1.HeartbeatResponse_SessionOrders{{SessionId: session, NewestCommand: 5, Unacked: []*compassv1.SessionCommand{{N: 5}}}}
	})
	w.until(t, "and again when it is asked for", func() bool { return acks() == 2 })
	w.note(func() { w.orders = []*compassv1.HeartbeatResponse_SessionOrders{{SessionId: session, Stop: true}} })
	w.until(t, "the session is over, and then no more", func() bool { return len(w.beats[len(w.beats)-1].GetSessions()) == 0 })
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.claims != 1 || len(got) != 1 {
		t.Errorf("claimed %d times, took %v: want each once", w.claims, got)
	}
}

// A Runner that no Server hears is not ready: no session starts there.
func TestReadyWhileServersAnswer(t *testing.T) {
	t.Parallel()
	w := newWorld()
	r := start(t, w, took(w, new([]string)))
	ready := func() bool { return r.Ready(t.Context()) == nil }
	w.until(t, "ready", ready)
	w.note(func() { w.away = true })
	w.until(t, "not ready without an answer", func() bool { return !ready() })
	w.note(func() { w.away = false })
	w.until(t, "ready again", ready)
}

func TestAskWaitsForItsAnswerInsideTheTurn(t *testing.T) {
	t.Parallel()
	w := newWorld()
	var answer string
	start(t, w, func(ctx context.Context, s *runner.Session) error {
		return s.Turn(ctx, func(ctx context.Context, turn *runner.Turn) error {
			m, err := turn.Ask(ctx, "c", s.Done, runner.Text("may I?"))
			w.note(func() { answer = m.GetBlocks()[0].GetText() })
			return err
		})
	})
	w.startSession(t.Context())
	w.until(t, "the question is asked", func() bool { return len(w.calls) == 1 })
	w.send(t.Context(), &compassv1.Command{Kind: &compassv1.Command_Command{Command: &compassv1.SessionCommand{
		N: 5, Kind: compassv1.SessionCommandKind_SESSION_COMMAND_KIND_ANSWER,
		Message: &compassv1.Message{Id: "m_x", AskId: "m_turn-1", Pos: 50, Blocks: []*compassv1.Block{runner.Text("yes")}},
	}}})
	w.until(t, "the answer came", func() bool { return answer == "yes" })
	w.until(t, "the answer is acknowledged by number, message and position", func() bool {
		for _, e := range w.events {
			for _, a := range e.GetAck().GetCommands() {
				if a.GetN() == 5 && a.GetMessageId() == "m_x" && a.GetPos() == 50 {
					return true
				}
			}
		}
		return false
	})
}
