package hub_test

import (
	"errors"
	"testing"

	"connectrpc.com/connect"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	compassv1 "github.com/rigelbuild/compass-operator/api/proto/compass/v1"
	"github.com/rigelbuild/compass-operator/api/proto/compass/v1/compassv1connect"
	"github.com/rigelbuild/compass-operator/internal/event"
	"github.com/rigelbuild/compass-operator/internal/fabric/fabrictest"
	"github.com/rigelbuild/compass-operator/internal/hub"
	"github.com/rigelbuild/compass-operator/internal/naming"
	"github.com/rigelbuild/compass-operator/internal/store"
)

// Holds REQ-119, REQ-153, REQ-229: from the start to the ack, over both transports: a hint, a claim, a held message, its settle and
// the facts that follow each commit.
func TestThread(t *testing.T) {
	t.Parallel()
	g := newGround(t)
	s := g.server(t)
	tenant := g.Tenant(t, "acme")
	agent := tenant.Agent(t, "max")
	channel := tenant.Channel(t, "general", agent)
	b := g.box(t, s)

	started, err := s.people(tenant.ID, store.RoleAdmin).StartSession(t.Context(), connect.NewRequest(&compassv1.StartSessionRequest{AgentId: agent.ID}))
	must(t, err)
	session := started.Msg.GetSession()
	fabrictest.Eventually(t, "the hint of the start", func() bool { return len(b.heard()) == 1 })
	hint := b.heard()[0]
	if hint.GetStart().GetSessionId() != session.GetId() || hint.GetStart().GetGeneration() != session.GetGeneration() ||
		hint.GetTenantId() != string(tenant.ID) || hint.GetFence() != nil {
		t.Errorf("hint %v", hint)
	}
	claim, err := b.ClaimStart(t.Context(), connect.NewRequest(b.claim(session)))
	must(t, err)
	if claim.Msg.GetAgentId() != agent.ID || claim.Msg.GetAgentHandle() != "max" || claim.Msg.GetTenantId() != string(tenant.ID) {
		t.Errorf("claim %v", claim.Msg)
	}
	// Over NATS, like any other call.
	body, err := proto.Marshal(b.post(session, 1, "t1", channel.ID))
	must(t, err)
	body, err = b.conn.Call(t.Context(), compassv1connect.RunnerServiceRelayCommsCallProcedure, body)
	must(t, err)
	var posted compassv1.RelayCommsCallResponse
	must(t, proto.Unmarshal(body, &posted))
	if posted.GetMessage().GetAuthorId() != agent.ID || posted.GetMessage().GetPos() != 0 || posted.GetMessage().GetTurnId() != "t1" {
		t.Errorf("posted %v", &posted)
	}
	if refs := s.facts.of(event.NameMessagePosted); len(refs) != 0 {
		t.Errorf("a held message was handed over: %v", refs)
	}
	frame, err := b.CommitConversationFrame(t.Context(), connect.NewRequest(&compassv1.CommitConversationFrameRequest{
		RunnerId: b.id, SessionId: session.GetId(), Generation: session.GetGeneration(), N: 2, TurnId: "t1", ChannelId: channel.ID,
		ClientId: "frame", Blocks: textBlock("more"),
	}))
	must(t, err)
	for range 2 { // a repeat is answered like the first
		answer, err := b.conn.Event(t.Context(), b.settle(session, 3, "t1"))
		if err != nil || answer.GetCode() != "" {
			t.Fatalf("settle: %v, %v", answer, err)
		}
	}
	refs := s.facts.of(event.NameMessagePosted)
	if len(refs) != 1 || refs[0].Scope != channel.ID || refs[0].RowID != frame.Msg.GetMessage().GetId() {
		t.Fatalf("handed over %v, want the newest message of the channel once", refs)
	}
	m := tenant.Post(t, tenant.Admin, channel, "hi")
	ack := b.event(session, 0)
	ack.Event = &compassv1.RunnerEvent_Ack{Ack: &compassv1.Ack{Channels: []*compassv1.ChannelAck{{ChannelId: channel.ID, Pos: m.Pos}}}}
	for range 2 {
		answer, err := b.SendEvent(t.Context(), connect.NewRequest(&compassv1.SendEventRequest{Event: ack}))
		if err != nil || answer.Msg.GetAnswer().GetCode() != "" {
			t.Fatalf("ack: %v, %v", answer, err)
		}
	}
	want := []event.Ref{{Tenant: string(tenant.ID), Kind: event.NameCursorMoved, RowID: agent.ID, Scope: channel.ID, Version: m.Pos}}
	if diff := cmp.Diff(want, s.facts.of(event.NameCursorMoved)); diff != "" {
		t.Errorf("told of the cursor, and not of the ack that moved nothing: %s", diff)
	}
	over := b.event(session, 4)
	over.Event = &compassv1.RunnerEvent_SessionEnded_{SessionEnded: &compassv1.RunnerEvent_SessionEnded{Reason: "done"}}
	answer, err := b.conn.Event(t.Context(), over)
	if err != nil || answer.GetCode() != "" {
		t.Fatalf("end: %v, %v", answer, err)
	}
	bindings, presence := s.facts.of(event.NameBindingChanged), s.facts.of(event.NamePresenceChanged)
	if len(bindings) != 3 || len(presence) != 3 { // began, claimed, ended
		t.Errorf("told of %d changes of the binding, %d of presence, want 3 each", len(bindings), len(presence))
	}
}

