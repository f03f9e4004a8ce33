package hub_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	compassv1 "github.com/rigelbuild/compass-operator/api/proto/compass/v1"
	"github.com/rigelbuild/compass-operator/api/proto/compass/v1/compassv1connect"
	"github.com/rigelbuild/compass-operator/internal/fabric"
	"github.com/rigelbuild/compass-operator/internal/hub"
	"github.com/rigelbuild/compass-operator/internal/naming"
	"github.com/rigelbuild/compass-operator/internal/store"
)

type gate struct{ runners []store.Runner }

func (g *gate) RunnerAccess(_ context.Context, r store.Runner) (hub.Access, error) {
	g.runners = append(g.runners, r)
	return hub.Access{JWT: "jwt of " + r.PublicKey, URLs: []string{"nats://x"}, CA: "pem", CommandKeys: map[string][]byte{"k1": {1}}}, nil
}

// Holds REQ-234: a token binds to the first key whose holder shows it; a repeat is idempotent, and a second key is
// refused, disables the token and is alarmed, without the token in the log.
func TestEnroll(t *testing.T) {
	t.Parallel()
	g := newGround(t)
	access := &gate{}
	s := g.server(t, func(o *hub.Options) { o.Access = access })
	client := compassv1connect.NewRunnerServiceClient(http.DefaultClient, s.url)
	enroll := func(q *compassv1.EnrollRequest) (*compassv1.EnrollResponse, error) {
		r, err := client.Enroll(t.Context(), connect.NewRequest(q))
		if err != nil {
			return nil, err
		}
		return r.Msg, nil
	}
	first, err := fabric.NewUserSeed()
	must(t, err)
	second, err := fabric.NewUserSeed()
	must(t, err)
	token := g.token(t, naming.SharedFleet)

	for name, c := range map[string]struct {
		change func(*compassv1.EnrollRequest)
		want   connect.Code
	}{
		"no token":           {func(q *compassv1.EnrollRequest) { q.Token = "crt_x" }, connect.CodeUnauthenticated},
		"short nonce":        {func(q *compassv1.EnrollRequest) { q.Nonce = q.Nonce[:15] }, connect.CodeInvalidArgument},
		"another nonce":      {func(q *compassv1.EnrollRequest) { q.Nonce[0]++ }, connect.CodeUnauthenticated},
		"another key":        {func(q *compassv1.EnrollRequest) { q.PublicKey = second.Public() }, connect.CodeUnauthenticated},
		"key of another use": {func(q *compassv1.EnrollRequest) { q.PublicKey = "A" + q.PublicKey[1:] }, connect.CodeUnauthenticated},
	} {
		q := enrolment(t, token, first)
		c.change(q)
		_, err := enroll(q)
		wantCode(t, name, err, c.want)
	}
	unknown, err := g.IDs.RunnerToken(naming.SharedFleet)
	must(t, err)
	_, err = enroll(enrolment(t, unknown, first))
	wantCode(t, "a token that nobody issued", err, connect.CodeUnauthenticated)

	got, err := enroll(enrolment(t, token, first))
	must(t, err)
	if got.GetFleet() != naming.SharedFleet || got.GetNatsJwt() != "jwt of "+first.Public() || got.GetCommandKeys()["k1"] == nil {
		t.Errorf("enrolled: %v", got)
	}
	again, err := enroll(enrolment(t, token, first))
	if err != nil || again.GetRunnerId() != got.GetRunnerId() {
		t.Errorf("again: %v, %v", again, err)
	}
	if strings.Contains(s.log.String(), "second key") {
		t.Error("alarm without a theft")
	}
	_, err = enroll(enrolment(t, token, second))
	wantCode(t, "the second key", err, connect.CodePermissionDenied)
	_, err = enroll(enrolment(t, token, first))
	wantCode(t, "the first key after the theft", err, connect.CodePermissionDenied)
	if log := s.log.String(); !strings.Contains(log, "level=ERROR") || !strings.Contains(log, "second key") || strings.Contains(log, token) {
		t.Errorf("log after the theft: %s", log)
	}
	if len(access.runners) != 2 {
		t.Errorf("access was given %d times, want 2", len(access.runners))
	}
}

