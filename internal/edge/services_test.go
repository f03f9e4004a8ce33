package edge_test

import (
	"context"
	"errors"
	"net/http"
	"testing"

	"connectrpc.com/connect"
	"connectrpc.com/grpchealth"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	compassv1 "github.com/rigelbuild/compass-operator/api/proto/compass/v1"
	"github.com/rigelbuild/compass-operator/api/proto/compass/v1/compassv1connect"
	"github.com/rigelbuild/compass-operator/internal/edge"
	"github.com/rigelbuild/compass-operator/internal/wire"
)

func textBlocks(s string) []*compassv1.Block {
	return []*compassv1.Block{{Content: &compassv1.Block_Text{Text: s}}}
}

// One tenant's day, through the API alone.
func TestPeopleTalk(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	acme := f.Tenant(t, "acme")
	ctx := t.Context()
	accounts, channels, messages := f.accounts(acme.Token), f.channels(acme.Token), f.messages(acme.Token)

	made, err := accounts.CreateAccount(ctx, request(&compassv1.CreateAccountRequest{
		Kind: compassv1.AccountKind_ACCOUNT_KIND_PERSON, Handle: "ada", DisplayName: "Ada",
	}))
	must(t, err)
	ada := made.Msg.GetAccount()
	issued, err := accounts.IssueToken(ctx, request(&compassv1.IssueTokenRequest{AccountId: ada.GetId()}))
	must(t, err)
	hers := f.messages(issued.Msg.GetToken())
	created, err := channels.CreateChannel(ctx, request(&compassv1.CreateChannelRequest{Name: "general"}))
	must(t, err)
	channel := created.Msg.GetChannel().GetId()

	post := &compassv1.PostMessageRequest{ChannelId: channel, ClientId: "1", Blocks: textBlocks("hello")}
	_, err = hers.PostMessage(ctx, request(post))
	wants(t, "a post of who is not a member", err, connect.CodeNotFound)
	_, err = channels.AddMember(ctx, request(&compassv1.AddMemberRequest{ChannelId: channel, AccountId: ada.GetId()}))
	must(t, err)
	f.queue.take()
	first, err := hers.PostMessage(ctx, request(post))
	must(t, err)
	again, err := hers.PostMessage(ctx, request(post))
	must(t, err)
	if first.Msg.GetDuplicate() || !again.Msg.GetDuplicate() || first.Msg.GetMessage().GetId() != again.Msg.GetMessage().GetId() {
		t.Errorf("posted %v, then %v", first.Msg, again.Msg)
	}
	if refs := f.queue.take(); len(refs) != 1 || refs[0].RowID != first.Msg.GetMessage().GetId() || refs[0].Tenant != string(acme.ID) {
		t.Errorf("handed over %v", refs)
	}
	_, err = hers.UpdateMessage(ctx, request(&compassv1.UpdateMessageRequest{
		MessageId: first.Msg.GetMessage().GetId(), Blocks: textBlocks("changed"),
	}))
	wants(t, "an edit of what has its position", err, connect.CodeFailedPrecondition)

	ask, err := hers.AskQuestion(ctx, request(&compassv1.AskQuestionRequest{ChannelId: channel, ClientId: "2", Blocks: textBlocks("?")}))
	must(t, err)
	answer := func(client string) error {
		_, err := messages.RespondToAsk(ctx, request(&compassv1.RespondToAskRequest{
			AskId: ask.Msg.GetMessage().GetId(), ClientId: client, Blocks: textBlocks("!"),
		}))
		return err
	}
	must(t, answer("3"))
	must(t, answer("3"))
	wants(t, "a second answer", answer("4"), connect.CodeFailedPrecondition)

	page, err := hers.ListMessages(ctx, request(&compassv1.ListMessagesRequest{ChannelId: channel, PageSize: 2}))
	must(t, err)
	if len(page.Msg.GetMessages()) != 2 || !page.Msg.GetMore() || page.Msg.GetMessages()[1].GetAnswerId() == "" {
		t.Errorf("first page %v", page.Msg)
	}
	_, err = channels.ArchiveChannel(ctx, request(&compassv1.ArchiveChannelRequest{ChannelId: channel}))
	must(t, err)
	post.ClientId = "5"
	_, err = hers.PostMessage(ctx, request(post))
	wants(t, "a post in an archived channel", err, connect.CodeFailedPrecondition)
	_, err = accounts.SetRole(ctx, request(&compassv1.SetRoleRequest{AccountId: acme.Admin.ID, Role: compassv1.Role_ROLE_MEMBER}))
	wants(t, "the last admin steps down", err, connect.CodeFailedPrecondition)
	_, err = accounts.SetRole(ctx, request(&compassv1.SetRoleRequest{AccountId: acme.Admin.ID}))
	wants(t, "no role", err, connect.CodeInvalidArgument)
	_, err = accounts.CreateAccount(ctx, request(&compassv1.CreateAccountRequest{
		Kind: compassv1.AccountKind_ACCOUNT_KIND_PERSON, Handle: "eve", Wake: compassv1.Wake_WAKE_ON_OWED,
	}))
	wants(t, "a person to wake", err, connect.CodeInvalidArgument)
	_, err = accounts.CreateAccount(ctx, request(&compassv1.CreateAccountRequest{
		Kind: compassv1.AccountKind_ACCOUNT_KIND_AGENT, Handle: "ada",
	}))
	wants(t, "a taken handle", err, connect.CodeAlreadyExists)
}