// refusal is what the caller of one transport reads.
type refusal struct {
	Code    connect.Code
	Message string
	Session string
}

func read(err error) refusal {
	var e *connect.Error
	if !errors.As(err, &e) {
		return refusal{}
	}
	return refusal{e.Code(), e.Message(), e.Meta().Get(naming.MetaSession)}
}

// Holds REQ-119, REQ-135: a relayed call has the same refusals over Connect and over NATS, and one for a session that is
// over says so beside its NotFound.
func TestRefusalsAreTheSameOnBothTransports(t *testing.T) {
	t.Parallel()
	g := newGround(t)
	s := g.server(t)
	tenant := g.Tenant(t, "acme")
	agent, stopped := tenant.Agent(t, "max"), tenant.Agent(t, "moritz")
	channel := tenant.Channel(t, "general", agent)
	b := g.box(t, s)
	live, dead := b.claimed(t, s, tenant, agent), b.claimed(t, s, tenant, stopped)
	_, err := b.RelayCommsCall(t.Context(), connect.NewRequest(b.post(live, 1, "settled", channel.ID)))
	must(t, err)
	_, err = b.conn.Event(t.Context(), b.settle(live, 2, "settled"))
	must(t, err)
	_, err = s.people(tenant.ID, store.RoleAdmin).StopSession(t.Context(), connect.NewRequest(&compassv1.StopSessionRequest{SessionId: dead.GetId()}))
	must(t, err)

	relay := func(change func(*compassv1.RelayCommsCallRequest)) *compassv1.RelayCommsCallRequest {
		q := b.post(live, 3, "open", channel.ID)
		change(q)
		return q
	}
	type call = *compassv1.RelayCommsCallRequest
	for name, c := range map[string]struct {
		q    call
		want refusal
	}{
		"unknown channel": {relay(func(q call) { q.GetPost().ChannelId = g.IDs.Channel() }), refusal{connect.CodeNotFound, "not found", ""}},
		"settled turn":    {relay(func(q call) { q.TurnId = "settled" }), refusal{Code: connect.CodeFailedPrecondition}},
		"no blocks":       {relay(func(q call) { q.GetPost().Blocks = nil }), refusal{Code: connect.CodeInvalidArgument}},
		"bad turn":        {relay(func(q call) { q.TurnId = "a b" }), refusal{Code: connect.CodeInvalidArgument}},
		"no call":         {relay(func(q call) { q.Call = nil }), refusal{Code: connect.CodeInvalidArgument}},
		"another Runner":  {relay(func(q call) { q.RunnerId = g.IDs.Runner() }), refusal{Code: connect.CodePermissionDenied}},
		"stopped session": {relay(func(q call) { q.SessionId, q.Generation = dead.GetId(), dead.GetGeneration() }), refusal{connect.CodeNotFound, "not found", "over"}},
		"old generation":  {relay(func(q call) { q.Generation-- }), refusal{connect.CodeNotFound, "not found", "over"}},
		"no session":      {relay(func(q call) { q.SessionId = "x" }), refusal{connect.CodeNotFound, "not found", "over"}},
	} {
		_, overConnect := b.RelayCommsCall(t.Context(), connect.NewRequest(c.q))
		body, err := proto.Marshal(c.q)
		must(t, err)
		_, overNATS := b.conn.Call(t.Context(), compassv1connect.RunnerServiceRelayCommsCallProcedure, body)
		one, two := read(overConnect), read(overNATS)
		if one != two {
			t.Errorf("%s: %+v over Connect, %+v over NATS", name, one, two)
		}
		if one.Code != c.want.Code || one.Session != c.want.Session || c.want.Message != "" && one.Message != c.want.Message {
			t.Errorf("%s: %+v, want %+v", name, one, c.want)
		}
	}
	_, err = b.conn.Call(t.Context(), "/compass.v1.RunnerService/Enroll", nil)
	wantCode(t, "Enroll over NATS", err, connect.CodeUnimplemented)
	_, err = b.conn.Call(t.Context(), compassv1connect.RunnerServiceHeartbeatProcedure, []byte{0xff})
	wantCode(t, "garbage over NATS", err, connect.CodeInvalidArgument)
}

