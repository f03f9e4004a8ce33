package hub_test

import (
	"context"
	"strings"
	"testing"

	"connectrpc.com/connect"

	compassv1 "github.com/rigelbuild/compass-operator/api/proto/compass/v1"
	"github.com/rigelbuild/compass-operator/internal/event"
	"github.com/rigelbuild/compass-operator/internal/fabric/fabrictest"
	"github.com/rigelbuild/compass-operator/internal/hub"
	"github.com/rigelbuild/compass-operator/internal/store"
)

// do is one call of each procedure of SessionService.
func (s *server) do(tenant store.TenantID, role store.Role, agent, session string) map[string]func(context.Context) error {
	c := s.people(tenant, role)
	return map[string]func(context.Context) error{
		"StartSession": func(ctx context.Context) error {
			_, err := c.StartSession(ctx, connect.NewRequest(&compassv1.StartSessionRequest{AgentId: agent}))
			return err
		},
		"StopSession": func(ctx context.Context) error {
			_, err := c.StopSession(ctx, connect.NewRequest(&compassv1.StopSessionRequest{SessionId: session}))
			return err
		},
		"Steer": func(ctx context.Context) error {
			_, err := c.Steer(ctx, connect.NewRequest(&compassv1.SteerRequest{SessionId: session, Text: "x"}))
			return err
		},
		"ListSessions": func(ctx context.Context) error {
			_, err := c.ListSessions(ctx, connect.NewRequest(&compassv1.ListSessionsRequest{}))
			return err
		},
	}
}

// Holds REQ-090: sessions are for the tenant's admins; what is another tenant's is not there.
func TestSessionsAreForAdmins(t *testing.T) {
	t.Parallel()
	g := newGround(t)
	s := g.server(t)
	tenant, other := g.Tenant(t, "acme"), g.Tenant(t, "other")
	agent := tenant.Agent(t, "max")
	b := g.box(t, s)
	session := b.claimed(t, s, tenant, agent)
	for name, call := range s.do(tenant.ID, store.RoleMember, agent.ID, session.GetId()) {
		wantCode(t, name+" by a member", call(t.Context()), connect.CodePermissionDenied)
	}
	for name, call := range s.do("", store.RoleAdmin, agent.ID, session.GetId()) {
		wantCode(t, name+" by nobody", call(t.Context()), connect.CodeUnauthenticated)
	}
	foreign := s.do(other.ID, store.RoleAdmin, agent.ID, session.GetId())
	for _, name := range []string{"StartSession", "StopSession", "Steer"} {
		wantCode(t, name+" by another tenant", foreign[name](t.Context()), connect.CodeNotFound)
	}
	list, err := s.people(other.ID, store.RoleAdmin).ListSessions(t.Context(), connect.NewRequest(&compassv1.ListSessionsRequest{IncludeEnded: true}))
	if err != nil || len(list.Msg.GetSessions()) != 0 {
		t.Errorf("another tenant lists %v, %v", list, err)
	}
	mine, err := s.people(tenant.ID, store.RoleAdmin).ListSessions(t.Context(), connect.NewRequest(&compassv1.ListSessionsRequest{}))
	if err != nil || len(mine.Msg.GetSessions()) != 1 || !mine.Msg.GetSessions()[0].GetClaimed() {
		t.Errorf("the tenant lists %v, %v", mine, err)
	}
}

// Holds REQ-152: one live session per agent, and no Runner is said so.
func TestStartSessionRefusals(t *testing.T) {
	t.Parallel()
	g := newGround(t)
	s := g.server(t)
	tenant := g.Tenant(t, "acme")
	agent := tenant.Agent(t, "max")
	start := func(agent string) error {
		return s.do(tenant.ID, store.RoleAdmin, agent, "")["StartSession"](t.Context())
	}
	wantCode(t, "no Runner", start(agent.ID), connect.CodeUnavailable)
	b := g.box(t, s)
	wantCode(t, "no id", start("max"), connect.CodeInvalidArgument)
	wantCode(t, "a person", start(tenant.Admin.ID), connect.CodeNotFound)
	session := b.claimed(t, s, tenant, agent)
	err := start(agent.ID)
	wantCode(t, "a second one", err, connect.CodeAlreadyExists)
	if !strings.Contains(err.Error(), session.GetId()) {
		t.Errorf("the refusal %v does not name %s", err, session.GetId())
	}
}

