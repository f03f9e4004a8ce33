package fabric_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"github.com/rigelbuild/compass-operator/internal/fabric"
	"github.com/rigelbuild/compass-operator/internal/fabric/fabrictest"
	"github.com/rigelbuild/compass-operator/internal/freeport"
	"github.com/rigelbuild/compass-operator/internal/naming"
)

const owner = "compass/main"

// cluster is what the operator runs: servers from the rendered configuration, only the system account preloaded.
type cluster struct {
	edit    func(conf string) string
	keys    fabric.Keys
	confs   []fabric.ServerConfig
	dirs    []string
	servers []*server.Server
	sys     *fabric.Accounts
}

// startCluster starts n servers on loopback.
func startCluster(t *testing.T, n int, edit func(conf string) string) *cluster {
	t.Helper()
	keys, _, err := fabric.CompleteKeys(nil)
	if err != nil {
		t.Fatal(err)
	}
	operator, err := fabric.OperatorJWT(keys, owner)
	if err != nil {
		t.Fatal(err)
	}
	sys := fabric.SystemAccount(keys, owner)
	sysJWT, err := sys.Sign(keys.Signing[0])
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{keys: keys, edit: edit, servers: make([]*server.Server, n)}
	routes, ports := make([]string, n), make([]int, n)
	for i := range n {
		ports[i] = freePort(t)
		routes[i] = "nats://127.0.0.1:" + strconv.Itoa(ports[i])
	}
	for i := range n {
		dir := t.TempDir()
		conf := fabric.ServerConfig{
			Name: "n" + strconv.Itoa(i), Operator: operator, System: sys.Public, Preload: map[string]string{sys.Public: sysJWT},
			JWTDir: filepath.Join(dir, "jwt"), StoreDir: filepath.Join(dir, "js"), Host: "127.0.0.1", Port: freePort(t), SyncEvery: seldom,
		}
		if n > 1 {
			conf.Cluster = &fabric.ServerCluster{Name: "compass", Host: "127.0.0.1", Port: ports[i], Routes: routes}
		}
		c.confs, c.dirs = append(c.confs, conf), append(c.dirs, dir)
		c.start(t, i)
	}
	c.sys = c.operator(t)
	fabrictest.Eventually(t, "the servers know each other", func() bool {
		seen, err := c.sys.Servers(t.Context(), n)
		return err == nil && len(seen) == n
	})
	return c
}

