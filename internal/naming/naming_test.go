package naming_test

import (
	"bytes"
	"crypto/rand"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rigelbuild/compass-operator/internal/naming"
)

const (
	tenant  = "t_06f0e5k3vdrg0000000000000g"
	account = "a_06f0e5k3vdrg0000000000000g"
	message = "m_06f0e5k3vdrg0000000000000g"
	runner  = "r-06f0e5k3vdrg0000000000000g"
	conn    = "n_06f0e5k3vdrg0000000000000g"
)

func newIDs() *naming.IDs { return &naming.IDs{Now: time.Now, Rand: rand.Reader} }

// must unwraps a name that has to be valid.
func must(t *testing.T) func(string, error) string {
	t.Helper()
	return func(s string, err error) string {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
}

func TestIDsAreValidAndDistinct(t *testing.T) {
	t.Parallel()
	g := newIDs()
	made := map[string]func() string{
		naming.TenantPrefix: g.Tenant, naming.AccountPrefix: g.Account, naming.ChannelPrefix: g.Channel,
		naming.MessagePrefix: g.Message, naming.TokenPrefix: g.TokenID, naming.RunnerPrefix: g.Runner,
		naming.ConnectionPrefix: g.Connection, naming.InstancePrefix: g.Instance,
	}
	if len(made) != 8 {
		t.Fatalf("%d distinct prefixes, want 8", len(made))
	}
	for prefix, next := range made {
		a, b := next(), next()
		if err := naming.ValidID(prefix, a); err != nil {
			t.Error(err)
		}
		if a == b {
			t.Errorf("%s made twice", a)
		}
	}
	if err := naming.ValidTenant(g.Tenant()); err != nil {
		t.Error(err)
	}
	if err := naming.ValidRunnerID(g.Runner()); err != nil {
		t.Error(err)
	}
}

func TestIDsSortByTime(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 9, 5, 0, 0, 0, 0, time.UTC)
	g := &naming.IDs{Now: func() time.Time { return now }, Rand: rand.Reader}
	var ids []string
	for range 200 {
		ids = append(ids, g.Message())
		now = now.Add(time.Millisecond)
	}
	if !slices.IsSorted(ids) {
		t.Error("ids made later do not sort later")
	}
}

// A fixed clock and a fixed source give a fixed id, so that a simulation replays; the version and variant bits are UUIDv7's.
func TestIDsAreDeterministic(t *testing.T) {
	t.Parallel()
	make1 := func() string {
		g := &naming.IDs{Now: func() time.Time { return time.UnixMilli(1) }, Rand: bytes.NewReader(make([]byte, 64))}
		return g.Account()
	}
	const want = "a_0000000005o010000000000000"
	if got, again := make1(), make1(); got != want || again != want {
		t.Errorf("ids = %s, %s, want %s twice", got, again, want)
	}
}

func TestIDsAreSafeTogether(t *testing.T) {
	t.Parallel()
	g := &naming.IDs{Now: time.Now, Rand: bytes.NewReader(make([]byte, 8*50*10))} // bytes.Reader is not safe by itself
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 50 {
				g.Channel()
			}
		})
	}
	wg.Wait()
}

