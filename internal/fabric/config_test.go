package fabric_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"

	"github.com/rigelbuild/compass-operator/internal/fabric"
	"github.com/rigelbuild/compass-operator/internal/fabric/fabrictest"
)

// Holds REQ-027, REQ-028.
func TestDefaults(t *testing.T) {
	t.Parallel()
	if fabric.DefaultMaxDeliver != 5 || fabric.DefaultAckWait != 30*time.Second || fabric.DefaultDuplicateWindow != 30*time.Second {
		t.Error("the defaults are part of the contract")
	}
}

// Holds REQ-032, REQ-062: an incomplete configuration is told at once.
func TestNewRefusesBadConfigurations(t *testing.T) {
	t.Parallel()
	good := fabric.Config{Name: "x", URLs: []string{"nats://127.0.0.1:1"}, Logger: quietLog(), Link: fabric.Link{Window: time.Millisecond}}
	cases := map[string]func(*fabric.Config){
		"NoName":           func(c *fabric.Config) { c.Name = "" },
		"NoLogger":         func(c *fabric.Config) { c.Logger = nil },
		"NoBroker":         func(c *fabric.Config) { c.URLs = nil },
		"TwoBrokers":       func(c *fabric.Config) { c.InProcess = &broker{} },
		"ManageNothing":    func(c *fabric.Config) { c.Manage = true },
		"BadStream":        func(c *fabric.Config) { c.Stream = "A.b" },
		"NegativeAttempts": func(c *fabric.Config) { c.MaxDeliver = -1 },
		"BackoffOfNothing": func(c *fabric.Config) { c.Backoff = []time.Duration{time.Second, 0} },
		"HalfCredentials":  func(c *fabric.Config) { c.Credentials.JWT = func() (string, error) { return "", nil } },
		"WindowTooLong": func(c *fabric.Config) {
			c.Stream, c.Spec = "main", fabric.StreamSpec{MaxAge: time.Minute, DuplicateWindow: time.Hour}
		},
		"NoSuchCreds": func(c *fabric.Config) { c.Credentials.File = "/nonexistent/nats.creds" },
		"FailingOption": func(c *fabric.Config) {
			c.Options = []nats.Option{func(*nats.Options) error { return errors.New("no") }}
		},
		"NoSuchCA": func(c *fabric.Config) { c.CAFile = "/nonexistent/ca.crt" },
	}
	for name, mod := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := good
			mod(&cfg)
			if f, err := fabric.New(cfg); !errors.Is(err, fabric.ErrConfig) || f != nil {
				t.Errorf("got %v, want ErrConfig", err)
			}
		})
	}
	if _, err := fabric.New(fabric.Config{}); !errors.Is(err, fabric.ErrConfig) {
		t.Errorf("an empty configuration: got %v, want ErrConfig", err)
	}
	if _, err := fabric.OpenRunner(t.Context(), fabric.RunnerConfig{ID: "*"}); !errors.Is(err, fabric.ErrConfig) {
		t.Errorf("a Runner called *: got %v, want ErrConfig", err)
	}
}

// Holds REQ-062: a broker that is away is waited for, for as long as was said, and then it is an error.
func TestNewGivesUpAfterTheWindow(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	_ = l.Close()
	began := time.Now()
	_, err = fabric.New(fabric.Config{
		Name: "x", URLs: []string{"nats://" + addr}, Logger: quietLog(), Link: fabric.Link{Window: 300 * time.Millisecond, ReconnectWait: 20 * time.Millisecond},
	})
	if !errors.Is(err, fabric.ErrUnavailable) {
		t.Errorf("got %v, want ErrUnavailable", err)
	}
	if took := time.Since(began); took < 250*time.Millisecond {
		t.Errorf("gave up after %s, before the window had passed", took)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := fabric.Open(ctx, fabric.Config{Name: "x", URLs: []string{"nats://" + addr}, Logger: quietLog()}); err == nil {
		t.Error("a canceled Open connected")
	}
}

func TestNewSaysWhenItIsRefused(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1, nil)
	key := userKey(t)
	_, err := fabric.New(fabric.Config{
		Name: "x", URLs: []string{c.url(0)}, Logger: quietLog(), Link: fabric.Link{Window: 200 * time.Millisecond},
		Credentials: fabric.StaticCredentials("e30.e30.e30", key, ""),
	})
	if !errors.Is(err, fabric.ErrUnauthorized) {
		t.Errorf("got %v, want ErrUnauthorized", err)
	}
}

