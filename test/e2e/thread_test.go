package e2e

import (
	"context"
	"slices"
	"testing"

	compassv1 "github.com/rigelbuild/compass-operator/api/proto/compass/v1"
	"github.com/rigelbuild/compass-operator/internal/runner"
)

// The first thread, all of it in one process: a person's message is committed, drained, taken and acknowledged, and the
// answer of the echo agent is read whole.
//
// Holds REQ-052: nothing is owed once the agent acknowledged, and until then it was.
func TestThreadInOneProcess(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	s := h.start()
	channel := s.api.channel(t, "general")
	agent := s.api.agent(t, "echo", channel)
	asked := s.api.post(t, channel, "hello")
	owed := call(t, s.api.admin.ListOwed, &compassv1.ListOwedRequest{}).GetOwed()
	if len(owed) != 1 || owed[0].GetAgentId() != agent || owed[0].GetCount() != 1 || owed[0].GetAcked() >= asked.GetPos() {
		t.Errorf("without a session, owed = %v: want the one message", owed)
	}
	s.api.start(t, agent)
	s.api.settled(t)
	await(t, "the answer is there, whole", func() string {
		list := call(t, s.api.comms.ListMessages, &compassv1.ListMessagesRequest{ChannelId: channel}).GetMessages()
		if len(list) != 2 || list[1].GetPos() <= asked.GetPos() {
			return unless(false, "%v", list)
		}
		return unless(whole(list[1]) == "echo: hello", "%v", list)
	})
	if code := s.terminate(); code != 0 {
		t.Errorf("exit code = %d after SIGTERM: want 0", code)
	}
}

// theatre is a standalone process whose agents the test plays, and a channel of all of them.
func theatre(t *testing.T, handles ...string) (s *standalone, g *stage, channel string, sessions map[string]string) {
	t.Helper()
	s = newHome(t).start("--agent", "none", "--nats-listen", "127.0.0.1:0")
	g = newStage(t, s)
	channel = s.api.channel(t, "general")
	sessions = map[string]string{}
	for _, handle := range handles {
		sessions[handle] = s.api.start(t, s.api.agent(t, handle, channel))
		await(t, handle+" begins", func() string { return unless(g.session(handle) != nil, "not yet") })
	}
	return s, g, channel, sessions
}

// What an agent says inside a turn is held: it is listed as held and nobody is delivered it, though others are delivered
// what came after. When the turn settles it is delivered, whole, once, with a position after theirs.
func TestHeldUntilSettledThenWhole(t *testing.T) {
	t.Parallel()
	s, g, channel, _ := theatre(t, "writer", "reader")
	settle := make(chan struct{})
	var written *compassv1.Message
	wrote, settled := make(chan error, 1), make(chan error, 1)
	go func() {
		settled <- g.session("writer").Turn(t.Context(), func(ctx context.Context, turn *runner.Turn) (err error) {
			if written, err = turn.Post(ctx, channel, runner.Text("half a sentence")); err == nil {
				_, err = turn.Append(ctx, written.GetId(), runner.Text(" and its end"))
			}
			wrote <- err
			<-settle
			return err
		})
	}()
	must(t, <-wrote)
	if written.GetPos() != 0 {
		t.Errorf("inside the turn the message has position %d: want none", written.GetPos())
	}
	held := call(t, s.api.admin.ListHeld, &compassv1.ListHeldRequest{}).GetHeld()
	if len(held) != 1 || held[0].GetId() != written.GetId() {
		t.Errorf("held = %v: want what the open turn said", held)
	}
	after := s.api.post(t, channel, "somebody else")
	g.hears("reader", "somebody else") // the channel is drained past the held one, and that was not sent
	close(settle)
	must(t, <-settled)
	g.hears("reader", "somebody else", "half a sentence and its end")
	g.hears("writer", "somebody else") // never its own
	s.api.settled(t)
	if held := call(t, s.api.admin.ListHeld, &compassv1.ListHeldRequest{}).GetHeld(); len(held) != 0 {
		t.Errorf("after the settle held = %v: want nothing", held)
	}
	list := call(t, s.api.comms.ListMessages, &compassv1.ListMessagesRequest{ChannelId: channel}).GetMessages()
	i := slices.IndexFunc(list, func(m *compassv1.Message) bool { return m.GetId() == written.GetId() })
	if i < 0 || list[i].GetPos() <= after.GetPos() {
		t.Errorf("the settled message is not after %d: %v", after.GetPos(), list)
	}
	_, err := try(t, s.api.comms.UpdateMessage, &compassv1.UpdateMessageRequest{MessageId: written.GetId(), Blocks: []*compassv1.Block{text("no")}})
	if err == nil {
		t.Error("a settled message was changed")
	}
}

