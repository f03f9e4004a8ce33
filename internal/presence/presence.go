package presence

import (
	"context"
	"errors"
	"time"

	"github.com/rigelbuild/compass-operator/internal/event"
	"github.com/rigelbuild/compass-operator/internal/store"
)

// sessions is where the truth is read; see store.Store.
type sessions interface {
	LiveAgentSessions(ctx context.Context) ([]store.Binding, error)
}

// emitter tells facts after they were committed; see event.Emitter.
type emitter interface {
	Emit(ctx context.Context, f event.Fact)
}

// Options are the parts of a Publisher; all are required.
type Options struct {
	Sessions sessions
	Emitter  emitter
	Now      func() time.Time
}

// Publisher tells changes and answers who is there. It is safe for concurrent use.
type Publisher struct{ o Options }

// New returns a Publisher.
func New(o Options) (*Publisher, error) {
	if o.Sessions == nil || o.Emitter == nil || o.Now == nil {
		return nil, errors.New("presence: sessions, emitter and clock are required")
	}
	return &Publisher{o}, nil
}

// AgentChanged tells, after the commit, that an agent came, went or changed what it shows.
func (p *Publisher) AgentChanged(ctx context.Context, tenant store.TenantID, agent string) {
	p.o.Emitter.Emit(ctx, event.PresenceChanged(string(tenant), agent, p.o.Now().UnixMicro()))
}

// Agent is an agent that is there.
type Agent struct {
	Account     string
	Session     string
	SinceUnixMs int64
	Writing     bool // it has an open turn
}

// Agents lists the agents of the context's tenant whose session a Runner has taken, oldest session first.
func (p *Publisher) Agents(ctx context.Context) ([]Agent, error) {
	bindings, err := p.o.Sessions.LiveAgentSessions(ctx)
	if err != nil {
		return nil, err
	}
	agents := make([]Agent, 0, len(bindings))
	for _, b := range bindings {
		if b.Claimed {
			agents = append(agents, Agent{Account: b.Agent, Session: b.Session, SinceUnixMs: b.BoundAtUnixMs, Writing: b.OpenTurn != ""})
		}
	}
	return agents, nil
}