// Holds REQ-121, REQ-139, REQ-234: two Servers steer one session right after its start; whatever becomes of the hints, the
// Runner gets the steers in the order of their rows.
func TestSteersFromTwoServers(t *testing.T) {
	t.Parallel()
	g := newGround(t)
	one, two := g.server(t), g.server(t)
	tenant := g.Tenant(t, "acme")
	agent := tenant.Agent(t, "max")
	b := g.box(t, one)
	started, err := one.people(tenant.ID, store.RoleAdmin).StartSession(t.Context(), connect.NewRequest(&compassv1.StartSessionRequest{AgentId: agent.ID}))
	must(t, err)
	session := started.Msg.GetSession()
	var want []int64
	for i := range 8 {
		s := []*server{one, two}[i%2]
		answer, err := s.people(tenant.ID, store.RoleAdmin).Steer(t.Context(),
			connect.NewRequest(&compassv1.SteerRequest{SessionId: session.GetId(), Text: string(rune('a' + i))}))
		must(t, err)
		want = append(want, answer.Msg.GetN())
	}
	_, err = b.ClaimStart(t.Context(), connect.NewRequest(b.claim(session)))
	must(t, err)
	orders := b.beat(t, 2, &compassv1.SessionState{SessionId: session.GetId(), Generation: session.GetGeneration()})
	if got := orders.GetSessions()[0]; got.GetNewestCommand() != want[7] || len(got.GetUnacked()) != 8 || got.GetStart() != nil {
		t.Errorf("the heartbeat answers %v", got)
	}
	fetched, err := b.FetchCommands(t.Context(), connect.NewRequest(&compassv1.FetchCommandsRequest{RunnerId: b.id, SessionId: session.GetId()}))
	must(t, err)
	prev := int64(0)
	for i, c := range fetched.Msg.GetCommands() {
		if c.GetN() != want[i] || c.GetPrev() != prev || c.GetText() != string(rune('a'+i)) {
			t.Errorf("steer %d: %v", i, c)
		}
		prev = c.GetN()
	}
	fabrictest.Eventually(t, "all hints", func() bool { return len(b.heard()) == 9 })
	for _, c := range b.heard()[1:] {
		if c.GetCommand().GetKind() != compassv1.SessionCommandKind_SESSION_COMMAND_KIND_STEER || c.GetFence() != nil {
			t.Errorf("hint %v", c)
		}
	}
	for name, text := range map[string]string{"empty": "", "too long": strings.Repeat("x", 64<<10+1), "a zero": "\x00"} {
		_, err := one.people(tenant.ID, store.RoleAdmin).Steer(t.Context(), connect.NewRequest(&compassv1.SteerRequest{SessionId: session.GetId(), Text: text}))
		wantCode(t, name, err, connect.CodeInvalidArgument)
	}
	ack := b.event(session, 0)
	ack.Event = &compassv1.RunnerEvent_Ack{Ack: &compassv1.Ack{Commands: []*compassv1.CommandAck{{N: want[0]}}}}
	answer, err := b.conn.Event(t.Context(), ack)
	if err != nil || answer.GetCode() != "" {
		t.Fatalf("ack: %v, %v", answer, err)
	}
	if n := g.Count(t, `select count(*) from compass.session_commands`); n != 7 {
		t.Errorf("%d commands are left, want 7", n)
	}
}

// Holds REQ-226: a stop settles what the session held, tells it, and hints the Runner; where the hint is lost the next
// heartbeat says it.
func TestStopSession(t *testing.T) {
	t.Parallel()
	g := newGround(t)
	s := g.server(t)
	tenant := g.Tenant(t, "acme")
	agent := tenant.Agent(t, "max")
	channel := tenant.Channel(t, "general", agent)
	b := g.box(t, s)
	session := b.claimed(t, s, tenant, agent)
	_, err := b.RelayCommsCall(t.Context(), connect.NewRequest(b.post(session, 1, "t1", channel.ID)))
	must(t, err)
	for range 2 {
		must(t, s.do(tenant.ID, store.RoleAdmin, "", session.GetId())["StopSession"](t.Context()))
	}
	if refs := s.facts.of(event.NameMessagePosted); len(refs) != 1 {
		t.Errorf("handed over %v, want the held message once", refs)
	}
	fabrictest.Eventually(t, "the hints", func() bool { return len(b.heard()) == 3 })
	if c := b.heard()[1].GetCommand(); c.GetKind() != compassv1.SessionCommandKind_SESSION_COMMAND_KIND_STOP || c.GetN() != 0 {
		t.Errorf("hint %v", c)
	}
	orders := b.beat(t, 2, &compassv1.SessionState{SessionId: session.GetId(), Generation: session.GetGeneration(), OpenTurn: "t1", N: 1})
	if len(orders.GetSessions()) != 1 || !orders.GetSessions()[0].GetStop() {
		t.Errorf("the heartbeat answers %v", orders)
	}
}

