package main

import (
	"bytes"
	"context"
	"encoding/pem"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"connectrpc.com/connect"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	compassv1 "github.com/rigelbuild/compass-operator/api/proto/compass/v1"
	"github.com/rigelbuild/compass-operator/api/proto/compass/v1/compassv1connect"
)

// room is an API with one channel, whose streams break after each message.
type room struct {
	compassv1connect.UnimplementedChannelServiceHandler
	compassv1connect.UnimplementedCommsServiceHandler
	compassv1connect.UnimplementedAccountServiceHandler

	mu      sync.Mutex
	posted  *compassv1.PostMessageRequest
	made    string
	token   string
	streams []map[string]int64 // what each was resumed with
	live    []*compassv1.SubscribeCommsResponse
	over    context.CancelFunc // when nothing is left to be said
}

func message(id string, rev int64, author string, blocks ...*compassv1.Block) *compassv1.Message {
	return &compassv1.Message{Id: id, ChannelId: "c_1", AuthorId: author, Rev: rev, Pos: rev, Blocks: blocks}
}

func text(s string) *compassv1.Block {
	return &compassv1.Block{Content: &compassv1.Block_Text{Text: s}}
}

func (r *room) ListChannels(_ context.Context, q *connect.Request[compassv1.ListChannelsRequest]) (*connect.Response[compassv1.ListChannelsResponse], error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.token = q.Header().Get("Authorization")
	return connect.NewResponse(&compassv1.ListChannelsResponse{Channels: []*compassv1.Channel{{Id: "c_1", Name: "general"}}}), nil
}

func (r *room) CreateChannel(_ context.Context, q *connect.Request[compassv1.CreateChannelRequest]) (*connect.Response[compassv1.CreateChannelResponse], error) {
	r.made = q.Msg.GetName()
	return connect.NewResponse(&compassv1.CreateChannelResponse{Channel: &compassv1.Channel{Id: "c_2", Name: r.made}}), nil
}

func (r *room) PostMessage(_ context.Context, q *connect.Request[compassv1.PostMessageRequest]) (*connect.Response[compassv1.PostMessageResponse], error) {
	again := r.posted != nil && r.posted.GetClientId() == q.Msg.GetClientId()
	r.posted = q.Msg
	return connect.NewResponse(&compassv1.PostMessageResponse{Message: &compassv1.Message{Id: "m_1"}, Duplicate: again}), nil
}

func (r *room) ListAccounts(context.Context, *connect.Request[compassv1.ListAccountsRequest]) (*connect.Response[compassv1.ListAccountsResponse], error) {
	return connect.NewResponse(&compassv1.ListAccountsResponse{Accounts: []*compassv1.Account{{Id: "a_1", Handle: "ada"}}}), nil
}

func (r *room) ListMessages(_ context.Context, q *connect.Request[compassv1.ListMessagesRequest]) (*connect.Response[compassv1.ListMessagesResponse], error) {
	all := []*compassv1.Message{message("m_1", 1, "a_1", text("first")), message("m_2", 2, "a_9", text("second"))}
	for i, m := range all {
		if m.GetRev() > q.Msg.GetAfterRev() {
			return connect.NewResponse(&compassv1.ListMessagesResponse{Messages: []*compassv1.Message{m}, More: i < len(all)-1}), nil
		}
	}
	return connect.NewResponse(&compassv1.ListMessagesResponse{}), nil
}

func (r *room) SubscribeComms(ctx context.Context, q *connect.Request[compassv1.SubscribeCommsRequest], s *connect.ServerStream[compassv1.SubscribeCommsResponse]) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.streams = append(r.streams, q.Msg.GetResume())
	if len(r.live) == 0 {
		r.over()
		<-ctx.Done()
		return nil
	}
	next := r.live[0]
	r.live = r.live[1:]
	if err := s.Send(next); err != nil {
		return err
	}
	return connect.NewError(connect.CodeUnavailable, errors.New("the Server goes away"))
}

// roomShell is a shell at a cluster whose tenant acme is in that room.
func roomShell(t *testing.T, r *room) (s shell, server string) {
	t.Helper()
	mux := http.NewServeMux()
	mux.Handle(compassv1connect.NewChannelServiceHandler(r))
	mux.Handle(compassv1connect.NewCommsServiceHandler(r))
	mux.Handle(compassv1connect.NewAccountServiceHandler(r))
	at := httptest.NewTLSServer(mux)
	t.Cleanup(at.Close)
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "compass", Name: "acme-api"},
		Data: map[string][]byte{
			"url": []byte("https://example.com:8443"), "token": []byte("cmp_t_secret-word"),
			"ca.crt": pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: at.Certificate().Raw}),
		},
	}
	return newShell(t, append(objects(), secret)...), at.URL
}

