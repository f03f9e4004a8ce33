package runner

import (
	"context"
	"maps"
	"slices"
	"sync"

	compassv1 "github.com/rigelbuild/compass-operator/api/proto/compass/v1"
)

// Session is one run of an agent, of one generation.
type Session struct {
	// ID of the session, AgentID and AgentHandle of whom it is.
	ID, AgentID, AgentHandle string
	// Pins are the context of the start, to be read before anything else.
	Pins []*compassv1.Message

	tenant     string
	generation int64
	runner     *Runner
	over       chan struct{} // closed when the session has ended
	cancel     context.CancelFunc

	event sync.Mutex // held from the sending of an event to its answer: the next number goes after it (EventOrder)

	mu       sync.Mutex
	changed  chan struct{} // closed and replaced whenever something below changed
	chains   map[string]*chain
	inbox    []*compassv1.Message
	commands commandChain
	fetching bool
	ended    bool
	streams  map[string]map[string]bool // stream -> channels whose state it has yet to hear

	// As of the last answered event: this, and not what is under way, is what heartbeats say (HbOrder).
	answered answeredState
}

type answeredState struct {
	n    int64
	turn string
}

func newSession(r *Runner, start *compassv1.Start, claim *compassv1.ClaimStartResponse) *Session {
	return &Session{
		ID: start.GetSessionId(), AgentID: claim.GetAgentId(), AgentHandle: claim.GetAgentHandle(), Pins: claim.GetPins(),
		tenant: claim.GetTenantId(), generation: start.GetGeneration(), runner: r,
		over: make(chan struct{}), changed: make(chan struct{}),
		chains: map[string]*chain{}, commands: newCommandChain(), streams: map[string]map[string]bool{},
	}
}

// signal wakes whoever waits for a change. The caller holds mu.
func (s *Session) signal() {
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *Session) chainOf(channel string) *chain {
	c := s.chains[channel]
	if c == nil {
		c = &chain{}
		s.chains[channel] = c
	}
	return c
}

// deliver takes one link of a chain, or does not; either way the worker hears what is held.
func (s *Session) deliver(stream string, d *compassv1.Deliver) {
	m := d.GetMessage()
	s.mu.Lock()
	if s.chainOf(m.GetChannelId()).take(d) {
		s.inbox = append(s.inbox, m)
	}
	if s.streams[stream] == nil {
		s.streams[stream] = map[string]bool{}
	}
	s.streams[stream][m.GetChannelId()] = true
	s.signal()
	s.mu.Unlock()
	s.runner.tellSoon(s)
}

// command takes the hint of a session command.
func (s *Session) command(cmd *compassv1.SessionCommand) {
	s.mu.Lock()
	fetch := s.commands.push(cmd)
	s.signal()
	s.mu.Unlock()
	if fetch {
		s.fetch()
	}
}

// tell marks a channel's state as news for every stream that ever sent to the session.
func (s *Session) tell(channel string) {
	s.mu.Lock()
	for _, channels := range s.streams {
		channels[channel] = true
	}
	s.signal()
	s.mu.Unlock()
	s.runner.tellSoon(s)
}

// states returns what each stream has yet to hear, and forgets that it was asked.
func (s *Session) states() map[string]*compassv1.RunnerState {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := map[string]*compassv1.RunnerState{}
	for stream, channels := range s.streams {
		if len(channels) == 0 {
			continue
		}
		state := &compassv1.RunnerState{RunnerId: s.runner.id, TenantId: s.tenant, SessionId: s.ID, Generation: s.generation}
		for _, channel := range slices.Sorted(maps.Keys(channels)) {
			c := s.chainOf(channel)
			state.Channels = append(state.Channels, c.state(channel))
			for _, r := range c.rejected {
				state.Rejected = append(state.Rejected, &compassv1.Rejected{
					ChannelId: r.GetChannelId(), MessageId: r.GetMessageId(), Pos: r.GetPos(), Reason: r.GetReason(), Count: r.GetCount(),
				})
			}
		}
		clear(channels)
		out[stream] = state
	}
	return out
}

// heartbeat is the session's line in a heartbeat.
func (s *Session) heartbeat() *compassv1.SessionState {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &compassv1.SessionState{
		SessionId: s.ID, Generation: s.generation, N: s.answered.n, OpenTurn: s.answered.turn,
		Over: s.ended, AppliedCommand: s.commands.applied,
	}
}

// end stops the session on this side. Idempotent.
func (s *Session) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return
	}
	s.ended = true
	close(s.over)
	if s.cancel != nil {
		s.cancel()
	}
}

// fetch reads the commands after the last one applied, from Postgres; one at a time.
func (s *Session) fetch() {
	s.mu.Lock()
	if s.fetching || s.ended {
		s.mu.Unlock()
		return
	}
	s.fetching = true
	after := s.commands.applied
	s.mu.Unlock()
	s.runner.spawn(func(ctx context.Context) {
		answer, err := s.runner.server.FetchCommands(ctx, request(&compassv1.FetchCommandsRequest{
			RunnerId: s.runner.id, SessionId: s.ID, After: after,
		}))
		if err != nil { // the next heartbeat's answer names the newest command again (CmdHeads)
			s.runner.log.WarnContext(ctx, "Could not fetch commands", "session", s.ID, "error", err)
			s.fetched(nil)
			return
		}
		s.fetched(answer.Msg.GetCommands())
	})
}

func (s *Session) fetched(list []*compassv1.SessionCommand) {
	s.mu.Lock()
	s.fetching = false
	s.commands.fetched(list)
	s.signal()
	s.mu.Unlock()
	for _, cmd := range list {
		if cmd.GetKind() == compassv1.SessionCommandKind_SESSION_COMMAND_KIND_STOP {
			s.end()
		}
	}
}
