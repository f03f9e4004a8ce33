package fabric_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nkeys"

	compassv1 "github.com/rigelbuild/compass-operator/api/proto/compass/v1"
	"github.com/rigelbuild/compass-operator/internal/fabric"
	"github.com/rigelbuild/compass-operator/internal/fabric/fabrictest"
)

// yard is a server with everything a hostile user could want: two tenants, Runners, streams, and somebody who sees all of
// COMPASS.
type yard struct {
	*cluster
	a, b fabric.TenantAccountSpec

	mu   sync.Mutex
	seen []string // subjects that arrived in COMPASS
}

func newYard(t *testing.T) *yard {
	t.Helper()
	y := &yard{cluster: startCluster(t, 1, nil)}
	y.base(t)
	y.a, y.b = y.tenant(t, fabrictest.TenantA), y.tenant(t, fabrictest.TenantB)
	y.makeStream(t, "main")
	y.makeStream(t, "second")
	nc, err := y.dialAs(y.standalone(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	for _, subject := range []string{"compass.>", "client.>", "$JS.API.>"} {
		if _, err := nc.Subscribe(subject, func(m *nats.Msg) {
			y.mu.Lock()
			y.seen = append(y.seen, m.Subject)
			y.mu.Unlock()
		}); err != nil {
			t.Fatal(err)
		}
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	return y
}

func (y *yard) arrived(prefix string) int {
	y.mu.Lock()
	defer y.mu.Unlock()
	n := 0
	for _, s := range y.seen {
		if strings.HasPrefix(s, prefix) {
			n++
		}
	}
	return n
}

func (y *yard) shared() fabric.Issuer { return y.keys.Runners.Issuer(fabric.RoleRunner) }

// attacker is a bare connection whose violations are counted.
type attacker struct {
	nc *nats.Conn

	mu         sync.Mutex
	violations []string
}

func (y *yard) attacker(t *testing.T, u user) *attacker {
	t.Helper()
	a := &attacker{}
	nc, err := y.dialAs(u, nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
		a.mu.Lock()
		a.violations = append(a.violations, err.Error())
		a.mu.Unlock()
	}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	a.nc = nc
	return a
}

func (a *attacker) refused() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.violations)
}

// mustRefuse tries to publish or subscribe and expects the broker's refusal.
func (a *attacker) mustRefuse(t *testing.T, verb, subject string) {
	t.Helper()
	before := a.refused()
	var err error
	if verb == "pub" {
		err = a.nc.Publish(subject, []byte("{}"))
	} else {
		_, err = a.nc.Subscribe(subject, func(m *nats.Msg) { t.Errorf("heard %s through %s", m.Subject, subject) })
	}
	if err == nil {
		err = a.nc.FlushTimeout(10 * time.Second)
	}
	if err != nil {
		t.Fatalf("%s %s: %v", verb, subject, err)
	}
	fabrictest.Eventually(t, verb+" "+subject+" is refused", func() bool { return a.refused() > before })
}

// Holds REQ-117, REQ-206. Ruling R1: a Runner speaks and hears as itself alone.
func TestHostileRunner(t *testing.T) {
	t.Parallel()
	y := newYard(t)
	r1, r2 := fabrictest.Runner1, fabrictest.Runner2
	a := y.attacker(t, issue(t, y.shared(), r1))
	for _, subject := range []string{
		"compass.runner." + r2 + ".events", "compass.runner." + r2 + ".call", "compass.runner." + r2 + ".state.main",
		"compass.runner.*.events", "compass.runner.>",
		"compass.runner.shared." + r2 + ".events", "compass.runner.shared." + r1 + ".events",
		"compass.runner." + fabrictest.TenantA + "." + r1 + ".events",
		"compass.runner." + r1 + ".cmd", "compass.runner." + r2 + ".cmd", "compass.runner.shared." + r2 + ".cmd",
		"compass.q.main." + fabrictest.TenantA + ".message_posted", "compass.dlq.main.x", "compass.worker.main",
		"compass.bcast." + fabrictest.TenantA + ".presence", "client." + fabrictest.Client1,
		"_INBOX_r." + r2 + ".x.1", "_INBOX_s.x", "_INBOX_w.main.x", "$JS.API.INFO", "$JS.API.STREAM.LIST",
		"$JS.API.STREAM.DELETE.CMP_main", "$JS.API.CONSUMER.MSG.NEXT.CMP_main.deliver", "$JS.ACK.CMP_main.deliver.1.1.1.1.0",
		"$JS.API.STREAM.INFO.CMP_main", "$JS.API.STREAM.MSG.GET.CMP_main", "$JS.API.DIRECT.GET.CMP_main_DLQ", "$JS.API.CONSUMER.INFO.CMP_main.deliver",
		"$JS.API.CONSUMER.CREATE.CMP_main.deliver.compass.q.>", "$JS.API.CONSUMER.DURABLE.CREATE.CMP_main.deliver", "$JS.API.CONSUMER.RESET.CMP_main.deliver",
		"$SYS.REQ.SERVER.PING", "$SYS.REQ.CLAIMS.UPDATE", "compass.runner." + r1 + ".state.main.more",
	} {
		a.mustRefuse(t, "pub", subject)
	}
	for _, subject := range []string{
		">", "*", "compass.>", "compass.runner.>", "compass.runner.*.cmd", "compass.runner." + r2 + ".cmd",
		"compass.runner." + r1 + ".events", "compass.runner.shared." + r1 + ".cmd", "_INBOX.>", "_INBOX_r.>",
		"_INBOX_r." + r2 + ".>", "_INBOX_r.*.*", "$SYS.>", "$JS.EVENT.>", "$JS.>", "compass.bcast.*.*", "client.*",
	} {
		a.mustRefuse(t, "sub", subject)
	}
	if err := a.nc.Publish("compass.runner."+r1+".events", nil); err != nil {
		t.Fatal(err)
	}
	fabrictest.Eventually(t, "its own event arrives, as its own", func() bool {
		return y.arrived("compass.runner.shared."+r1+".events") == 1
	})
	if n := len(y.all("compass.")); n != 1 {
		t.Errorf("%d messages got into COMPASS, want its own event alone: %v", n, y.all("compass."))
	}
}

func (y *yard) all(prefix string) []string {
	y.mu.Lock()
	defer y.mu.Unlock()
	var out []string
	for _, s := range y.seen {
		if strings.HasPrefix(s, prefix) {
			out = append(out, s)
		}
	}
	return out
}

// The answer to an event goes where the event says. Inside its account a Runner can point it at another Runner's commands,
// where the signature stops it; it can never point it into COMPASS.
func TestReplySubjectsInjectNothing(t *testing.T) {
	t.Parallel()
	y := newYard(t)
	r1, r2 := fabrictest.Runner1, fabrictest.Runner2
	f := y.fabric(t, issue(t, y.keys.Compass.Issuer(fabric.RoleServer), ""), nil)
	answered := make(chan string, 64)
	if _, err := f.Events(t.Context(), func(_ context.Context, e fabric.RunnerEvent) error {
		answered <- e.From.ID
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	victim := y.runner(t, issue(t, y.shared(), r2), r2)
	if _, err := victim.Commands(t.Context(), func(_ context.Context, c *compassv1.Command, _ *compassv1.SessionsResponse) {
		t.Errorf("the victim took %v", c)
	}); err != nil {
		t.Fatal(err)
	}
	a := y.attacker(t, issue(t, y.shared(), r1))
	replies := []string{
		"compass.runner." + r2 + ".cmd", "compass.runner.shared." + r2 + ".cmd", "compass.runner." + r2 + ".events",
		"compass.q.main." + fabrictest.TenantA + ".message_posted", "compass.dlq.main.x", "compass.worker.main",
		"compass.bcast." + fabrictest.TenantA + ".presence", "client." + fabrictest.Client1,
		"$JS.API.STREAM.DELETE.CMP_main", "$JS.API.STREAM.PURGE.CMP_main", "_INBOX_s.x",
	}
	for _, reply := range replies {
		if err := a.nc.PublishRequest("compass.runner."+r1+".events", reply, nil); err != nil {
			t.Fatal(err)
		}
	}
	for range replies {
		if from := <-answered; from != r1 {
			t.Errorf("an event came from %s", from)
		}
	}
	// $JS.ACK as a reply is refused by the server itself; what got through above is all there is.
	admin := y.fabric(t, y.admin(t), nil)
	queue, dead, _, err := admin.ObserveStream(t.Context(), fabric.StreamSpec{Name: "main"})
	if err != nil || !queue.Exists || queue.Messages+dead.Messages != 0 {
		t.Errorf("a reply got into a stream: %+v %+v, %v", queue, dead, err)
	}
	for _, s := range y.all("") {
		if !strings.HasPrefix(s, "compass.runner.shared."+r1+".events") && !strings.HasPrefix(s, "$JS.API.STREAM.INFO.") &&
			!strings.HasPrefix(s, "$JS.API.CONSUMER.") && !strings.HasPrefix(s, "$JS.API.STREAM.CREATE.") {
			t.Errorf("a reply got into COMPASS on %s", s)
		}
	}
}

// Holds REQ-123. A tenant's fleet is its own: it speaks with its fleet's name, and hears its own commands alone.
func TestHostileFleetOfATenant(t *testing.T) {
	t.Parallel()
	y := newYard(t)
	r1 := fabrictest.Runner1
	f := y.fabric(t, issue(t, y.keys.Compass.Issuer(fabric.RoleServer), ""), nil)
	var mu sync.Mutex
	var from []fabric.RunnerAddr
	if _, err := f.Events(t.Context(), func(_ context.Context, e fabric.RunnerEvent) error {
		mu.Lock()
		from = append(from, e.From)
		mu.Unlock()
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	fleets := map[string]*fabric.Runner{} // the same Runner id in three fleets
	heard := map[string]chan string{}
	for fleet, issuer := range map[string]fabric.Issuer{
		"shared": y.shared(), fabrictest.TenantA: y.a.Keys.Issuer(fabric.RoleRunner), fabrictest.TenantB: y.b.Keys.Issuer(fabric.RoleRunner),
	} {
		r := y.runner(t, issue(t, issuer, r1), r1)
		c := make(chan string, 8)
		if _, err := r.Commands(t.Context(), func(_ context.Context, cmd *compassv1.Command, _ *compassv1.SessionsResponse) {
			c <- cmd.GetSessionId()
		}); err != nil {
			t.Fatal(err)
		}
		fleets[fleet], heard[fleet] = r, c
	}
	for fleet, r := range fleets {
		if _, err := r.Event(t.Context(), &compassv1.RunnerEvent{}); err != nil {
			t.Fatal(err)
		}
		mu.Lock()
		if got := from[len(from)-1]; got != (fabric.RunnerAddr{Fleet: fleet, ID: r1}) {
			t.Errorf("the Runner of fleet %s spoke as %v", fleet, got)
		}
		mu.Unlock()
		command, err := fabrictest.TestSigner("k1").Sign(&compassv1.Command{RunnerId: r1, SessionId: fleet})
		if err != nil {
			t.Fatal(err)
		}
		if err := f.SendCommand(t.Context(), fabric.RunnerAddr{Fleet: fleet, ID: r1}, command); err != nil {
			t.Fatal(err)
		}
		if got := <-heard[fleet]; got != fleet {
			t.Errorf("fleet %s heard %s", fleet, got)
		}
	}
	for fleet, c := range heard {
		if len(c) > 0 {
			t.Errorf("fleet %s also heard %s", fleet, <-c)
		}
	}
}

// Holds REQ-123: a tenant taps its own broadcasts, and that is all.
func TestHostileTap(t *testing.T) {
	t.Parallel()
	y := newYard(t)
	a := y.attacker(t, issue(t, y.a.Keys.Issuer(fabric.RoleTap), ""))
	for _, subject := range []string{
		"compass.bcast." + fabrictest.TenantA + ".presence", "compass.q.main." + fabrictest.TenantA + ".message_posted", "x",
		"$JS.API.INFO", "$JS.API.STREAM.CREATE.mine", "compass.runner." + fabrictest.Runner1 + ".events", "$SYS.REQ.ACCOUNT.PING.CONNZ",
	} {
		a.mustRefuse(t, "pub", subject)
	}
	for _, subject := range []string{">", "compass.>", "_INBOX.>", "compass.runner.>", "$SYS.>", "client.*"} {
		a.mustRefuse(t, "sub", subject)
	}
	got := make(chan string, 16)
	if _, err := a.nc.Subscribe("compass.bcast.*.*", func(m *nats.Msg) { got <- m.Subject }); err != nil {
		t.Fatal(err)
	}
	if err := a.nc.Flush(); err != nil {
		t.Fatal(err)
	}
	f := y.fabric(t, issue(t, y.keys.Compass.Issuer(fabric.RoleServer), ""), nil)
	for _, tenant := range []string{fabrictest.TenantB, fabrictest.TenantA} {
		if err := f.Broadcast(t.Context(), tenant, "presence", nil, nil); err != nil {
			t.Fatal(err)
		}
	}
	if s := <-got; s != "compass.bcast."+fabrictest.TenantA+".presence" {
		t.Errorf("the tap of tenant A heard %s", s)
	}
	if len(got) > 0 {
		t.Errorf("it also heard %s", <-got)
	}
	// Without the tap the subscription is allowed and silent.
	y.a.EventTap = false
	if _, _, err := y.sys.Ensure(t.Context(), y.write(fabric.TenantAccount(y.a, y.keys.Compass, owner))); err != nil {
		t.Fatal(err)
	}
	if err := f.Broadcast(t.Context(), fabrictest.TenantA, "presence", nil, nil); err != nil {
		t.Fatal(err)
	}
	if err := a.nc.Flush(); err != nil || len(got) > 0 {
		t.Errorf("heard %d after the tap was closed, %v", len(got), err)
	}
}

// A worker of one stream does what a worker does, and reaches no other stream.
func TestHostileWorker(t *testing.T) {
	t.Parallel()
	y := newYard(t)
	a := y.attacker(t, issue(t, y.keys.Compass.Issuer(fabric.RoleWorker), "main"))
	for _, subject := range []string{
		"$JS.API.CONSUMER.MSG.NEXT.CMP_second.deliver", "$JS.ACK.CMP_second.deliver.1.1.1.1.0", "$JS.API.STREAM.DELETE.CMP_main",
		"$JS.API.STREAM.PURGE.CMP_main", "$JS.API.STREAM.MSG.DELETE.CMP_main_DLQ", "$JS.API.STREAM.UPDATE.CMP_main",
		"$JS.API.STREAM.CREATE.CMP_third", "$JS.API.CONSUMER.DELETE.CMP_main.deliver", "$JS.API.CONSUMER.CREATE.CMP_main.deliver",
		"$JS.API.DIRECT.GET.CMP_second_DLQ.x", "$JS.API.STREAM.INFO.CMP_second", "compass.dlq.second.x",
		"compass.q.main." + fabrictest.TenantA + ".message_posted", "client." + fabrictest.Client1, "compass.worker.second",
		"compass.runner.shared." + fabrictest.Runner1 + ".events",
	} {
		a.mustRefuse(t, "pub", subject)
	}
	for _, subject := range []string{
		">", "compass.q.>", "compass.runner.*.*.events", "compass.runner.*.*.call", "compass.runner.*.*.state.second",
		"compass.runner.*.*.state.*", "compass.worker.second", "client.*", "_INBOX.>", "_INBOX_s.>", "_INBOX_w.second.>", "$JS.EVENT.>",
	} {
		a.mustRefuse(t, "sub", subject)
	}
}

// With the rights of its role, and no more, a worker consumes, parks, hears Runners and commands them; a Server publishes,
// broadcasts and answers.
func TestRolesSuffice(t *testing.T) {
	t.Parallel()
	y := newYard(t)
	server := y.fabric(t, issue(t, y.keys.Compass.Issuer(fabric.RoleServer), ""), func(c *fabric.Config) { c.Stream = "main" })
	worker := y.fabric(t, issue(t, y.keys.Compass.Issuer(fabric.RoleWorker), "main"), func(c *fabric.Config) { c.Stream = "main" })
	var r rows
	if _, err := worker.SubscribeKind(t.Context(), fabric.KindMessagePosted, func(ctx context.Context, ref fabric.EventRef) error {
		_ = r.take(ctx, ref)
		if ref.RowID == "bad" {
			return poison()
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	arrives(t, server, &r, "good")
	arrives(t, server, &r, "bad")
	admin := y.fabric(t, y.admin(t), nil)
	fabrictest.Eventually(t, "it is parked", func() bool { return len(deadRows(t, admin)) == 1 })
	letter := fabric.DeadLetter{Ref: fabrictest.Ref(fabrictest.TenantA, "m_9"), Recipient: "a_0000000000000000000000000a"}
	for range 2 { // the second time it reads the first one's copy
		if err := worker.Announce(t.Context(), "main", letter); err != nil {
			t.Fatalf("announce: %v", err)
		}
	}
	var d fabric.DeadLetter
	if err := admin.List(t.Context(), "main", "", func(x fabric.DeadLetter) bool { d = x; return false }); err != nil {
		t.Fatal(err)
	}
	if err := admin.Replay(t.Context(), "main", d); err != nil {
		t.Errorf("the operator replays: %v", err)
	}

	conn := y.runner(t, issue(t, y.shared(), fabrictest.Runner1), fabrictest.Runner1)
	states, commands, notes := make(chan string, 4), make(chan string, 4), make(chan string, 4)
	steps := []func() error{
		func() error {
			_, err := worker.States(t.Context(), "main", func(_ fabric.RunnerAddr, s *compassv1.RunnerState) { states <- s.GetSessionId() })
			return err
		},
		func() error {
			_, err := conn.Commands(t.Context(), func(_ context.Context, c *compassv1.Command, _ *compassv1.SessionsResponse) {
				commands <- c.GetSessionId()
			})
			return err
		},
		func() error {
			_, err := worker.HearWorker(t.Context(), "main", func(_ context.Context, n fabric.Note) { notes <- n.Event })
			return err
		},
		func() error {
			_, err := server.Calls(t.Context(), func(context.Context, fabric.RunnerCall) ([]byte, error) { return []byte("ok"), nil })
			return err
		},
		func() error { return server.NotifyWorker(t.Context(), "main", fabric.Note{Event: "binding"}) },
		func() error { return conn.State(t.Context(), "main", &compassv1.RunnerState{SessionId: "held"}) },
		func() error { _, err := conn.Call(t.Context(), "/x", nil); return err },
		func() error { return worker.Broadcast(t.Context(), fabrictest.TenantA, "presence", nil, nil) },
	}
	for i, step := range steps {
		if err := step(); err != nil {
			t.Fatalf("step %d: %v", i, err)
		}
	}
	for _, f := range []*fabric.Fabric{server, worker} {
		c, err := fabrictest.TestSigner("k1").Sign(&compassv1.Command{RunnerId: fabrictest.Runner1, SessionId: "sent"})
		if err != nil {
			t.Fatal(err)
		}
		if err := f.SendCommand(t.Context(), fabric.RunnerAddr{Fleet: "shared", ID: fabrictest.Runner1}, c); err != nil {
			t.Fatalf("send command: %v", err)
		}
	}
	for _, want := range []struct {
		c    chan string
		what string
	}{{states, "held"}, {commands, "sent"}, {commands, "sent"}, {notes, "binding"}} {
		if got := <-want.c; got != want.what {
			t.Errorf("got %q, want %q", got, want.what)
		}
	}
}

// What an issuer refuses, and what a server refuses of those who hold a scoped key.
func TestScopedKeysCannotBeWidened(t *testing.T) {
	t.Parallel()
	y := newYard(t)
	key := userKey(t)
	for _, id := range []string{"*", ">", "r-*", "", "r_0000000000000000000000000a", fabrictest.Runner1 + ".x", "r-0000000000000000000000000Z", "{{tag(x)}}"} {
		if _, err := y.shared().User(key.Public(), id, 0, time.Now()); err == nil {
			t.Errorf("a Runner called %q was issued", id)
		}
	}
	for _, stream := range []string{"*", "main.x", "", "Main"} {
		if _, err := y.keys.Compass.Issuer(fabric.RoleWorker).User(key.Public(), stream, 0, time.Now()); err == nil {
			t.Errorf("a worker of %q was issued", stream)
		}
	}
	if _, err := y.shared().User(y.keys.Runners.Identity.Public(), fabrictest.Runner1, 0, time.Now()); !errors.Is(err, fabric.ErrConfig) {
		t.Errorf("an account key as a user: got %v, want ErrConfig", err)
	}
	sign := func(seed fabric.Seed, mod func(*jwt.UserClaims)) user {
		t.Helper()
		c := jwt.NewUserClaims(key.Public())
		c.IssuerAccount = y.keys.Runners.Identity.Public()
		mod(c)
		kp, err := nkeys.FromSeed(seed.Text())
		if err != nil {
			t.Fatal(err)
		}
		text, err := c.Encode(kp)
		if err != nil {
			t.Fatal(err)
		}
		return user{fabric.StaticCredentials(text, key, ""), text, key}
	}
	forged := map[string]user{
		"own permissions under a scoped key": sign(y.shared().Key, func(c *jwt.UserClaims) { c.Pub.Allow.Add(">"); c.Sub.Allow.Add(">") }),
		"signed by the account's identity":   sign(y.keys.Runners.Identity, func(*jwt.UserClaims) {}),
		"signed by another account's key":    sign(y.a.Keys.Scoped[fabric.RoleRunner], func(c *jwt.UserClaims) { c.SetScoped(true); c.Tags.Add("id:" + fabrictest.Runner1) }),
		"expired":                            sign(y.shared().Key, func(c *jwt.UserClaims) { c.SetScoped(true); c.Expires = time.Now().Add(-time.Minute).Unix() }),
	}
	for what, u := range forged {
		if nc, err := y.dialAs(u); err == nil {
			nc.Close()
			t.Errorf("%s: connected", what)
		}
	}
	untagged := sign(y.shared().Key, func(c *jwt.UserClaims) { c.SetScoped(true) })
	if nc, err := y.dialAs(untagged); err == nil { // without a tag nothing is allowed
		defer nc.Close()
		js, err := jetstream.New(nc)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		if _, err := js.AccountInfo(ctx); err == nil {
			t.Error("an untagged user reached JetStream")
		}
	}
}