// Credentials in a file are read again at each connect: a rotated file needs no restart.
func TestRotatedCredentialsFileIsPickedUp(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1, nil)
	c.base(t)
	issuer := c.keys.Compass.Issuer(fabric.RoleServer)
	path := filepath.Join(t.TempDir(), "nats.creds")
	write := func() user {
		u := issue(t, issuer, "")
		text, err := fabric.CredsFile(u.jwt, u.key)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		return u
	}
	old := write()
	f := c.fabric(t, user{creds: fabric.Credentials{File: path, InboxPrefix: fabric.InboxPrefix(fabric.RoleServer, "")}}, nil)
	write()
	w := c.write(fabric.CompassAccount(c.keys, owner).Revoke(old.key.Public(), time.Now().Add(time.Second)))
	if _, _, err := c.sys.Ensure(t.Context(), w); err != nil {
		t.Fatal(err)
	}
	fabrictest.Eventually(t, "it comes back as the new user", func() bool {
		return f.Connected() && f.NotifyClient(t.Context(), fabrictest.Client1, fabric.Note{Event: "resync"}) == nil
	})
	if _, err := c.dialAs(old); err == nil {
		t.Error("the old user still connects")
	}
}

// The configuration of a server is a function of its input, and a real server takes it (startCluster).
func TestServerConfigGolden(t *testing.T) {
	t.Parallel()
	conf := fabric.ServerConfig{
		Name: "$POD_NAME", Operator: "op.jwt", System: "ASYS", Preload: map[string]string{"ASYS": "sys.jwt", "AB": "b.jwt"},
		JWTDir: "/data/jwt", StoreDir: "/data/js", Monitor: 8222, MaxFile: 1 << 30, SyncEvery: "always",
		TLS: &fabric.ServerTLS{CertFile: "/tls/tls.crt", KeyFile: "/tls/tls.key", CAFile: "/tls/ca.crt"},
		Cluster: &fabric.ServerCluster{Name: "main", Routes: []string{"nats://main-nats-0:6222", "nats://main-nats-1:6222"},
			TLS: &fabric.ServerTLS{CertFile: "/tls/tls.crt", KeyFile: "/tls/tls.key", CAFile: "/tls/ca.crt"}},
	}
	if err := conf.Check(); err != nil {
		t.Fatal(err)
	}
	golden := filepath.Join("testdata", "server.conf")
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	for range 5 {
		if diff := cmp.Diff(string(want), conf.Render()); diff != "" {
			t.Fatalf("%s (-want +got)\n%s", golden, diff)
		}
	}
	if d := (fabric.ServerConfig{}).Render(); !strings.Contains(d, "sync_interval: 100ms") { // Holds REQ-125
		t.Errorf("the default sync interval is missing:\n%s", d)
	}
	for name, mod := range map[string]func(*fabric.ServerConfig){
		"NoPreload": func(c *fabric.ServerConfig) { c.Preload = nil }, "NoName": func(c *fabric.ServerConfig) { c.Name = "" },
		"BadSync": func(c *fabric.ServerConfig) { c.SyncEvery = "often" }, "NegativeSync": func(c *fabric.ServerConfig) { c.SyncEvery = "-1s" },
	} {
		bad := conf
		mod(&bad)
		if err := bad.Check(); !errors.Is(err, fabric.ErrConfig) {
			t.Errorf("%s: got %v, want ErrConfig", name, err)
		}
	}
}
