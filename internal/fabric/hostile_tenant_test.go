package fabric_test

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	compassv1 "github.com/rigelbuild/compass-operator/api/proto/compass/v1"
	"github.com/rigelbuild/compass-operator/internal/fabric"
	"github.com/rigelbuild/compass-operator/internal/fabric/fabrictest"
)

// Holds REQ-123, REQ-206. The worst tenant: the key that signs its users without any limit has leaked, so within its account
// everything is allowed. Whatever it tries, COMPASS gets its own fleet's requests alone, under
// its own name, and it hears its own commands and broadcasts alone.
func TestHostileTenantWithItsOwnKey(t *testing.T) {
	t.Parallel()
	y := newYard(t)
	a, b, r1 := fabrictest.TenantA, fabrictest.TenantB, fabrictest.Runner1
	key := userKey(t)
	text, err := y.a.Keys.StandaloneUser(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	evil := y.attacker(t, userOf(text, key, ""))
	var mu sync.Mutex
	var heard []string
	if _, err := evil.nc.Subscribe(">", func(m *nats.Msg) {
		mu.Lock()
		defer mu.Unlock()
		heard = append(heard, m.Subject)
	}); err != nil {
		t.Fatal(err)
	}
	own := func(s string) bool { return strings.HasPrefix(s, "compass.runner."+a+".") }
	js := len(y.all("$JS.API."))
	subjects := []string{
		"compass.q.main." + b + ".message_posted", "compass.q.main." + a + ".message_posted", "compass.q.main.>", "compass.dlq.main.x",
		"compass." + b + ".comms.message_posted", "compass.bcast." + b + ".presence", "compass.bcast." + a + ".presence", "compass.worker.main",
		"client." + fabrictest.Client1, "compass.runner.shared." + r1 + ".events", "compass.runner." + b + "." + r1 + ".events",
		"compass.runner." + b + "." + r1 + ".cmd", "compass.runner.shared." + r1 + ".cmd", "compass.runner." + r1 + ".cmd",
		"compass.runner." + r1 + ".events", "compass.runner." + r1 + ".call", "compass.runner." + r1 + ".state.main",
		"$JS.API.INFO", "$JS.API.STREAM.LIST", "$JS.API.STREAM.DELETE.CMP_main", "$JS.API.STREAM.PURGE.CMP_main",
		"$JS.API.CONSUMER.MSG.NEXT.CMP_main.deliver", "$JS.API.DIRECT.GET.CMP_main_DLQ", "$JS.API.ACCOUNT.PURGE." + y.b.Keys.Identity.Public(),
		"$JS.ACK.CMP_main.deliver.1.1.1.1.0", "$SYS.REQ.CLAIMS.UPDATE", "$SYS.REQ.CLAIMS.DELETE", "$SYS.REQ.CLAIMS.LIST",
		"$SYS.REQ.ACCOUNT." + y.b.Keys.Identity.Public() + ".CLAIMS.LOOKUP", "$SYS.REQ.ACCOUNT." + y.b.Keys.Identity.Public() + ".CONNZ",
		"$SYS.REQ.SERVER.PING", "$SYS.ACCOUNT." + y.b.Keys.Identity.Public() + ".CONNECT", "_INBOX_s.x", "_INBOX_w.main.x", "_INBOX_a.x",
	}
	replies := append(slices.Clone(subjects), "")
	for _, subject := range subjects {
		for _, reply := range replies {
			msg := &nats.Msg{Subject: subject, Reply: reply, Data: []byte("{}"), Header: nats.Header{
				"Compass-Tenant": {b}, nats.MsgIdHdr: {"x"}, "Nats-Rollup": {"all"}, "Nats-TTL": {"1s"}, "Nats-Schedule": {"@every 1s"},
			}}
			if err := evil.nc.PublishMsg(msg); err != nil {
				evil.nc = y.attacker(t, userOf(text, key, "")).nc // a server closes the connection of who acks what it never got
			}
		}
	}
	_ = evil.nc.FlushTimeout(10 * time.Second)
	fabrictest.Eventually(t, "what it may send arrives", func() bool { return y.arrived("compass.runner."+a+"."+r1+".events") > 0 })
	flushAll(t, y.cluster)
	for _, s := range y.all("") {
		if !own(s) && !strings.HasPrefix(s, "$JS.API.") && s != "compass.bcast."+a+".flush" {
			t.Errorf("it got into COMPASS on %s", s)
		}
	}
	if now := len(y.all("$JS.API.")); now != js {
		t.Errorf("it reached JetStream's API of COMPASS: %v", y.all("$JS.API.")[js:])
	}
	admin := y.fabric(t, y.admin(t), nil)
	queue, dead, consumer, err := admin.ObserveStream(t.Context(), fabric.StreamSpec{Name: "main"})
	if err != nil || !queue.Exists || !consumer.Exists || queue.Messages+dead.Messages != 0 {
		t.Errorf("streams: %+v %+v %+v, %v", queue, dead, consumer, err)
	}
	y.hearsOnlyItsOwn(t, evil, func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(heard)
	})
}