// Beside the chain: a steer by hand interrupts, in the order in which steers were given; a mention reaches an agent that is
// no member, as a steer, once; one that is a member too gets it as the steer alone.
func TestSteersAndMentions(t *testing.T) {
	t.Parallel()
	s, g, channel, sessions := theatre(t, "member")
	guest := s.api.agent(t, "guest") // of no channel
	s.api.start(t, guest)
	for _, words := range []string{"first", "second"} {
		call(t, s.api.sessions.Steer, &compassv1.SteerRequest{SessionId: sessions["member"], Text: words})
	}
	g.hears("member", "!first", "!second")
	say := func(client string, blocks ...*compassv1.Block) {
		call(t, s.api.comms.PostMessage, &compassv1.PostMessageRequest{ChannelId: channel, ClientId: client, Blocks: blocks})
	}
	say("1", mention("guest"), text(", look"))
	say("2", mention("member"), text(", you too"))
	say("3", text("that is all"))
	await(t, "the member hears all three", func() string {
		return unless(len(g.heard("member")) == 5, "%q", g.heard("member"))
	})
	heard := g.heard("member")
	slices.Sort(heard) // a steer and the chain have no order between them
	if want := []string{"!@member, you too", "!first", "!second", "@guest, look", "that is all"}; !slices.Equal(heard, want) {
		t.Errorf("the member heard %q: want %q", heard, want)
	}
	s.api.settled(t)
	g.hears("guest", "!@guest, look")
}

// An agent asks in its turn and waits; the other is delivered the question at once, together with what was said before it,
// and answers; the answer comes as a steer, inside the turn. The rest of the asker's turn arrives when it settles.
func TestAskAndAnswer(t *testing.T) {
	t.Parallel()
	s, g, channel, _ := theatre(t, "expert")
	g.script("asker", func(ctx context.Context, a *runner.Session) error {
		begin, err := a.Next(ctx)
		if err != nil {
			return err
		}
		g.take(a, begin)
		err = a.Turn(ctx, func(ctx context.Context, turn *runner.Turn) error {
			if _, err := turn.Post(ctx, channel, runner.Text("some context")); err != nil {
				return err
			}
			answer, err := turn.Ask(ctx, channel, func(item runner.Item) { g.take(a, item) }, runner.Text("may I?"))
			if err != nil {
				return err
			}
			_, err = turn.Post(ctx, channel, runner.Text("then I do, as you said: "+whole(answer)))
			return err
		})
		if err != nil {
			return err
		}
		<-ctx.Done()
		return ctx.Err()
	})
	asker := s.api.start(t, s.api.agent(t, "asker", channel))
	call(t, s.api.sessions.Steer, &compassv1.SteerRequest{SessionId: asker, Text: "begin"})
	g.hears("expert", "some context", "may I?")
	var ask string
	g.mu.Lock()
	ask = g.taken["expert"][1].Message.GetId()
	g.mu.Unlock()
	must(t, g.session("expert").Turn(t.Context(), func(ctx context.Context, turn *runner.Turn) error {
		_, err := turn.Respond(ctx, ask, runner.Text("you may"))
		return err
	}))
	g.hears("expert", "some context", "may I?", "then I do, as you said: you may")
	g.hears("asker", "!begin")
	if _, err := try(t, s.api.comms.RespondToAsk, &compassv1.RespondToAskRequest{
		AskId: ask, ClientId: "late", Blocks: []*compassv1.Block{text("too late")},
	}); err == nil {
		t.Error("a question was answered twice")
	}
}