// Holds REQ-119, REQ-232: the refusal of an event is its answer, the same over Connect and NATS.
func TestEventAnswersAreTheSameOnBothTransports(t *testing.T) {
	t.Parallel()
	g := newGround(t)
	s := g.server(t)
	tenant := g.Tenant(t, "acme")
	agent := tenant.Agent(t, "max")
	channel := tenant.Channel(t, "general", agent)
	b := g.box(t, s)
	session := b.claimed(t, s, tenant, agent)
	tenant.Post(t, tenant.Admin, channel, "hi")
	event := func(change func(*compassv1.RunnerEvent)) *compassv1.RunnerEvent {
		e := b.settle(session, 1, "t1")
		change(e)
		return e
	}
	ack := func(a *compassv1.Ack) func(*compassv1.RunnerEvent) {
		return func(e *compassv1.RunnerEvent) { e.N, e.Event = 0, &compassv1.RunnerEvent_Ack{Ack: a} }
	}
	tooMany := &compassv1.Ack{Commands: make([]*compassv1.CommandAck, 1001)}
	for i := range tooMany.Commands {
		tooMany.Commands[i] = &compassv1.CommandAck{N: int64(i)}
	}
	for name, c := range map[string]struct {
		e    *compassv1.RunnerEvent
		want string
	}{
		"beyond the head": {event(ack(&compassv1.Ack{Channels: []*compassv1.ChannelAck{{ChannelId: channel.ID, Pos: 1e18}}})), "failed_precondition"},
		"too many acks":   {event(ack(tooMany)), "invalid_argument"},
		"old generation":  {event(func(e *compassv1.RunnerEvent) { e.Generation-- }), "not_found"},
		"no session":      {event(func(e *compassv1.RunnerEvent) { e.SessionId = "" }), "not_found"},
		"no number":       {event(func(e *compassv1.RunnerEvent) { e.N = 0 }), "failed_precondition"},
		"bad turn":        {event(func(e *compassv1.RunnerEvent) { e.GetTurnSettled().TurnId = "" }), "invalid_argument"},
		"nothing":         {event(func(e *compassv1.RunnerEvent) { e.Event = nil }), "invalid_argument"},
		"another Runner":  {event(func(e *compassv1.RunnerEvent) { e.RunnerId = g.IDs.Runner() }), "permission_denied"},
		"good":            {event(func(*compassv1.RunnerEvent) {}), ""},
	} {
		overConnect, err := b.SendEvent(t.Context(), connect.NewRequest(&compassv1.SendEventRequest{Event: c.e}))
		must(t, err)
		overNATS, err := b.conn.Event(t.Context(), c.e)
		must(t, err)
		if one, two := overConnect.Msg.GetAnswer().GetCode(), overNATS.GetCode(); one != c.want || two != c.want {
			t.Errorf("%s: %q over Connect, %q over NATS, want %q", name, one, two, c.want)
		}
	}
	if n := g.Count(t, `select count(*) from compass.delivery_cursors where acked > 1e17`); n != 0 {
		t.Error("a cursor went beyond the head")
	}
}