// Holds REQ-218: a message is posted with what the operator published, once for one client id.
func TestPost(t *testing.T) {
	t.Parallel()
	r := &room{}
	s, server := roomShell(t, r)
	code, out, log := s.run(t, "post", "acme", "general", "hello", "--mention", "@bot", "--client-id", "1", "--server", server)
	if code != 0 || out != "Posted m_1 in general (c_1).\n" || r.token != "Bearer cmp_t_secret-word" {
		t.Errorf("code %d, %s%s, token %q", code, out, log, r.token)
	}
	if b := r.posted.GetBlocks(); r.posted.GetChannelId() != "c_1" || len(b) != 2 || b[0].GetMention() != "bot" || b[1].GetText() != "hello" {
		t.Errorf("posted %v", r.posted)
	}
	if _, out, _ = s.run(t, "post", "acme", "c_1", "hello", "--client-id", "1", "--server", server); out != "Was posted before: m_1 in general (c_1).\n" {
		t.Errorf("again: %s", out)
	}
	if code, out, log = s.run(t, "post", "acme", "new", "x", "--create", "--server", server); code != 0 || r.made != "new" || r.posted.GetChannelId() != "c_2" {
		t.Errorf("code %d, %s%s, made %q", code, out, log, r.made)
	}
	if id := r.posted.GetClientId(); len(id) < 20 {
		t.Errorf("client id %q", id)
	}
}

// Holds REQ-218: what a person gets wrong is answered with what to do.
func TestPostRefuses(t *testing.T) {
	t.Parallel()
	s, server := roomShell(t, &room{})
	for name, c := range map[string]struct {
		args []string
		says string
	}{
		"no channel":   {[]string{"acme", "nowhere", "x"}, `in no channel "nowhere"; it is in: general; add it to that one, or make one with --create`},
		"no tenant":    {[]string{"ghost", "general", "x"}, `there is no CompassTenant "ghost" in namespace compass: see kubectl get ctenant -A`},
		"nothing said": {[]string{"acme", "general", " "}, "TEXT is empty"},
		"too little":   {[]string{"acme", "general"}, "takes TENANT CHANNEL TEXT, and was given 2 arguments; see kubectl compass post --help"},
		"no URL":       {[]string{"acme", "general", "x", "--server", "127.0.0.1:1"}, "is no URL such as https://"},
		"no word":      {[]string{"acme", "general", "x", "--word"}, "unknown flag: --word"},
	} {
		args := append([]string{"post", "--server", server}, c.args...)
		if code, _, log := s.run(t, args...); code != 1 || !strings.Contains(log, c.says) || strings.Contains(log, "secret-word") {
			t.Errorf("%s: code %d, %s; want %q", name, code, log, c.says)
		}
	}
}

// Holds REQ-218: a tail shows each change once, through streams that break, with history first, and nothing that would move
// the reader's cursor.
func TestTail(t *testing.T) {
	t.Parallel()
	event := func(m *compassv1.Message) *compassv1.SubscribeCommsResponse {
		return &compassv1.SubscribeCommsResponse{Event: &compassv1.SubscribeCommsResponse_Message{Message: &compassv1.SubscribeCommsResponse_MessageChanged{Message: m}}}
	}
	held := message("m_3", 3, "a_1", &compassv1.Block{Content: &compassv1.Block_Mention{Mention: "bot"}}, text("three\x1b[2J\nlines"))
	held.Pos = 0
	ctx, over := context.WithCancel(t.Context())
	r := &room{over: over, live: []*compassv1.SubscribeCommsResponse{event(held), event(held), event(message("m_3", 4, "a_1", text("done")))}}
	s, server := roomShell(t, r)
	var out, log bytes.Buffer
	code := run(ctx, []string{"tail", "acme", "general", "--history", "--server", server}, &out, &log,
		func(_, _, _ string) (client.Client, string, error) { return s.client, "compass", nil })
	want := "00:00:00 #general ada: first\n00:00:00 #general a_9: second\n00:00:00 #general ada (being written): @bot three[2J lines\n00:00:00 #general ada: done\n"
	if code != 0 || out.String() != want {
		t.Errorf("code %d, %s\n%s\nwant\n%s", code, log.String(), out.String(), want)
	}
	if len(r.streams) != 4 || r.streams[0]["c_1"] != 2 || r.streams[1]["c_1"] != 3 {
		t.Errorf("resumed with %v", r.streams)
	}
}
