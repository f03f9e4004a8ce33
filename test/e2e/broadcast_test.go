package e2e

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/google/go-cmp/cmp"

	compassv1 "github.com/rigelbuild/compass-operator/api/proto/compass/v1"
	"github.com/rigelbuild/compass-operator/api/proto/compass/v1/compassv1connect"
	"github.com/rigelbuild/compass-operator/internal/edge"
	"github.com/rigelbuild/compass-operator/internal/fabric"
)

// socket is one live client stream, held open by one Server.
type socket struct {
	tb      testing.TB
	name    string
	updates chan *compassv1.SubscribeCommsResponse
	last    map[string]int64 // channel → the rev told last
	address string
	err     error // once updates is closed
}

// listen opens a stream and waits for its first word.
func listen(tb testing.TB, name, url, token string) *socket {
	tb.Helper()
	return listenInstead(tb, name, url, token, "")
}

// listenInstead opens a stream in the place of another one.
func listenInstead(tb testing.TB, name, url, token, before string) *socket {
	tb.Helper()
	s := &socket{tb: tb, name: name, updates: make(chan *compassv1.SubscribeCommsResponse, 1000), last: map[string]int64{}}
	web := &http.Client{Transport: http.DefaultTransport.(*http.Transport).Clone()} //nolint:forcetypeassert // it is one
	ask := connect.NewRequest(&compassv1.SubscribeCommsRequest{})
	ask.Header().Set("Authorization", "Bearer "+token)
	if before != "" {
		ask.Header().Set(edge.HeaderReplaces, before)
	}
	ctx, cancel := context.WithCancel(tb.Context())
	stream, err := compassv1connect.NewCommsServiceClient(web, url).SubscribeComms(ctx, ask)
	must(tb, err)
	over := make(chan struct{})
	go func() {
		defer close(over)
		for stream.Receive() {
			s.updates <- stream.Msg()
		}
		s.err = stream.Err()
		close(s.updates)
	}()
	tb.Cleanup(func() {
		cancel()
		<-over
	})
	if u := s.next(); u.GetHeartbeat() == nil {
		tb.Fatalf("%s: the first word is %v", name, u)
	}
	s.address = stream.ResponseHeader().Get(edge.HeaderConnection)
	return s
}

// ends waits for the end of the stream and returns why.
func (s *socket) ends() error {
	s.tb.Helper()
	hang := time.After(patience)
	for {
		select {
		case _, open := <-s.updates:
			if !open {
				return s.err
			}
		case <-hang:
			s.tb.Fatalf("%s: the stream goes on", s.name)
		}
	}
}

func (s *socket) next() *compassv1.SubscribeCommsResponse {
	s.tb.Helper()
	select {
	case u, open := <-s.updates:
		if !open {
			s.tb.Fatalf("%s: the stream ended", s.name)
		}
		return u
	case <-time.After(patience):
		s.tb.Fatalf("%s: nothing was told", s.name)
		return nil
	}
}

// until is what is told up to a message and with it, as text: messages by what they say, channels by their id. Each message
// must name the one before it.
func (s *socket) until(words string) (told []string) {
	s.tb.Helper()
	for {
		u := s.next()
		switch {
		case u.GetHeartbeat() != nil:
			continue
		case u.GetMessage() != nil:
			m := u.GetMessage().GetMessage()
			if before, known := s.last[m.GetChannelId()]; known && u.GetMessage().GetPrevRev() != before {
				s.tb.Errorf("%s: %q names rev %d before it, told was %d", s.name, whole(m), u.GetMessage().GetPrevRev(), before)
			}
			s.last[m.GetChannelId()] = m.GetRev()
			told = append(told, whole(m))
			if whole(m) == words {
				return told
			}
		case u.GetChannel() != nil:
			told = append(told, u.GetChannel().GetChannelId())
		default:
			told = append(told, u.String())
		}
	}
}

func (s *socket) want(words string, told ...string) {
	s.tb.Helper()
	if diff := cmp.Diff(append(told, words), s.until(words)); diff != "" {
		s.tb.Errorf("%s: %s", s.name, diff)
	}
}

// carrier hears what the broker carries of a tenant, and can say it again.
type carrier struct {
	tb     testing.TB
	fabric *fabric.Fabric
	heard  chan fabric.BroadcastMsg
}

func (c *cluster) overhear(t *testing.T, tenant string) *carrier {
	t.Helper()
	credentials, err := c.broker.Credentials(fabric.RoleServer, "")
	must(t, err)
	f, err := fabric.Open(t.Context(), fabric.Config{
		Name: "carrier", InProcess: c.broker, Credentials: credentials, Logger: slog.New(slog.DiscardHandler),
	})
	must(t, err)
	e := &carrier{tb: t, fabric: f, heard: make(chan fabric.BroadcastMsg, 1000)}
	stop, err := f.Listen(t.Context(), tenant, func(_ context.Context, m fabric.BroadcastMsg) { e.heard <- m })
	must(t, err)
	t.Cleanup(func() {
		stop()
		_ = f.Close(context.WithoutCancel(t.Context()))
	})
	return e
}

// carried waits until the broker has carried an event: a point to synchronise at, and no assertion.
func (e *carrier) carried(event string) fabric.BroadcastMsg {
	e.tb.Helper()
	hang := time.After(patience)
	for {
		select {
		case m := <-e.heard:
			if m.Event == event {
				return m
			}
		case <-hang:
			e.tb.Fatalf("the broker never carried %s", event)
		}
	}
}

// again lets the broker carry an envelope some more times, as it may.
func (e *carrier) again(m fabric.BroadcastMsg, times int) {
	e.tb.Helper()
	for range times {
		must(e.tb, e.fabric.Broadcast(e.tb.Context(), m.Tenant, m.Event, m.Envelope, m.Header))
	}
	for range times {
		e.carried(m.Event)
	}
}

