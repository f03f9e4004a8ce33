package runner

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"

	compassv1 "github.com/rigelbuild/compass-operator/api/proto/compass/v1"
	"github.com/rigelbuild/compass-operator/api/proto/compass/v1/compassv1connect"
)

// Options are what a Runner needs. All but Clock are required.
type Options struct {
	// ID that enrolment gave.
	ID string
	// Server is any Server; its client proves who the Runner is.
	Server compassv1connect.RunnerServiceClient
	Link   Link
	// Agent runs in every session.
	Agent Agent
	Log   *slog.Logger
	// Clock defaults to the wall clock.
	Clock Clock
}

// Runner hosts sessions.
type Runner struct {
	id     string
	server compassv1connect.RunnerServiceClient
	link   Link
	agent  Agent
	log    *slog.Logger
	clock  Clock

	news chan struct{} // something in told
	work sync.WaitGroup
	life context.Context //nolint:containedctx // the lifetime of Run, under which whatever a command sets off is spawned

	mu       sync.Mutex
	inc      int64
	counter  int64
	every    time.Duration // between heartbeats
	heard    time.Time     // when a Server last answered
	fences   fences
	sessions map[string]*Session
	claiming map[string]*compassv1.Start
	told     map[*Session]bool // sessions whose state a worker has yet to hear
	refused  []refusal
}

type refusal struct {
	stream string
	state  *compassv1.RunnerState
}

// New makes a Runner; Run starts it.
func New(o Options) (*Runner, error) {
	if o.ID == "" || o.Server == nil || o.Link == nil || o.Agent == nil || o.Log == nil {
		return nil, errors.New("runner: ID, Server, Link, Agent and Log are required")
	}
	if o.Clock == nil {
		o.Clock = wallClock{}
	}
	return &Runner{
		id: o.ID, server: o.Server, link: o.Link, agent: o.Agent, log: o.Log, clock: o.Clock,
		news: make(chan struct{}, 1), fences: fences{}, sessions: map[string]*Session{}, claiming: map[string]*compassv1.Start{}, told: map[*Session]bool{},
	}, nil
}

// Run serves until the context ends. It returns an error only where it could not begin to listen.
func (r *Runner) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer r.work.Wait()
	defer cancel()
	r.life = ctx
	stop, err := r.link.Commands(ctx, r.onCommand)
	if err != nil {
		return err
	}
	defer stop()
	r.spawn(r.tellLoop)
	r.beat(ctx)
	return nil
}

func (r *Runner) spawn(fn func(context.Context)) {
	r.work.Add(1)
	go func() {
		defer r.work.Done()
		fn(r.life)
	}()
}

func (r *Runner) incarnation() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.inc
}

// onCommand is the recipient's fence and switch.
func (r *Runner) onCommand(ctx context.Context, cmd *compassv1.Command, signed *compassv1.SessionsResponse) {
	if cmd.GetRunnerId() != r.id {
		r.log.WarnContext(ctx, "Dropped a command for another Runner", "runner", cmd.GetRunnerId())
		return
	}
	s, ok := r.admit(signed, cmd)
	if !ok {
		r.nudge()
		return
	}
	switch kind := cmd.GetKind().(type) {
	case *compassv1.Command_Start:
		r.claim(kind.Start)
	case *compassv1.Command_Deliver:
		if s != nil {
			s.deliver(cmd.GetStream(), kind.Deliver)
		}
	case *compassv1.Command_Command:
		if s != nil {
			s.take(kind.Command)
		}
	}
}

// admit applies the fence and finds the session of this generation. Commands of Servers carry no fence: they are hints of
// rows, and the rows decide.
func (r *Runner) admit(signed *compassv1.SessionsResponse, cmd *compassv1.Command) (*Session, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if cmd.GetFence() != nil && !r.fences.admit(cmd.GetTenantId(), cmd.GetFence(), signed) {
		seen := r.fences[cmd.GetTenantId()]
		r.refused = append(r.refused, refusal{cmd.GetStream(), &compassv1.RunnerState{
			RunnerId: r.id, TenantId: cmd.GetTenantId(), SessionId: cmd.GetSessionId(), Generation: cmd.GetGeneration(),
			Refused: true, Seen: seen.seen, SeenProof: seen.proof,
		}})
		return nil, false
	}
	s := r.sessions[cmd.GetSessionId()]
	if s != nil && s.generation == cmd.GetGeneration() && s.tenant == cmd.GetTenantId() {
		return s, true
	}
	if cmd.GetDeliver() != nil {
		r.refused = append(r.refused, refusal{cmd.GetStream(), &compassv1.RunnerState{
			RunnerId: r.id, TenantId: cmd.GetTenantId(), SessionId: cmd.GetSessionId(), Generation: cmd.GetGeneration(), Gone: true,
		}})
		return nil, false
	}
	return nil, true
}

