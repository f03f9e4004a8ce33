package fabric_test

import (
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rigelbuild/compass-operator/internal/fabric"
	"github.com/rigelbuild/compass-operator/internal/naming"
)

// theirs is somebody else's NATS as its owner hands it to us: an operator signing key, credentials of the system account,
// and URLs.
type theirs struct {
	*cluster
	signer fabric.Seed
	ours   fabric.Keys
	admin  *fabric.Accounts
}

func newTheirs(t *testing.T, n int, edit func(conf string) string) *theirs {
	t.Helper()
	c := startCluster(t, n, edit)
	signer, err := fabric.ParseOperatorSigner(append(c.keys.Signing[1].Text(), '\n'))
	if err != nil {
		t.Fatal(err)
	}
	ours, store, err := fabric.CompleteExternalKeys(nil, signer)
	if err != nil || store == nil {
		t.Fatalf("keys to store: %d, %v", len(store), err)
	}
	return &theirs{cluster: c, signer: signer, ours: ours, admin: c.open(t, c.systemCreds(t))}
}

func (c *cluster) systemCreds(t *testing.T) []byte {
	t.Helper()
	key := userKey(t)
	user, err := c.keys.System.AdminUser(key.Public(), naming.AccountSystem)
	if err != nil {
		t.Fatal(err)
	}
	text, err := fabric.CredsFile(user, key)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// open connects with the text of a credentials file, as a Secret holds it.
func (c *cluster) open(t *testing.T, creds []byte) *fabric.Accounts {
	t.Helper()
	credentials, err := fabric.ParseCreds(creds, "")
	if err != nil {
		t.Fatal(err)
	}
	a, err := fabric.OpenAccounts(t.Context(), fabric.Config{
		Name: "operator", URLs: []string{c.url(0)}, Credentials: credentials, Logger: quietLog(),
		Link: fabric.Link{Window: 20 * time.Second, ReconnectWait: 20 * time.Millisecond},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.Close)
	return a
}

func (x *theirs) spec() fabric.ProbeSpec {
	spec := fabric.ProbeSpec{Keys: x.ours.Probe, Signer: x.signer, Owner: owner, Servers: len(x.servers)}
	for i := range x.servers {
		spec.URLs = append(spec.URLs, x.url(i))
	}
	return spec
}

// Holds REQ-204 (the check of an external NATS), REQ-241. Ruling O3: Ready only after a probe account was pushed, connected
// to on every server, and removed; each lack has a name.
func TestProbe(t *testing.T) {
	t.Parallel()
	x := newTheirs(t, 2, nil)
	probe := func(mod func(*fabric.ProbeSpec)) fabric.ProbeSeen {
		t.Helper()
		spec := x.spec()
		if mod != nil {
			mod(&spec)
		}
		seen, err := x.admin.Probe(t.Context(), spec)
		if err != nil {
			t.Fatal(err)
		}
		return seen
	}
	for range 2 { // the probe account of the first is gone
		if seen := probe(nil); !seen.Ready() || !seen.CanDelete || len(seen.Servers) != 2 {
			t.Errorf("a NATS that has everything: %+v", seen)
		}
	}
	if seen := probe(func(s *fabric.ProbeSpec) { s.URLs = s.URLs[:1] }); seen.Ready() || !slices.Equal(seen.Unreached, []string{"n1"}) {
		t.Errorf("one URL of two servers: %+v", seen)
	}
	both := x.spec().URLs
	slices.Sort(both)
	stranger, _, err := fabric.CompleteKeys(nil)
	if err != nil {
		t.Fatal(err)
	}
	if seen := probe(func(s *fabric.ProbeSpec) { s.Signer = stranger.Signing[0] }); seen.Ready() || !slices.Equal(seen.Untrusted, both) {
		t.Errorf("a stranger's signing key: %+v", seen)
	}
	if seen := probe(func(s *fabric.ProbeSpec) { s.Signer = x.keys.Operator }); seen.Ready() || seen.Refusal == "" {
		t.Errorf("the operator's identity key, which must sign nothing: %+v", seen)
	}
	nothing := "nats://127.0.0.1:1"
	if seen := probe(func(s *fabric.ProbeSpec) { s.URLs = append(s.URLs, nothing) }); seen.Ready() || !slices.Equal(seen.Unanswered, []string{nothing}) {
		t.Errorf("a URL where nothing is: %+v", seen)
	}
	more := x.spec()
	more.Servers = 3
	if _, err := x.admin.Probe(t.Context(), more); !errors.Is(err, fabric.ErrUnavailable) {
		t.Errorf("a server too few: got %v, want ErrUnavailable", err)
	}
	if seen := probe(nil); !seen.Ready() {
		t.Errorf("after all that: %+v", seen)
	}
}

// One URL may stand for all servers, as a Service does.
func TestProbeThroughABalancer(t *testing.T) {
	t.Parallel()
	x := newTheirs(t, 3, nil)
	spec := x.spec()
	spec.URLs = []string{"nats://" + balance(t, x.cluster)}
	seen, err := x.admin.Probe(t.Context(), spec)
	if err != nil || !seen.Ready() {
		t.Errorf("%+v, %v", seen, err)
	}
}

// balance listens and hands connections to the servers in turn.
func balance(t *testing.T, c *cluster) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	var turn atomic.Int64
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			to := strings.TrimPrefix(c.url(int(turn.Add(1))%len(c.servers)), "nats://")
			server, err := net.Dial("tcp", to)
			if err != nil {
				_ = client.Close()
				continue
			}
			go func() { _, _ = io.Copy(server, client); _ = server.Close() }()
			go func() { _, _ = io.Copy(client, server); _ = client.Close() }()
		}
	}()
	return l.Addr().String()
}