func (c *cluster) start(t *testing.T, i int) {
	t.Helper()
	if err := c.confs[i].Check(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(c.dirs[i], "nats.conf")
	conf := c.confs[i].Render()
	if c.edit != nil {
		conf = c.edit(conf)
	}
	if err := os.WriteFile(path, []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	opts, err := server.ProcessConfigFile(path)
	if err != nil {
		t.Fatalf("the server does not take the rendered configuration: %v\n%s", err, conf)
	}
	opts.NoSigs, opts.NoLog = true, true
	ns, err := server.NewServer(opts)
	if err != nil {
		t.Fatal(err)
	}
	go ns.Start()
	if !ns.ReadyForConnections(20 * time.Second) {
		t.Fatal("the server does not start")
	}
	c.servers[i] = ns
	t.Cleanup(func() { ns.Shutdown(); ns.WaitForShutdown() })
}

func (c *cluster) stop(i int) { c.servers[i].Shutdown(); c.servers[i].WaitForShutdown() }

func (c *cluster) url(i int) string { return c.servers[i].ClientURL() }

func freePort(tb testing.TB) int {
	tb.Helper()
	port, err := freeport.Find()
	if err != nil {
		tb.Fatal(err)
	}
	return port
}

func (c *cluster) operator(t *testing.T) *fabric.Accounts {
	t.Helper()
	key := userKey(t)
	text, err := c.keys.System.AdminUser(key.Public(), naming.AccountSystem)
	if err != nil {
		t.Fatal(err)
	}
	var urls []string
	for i := range c.servers {
		if c.servers[i] != nil {
			urls = append(urls, c.url(i))
		}
	}
	a, err := fabric.OpenAccounts(t.Context(), fabric.Config{
		Name: "operator", URLs: urls, Credentials: fabric.StaticCredentials(text, key, fabric.AdminInbox), Logger: quietLog(),
		Link: fabric.Link{Window: 20 * time.Second, ReconnectWait: 20 * time.Millisecond},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.Close)
	return a
}

func userKey(t *testing.T) fabric.Seed {
	t.Helper()
	key, err := fabric.NewUserSeed()
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func (c *cluster) write(a fabric.Account) fabric.AccountWrite {
	return fabric.AccountWrite{Account: a, Signer: c.keys.Signing[0], Owner: owner, Servers: len(c.servers)}
}

// ensure pushes an account and expects that it had to.
func (c *cluster) ensure(t *testing.T, a fabric.Account) {
	t.Helper()
	seen, wrote, err := c.sys.Ensure(t.Context(), c.write(a))
	if err != nil || !wrote || seen.Copies != len(c.servers) {
		t.Fatalf("ensure %s: %+v, wrote %v, %v", a.Name, seen, wrote, err)
	}
}

// base pushes the accounts that every CompassServer has.
func (c *cluster) base(t *testing.T) {
	t.Helper()
	c.ensure(t, fabric.CompassAccount(c.keys, owner))
	c.ensure(t, fabric.RunnersAccount(c.keys, owner))
}

// tenant pushes the account of a tenant that has everything.
func (c *cluster) tenant(t *testing.T, id string) fabric.TenantAccountSpec {
	t.Helper()
	keys, _, err := fabric.CompleteTenantKeys(nil)
	if err != nil {
		t.Fatal(err)
	}
	spec := fabric.TenantAccountSpec{
		Tenant: id, Keys: keys, Limits: fabric.Limits{Connections: 20, Subscriptions: 1000, Payload: 64 << 10},
		EventTap: true, Runners: true,
	}
	c.ensure(t, fabric.TenantAccount(spec, c.keys.Compass, owner))
	return spec
}

// user is who a hostile test may be.
type user struct {
	creds fabric.Credentials
	jwt   string
	key   fabric.Seed
}

func issue(t *testing.T, i fabric.Issuer, id string) user {
	t.Helper()
	key := userKey(t)
	text, err := i.User(key.Public(), id, 0, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return user{fabric.StaticCredentials(text, key, fabric.InboxPrefix(i.Role, id)), text, key}
}

func (c *cluster) standalone(t *testing.T) user {
	t.Helper()
	key := userKey(t)
	text, err := c.keys.Compass.StandaloneUser(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	return user{fabric.StaticCredentials(text, key, fabric.AdminInbox), text, key}
}

func (c *cluster) admin(t *testing.T) user {
	t.Helper()
	key := userKey(t)
	text, err := c.keys.Compass.AdminUser(key.Public(), naming.AccountCompass)
	if err != nil {
		t.Fatal(err)
	}
	return user{fabric.StaticCredentials(text, key, fabric.AdminInbox), text, key}
}

// fabric opens a fabric as the user.
func (c *cluster) fabric(t *testing.T, u user, mod func(*fabric.Config)) *fabric.Fabric {
	t.Helper()
	cfg := fabric.Config{
		Name: "test", URLs: []string{c.url(0)}, Credentials: u.creds, Logger: quietLog(), Commands: fabrictest.TestSigner("k1"),
		Inspect: 200 * time.Millisecond,
		Link:    fabric.Link{Settle: 50 * time.Millisecond, ReconnectWait: 20 * time.Millisecond, Window: 20 * time.Second},
	}
	if mod != nil {
		mod(&cfg)
	}
	return open(t, cfg)
}

func (c *cluster) runner(t *testing.T, u user, id string) *fabric.Runner {
	t.Helper()
	r, err := fabric.OpenRunner(t.Context(), fabric.RunnerConfig{
		ID: id, URLs: []string{c.url(0)}, Credentials: u.creds, Logger: quietLog(),
		Commands: fabric.NewCommandKeys(fabrictest.TestCommandKeys("k1")),
		Link:     fabric.Link{ReconnectWait: 20 * time.Millisecond, Window: 20 * time.Second},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r
}

// dialAs opens a bare connection, or says why it was refused.
func (c *cluster) dialAs(u user, opts ...nats.Option) (*nats.Conn, error) {
	opts = append([]nats.Option{
		nats.UserJWT(u.creds.JWT, u.creds.Sign), nats.MaxReconnects(0), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}),
	}, opts...)
	if u.creds.InboxPrefix != "" {
		opts = append(opts, nats.CustomInboxPrefix(u.creds.InboxPrefix))
	}
	return nats.Connect(c.url(0), opts...)
}

// makeStream makes a DeliveryStream as the operator does.
func (c *cluster) makeStream(t *testing.T, name string) {
	t.Helper()
	op := c.fabric(t, c.admin(t), nil)
	spec := fabric.StreamSpec{Name: name}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var err error
	fabrictest.Eventually(t, "JetStream serves", func() bool {
		_, _, err = op.EnsureStream(ctx, spec, false)
		return err == nil
	})
	if _, _, err := op.EnsureDeadLetters(ctx, spec, false); err != nil {
		t.Fatal(err)
	}
	if _, _, err := op.EnsureConsumer(ctx, spec, false); err != nil {
		t.Fatal(fmt.Errorf("consumer of %s: %w", name, err))
	}
}

func (c *cluster) signClaims(t *testing.T, claims *jwt.AccountClaims) string {
	t.Helper()
	kp, err := nkeys.FromSeed(c.keys.Signing[0].Text())
	if err != nil {
		t.Fatal(err)
	}
	text, err := claims.Encode(kp)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// pushRaw pushes any account JWT, as a stranger with rights on the resolver could.
func (c *cluster) pushRaw(t *testing.T, text string) error {
	t.Helper()
	nc := c.systemConn(t)
	answer, err := nc.Request("$SYS.REQ.CLAIMS.UPDATE", []byte(text), 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(answer.Data), `"error"`) {
		return errors.New(string(answer.Data))
	}
	return nil
}

func (c *cluster) systemConn(t *testing.T) *nats.Conn {
	t.Helper()
	key := userKey(t)
	text, err := c.keys.System.AdminUser(key.Public(), naming.AccountSystem)
	if err != nil {
		t.Fatal(err)
	}
	nc, err := nats.Connect(c.url(0), nats.UserJWT(func() (string, error) { return text, nil }, key.Sign))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

// flushAll returns when what COMPASS had sent has been handed to its subscribers.
func flushAll(t *testing.T, c *cluster) {
	t.Helper()
	nc, err := c.dialAs(c.standalone(t))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	sub, err := nc.SubscribeSync("compass.bcast.*.*")
	if err != nil {
		t.Fatal(err)
	}
	if err := nc.Publish("compass.bcast."+fabrictest.TenantA+".flush", nil); err != nil {
		t.Fatal(err)
	}
	if _, err := sub.NextMsg(10 * time.Second); err != nil {
		t.Fatal(err)
	}
}