// every is one call of each procedure that needs to know the Runner, naming runner in its body.
func every(c compassv1connect.RunnerServiceClient, runner string) map[string]func(context.Context) error {
	return map[string]func(context.Context) error{
		"Hello": func(ctx context.Context) error {
			_, err := c.Hello(ctx, connect.NewRequest(&compassv1.HelloRequest{RunnerId: runner}))
			return err
		},
		"Heartbeat": func(ctx context.Context) error {
			_, err := c.Heartbeat(ctx, connect.NewRequest(&compassv1.HeartbeatRequest{RunnerId: runner}))
			return err
		},
		"ClaimStart": func(ctx context.Context) error {
			_, err := c.ClaimStart(ctx, connect.NewRequest(&compassv1.ClaimStartRequest{RunnerId: runner}))
			return err
		},
		"FetchCommands": func(ctx context.Context) error {
			_, err := c.FetchCommands(ctx, connect.NewRequest(&compassv1.FetchCommandsRequest{RunnerId: runner}))
			return err
		},
		"SendEvent": func(ctx context.Context) error {
			answer, err := c.SendEvent(ctx, connect.NewRequest(&compassv1.SendEventRequest{Event: &compassv1.RunnerEvent{RunnerId: runner}}))
			if err != nil {
				return err
			}
			var code connect.Code
			if err := code.UnmarshalText([]byte(answer.Msg.GetAnswer().GetCode())); err != nil {
				return err
			}
			return connect.NewError(code, nil)
		},
		"RelayCommsCall": func(ctx context.Context) error {
			_, err := c.RelayCommsCall(ctx, connect.NewRequest(&compassv1.RelayCommsCallRequest{RunnerId: runner}))
			return err
		},
		"CommitConversationFrame": func(ctx context.Context) error {
			_, err := c.CommitConversationFrame(ctx, connect.NewRequest(&compassv1.CommitConversationFrameRequest{RunnerId: runner}))
			return err
		},
	}
}

// Holds REQ-116: who the Runner is comes from its signature over this very procedure and time, and a body that
// names another one is refused, by every procedure.
func TestRunnersProveThemselves(t *testing.T) {
	t.Parallel()
	g := newGround(t)
	s := g.server(t)
	good, other := g.box(t, s), g.box(t, s)
	client := func(i ...connect.Interceptor) compassv1connect.RunnerServiceClient {
		return compassv1connect.NewRunnerServiceClient(http.DefaultClient, s.url, connect.WithInterceptors(i...))
	}
	shifted := func(d time.Duration) func() time.Time { return func() time.Time { return time.Now().Add(d) } }
	replayed := connect.UnaryInterceptorFunc(func(next connect.UnaryFunc) connect.UnaryFunc {
		return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
			proof := naming.RunnerProof{Runner: good.id, Unix: time.Now().Unix()}
			proof.Signature, _ = good.seed.Sign(proof.Message("/compass.v1.RunnerService/Other"))
			req.Header().Set("Authorization", proof.Header())
			return next(ctx, req)
		}
	})
	for name, c := range map[string]compassv1connect.RunnerServiceClient{
		"no proof":             client(),
		"another key":          client(signs(good.id, other.seed, time.Now)),
		"unknown Runner":       client(signs(g.IDs.Runner(), good.seed, time.Now)),
		"two minutes ago":      client(signs(good.id, good.seed, shifted(-2*time.Minute))),
		"in two minutes":       client(signs(good.id, good.seed, shifted(2*time.Minute))),
		"of another procedure": client(replayed),
	} {
		for procedure, call := range every(c, good.id) {
			wantCode(t, procedure+": "+name, call(t.Context()), connect.CodeUnauthenticated)
		}
	}
	for procedure, call := range every(good, other.id) {
		wantCode(t, procedure+": names another Runner", call(t.Context()), connect.CodePermissionDenied)
	}
	if _, err := client(signs(good.id, good.seed, shifted(-30*time.Second))).Hello(t.Context(), connect.NewRequest(&compassv1.HelloRequest{})); err != nil {
		t.Errorf("half a minute ago: %v", err)
	}
}

// Holds REQ-116: what the broker vouches for is compared with what was enrolled: an id that was not, and one of another
// fleet, speak for nobody.
func TestRunnersOfTheBrokerAreEnrolled(t *testing.T) {
	t.Parallel()
	g := newGround(t)
	s := g.server(t)
	tenant := g.Tenant(t, "acme")
	seed, err := fabric.NewUserSeed()
	must(t, err)
	enroller := compassv1connect.NewRunnerServiceClient(http.DefaultClient, s.url)
	own, err := enroller.Enroll(t.Context(), connect.NewRequest(enrolment(t, g.token(t, string(tenant.ID)), seed)))
	must(t, err)
	for name, id := range map[string]string{
		"never enrolled": g.IDs.Runner(), "of the tenant's fleet, in the account of the shared one": own.Msg.GetRunnerId(),
	} {
		conn := g.connect(t, id)
		_, err := conn.Call(t.Context(), compassv1connect.RunnerServiceHelloProcedure, nil)
		wantCode(t, name, err, connect.CodeUnauthenticated)
		answer, err := conn.Event(t.Context(), &compassv1.RunnerEvent{RunnerId: id})
		if err != nil || answer.GetCode() != connect.CodeUnauthenticated.String() {
			t.Errorf("%s: event answered %v, %v", name, answer, err)
		}
	}
	if n := g.Count(t, `select count(*) from compass.runner_leases`); n != 0 {
		t.Errorf("%d Runners have a lease", n)
	}
}