// Holds REQ-138: without a broker, and for a Runner that listens to none, everything is found by the heartbeat.
func TestHeartbeatsReplaceHints(t *testing.T) {
	t.Parallel()
	g := newGround(t)
	s := g.server(t, func(o *hub.Options) { o.Fabric = nil })
	tenant := g.Tenant(t, "acme")
	agent := tenant.Agent(t, "max")
	b := g.box(t, s)
	started, err := s.people(tenant.ID, store.RoleAdmin).StartSession(t.Context(), connect.NewRequest(&compassv1.StartSessionRequest{AgentId: agent.ID}))
	must(t, err)
	session := started.Msg.GetSession()
	orders := b.beat(t, 1)
	if len(orders.GetSessions()) != 1 || orders.GetSessions()[0].GetStart().GetSessionId() != session.GetId() ||
		orders.GetSessions()[0].GetStart().GetGeneration() != session.GetGeneration() {
		t.Fatalf("the heartbeat answers %v", orders)
	}
	if len(b.heard()) != 0 {
		t.Errorf("a hint came without a broker: %v", b.heard())
	}
	gone := g.server(t)
	b.conn.Close()
	must(t, gone.do(tenant.ID, store.RoleAdmin, "", session.GetId())["Steer"](t.Context()))
	if log := gone.log.String(); log != "" {
		t.Errorf("a Runner that is not there is nothing to log: %s", log)
	}
}

// A Runner whose heartbeats could not be served for longer than its lease is sent to again at once, not at the next tick.
func TestHeartbeatAfterTheLeaseWakesTheWorker(t *testing.T) {
	t.Parallel()
	g := newGround(t)
	s := g.server(t)
	tenant := g.Tenant(t, "acme")
	agent := tenant.Agent(t, "max")
	b := g.box(t, s)
	session := b.claimed(t, s, tenant, agent)
	state := &compassv1.SessionState{SessionId: session.GetId(), Generation: session.GetGeneration()}
	b.beat(t, 2, state)
	told := len(s.facts.of(event.NameBindingChanged))
	b.beat(t, 3, state)
	if got := len(s.facts.of(event.NameBindingChanged)); got != told {
		t.Errorf("a heartbeat in time told of %d bindings", got-told)
	}
	g.Exec(t, `update compass.runner_leases set expires_at = clock_timestamp() - interval '1 s' where runner_id = $1`, b.id)
	b.beat(t, 4, state)
	if got := len(s.facts.of(event.NameBindingChanged)); got != told+1 {
		t.Errorf("a heartbeat after the lease told of %d bindings, want 1", got-told)
	}
}

// Holds REQ-229: what a heartbeat healed is told like any settle.
func TestHeartbeatTellsWhatItHealed(t *testing.T) {
	t.Parallel()
	g := newGround(t)
	s := g.server(t)
	tenant := g.Tenant(t, "acme")
	agent := tenant.Agent(t, "max")
	channel := tenant.Channel(t, "general", agent)
	b := g.box(t, s)
	session := b.claimed(t, s, tenant, agent)
	_, err := b.RelayCommsCall(t.Context(), connect.NewRequest(b.post(session, 1, "t1", channel.ID)))
	must(t, err)
	b.beat(t, 2, &compassv1.SessionState{SessionId: session.GetId(), Generation: session.GetGeneration(), N: 0})
	if refs := s.facts.of(event.NameMessagePosted); len(refs) != 0 {
		t.Errorf("a heartbeat of before the turn settled it: %v", refs)
	}
	b.beat(t, 3, &compassv1.SessionState{SessionId: session.GetId(), Generation: session.GetGeneration(), N: 2})
	if refs := s.facts.of(event.NameMessagePosted); len(refs) != 1 {
		t.Errorf("handed over %v", refs)
	}
	_, err = b.Heartbeat(t.Context(), connect.NewRequest(&compassv1.HeartbeatRequest{
		Incarnation: b.incarnation, Counter: 4, Sessions: make([]*compassv1.SessionState, 10_001),
	}))
	wantCode(t, "too many sessions", err, connect.CodeInvalidArgument)
	expired, err := b.Heartbeat(t.Context(), connect.NewRequest(&compassv1.HeartbeatRequest{Incarnation: b.incarnation - 1, Counter: 9}))
	if err != nil || !expired.Msg.GetExpired() {
		t.Errorf("an old incarnation: %v, %v", expired, err)
	}
}