// What a NATS cannot do is said, not tried for ever.
func TestProbeNamesWhatIsMissing(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		edit func(conf string) string
		want fabric.ProbeSeen
	}{
		"NoDeletion": {
			func(conf string) string { return strings.Replace(conf, "allow_delete: true", "allow_delete: false", 1) },
			fabric.ProbeSeen{},
		},
		"NoJetStream": {func(conf string) string { return without(conf, "jetstream {") }, fabric.ProbeSeen{NoJS: []string{"n0"}, CanDelete: true}},
		"NoResolver": {
			func(conf string) string { return without(conf, "resolver {") + "resolver: MEMORY\n" },
			fabric.ProbeSeen{NoResolver: true},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := newTheirs(t, 1, c.edit)
			for range 2 { // also over what the first left behind
				seen, err := x.admin.Probe(t.Context(), x.spec())
				if err != nil {
					t.Fatal(err)
				}
				seen.Servers = nil
				if diff := cmp.Diff(c.want, seen); diff != "" {
					t.Errorf("(-want +got)\n%s", diff)
				}
			}
		})
	}
}

// without drops a block of a rendered configuration.
func without(conf, opening string) string {
	before, rest, _ := strings.Cut(conf, opening)
	_, after, _ := strings.Cut(rest, "\n}\n")
	return before + after
}

func TestProbeNeedsTheSystemAccount(t *testing.T) {
	t.Parallel()
	x := newTheirs(t, 1, nil)
	x.base(t)
	u := x.standalone(t)
	text, err := fabric.CredsFile(u.jwt, u.key)
	if err != nil {
		t.Fatal(err)
	}
	seen, err := x.open(t, text).Probe(t.Context(), x.spec())
	if err != nil || !seen.NotSystem || seen.Ready() {
		t.Errorf("credentials of COMPASS: %+v, %v", seen, err)
	}
}

func TestLacksAreWorded(t *testing.T) {
	t.Parallel()
	if got := (fabric.ProbeSeen{}).Lacks(); got != nil {
		t.Errorf("nothing is missing: %q", got)
	}
	all := fabric.ProbeSeen{
		NotSystem: true, Outdated: []string{"n0", "n1"}, NoJS: []string{"n2"}, NoResolver: true, Refusal: "no",
		Untrusted: []string{"nats://a"}, Unanswered: []string{"nats://b"}, Unreached: []string{"n3"},
	}
	text := strings.Join(all.Lacks(), "\n")
	for _, want := range []string{"system account", "n0, n1", "n2", "full", ": no", "nats://a", "nats://b", "n3"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in\n%s", want, text)
		}
	}
	if len(all.Lacks()) != 8 || all.Ready() {
		t.Errorf("8 findings: %q", all.Lacks())
	}
}

// What an owner hands over may be wrong, and no error shows a secret.
func TestWhatIsHandedOverIsRead(t *testing.T) {
	t.Parallel()
	keys, all, err := fabric.CompleteKeys(nil)
	if err != nil {
		t.Fatal(err)
	}
	for what, text := range map[string][]byte{"garbage": []byte("SOxx"), "empty": nil, "an account's": all["sys.seed"]} {
		if _, err := fabric.ParseOperatorSigner(text); !errors.Is(err, fabric.ErrConfig) || len(text) > 0 && strings.Contains(err.Error(), string(text)) {
			t.Errorf("%s as a signing key: %v", what, err)
		}
	}
	key := userKey(t)
	user, err := keys.System.AdminUser(key.Public(), naming.AccountSystem)
	if err != nil {
		t.Fatal(err)
	}
	text, err := fabric.CredsFile(user, key)
	if err != nil {
		t.Fatal(err)
	}
	jwtOnly, _, _ := strings.Cut(string(text), "-----BEGIN USER NKEY SEED-----")
	for what, text := range map[string]string{"empty": "", "garbage": "x", "no seed": jwtOnly, "seed alone": string(key.Text())} {
		if _, err := fabric.ParseCreds([]byte(text), ""); !errors.Is(err, fabric.ErrConfig) || strings.Contains(err.Error(), string(key.Text())) {
			t.Errorf("%s as credentials: %v", what, err)
		}
	}
	if _, err := fabric.ParseCreds(text, ""); err != nil {
		t.Errorf("good credentials: %v", err)
	}
}