// Holds REQ-238: a token names its tenant without a look-up, by the last underscore; nothing else parses.
func TestTokens(t *testing.T) {
	t.Parallel()
	g, ok := newIDs(), must(t)
	session, token := ok(g.Session(tenant)), ok(g.Token(tenant))
	invite, shared := ok(g.RunnerToken(tenant)), ok(g.RunnerToken(naming.SharedFleet))

	if got, id, err := naming.ParseSession(session); err != nil || got != tenant || len(id) != 26 {
		t.Errorf("ParseSession = %s, %s, %v", got, id, err)
	}
	if got, secret, err := naming.ParseToken(token); err != nil || got != tenant || len(secret) != 52 {
		t.Errorf("ParseToken = %s, %v", got, err)
	}
	for want, s := range map[string]string{tenant: invite, naming.SharedFleet: shared} {
		if got, secret, err := naming.ParseRunnerToken(s); err != nil || got != want || len(secret) != 52 {
			t.Errorf("ParseRunnerToken = %s, %v, want %s", got, err, want)
		}
	}
	if naming.TokenHash(token) == naming.TokenHash(invite) {
		t.Error("two tokens, one hash")
	}
	for _, bad := range []string{
		"", "cmp_", "cmp__", token[4:], token + "a", token[:len(token)-1], strings.ToUpper(token), "cmp_" + tenant,
		"cmp_shared_" + strings.Repeat("a", 52), strings.Replace(token, "cmp_", "crt_", 1) + "_", token[:len(token)-1] + "b",
		"cmp_t_x_" + strings.Repeat("a", 52), token + "\n", " " + token,
	} {
		_, secret, err := naming.ParseToken(bad)
		if !errors.Is(err, naming.ErrInvalid) || secret != "" {
			t.Errorf("ParseToken(%q) = %v", bad, err)
		}
		if bad != "" && len(bad) > 8 && strings.Contains(err.Error(), bad) {
			t.Errorf("the error repeats the secret: %v", err)
		}
	}
	for _, f := range []func(string) (string, error){g.Session, g.Token, g.RunnerToken} {
		if s, err := f("acme"); !errors.Is(err, naming.ErrInvalid) || s != "" {
			t.Errorf("made %q for a tenant that is none: %v", s, err)
		}
	}
}

// Holds REQ-215 (reserved slugs) and X12 (no tenant or fleet may look like a subject of ours).
func TestValid(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("a", 500)
	tests := map[string]struct {
		valid     func(string) error
		good, bad []string
	}{
		"tenant": {naming.ValidTenant, []string{tenant}, []string{
			"", "t_", "runner", "system", account, tenant + "0", tenant[:27], "t_" + strings.Repeat("w", 26),
			"t_" + strings.Repeat("A", 26), "t_" + strings.Repeat("*", 26), "t_06f0e5k3vdrg000000000000.g", long,
		}},
		"runner": {naming.ValidRunnerID, []string{runner}, []string{"", "r_06f0e5k3vdrg0000000000000g", "*", "r-*", "r1", long}},
		"fleet":  {naming.ValidFleet, []string{"shared", tenant}, []string{"", "Shared", "acme", "*", ">", long}},
		"slug": {naming.ValidSlug, []string{"a", "acme", "a-1", "0", strings.Repeat("a", 48), "systems"}, append([]string{
			"", "-a", "a-", "A", "a_b", "a.b", "a b", "ä", strings.Repeat("a", 49), long, "a\n",
		}, naming.ReservedSlugs()...)},
		"name": {naming.ValidName, []string{"main", "a", strings.Repeat("a", 40), "system"}, []string{
			"", "a.b", "-a", "a-", "Main", strings.Repeat("a", 41), "*", ">", "a b", "a\x00",
		}},
		"turn": {naming.ValidTurn, []string{"1", "Turn_a-B", strings.Repeat("a", 64)}, []string{
			"", strings.Repeat("a", 65), "a.b", "a b", "a*", "ü", "a\x7f",
		}},
		"kind": {naming.ValidKind, []string{"message_posted", "a", "a1"}, []string{
			"", "_a", "1a", "Message", "a-b", "a.b", "*", ">", strings.Repeat("a", 64),
		}},
		"token": {naming.ValidToken, []string{message, "A-b_1", "--", strings.Repeat("a", 64)}, []string{
			"", "-", "a.b", "*", "a b", "a\t", strings.Repeat("a", 65), "é",
		}},
		"database": {naming.ValidDatabase, []string{"compass", "c", "compass_acme", "compass-acme", strings.Repeat("a", 53)}, []string{
			"", "1a", "_a", "Compass", "pg_compass", "postgres", "template0", "template1", "a\x00b", `a"b`, "a b", "a.b", "ä",
			strings.Repeat("a", 54), strings.Repeat("a", 63), long,
		}},
		"tenant login": {naming.ValidTenantLogin, []string{"ct_" + strings.Repeat("a", 20)}, []string{
			"", "ct_", "ct_" + strings.Repeat("a", 21), "ct_" + strings.Repeat("1", 20), "compass_app",
		}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, s := range tt.good {
				if err := tt.valid(s); err != nil {
					t.Errorf("refused %q: %v", s, err)
				}
			}
			for _, s := range tt.bad {
				err := tt.valid(s)
				if !errors.Is(err, naming.ErrInvalid) {
					t.Errorf("took %q", s)
				} else if !strings.Contains(err.Error(), "allowed is") || len(err.Error()) > 400 {
					t.Errorf("error does not say what is allowed, shortly: %v", err)
				}
			}
		})
	}
}

