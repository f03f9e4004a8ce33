package edge_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/reflect/protoreflect"

	compassv1 "github.com/rigelbuild/compass-operator/api/proto/compass/v1"
	"github.com/rigelbuild/compass-operator/api/proto/compass/v1/compassv1connect"
	"github.com/rigelbuild/compass-operator/internal/comms"
	"github.com/rigelbuild/compass-operator/internal/edge"
	"github.com/rigelbuild/compass-operator/internal/store"
)

// Holds REQ-089, REQ-238 (identity is the token's alone; every other token is refused alike).
func TestIdentityComesFromTheToken(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	acme, rival := f.Tenant(t, "acme"), f.Tenant(t, "rival")
	me, err := f.accounts(acme.Token).WhoAmI(t.Context(), request(&compassv1.WhoAmIRequest{}))
	must(t, err)
	if me.Msg.GetTenantId() != string(acme.ID) || me.Msg.GetTenantSlug() != "acme" || me.Msg.GetAccount().GetId() != acme.Admin.ID {
		t.Errorf("I am %v", me.Msg)
	}
	ada := acme.Person(t, "ada")
	_, revoked := acme.TokenOf(t, ada)
	id, _ := acme.TokenOf(t, ada)
	_ = id
	f.Exec(t, `update compass.account_tokens set revoked_at_unix_ms = 1 where account_id = $1`, ada.ID)
	bot := acme.Agent(t, "bot")
	_, deleted := acme.TokenOf(t, bot)
	_, err = f.accounts(acme.Token).DeleteAccount(t.Context(), request(&compassv1.DeleteAccountRequest{AccountId: bot.ID}))
	must(t, err)
	never, err := f.IDs.Token(string(acme.ID))
	must(t, err)
	nowhere, err := f.IDs.Token(f.IDs.Tenant())
	must(t, err)
	var answers []string
	for name, token := range map[string]string{
		"none":                  "",
		"no token":              "hello",
		"revoked":               revoked,
		"of a deleted account":  deleted,
		"never issued":          never,
		"of no tenant":          nowhere,
		"under another's name":  strings.Replace(acme.Token, string(acme.ID), string(rival.ID), 1),
		"under the platform's":  strings.Replace(acme.Token, string(acme.ID), string(store.BootstrapTenantID), 1),
		"with another's secret": strings.Replace(rival.Token, string(rival.ID), string(acme.ID), 1),
	} {
		_, err := f.accounts(token).WhoAmI(t.Context(), request(&compassv1.WhoAmIRequest{}))
		wants(t, name, err, connect.CodeUnauthenticated)
		if token != "" {
			answers = append(answers, err.Error())
		}
	}
	for _, a := range answers {
		if a != answers[0] {
			t.Errorf("refusals can be told apart: %q and %q", a, answers[0])
		}
	}
	stream, err := f.messages(never).SubscribeComms(t.Context(), request(&compassv1.SubscribeCommsRequest{}))
	must(t, err)
	if stream.Receive() {
		t.Error("a stream was opened without a token")
	}
	wants(t, "stream", stream.Err(), connect.CodeUnauthenticated)
	if strings.Contains(f.log.String(), "cmp_") {
		t.Error("a token reached the log")
	}
}

// procedures are all of a service, from its descriptor.
func procedures(t *testing.T) map[string]protoreflect.MethodDescriptor {
	t.Helper()
	out := map[string]protoreflect.MethodDescriptor{}
	for _, file := range []protoreflect.FileDescriptor{
		compassv1.File_compass_v1_account_proto, compassv1.File_compass_v1_channel_proto, compassv1.File_compass_v1_comms_proto,
		compassv1.File_compass_v1_session_proto, compassv1.File_compass_v1_admin_proto,
	} {
		for i := range file.Services().Len() {
			service := file.Services().Get(i)
			for j := range service.Methods().Len() {
				m := service.Methods().Get(j)
				out["/"+string(service.FullName())+"/"+string(m.Name())] = m
			}
		}
	}
	if len(out) < 30 {
		t.Fatalf("only %d procedures were found", len(out))
	}
	return out
}