// hearsOnlyItsOwn also tries to have a stream of its own over everybody's subjects.
func (y *yard) hearsOnlyItsOwn(t *testing.T, evil *attacker, heard func() []string) {
	t.Helper()
	a, b, r1 := fabrictest.TenantA, fabrictest.TenantB, fabrictest.Runner1
	js, err := jetstream.New(evil.nc, jetstream.WithDefaultTimeout(time.Second))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "MINE", Subjects: []string{"compass.>"}}); err == nil {
		t.Error("a tenant made a stream")
	}
	server := y.fabric(t, issue(t, y.keys.Compass.Issuer(fabric.RoleServer), ""), nil)
	before := len(heard())
	for _, tenant := range []string{b, a} {
		if err := server.Broadcast(t.Context(), tenant, "posted", nil, nil); err != nil {
			t.Fatal(err)
		}
	}
	for _, fleet := range []string{"shared", b, a} {
		command, err := fabrictest.TestSigner("k1").Sign(&compassv1.Command{RunnerId: r1})
		if err != nil {
			t.Fatal(err)
		}
		_ = server.SendCommand(t.Context(), fabric.RunnerAddr{Fleet: fleet, ID: r1}, command) // only one of them has a listener
	}
	want := []string{"compass.bcast." + a + ".posted", "compass.runner." + r1 + ".cmd"}
	fabrictest.Eventually(t, "it hears what is its own", func() bool {
		got := heard()
		return slices.Contains(got, want[0]) && slices.Contains(got[before:], want[1])
	})
	for _, s := range heard()[before:] {
		if !slices.Contains(want, s) && !strings.HasPrefix(s, "_INBOX.") && !strings.HasPrefix(s, "$JS.API.STREAM.CREATE.") {
			t.Errorf("it heard %s", s)
		}
	}
}