// Holds REQ-065, REQ-134, REQ-135, REQ-137: a Server that starts later serves a session that began before it; what one Server
// changes, the other sees at once, without a broadcast; and commands reach a Runner that connected anew.
func TestServersShareNothingButPostgres(t *testing.T) {
	t.Parallel()
	g := newGround(t)
	first := g.server(t)
	tenant := g.Tenant(t, "acme")
	agent := tenant.Agent(t, "max")
	channel := tenant.Channel(t, "general", agent)
	b := g.box(t, first)
	session := b.claimed(t, first, tenant, agent)

	later := g.server(t)
	b.at(later)
	got, err := b.RelayCommsCall(t.Context(), connect.NewRequest(b.post(session, 1, "", channel.ID)))
	if err != nil || got.Msg.GetMessage().GetAuthorId() != agent.ID {
		t.Fatalf("at a later Server: %v, %v", got, err)
	}
	b.conn.Close()
	b.connect(t, g)
	before := len(b.heard())
	must(t, first.do(tenant.ID, store.RoleAdmin, "", session.GetId())["Steer"](t.Context()))
	fabrictest.Eventually(t, "the hint on the new connection", func() bool { return len(b.heard()) > before })
	must(t, first.do(tenant.ID, store.RoleAdmin, "", session.GetId())["StopSession"](t.Context()))
	_, err = b.RelayCommsCall(t.Context(), connect.NewRequest(b.post(session, 2, "", channel.ID)))
	wantCode(t, "after a stop at the other Server", err, connect.CodeNotFound)
	_, err = b.FetchCommands(t.Context(), connect.NewRequest(&compassv1.FetchCommandsRequest{SessionId: session.GetId()}))
	wantCode(t, "fetch after the stop", err, connect.CodeNotFound)
	_, err = b.ClaimStart(t.Context(), connect.NewRequest(b.claim(session)))
	wantCode(t, "a start that is replayed", err, connect.CodeFailedPrecondition)
}

// panics is a store that must not be asked.
type panics struct{ hub.Store }

func TestNewNeedsItsParts(t *testing.T) {
	t.Parallel()
	if _, err := hub.New(hub.Options{Store: panics{}}); err == nil {
		t.Error("a hub without comms was made")
	}
	if _, err := hub.NewExpirer(hub.ExpirerOptions{Store: panics{}}); err == nil {
		t.Error("an expirer without a broker was made")
	}
}

// Holds REQ-132, REQ-229: a Runner that restarts has the sessions of its old process ended by its hello, with what they
// held, and may be given new ones (IncMismatch).
func TestHelloEndsTheOldProcess(t *testing.T) {
	t.Parallel()
	g := newGround(t)
	s := g.server(t)
	tenant := g.Tenant(t, "acme")
	agent := tenant.Agent(t, "max")
	channel := tenant.Channel(t, "general", agent)
	b := g.box(t, s)
	session := b.claimed(t, s, tenant, agent)
	other := g.box(t, s)
	_, err := b.RelayCommsCall(t.Context(), connect.NewRequest(b.post(session, 1, "t1", channel.ID)))
	must(t, err)
	other.hello(t)
	if refs := s.facts.of(event.NameMessagePosted); len(refs) != 0 {
		t.Fatalf("another Runner's hello settled %v", refs)
	}
	old := b.incarnation
	b.hello(t)
	if b.incarnation <= old {
		t.Errorf("incarnation %d after %d", b.incarnation, old)
	}
	if refs := s.facts.of(event.NameMessagePosted); len(refs) != 1 {
		t.Errorf("handed over %v, want what the old process held", refs)
	}
	_, err = b.RelayCommsCall(t.Context(), connect.NewRequest(b.post(session, 2, "t1", channel.ID)))
	wantCode(t, "the old session", err, connect.CodeNotFound)
	next, err := s.people(tenant.ID, store.RoleAdmin).StartSession(t.Context(), connect.NewRequest(&compassv1.StartSessionRequest{AgentId: agent.ID}))
	if err != nil || next.Msg.GetSession().GetGeneration() <= session.GetGeneration() {
		t.Errorf("the next session: %v, %v", next, err)
	}
}