// A change of channels is told, and pins work, for members.
func TestChannelsAreManaged(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	acme := f.Tenant(t, "acme")
	ada := acme.Person(t, "ada")
	channel := acme.Channel(t, "a")
	m := acme.Post(t, acme.Admin, channel, "read me")
	channels := f.channels(acme.Token)
	for range 2 {
		_, err := channels.PinMessage(t.Context(), request(&compassv1.PinMessageRequest{ChannelId: channel.ID, MessageId: m.ID}))
		must(t, err)
	}
	_, err := channels.UnpinMessage(t.Context(), request(&compassv1.UnpinMessageRequest{ChannelId: channel.ID, MessageId: m.ID}))
	must(t, err)
	_, err = channels.AddMember(t.Context(), request(&compassv1.AddMemberRequest{ChannelId: channel.ID, AccountId: ada.ID}))
	must(t, err)
	members, err := channels.ListMembers(t.Context(), request(&compassv1.ListMembersRequest{ChannelId: channel.ID}))
	must(t, err)
	if len(members.Msg.GetMembers()) != 2 {
		t.Errorf("members %v", members.Msg)
	}
	_, err = channels.RemoveMember(t.Context(), request(&compassv1.RemoveMemberRequest{ChannelId: channel.ID, AccountId: ada.ID}))
	must(t, err)
	list, err := channels.ListChannels(t.Context(), request(&compassv1.ListChannelsRequest{}))
	must(t, err)
	if len(list.Msg.GetChannels()) != 1 {
		t.Errorf("channels %v", list.Msg)
	}
}

// Holds REQ-016 (a client hears of what is posted, once, and is cut off with its token).
func TestStreamOverTheWire(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	acme := f.Tenant(t, "acme")
	ada := acme.Person(t, "ada")
	channel := acme.Channel(t, "a", ada)
	id, token := acme.TokenOf(t, ada)
	stream, err := f.messages(token).SubscribeComms(t.Context(), request(&compassv1.SubscribeCommsRequest{}))
	must(t, err)
	defer func() { _ = stream.Close() }()
	if !stream.Receive() || stream.Msg().GetHeartbeat() == nil {
		t.Fatalf("first word %v, %v: want a heartbeat", stream.Msg(), stream.Err())
	}
	posted, err := f.messages(acme.Token).PostMessage(t.Context(), request(&compassv1.PostMessageRequest{
		ChannelId: channel.ID, ClientId: "1", Blocks: textBlocks("hello"),
	}))
	must(t, err)
	if !stream.Receive() || stream.Msg().GetMessage().GetMessage().GetId() != posted.Msg.GetMessage().GetId() {
		t.Fatalf("told %v, %v", stream.Msg(), stream.Err())
	}
	_, err = f.channels(acme.Token).RemoveMember(t.Context(), request(&compassv1.RemoveMemberRequest{ChannelId: channel.ID, AccountId: ada.ID}))
	must(t, err)
	if !stream.Receive() || stream.Msg().GetChannel().GetChannelId() != channel.ID {
		t.Fatalf("told %v, %v: want that the channel was left", stream.Msg(), stream.Err())
	}
	_, err = f.accounts(acme.Token).RevokeToken(t.Context(), request(&compassv1.RevokeTokenRequest{TokenId: id}))
	must(t, err)
	for stream.Receive() {
		if stream.Msg().GetHeartbeat() == nil {
			t.Errorf("told %v after the token was revoked", stream.Msg())
		}
	}
	wants(t, "a revoked stream", stream.Err(), connect.CodeUnauthenticated)
}