// Ruling R1, and T8: where other hands sign accounts, an import wider than our word for it brings nothing, and our word for
// one account is worth nothing to another.
func TestImportsCannotBeWidened(t *testing.T) {
	t.Parallel()
	y := newYard(t)
	claims := func(spec fabric.TenantAccountSpec) *jwt.AccountClaims {
		t.Helper()
		text, err := fabric.TenantAccount(spec, y.keys.Compass, owner).Sign(y.keys.Signing[0])
		if err != nil {
			t.Fatal(err)
		}
		c, err := jwt.DecodeAccountClaims(text)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	imported := func(c *jwt.AccountClaims, name string) *jwt.Import {
		t.Helper()
		i := slices.IndexFunc(c.Imports, func(i *jwt.Import) bool { return i.Name == name })
		return c.Imports[i]
	}
	a, b := fabrictest.TenantA, fabrictest.TenantB
	for what, forge := range map[string]func(c *jwt.AccountClaims){
		"a wider subject under its own token": func(c *jwt.AccountClaims) {
			imp := imported(c, "commands")
			imp.Subject, imp.LocalSubject = "compass.runner.*.*.cmd", "compass.runner.$1.$2.cmd"
			imported(c, "broadcasts").Subject = "compass.bcast.*.*"
		},
		"another's subject under its own token": func(c *jwt.AccountClaims) {
			imported(c, "commands").Subject = jwt.Subject("compass.runner." + b + ".*.cmd")
			imported(c, "broadcasts").Subject = jwt.Subject("compass.bcast." + b + ".*")
		},
		"another's token": func(c *jwt.AccountClaims) {
			other := claims(y.b)
			for _, name := range []string{"commands", "broadcasts"} {
				*imported(c, name) = *imported(other, name)
			}
		},
		"no token": func(c *jwt.AccountClaims) {
			imp := imported(c, "commands")
			imp.Subject, imp.LocalSubject, imp.Token = "compass.runner.*.*.cmd", "compass.runner.$1.$2.cmd", ""
			bcast := imported(c, "broadcasts")
			bcast.Subject, bcast.Token = "compass.bcast.*.*", ""
		},
	} {
		c := claims(y.a)
		forge(c)
		if err := y.pushRaw(t, y.signClaims(t, c)); err != nil {
			continue // refused by the resolver itself
		}
		key := userKey(t)
		text, err := y.a.Keys.StandaloneUser(key.Public())
		if err != nil {
			t.Fatal(err)
		}
		nc, err := y.dialAs(userOf(text, key, ""))
		if err != nil {
			continue
		}
		sub, err := nc.SubscribeSync(">")
		if err != nil {
			t.Fatal(err)
		}
		if err := nc.Flush(); err != nil {
			t.Fatal(err)
		}
		server := y.fabric(t, issue(t, y.keys.Compass.Issuer(fabric.RoleServer), ""), nil)
		command, err := fabrictest.TestSigner("k1").Sign(&compassv1.Command{RunnerId: fabrictest.Runner1})
		if err != nil {
			t.Fatal(err)
		}
		_ = server.SendCommand(t.Context(), fabric.RunnerAddr{Fleet: b, ID: fabrictest.Runner1}, command)
		if err := server.Broadcast(t.Context(), b, "posted", nil, nil); err != nil {
			t.Fatal(err)
		}
		flushAll(t, y.cluster)
		if err := nc.Flush(); err != nil {
			t.Fatal(err)
		}
		for {
			msg, err := sub.NextMsg(50 * time.Millisecond)
			if err != nil {
				break
			}
			t.Errorf("%s: tenant %s heard %s", what, a, msg.Subject)
		}
		nc.Close()
	}
}

// Lab/nats.md section 2: whoever publishes cannot give the stream orders. Even a user without limits gets no rollup, no expiry
// and no schedule, and the stream holds what it held.
func TestStreamsTakeNoOrders(t *testing.T) {
	t.Parallel()
	y := newYard(t)
	nc, err := y.dialAs(y.standalone(t))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	subject := "compass.q.main." + fabrictest.TenantA + ".message_posted"
	try := func(h nats.Header) (stored bool) {
		t.Helper()
		answer, err := nc.RequestMsg(&nats.Msg{Subject: subject, Data: []byte("{}"), Header: h}, 10*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		var ack struct {
			Error *json.RawMessage `json:"error"`
		}
		if err := json.Unmarshal(answer.Data, &ack); err != nil {
			t.Fatal(err)
		}
		return ack.Error == nil
	}
	if !try(nil) {
		t.Fatal("an ordinary message is refused")
	}
	for name, value := range map[string]string{
		"Nats-Rollup": "all", "Nats-TTL": "1s", "Nats-Schedule": "@every 1s", "Nats-Incr": "1",
	} {
		if try(nats.Header{name: {value}}) {
			t.Errorf("a message with %s was stored", name)
		}
	}
	admin := y.fabric(t, y.admin(t), nil)
	if queue, _, _, err := admin.ObserveStream(t.Context(), fabric.StreamSpec{Name: "main"}); err != nil || queue.Messages != 1 {
		t.Errorf("%d messages, want the ordinary one, %v", queue.Messages, err)
	}
}

// Lab/nats.md section 8: credentials end when they say so; a user has one identity, however often it connects.
func TestRunnerCredentialsEnd(t *testing.T) {
	t.Parallel()
	y := newYard(t)
	key := userKey(t)
	text, err := y.shared().User(key.Public(), fabrictest.Runner1, 2*time.Second, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	claims, err := jwt.DecodeUserClaims(text)
	if err != nil || len(claims.Tags) != 1 || !claims.HasEmptyPermissions() {
		t.Errorf("a Runner has one tag and no permissions of its own: %+v, %v", claims, err)
	}
	nc, err := y.dialAs(userOf(text, key, fabric.InboxPrefix(fabric.RoleRunner, fabrictest.Runner1)))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	fabrictest.Eventually(t, "the connection ends with its credentials", nc.IsClosed)
	fabrictest.Eventually(t, "and no other is let in, once the second is over", func() bool {
		again, err := y.dialAs(userOf(text, key, ""))
		if err == nil {
			again.Close()
		}
		return err != nil
	})
}

// Limits change under live connections: what is above the new one goes, the rest stays (measured).
func TestLimitsChangeLive(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1, nil)
	c.base(t)
	spec := c.tenant(t, fabrictest.TenantA)
	var conns []*nats.Conn
	for range 3 {
		nc, err := c.dialAs(issue(t, spec.Keys.Issuer(fabric.RoleTap), ""))
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		conns = append(conns, nc)
	}
	open := func() (n int) {
		for _, nc := range conns {
			if !nc.IsClosed() {
				n++
			}
		}
		return n
	}
	spec.Limits.Connections = 2
	if _, _, err := c.sys.Ensure(t.Context(), c.write(fabric.TenantAccount(spec, c.keys.Compass, owner))); err != nil {
		t.Fatal(err)
	}
	fabrictest.Eventually(t, "the one too many goes", func() bool { return open() == 2 })
	if nc, err := c.dialAs(issue(t, spec.Keys.Issuer(fabric.RoleTap), "")); err == nil {
		nc.Close()
		t.Error("a third connection was let in")
	}
	spec.Limits.Connections = 3
	if _, _, err := c.sys.Ensure(t.Context(), c.write(fabric.TenantAccount(spec, c.keys.Compass, owner))); err != nil {
		t.Fatal(err)
	}
	third, err := c.dialAs(issue(t, spec.Keys.Issuer(fabric.RoleTap), ""))
	if err != nil {
		t.Fatalf("with room again: %v", err)
	}
	third.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for _, nc := range conns {
		if err := nc.FlushWithContext(ctx); !nc.IsClosed() && err != nil {
			t.Errorf("a connection that could stay: %v", err)
		}
	}
}