func TestReservedSlugsAreSortedAndCoverSubjects(t *testing.T) {
	t.Parallel()
	words := naming.ReservedSlugs()
	if !slices.IsSorted(words) {
		t.Error("ValidSlug searches them by halves: they must be sorted")
	}
	for _, w := range []string{"system", "runner", "shared", "q", "dlq", "bcast", "worker", "client", "compass", "all", "comms"} {
		if !slices.Contains(words, w) {
			t.Errorf("%s is not reserved", w)
		}
	}
}

func TestPostgresNames(t *testing.T) {
	t.Parallel()
	longest := strings.Repeat("a", naming.MaxDatabase)
	roles, err := naming.RolesOf(longest)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, r := range []string{roles.Owner, roles.App, roles.System, roles.Provision, roles.Tenant} {
		if len(r) > 63 || seen[r] {
			t.Errorf("role %s: %d bytes, seen before: %v", r, len(r), seen[r])
		}
		seen[r] = true
	}
	ok := must(t)
	a, b := ok(naming.TenantLogin("compass", tenant)), ok(naming.TenantLogin("compass_acme", tenant))
	if a == b || naming.ValidTenantLogin(a) != nil || a != ok(naming.TenantLogin("compass", tenant)) {
		t.Errorf("logins %s, %s: want valid, stable, one per database", a, b)
	}
	if strings.Contains(a, tenant[2:10]) {
		t.Error("a login shows its tenant")
	}
	if _, err := naming.RolesOf("pg_x"); !errors.Is(err, naming.ErrInvalid) {
		t.Errorf("RolesOf = %v", err)
	}
	if _, err := naming.TenantLogin("compass", "acme"); !errors.Is(err, naming.ErrInvalid) {
		t.Errorf("TenantLogin = %v", err)
	}
}

// Every name fits what Kubernetes allows for a Service, a Secret and a label value, for the longest name we take.
func TestKubernetesNames(t *testing.T) {
	t.Parallel()
	longest := strings.Repeat("a", naming.MaxName)
	s, err1 := naming.ServerChildrenOf(longest)
	te, err2 := naming.TenantChildrenOf(longest)
	d, err3 := naming.StreamChildrenOf(longest)
	if err := errors.Join(err1, err2, err3); err != nil {
		t.Fatal(err)
	}
	for _, n := range []string{
		s.Keys, s.CA, s.TLS, s.Admin, s.RunnerEnrol, s.Databases, s.Issuer, s.CommandKey, s.Server, s.NATS, te.API, te.NATS, te.SQL,
		te.Keys, d.Worker,
	} {
		// A StatefulSet labels its pods with its name, a hyphen and a hash of ten.
		if len(n)+11 > 63 && n != d.Worker && n != s.RunnerEnrol && n != s.CommandKey || len(n) > 63 || strings.Contains(n, ".") {
			t.Errorf("%s: %d bytes", n, len(n))
		}
	}
	if d.Worker != longest+"-compass-delivery" || d.Stream != "CMP_"+longest || d.DeadLetterStream != "CMP_"+longest+"_DLQ" {
		t.Errorf("stream children = %+v", d)
	}
	for _, err := range []error{
		second(naming.ServerChildrenOf("a.b")), second(naming.TenantChildrenOf("")), second(naming.StreamChildrenOf("A")),
	} {
		if !errors.Is(err, naming.ErrInvalid) {
			t.Errorf("a bad name gave children: %v", err)
		}
	}
}

func second[T any](_ T, err error) error { return err }
