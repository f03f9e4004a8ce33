package sim_test

import (
	"context"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"strings"
	"time"

	"connectrpc.com/connect"

	compassv1 "github.com/rigelbuild/compass-operator/api/proto/compass/v1"
	"github.com/rigelbuild/compass-operator/internal/naming"
	"github.com/rigelbuild/compass-operator/internal/runner"
	"github.com/rigelbuild/compass-operator/internal/store"
)

// taken is one consequence at an agent.
type taken struct {
	at      time.Time
	runner  string
	session string
	tenant  store.TenantID
	agent   string
	channel string
	message string
	pos     int64
	steer   bool
	stale   bool // under a lower fence than the Runner had heard
	text    string
}

func (w *world) random(parts ...string) *rand.Rand {
	h := fnv.New64a()
	_, _ = h.Write([]byte(strings.Join(parts, "/")))
	return rand.New(rand.NewPCG(w.seed, h.Sum64()))
}

// agent takes what comes, writes it down, and now and then writes itself.
func (w *world) agent(p *process) runner.Agent {
	return func(ctx context.Context, s *runner.Session) error {
		id, _, err := naming.ParseSession(s.ID)
		if err != nil {
			return err
		}
		t := w.tenant(store.TenantID(id))
		a := &agent{w: w, p: p, s: s, t: t, r: w.random(s.ID)}
		for {
			item, err := s.Next(ctx)
			if err != nil {
				return err
			}
			if err := a.take(ctx, item); err != nil {
				return err
			}
		}
	}
}

func (w *world) tenant(id store.TenantID) *tenant {
	for _, t := range w.tenants {
		if t.id == id {
			return t
		}
	}
	return nil
}

type agent struct {
	w *world
	p *process
	s *runner.Session
	t *tenant
	r *rand.Rand
	n int

	made bool // something in the turn that runs
}

// rest lets time pass, unless the agent's process is gone then.
func (a *agent) rest(ctx context.Context, most time.Duration) error {
	select {
	case <-time.After(time.Duration(a.r.Int64N(int64(most)))):
	case <-ctx.Done():
	}
	return ctx.Err()
}

// take is the consequence, and then the word that it is done: whoever dies between the two takes it again.
func (a *agent) take(ctx context.Context, item runner.Item) error {
	if !a.p.alive() || ctx.Err() != nil {
		return runner.ErrOver
	}
	a.write(item)
	if a.r.IntN(4) == 0 {
		if err := a.rest(ctx, 500*time.Millisecond); err != nil {
			return err
		}
	}
	a.s.Done(item)
	m := item.Message
	if m.GetKind() == compassv1.MessageKind_MESSAGE_KIND_ASK {
		return a.turn(ctx, func(ctx context.Context, t *runner.Turn) error {
			_, err := t.Respond(ctx, m.GetId(), a.text("answer"))
			a.made = err == nil
			return err
		})
	}
	if a.w.quiet.Load() || a.t.budget.Load() <= 0 || a.r.IntN(3) > 0 {
		return nil
	}
	return a.turn(ctx, a.speak)
}

func (a *agent) write(item runner.Item) {
	m := item.Message
	if m == nil {
		a.w.mu.Lock()
		a.w.steered[a.s.ID+" "+item.Text] = true
		a.w.mu.Unlock()
		return
	}
	entry := taken{
		at: time.Now(), runner: a.p.name, session: a.s.ID, tenant: a.t.id, agent: a.s.AgentID, channel: m.GetChannelId(),
		message: m.GetId(), pos: m.GetPos(), steer: item.Steer, text: textOf(m),
	}
	a.w.mu.Lock()
	entry.stale = a.w.stale[m]
	a.w.taken = append(a.w.taken, entry)
	a.w.mu.Unlock()
	a.w.s.say(fmt.Sprintf("TAKEN %s %s %d %v", a.s.AgentHandle, short(entry.message), entry.pos, entry.steer))
}

func textOf(m *compassv1.Message) string {
	var b strings.Builder
	for _, block := range m.GetBlocks() {
		if block.GetMention() != "" {
			b.WriteString("@" + block.GetMention())
		}
		b.WriteString(block.GetText())
	}
	return b.String()
}

func textOfStored(blocks []store.Block) string {
	var b strings.Builder
	for _, block := range blocks {
		if block.Type == store.BlockMention {
			b.WriteString("@" + block.Handle)
		}
		b.WriteString(block.Text)
	}
	return b.String()
}

// turn runs one; an answer that refuses what is in it ends nothing.
func (a *agent) turn(ctx context.Context, fn func(context.Context, *runner.Turn) error) error {
	a.made = false
	err := a.s.Turn(ctx, fn)
	a.w.mu.Lock()
	defer a.w.mu.Unlock()
	switch {
	case err != nil && a.made:
		a.w.leftOpen[a.s.ID] = true
	case a.made:
		delete(a.w.leftOpen, a.s.ID) // it settled, and before it whatever was left open
	}
	return ctx.Err()
}

