package e2e

import (
	"context"
	"net/http"
	"testing"

	"connectrpc.com/connect"

	compassv1 "github.com/rigelbuild/compass-operator/api/proto/compass/v1"
	"github.com/rigelbuild/compass-operator/api/proto/compass/v1/compassv1connect"
)

// api is the Connect API as one account.
type api struct {
	accounts compassv1connect.AccountServiceClient
	channels compassv1connect.ChannelServiceClient
	comms    compassv1connect.CommsServiceClient
	sessions compassv1connect.SessionServiceClient
	admin    compassv1connect.AdminServiceClient
}

func newAPI(url, token string) *api {
	bearer := connect.WithInterceptors(connect.UnaryInterceptorFunc(func(next connect.UnaryFunc) connect.UnaryFunc {
		return func(ctx context.Context, q connect.AnyRequest) (connect.AnyResponse, error) {
			q.Header().Set("Authorization", "Bearer "+token)
			return next(ctx, q)
		}
	}))
	web := &http.Client{Transport: http.DefaultTransport.(*http.Transport).Clone()} //nolint:forcetypeassert // it is one
	return &api{
		accounts: compassv1connect.NewAccountServiceClient(web, url, bearer),
		channels: compassv1connect.NewChannelServiceClient(web, url, bearer),
		comms:    compassv1connect.NewCommsServiceClient(web, url, bearer),
		sessions: compassv1connect.NewSessionServiceClient(web, url, bearer),
		admin:    compassv1connect.NewAdminServiceClient(web, url, bearer),
	}
}

type method[Q, A any] func(context.Context, *connect.Request[Q]) (*connect.Response[A], error)

// try makes a call and returns its error.
func try[Q, A any](tb testing.TB, m method[Q, A], q *Q) (*A, error) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), patience)
	defer cancel()
	answer, err := m(ctx, connect.NewRequest(q))
	if err != nil {
		return nil, err
	}
	return answer.Msg, nil
}

// call makes a call that must succeed.
func call[Q, A any](tb testing.TB, m method[Q, A], q *Q) *A {
	tb.Helper()
	answer, err := try(tb, m, q)
	must(tb, err)
	return answer
}

func text(s string) *compassv1.Block {
	return &compassv1.Block{Content: &compassv1.Block_Text{Text: s}}
}

func mention(handle string) *compassv1.Block {
	return &compassv1.Block{Content: &compassv1.Block_Mention{Mention: handle}}
}

// agent makes an agent and lets it into channels.
func (a *api) agent(tb testing.TB, handle string, channels ...string) (id string) {
	tb.Helper()
	id = call(tb, a.accounts.CreateAccount, &compassv1.CreateAccountRequest{
		Kind: compassv1.AccountKind_ACCOUNT_KIND_AGENT, Handle: handle,
	}).GetAccount().GetId()
	for _, c := range channels {
		call(tb, a.channels.AddMember, &compassv1.AddMemberRequest{ChannelId: c, AccountId: id})
	}
	return id
}

func (a *api) channel(tb testing.TB, name string) (id string) {
	tb.Helper()
	return call(tb, a.channels.CreateChannel, &compassv1.CreateChannelRequest{Name: name}).GetChannel().GetId()
}

// post posts a text, which is its client id too.
func (a *api) post(tb testing.TB, channel, words string) *compassv1.Message {
	tb.Helper()
	return call(tb, a.comms.PostMessage, posting(channel, words)).GetMessage()
}

func posting(channel, words string) *compassv1.PostMessageRequest {
	return &compassv1.PostMessageRequest{ChannelId: channel, ClientId: words, Blocks: []*compassv1.Block{text(words)}}
}

// mentioning is a post that mentions somebody.
func mentioning(channel, words, handle string) *compassv1.PostMessageRequest {
	return &compassv1.PostMessageRequest{ChannelId: channel, ClientId: words, Blocks: []*compassv1.Block{mention(handle), text(words)}}
}

// start starts a session of an agent, as soon as a Runner is there, and waits until that has taken it.
func (a *api) start(tb testing.TB, agent string) (session string) {
	tb.Helper()
	await(tb, "a session starts", func() string {
		answer, err := try(tb, a.sessions.StartSession, &compassv1.StartSessionRequest{AgentId: agent})
		if err != nil {
			return err.Error()
		}
		session = answer.GetSession().GetId()
		return ""
	})
	await(tb, "the Runner takes the session", func() string {
		for _, s := range call(tb, a.sessions.ListSessions, &compassv1.ListSessionsRequest{}).GetSessions() {
			if s.GetId() == session && s.GetClaimed() {
				return ""
			}
		}
		return "not claimed"
	})
	return session
}

// settled waits until nothing is owed to anybody: every cursor has passed what there is.
func (a *api) settled(tb testing.TB) {
	tb.Helper()
	await(tb, "nothing is owed", func() string {
		owed := call(tb, a.admin.ListOwed, &compassv1.ListOwedRequest{}).GetOwed()
		return unless(len(owed) == 0, "%v", owed)
	})
}

// whole is the text of a message, with mentions as people write them.
func whole(m *compassv1.Message) (words string) {
	for _, b := range m.GetBlocks() {
		if b.GetMention() != "" {
			words += "@" + b.GetMention()
		}
		words += b.GetText()
	}
	return words
}