// Holds REQ-106 (at the edge: ResourceExhausted says when to come back).
func TestExhaustedSaysWhenToComeBack(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	acme := f.Tenant(t, "acme")
	f.Exec(t, `update compass.tenants set limits = '{"messages":{"perSecond":0.001,"burst":1}}' where id = $1`, acme.ID)
	channel := acme.Channel(t, "a")
	post := func(client string) error {
		_, err := f.messages(acme.Token).PostMessage(t.Context(), request(&compassv1.PostMessageRequest{
			ChannelId: channel.ID, ClientId: client, Blocks: textBlocks("x"),
		}))
		return err
	}
	must(t, post("1"))
	err := post("2")
	wants(t, "beyond the burst", err, connect.CodeResourceExhausted)
	if e := wire.Error(err); e.Meta().Get(wire.RetryAfter) == "" {
		t.Errorf("no word of when to come back: %v", e.Meta())
	}
}

func TestHealth(t *testing.T) {
	t.Parallel()
	var down error
	f := newFixture(t, func(p *parts) { p.Ready = func(context.Context) error { return down } })
	checker := grpchealth.NewClient(http.DefaultClient, f.url)
	check := func(service string) (grpchealth.Status, error) {
		res, err := checker.Check(t.Context(), &grpchealth.CheckRequest{Service: service})
		if err != nil {
			return grpchealth.StatusUnknown, err
		}
		return res.Status, nil
	}
	for _, service := range []string{"", compassv1connect.CommsServiceName} {
		if got, err := check(service); err != nil || got != grpchealth.StatusServing {
			t.Errorf("%q: %v, %v, want serving", service, got, err)
		}
	}
	_, err := check("nobody.Service")
	wants(t, "an unknown service", err, connect.CodeNotFound)
	down = errors.New("no database")
	if got, err := check(""); err != nil || got != grpchealth.StatusNotServing {
		t.Errorf("while not ready: %v, %v", got, err)
	}
}

// Calls are counted by procedure and code, and a caller's trace goes on.
func TestCallsAreObserved(t *testing.T) {
	t.Parallel()
	reader, spans := sdkmetric.NewManualReader(), tracetest.NewInMemoryExporter()
	f := newFixture(t, func(p *parts) {
		p.Meters = sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))
		p.Tracers = sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans))
	})
	acme := f.Tenant(t, "acme")
	call := request(&compassv1.WhoAmIRequest{})
	call.Header().Set("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	_, err := f.accounts(acme.Token).WhoAmI(t.Context(), call)
	must(t, err)
	_, err = f.accounts("").WhoAmI(t.Context(), request(&compassv1.WhoAmIRequest{}))
	wants(t, "nobody", err, connect.CodeUnauthenticated)
	var seen metricdata.ResourceMetrics
	must(t, reader.Collect(t.Context(), &seen))
	codes := map[string]uint64{}
	for _, m := range seen.ScopeMetrics[0].Metrics {
		if h, ok := m.Data.(metricdata.Histogram[float64]); ok && m.Name == edge.MetricCalls {
			for _, p := range h.DataPoints {
				code, _ := p.Attributes.Value("code")
				codes[code.AsString()] += p.Count
			}
		}
	}
	if codes["ok"] != 1 || codes["unauthenticated"] != 1 {
		t.Errorf("counted %v", codes)
	}
	if got := spans.GetSpans(); len(got) != 2 || got[0].SpanContext.TraceID().String() != "0af7651916cd43dd8448eb211c80319c" {
		t.Errorf("spans %+v: want the caller's trace to go on", got)
	}
}