func (a *agent) text(what string) *compassv1.Block {
	a.n++
	return runner.Text(fmt.Sprintf("%s %s %s %d;", a.t.id, a.s.AgentHandle, what, a.n))
}

// speak writes one message or two, changes them, asks.
func (a *agent) speak(ctx context.Context, t *runner.Turn) error {
	for range 1 + a.r.IntN(2) {
		a.t.budget.Add(-1)
		blocks := []*compassv1.Block{a.text("says")}
		if a.r.IntN(3) == 0 {
			blocks = append(blocks, runner.Mention(a.t.agents[a.r.IntN(len(a.t.agents))].Handle))
		}
		m, err := t.Post(ctx, a.t.channels[a.r.IntN(len(a.t.channels))], blocks...)
		if err != nil {
			return nil //nolint:nilerr // refused, or the session is over: what was written before it settles
		}
		a.made = true
		if a.r.IntN(3) == 0 {
			if err := a.rest(ctx, time.Second); err != nil {
				return err
			}
		}
		if a.r.IntN(2) == 0 {
			more := []*compassv1.Block{a.text("adds")}
			if a.r.IntN(2) == 0 {
				more = append(more, runner.Mention(a.t.agents[a.r.IntN(len(a.t.agents))].Handle))
			}
			if _, err := t.Append(ctx, m.GetId(), more...); err != nil {
				return nil //nolint:nilerr // as above
			}
		}
	}
	if a.r.IntN(6) == 0 {
		return a.ask(ctx, t)
	}
	if a.r.IntN(8) == 0 {
		return context.Canceled // what was written is not whole; the next turn settles it
	}
	return nil
}

// ask waits for an answer, but not for ever.
func (a *agent) ask(ctx context.Context, t *runner.Turn) error {
	a.t.budget.Add(-1)
	patient, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	other := func(item runner.Item) { a.write(item); a.s.Done(item) }
	a.made = true
	answer, err := t.Ask(patient, a.t.channels[0], other, a.text("asks"))
	if err == nil {
		a.write(runner.Item{Message: answer, Steer: true})
	}
	return ctx.Err()
}

// pick chooses a Server that lives; nil: none.
func (w *world) pick(r *rand.Rand) *server {
	at := r.IntN(servers)
	for i := range servers {
		if s := w.serving[(at+i)%servers]; s != nil && s.alive() {
			return s
		}
	}
	return nil
}

// person posts until it is told that it did.
func (w *world) person(ctx context.Context, t *tenant, n int, over time.Duration) {
	r := w.random("person", string(t.id))
	for i := range n {
		if !sleep(ctx, time.Duration(r.Int64N(int64(2*over)/int64(n)))) {
			return
		}
		m := store.NewMessage{
			Channel: t.channels[r.IntN(len(t.channels))], Author: t.admin, ClientID: fmt.Sprint("post", i),
			Blocks: []store.Block{store.Text(fmt.Sprintf("%s person says %d;", t.id, i))},
		}
		for range r.IntN(3) / 2 {
			m.Blocks = append(m.Blocks, store.Mention(t.agents[r.IntN(len(t.agents))].Handle))
		}
		for {
			if s := w.pick(r); s != nil {
				try, cancel := context.WithTimeout(store.WithTenant(ctx, t.id), 5*time.Second)
				_, err := s.comms.PostMessage(try, m)
				cancel()
				if err == nil && s.alive() {
					t.posted.Add(1)
					break
				}
			}
			if !sleep(ctx, 300*time.Millisecond) {
				return
			}
		}
	}
}

func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

// keeper starts a session for every agent that has none.
func (w *world) keeper(ctx context.Context, t *tenant) {
	r := w.random("keeper", string(t.id))
	for ctx.Err() == nil {
		if s := w.pick(r); s != nil {
			try, cancel := context.WithTimeout(store.WithTenant(ctx, t.id), 5*time.Second)
			w.keep(try, s, t)
			cancel()
		}
		sleep(ctx, 900*time.Millisecond)
	}
}

func (w *world) keep(ctx context.Context, s *server, t *tenant) {
	live, err := s.store.LiveAgentSessions(ctx)
	if err != nil {
		return
	}
	has := map[string]bool{}
	for _, b := range live {
		has[b.Agent] = true
	}
	for _, a := range t.agents {
		if !has[a.ID] {
			_, _ = s.hub.Start(ctx, t.id, a.ID)
		}
	}
	if !w.quiet.Load() && len(live) > 0 {
		w.steer(ctx, s, live[len(live)-1].Session)
	}
}

// steer says something to a session by hand, now and then.
func (w *world) steer(ctx context.Context, s *server, session string) {
	w.mu.Lock()
	text := fmt.Sprint("steer ", len(w.steered))
	w.mu.Unlock()
	_, err := s.hub.SessionService().Steer(ctx, connect.NewRequest(&compassv1.SteerRequest{SessionId: session, Text: text}))
	if err != nil || !s.alive() {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	at := session + " " + text
	w.told[at] = time.Now()
	if _, applied := w.steered[at]; !applied {
		w.steered[at] = false
	}
}