// Every procedure says who may call it: members, the tenant's admins, or the platform's.
func TestRolesAreRequired(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	acme := f.Tenant(t, "acme")
	root := f.Platform(t)
	_, member := acme.TokenOf(t, acme.Person(t, "ada"))
	open := map[string]bool{
		compassv1connect.AccountServiceListAccountsProcedure: true, compassv1connect.AccountServiceWhoAmIProcedure: true,
	}
	forPlatform := map[string]bool{
		compassv1connect.AdminServiceCreateTenantProcedure: true, compassv1connect.AdminServiceIssueRunnerTokenProcedure: true,
	}
	for procedure, m := range procedures(t) {
		if strings.Contains(procedure, "SessionService") || m.IsStreamingServer() {
			continue // the hub is not mounted here, and a stream answers in another form
		}
		forMembers := open[procedure] || strings.Contains(procedure, "ChannelService") || strings.Contains(procedure, "CommsService")
		for who, c := range map[string]struct {
			token string
			may   bool
		}{
			"a member":         {member, forMembers},
			"an admin":         {acme.Token, !forPlatform[procedure]},
			"a platform admin": {root.Token, true},
		} {
			answer := f.raw(t, c.token, procedure, []byte(`{}`))
			if denied := strings.Contains(answer, `"permission_denied"`); denied == c.may {
				t.Errorf("%s calls %s: %s, may %v", who, procedure, answer, c.may)
			}
		}
	}
}

// broken is comms that fails as it is told to.
type broken struct {
	edge.Comms
	fail func(ctx context.Context) error
}

func (b broken) PostMessage(ctx context.Context, _ store.NewMessage) (comms.Result, error) {
	return comms.Result{}, b.fail(ctx)
}

// Panics and unforeseen errors are Internal without details, and in the log; a deadline bounds every call.
func TestWhatHandlersLeaveBehind(t *testing.T) {
	t.Parallel()
	var fail func(context.Context) error
	f := newFixture(t, func(p *parts) {
		p.Comms = broken{p.Comms, func(ctx context.Context) error { return fail(ctx) }}
		p.Timeout = 2 * time.Second
		p.MaxBytes = 4096
	})
	acme := f.Tenant(t, "acme")
	post := func(text string, options ...connect.ClientOption) error {
		_, err := compassv1connect.NewCommsServiceClient(client(acme.Token), f.url, options...).PostMessage(t.Context(), request(&compassv1.PostMessageRequest{
			ChannelId: f.IDs.Channel(), ClientId: "1",
			Blocks: []*compassv1.Block{{Content: &compassv1.Block_Text{Text: text}}},
		}))
		return err
	}
	for name, c := range map[string]struct {
		fail func(context.Context) error
		code connect.Code
	}{
		"a panic":   {func(context.Context) error { panic("hunter2") }, connect.CodeInternal},
		"an error":  {func(context.Context) error { return errors.New("hunter2") }, connect.CodeInternal},
		"no answer": {func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }, connect.CodeDeadlineExceeded},
		"outage":    {func(context.Context) error { return store.ErrUnavailable }, connect.CodeUnavailable},
	} {
		fail = c.fail
		err := post("x")
		wants(t, name, err, c.code)
		if strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: the caller reads %q", name, err)
		}
	}
	if n := strings.Count(f.log.String(), "hunter2"); n < 2 {
		t.Errorf("the log has %d of 2 failures: %s", n, f.log)
	}
	fail = func(context.Context) error { return nil }
	// Not ResourceExhausted, which asks to come back later.
	for name, options := range map[string][]connect.ClientOption{
		"over Connect": nil, "packed": {connect.WithSendGzip()}, "over gRPC": {connect.WithGRPCWeb()}, "packed, over gRPC": {connect.WithGRPCWeb(), connect.WithSendGzip()},
	} {
		err := post(strings.Repeat("x", 5000), options...)
		wants(t, "a request beyond the limit "+name, err, connect.CodeInvalidArgument)
		if !strings.Contains(fmt.Sprint(err), "too large") {
			t.Errorf("%s: the caller reads %q", name, err)
		}
	}
}

// edge.Caller is what the hub asks who calls.
func TestCallerOfNobody(t *testing.T) {
	t.Parallel()
	if _, err := edge.Caller(t.Context()); err == nil {
		t.Error("somebody was found in an empty context")
	}
	if _, err := edge.New(edge.Options{}); err == nil {
		t.Error("an edge without its parts was made")
	}
}