// Two Servers, each booted by itself, on one broker and one Postgres. What is done at A is told once to who may see it at B
// and once at A, whatever the broker hands back or repeats; who is not concerned, who was removed, and who belongs to
// another tenant is told nothing.
//
// Holds REQ-136, REQ-144, REQ-145, REQ-235: and B hears nothing of a tenant before it holds one of its sockets.
func TestToldOnceOnEveryServer(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	a, b := c.server("server A"), c.server("server B")
	var hears atomic.Bool
	b.nats.onMark("SUB compass.bcast."+string(c.tenant.ID), func(*proxy, *link) { hears.Store(true) })
	rival := c.world.Tenant(t, "rival")
	person := func(handle string) (id, token string) {
		p := c.tenant.Person(t, handle)
		_, token = c.tenant.TokenOf(t, p)
		return p.ID, token
	}
	ada, adaToken := person("ada")
	eve, eveToken := person("eve")
	bob, bobToken := person("bob")
	join := func(channel string, ids ...string) {
		for _, id := range ids {
			call(t, a.api.channels.AddMember, &compassv1.AddMemberRequest{ChannelId: channel, AccountId: id})
		}
	}
	general, lobby := a.api.channel(t, "general"), a.api.channel(t, "lobby")
	join(general, ada, eve)
	join(lobby, ada, eve, bob)
	theirs := newAPI(b.url, rival.Token)
	elsewhere := theirs.channel(t, "general")

	stranger := listen(t, "another tenant's admin at B", b.url, rival.Token)
	if hears.Load() {
		t.Error("B hears a tenant that has no socket there")
	}
	atA := listen(t, "the admin at A", a.url, c.tenant.Token)
	entitled, removed := listen(t, "ada at B", b.url, adaToken), listen(t, "eve at B", b.url, eveToken)
	uninvolved := listen(t, "bob at B", b.url, bobToken)
	if !hears.Load() {
		t.Error("B does not hear a tenant that has sockets there")
	}
	call(t, a.api.channels.RemoveMember, &compassv1.RemoveMemberRequest{ChannelId: general, AccountId: eve})
	post := func(at *api, channel, words string) string {
		at.post(t, channel, words)
		return words
	}
	removed.want(post(a.api, lobby, "eve was removed"), general)
	for _, s := range []*socket{atA, entitled} {
		s.want("eve was removed", general)
	}
	uninvolved.want("eve was removed")

	// One message and one change that is told as such, each of which the broker then repeats.
	carrier := c.overhear(t, string(c.tenant.ID))
	pinned := a.api.post(t, general, "posted at A")
	carrier.again(carrier.carried("message_visible"), 3)
	for _, s := range []*socket{atA, entitled} {
		s.want("posted at A")
	}
	call(t, a.api.channels.PinMessage, &compassv1.PinMessageRequest{ChannelId: general, MessageId: pinned.GetId()})
	changed := carrier.carried("channel_changed")
	told := post(a.api, lobby, "pinned")
	for _, s := range []*socket{atA, entitled} {
		s.want(told, general)
	}
	removed.want(told)
	uninvolved.want(told)
	carrier.again(changed, 3) // when its streams have told it: what comes together is told together
	// What A tells now reaches B behind all of it; and what B tells then reaches A behind A's own echoes.
	first := post(a.api, lobby, "from A")
	entitled.want(first)
	removed.want(first)
	uninvolved.want(first)
	second := post(b.api, lobby, "from B")
	atA.want(second, first)
	post(theirs, elsewhere, "theirs")
	stranger.want("theirs")
}

// B's way to the broker is cut twenty times while people post at A: what B's client is told is everything, once, in order.
//
// Holds REQ-016, REQ-235 (B22: a dropped broadcast costs latency, never correctness).
func TestFlappingServerTellsEverythingOnce(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	a, b := c.server("server A"), c.server("server B")
	channel := a.api.channel(t, "general")
	client := listen(t, "the admin at B", b.url, c.tenant.Token)
	var want []string
	for i := range 20 {
		b.nats.cut()
		words := fmt.Sprintf("flap %d", i)
		a.api.post(t, channel, words)
		want = append(want, words)
	}
	// The last broadcast may be lost too: the next one, or the poll, tells all.
	told := client.until(want[len(want)-1])
	if diff := cmp.Diff(want, told); diff != "" {
		t.Error(diff)
	}
	if !b.running() {
		t.Error("B did not survive")
	}
}

// What is for one connection reaches the Server that holds it, whichever the client speaks to now: a stream at B ends the
// client's stream at A, and a token that is revoked at A ends the streams at B, long before anybody polls.
//
// Holds REQ-113, REQ-136.
func TestOneServerEndsTheStreamsOfAnother(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	a, b := c.server("server A"), c.server("server B")
	ada := c.tenant.Person(t, "ada")
	id, token := c.tenant.TokenOf(t, ada)
	first := listen(t, "ada at A", a.url, token)
	stays := listen(t, "the admin at A", a.url, c.tenant.Token)
	second := listenInstead(t, "ada at B", b.url, token, first.address)
	if err := first.ends(); connect.CodeOf(err) != connect.CodeAborted {
		t.Errorf("the replaced stream ended with %v, want Aborted", err)
	}
	call(t, a.api.accounts.RevokeToken, &compassv1.RevokeTokenRequest{TokenId: id})
	if err := second.ends(); connect.CodeOf(err) != connect.CodeUnauthenticated {
		t.Errorf("the stream of a revoked token ended with %v, want Unauthenticated", err)
	}
	channel := a.api.channel(t, "general")
	a.api.post(t, channel, "goes on")
	stays.want("goes on", channel)
}