// claim asks a Server whether a start is real: a replayed start command therefore starts nothing.
func (r *Runner) claim(start *compassv1.Start) {
	id := start.GetSessionId()
	r.mu.Lock()
	if r.inc == 0 || r.claiming[id] != nil || r.sessions[id] != nil {
		r.mu.Unlock()
		return
	}
	r.claiming[id] = start
	inc, counter := r.inc, r.counter
	r.mu.Unlock()
	r.spawn(func(ctx context.Context) {
		try, cancel := context.WithTimeout(ctx, eventTimeout)
		defer cancel()
		answer, err := r.server.ClaimStart(try, request(&compassv1.ClaimStartRequest{
			RunnerId: r.id, Incarnation: inc, SessionId: id, Generation: start.GetGeneration(), Counter: counter,
		}))
		if err != nil {
			r.log.WarnContext(ctx, "Start was not claimed", "session", id, "error", err)
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.claiming, id)
		if err == nil && r.inc == inc {
			r.begin(ctx, newSession(r, start, answer.Msg))
		}
	})
}

// begin runs a session's agent and its acks. The caller holds mu.
func (r *Runner) begin(ctx context.Context, s *Session) {
	agentCtx, cancel := context.WithCancel(ctx)
	s.cancel = cancel
	r.sessions[s.ID] = s
	r.log.InfoContext(ctx, "Session began", "session", s.ID, "agent", s.AgentHandle, "pins", len(s.Pins))
	r.spawn(s.ackLoop)
	r.spawn(func(ctx context.Context) {
		err := r.agent(agentCtx, s)
		if err != nil && !errors.Is(err, ErrOver) && agentCtx.Err() == nil {
			r.log.WarnContext(ctx, "Agent failed", "session", s.ID, "error", err)
		}
		s.goodbye(ctx)
	})
}

// take handles the commands that are for the Runner, and hands on those for the agent.
func (s *Session) take(cmd *compassv1.SessionCommand) {
	if cmd.GetKind() == compassv1.SessionCommandKind_SESSION_COMMAND_KIND_STOP {
		s.end()
		return
	}
	s.command(cmd)
}

// tellSoon lets the next round of tellLoop send the session's state.
func (r *Runner) tellSoon(s *Session) {
	r.mu.Lock()
	r.told[s] = true
	r.mu.Unlock()
	r.nudge()
}

func (r *Runner) nudge() {
	select {
	case r.news <- struct{}{}:
	default:
	}
}

// tellLoop sends states. It coalesces by itself: what changes while one round is sent goes with the next. What goes in one
// round has an order, so that a simulation can be replayed.
func (r *Runner) tellLoop(ctx context.Context) {
	for {
		select {
		case <-r.news:
		case <-ctx.Done():
			return
		}
		r.mu.Lock()
		told, refused := r.told, r.refused
		r.told, r.refused = map[*Session]bool{}, nil
		r.mu.Unlock()
		for _, f := range refused {
			r.sendState(ctx, f.stream, f.state)
		}
		for _, s := range slices.SortedFunc(maps.Keys(told), func(a, b *Session) int { return strings.Compare(a.ID, b.ID) }) {
			states := s.states()
			for _, stream := range slices.Sorted(maps.Keys(states)) {
				r.sendState(ctx, stream, states[stream])
			}
		}
	}
}

func (r *Runner) sendState(ctx context.Context, stream string, state *compassv1.RunnerState) {
	try, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if err := r.link.State(try, stream, state); err != nil { // a later one heals it: the gate asks again by resending
		r.log.DebugContext(ctx, "State was not sent", "stream", stream, "error", err)
	}
}

func request[T any](m *T) *connect.Request[T] { return connect.NewRequest(m) }
