package sim_test

import (
	"context"
	"fmt"
	"maps"
	"time"

	compassv1 "github.com/rigelbuild/compass-operator/api/proto/compass/v1"
	"github.com/rigelbuild/compass-operator/internal/store"
)

// storms see duplicates feed on each other (AckOnce): what is sent again before it was due, or acknowledged twice at once.
// Under world.mu.
type storms struct {
	pushed  map[push]time.Time
	session map[agentOf]string // the last that was live
	found   []string
}

// push is a command that a worker sent.
type push struct {
	by, session string
	n           int64
}

// agentOf is an agent as a worker knows it.
type agentOf struct {
	by, agent string
	tenant    store.TenantID
}

// notePush sees a worker send a command again before it was due. It may once a Runner refused one of the session's
// (noteRefused), and when the session was away (AgentOwed).
func (w *world) notePush(p *process, cmd *compassv1.Command) {
	if p.stream == "" || cmd.GetCommand() == nil || w.had["failover"] || w.had["pause worker"] {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	at, now := push{p.name, cmd.GetSessionId(), cmd.GetCommand().GetN()}, time.Now()
	if last, again := w.storms.pushed[at]; again && now.Sub(last) < resend-time.Second {
		w.storms.found = append(w.storms.found, fmt.Sprintf("STORM: command %d of session %s again after %v", at.n, short(at.session), now.Sub(last)))
	}
	w.storms.pushed[at] = now
}

// noteRefused: a worker that raised its fence between two commands sends all of the session's once more, because the Runner
// refused one.
func (w *world) noteRefused(session string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	maps.DeleteFunc(w.storms.pushed, func(p push, _ time.Time) bool { return p.session == session })
}

// AgentOwed implements delivery.AgentReads. A worker that finds no live session forgets what it pushed to the last.
func (r reads) AgentOwed(ctx context.Context, q store.AgentQuery) (store.AgentView, error) {
	view, err := r.Client.AgentOwed(ctx, q)
	if err != nil {
		return view, err
	}
	tenant, _ := store.TenantFromContext(ctx)
	at := agentOf{r.p.name, q.Agent, tenant}
	r.w.mu.Lock()
	defer r.w.mu.Unlock()
	if view.Session != nil {
		r.w.storms.session[at] = view.Session.Session
		return view, nil
	}
	gone := r.w.storms.session[at]
	maps.DeleteFunc(r.w.storms.pushed, func(p push, _ time.Time) bool { return p.by == at.by && p.session == gone })
	return view, nil
}

// noteAcks sees a Runner acknowledge a command twice at once.
func (w *world) noteAcks(session string, acks []*compassv1.CommandAck) {
	seen := map[int64]bool{}
	for _, a := range acks {
		if seen[a.GetN()] {
			w.mu.Lock()
			w.storms.found = append(w.storms.found, fmt.Sprintf("STORM: command %d of session %s is acknowledged twice at once", a.GetN(), short(session)))
			w.mu.Unlock()
		}
		seen[a.GetN()] = true
	}
}
