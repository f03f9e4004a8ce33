package fabric

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// MinServerVersion is the oldest nats-server that is supported: older ones lose pending messages at their last delivery.
const MinServerVersion = "2.14.1"

// Supported reports whether a server's version, such as 2.15.2, is not older than MinServerVersion.
func Supported(version string) bool {
	have, want := numbers(version), numbers(MinServerVersion)
	return slices.Compare(have[:], want[:]) >= 0
}

// numbers reads the leading three; what cannot be read counts as 0.
func numbers(version string) (n [3]int) {
	_, _ = fmt.Sscanf(version, "%d.%d.%d", &n[0], &n[1], &n[2])
	return n
}

// ProbeSeen is what a probe of somebody else's NATS found (ruling O3). Each lack has a field of its own, so that a
// condition can name it; Lacks words them. Lists are sorted.
type ProbeSeen struct {
	Servers    []ServerSeen
	NotSystem  bool     // the credentials are of another account than the system account
	Outdated   []string // names of servers older than MinServerVersion
	NoJS       []string // names of servers without JetStream
	NoResolver bool     // the servers take no accounts: no operator mode, or a resolver of another type than full
	Refusal    string   // a server's words where it refused the probe account
	Untrusted  []string // URLs whose server refused a user of the probe account: another operator's, or not pushed there
	Unanswered []string // URLs of the spec where nothing answers
	Unreached  []string // names of servers that no URL led to
	CanDelete  bool     // the resolver deletes accounts; without it, deletion means lock-out
}

// Ready reports whether all that is needed is there. Deletion is not needed.
func (p ProbeSeen) Ready() bool { return len(p.Servers) > 0 && len(p.Lacks()) == 0 }

// Lacks says what is missing, one sentence each, and what to do about it; the same words for the same findings. It is empty
// where nothing is. That accounts cannot be deleted is no lack.
func (p ProbeSeen) Lacks() []string {
	var out []string
	say := func(lacking bool, format string, args ...any) {
		if lacking {
			out = append(out, fmt.Sprintf(format, args...))
		}
	}
	names := func(list []string) string { return strings.Join(list, ", ") }
	say(p.NotSystem, "the credentials are not of the system account: give those of a user of it")
	say(len(p.Outdated) > 0, "servers %s are older than %s: upgrade them", names(p.Outdated), MinServerVersion)
	say(len(p.NoJS) > 0, "servers %s run without JetStream: enable it", names(p.NoJS))
	say(p.NoResolver, "the servers take no accounts: run them in operator mode with a resolver of type full")
	say(p.Refusal != "", "a server refused an account signed with the signing key: %s", p.Refusal)
	say(len(p.Untrusted) > 0, "servers at %s do not trust the signing key: it must be one of their operator's", names(p.Untrusted))
	say(len(p.Unanswered) > 0, "nothing answers at %s", names(p.Unanswered))
	say(len(p.Unreached) > 0, "no URL leads to servers %s: add theirs", names(p.Unreached))
	return out
}

// ProbeSpec says what to probe with.
type ProbeSpec struct {
	Keys    AccountKeys // of the probe account: kept, so that what a killed probe left behind is found by the next
	Signer  Seed        // an operator signing key
	Owner   string      // the mark of our accounts
	Servers int         // how many servers there should be; 0: as many as answer
	URLs    []string    // every client URL that is known
}

// Probe pushes an account of its own, connects to every server as a user of it, and removes it. A resolver stores what a
// stranger signed and says yes, so only a connection proves that the signing key is trusted. An error says that nothing is
// known; what is known to be missing is in ProbeSeen. It writes: call it when what it depends on may have changed, not in
// every pass.
func (a *Accounts) Probe(ctx context.Context, spec ProbeSpec) (ProbeSeen, error) {
	var seen ProbeSeen
	servers, err := a.Servers(ctx, spec.Servers)
	if errors.Is(err, errNobodyServes) {
		seen.NotSystem = true
		return seen, nil
	}
	if err != nil {
		return seen, fmt.Errorf("probe: %w", err)
	}
	seen.judge(servers)
	account := Account{Name: "probe", Public: spec.Keys.Identity.Public(), claims: newClaims("probe", spec.Keys, spec.Owner)}
	w := AccountWrite{Account: account, Signer: spec.Signer, Owner: spec.Owner, Servers: len(servers)}
	_, _, err = a.Ensure(ctx, w)
	if ok, err := seen.pushed(err); !ok {
		return seen, err
	}
	a.visit(ctx, spec, &seen)
	err = a.Remove(ctx, w)
	seen.CanDelete = err == nil
	if err != nil && !errors.Is(err, ErrNoDelete) {
		return seen, fmt.Errorf("probe: %w", err)
	}
	return seen, nil
}

func (p *ProbeSeen) judge(servers []ServerSeen) {
	p.Servers = servers
	for _, s := range servers {
		if !Supported(s.Version) {
			p.Outdated = append(p.Outdated, s.Name)
		}
		if !s.JetStream {
			p.NoJS = append(p.NoJS, s.Name)
		}
	}
}

// pushed reads what came of the push; ok says that the account is on every server.
func (p *ProbeSeen) pushed(err error) (ok bool, _ error) {
	words := refusalOf(err)
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, errNobodyServes):
		p.NoResolver = true
	case !errors.Is(err, ErrRejected):
		return false, fmt.Errorf("probe: %w", err)
	case words != "":
		p.Refusal = words
	default: // taken, and not kept
		p.NoResolver = true
	}
	return false, nil
}

// visit connects as a user of the probe account until every server was met. One URL may lead to several servers, and
// servers may tell of others, so each URL is tried more than once where there are fewer of them than servers.
func (a *Accounts) visit(ctx context.Context, spec ProbeSpec, seen *ProbeSeen) {
	v := visit{accounts: a, spec: spec, seen: seen, urls: slices.Clone(spec.URLs), bad: map[string]bool{}, met: map[string]bool{}}
	for range 4 * max(len(seen.Servers), 1) {
		for i := 0; i < len(v.urls); i++ { //nolint:intrange // grows by what servers tell of
			v.call(ctx, i)
		}
		if v.metAll() {
			break
		}
	}
	slices.Sort(seen.Untrusted)
	slices.Sort(seen.Unanswered)
	for _, s := range seen.Servers {
		if !v.met[s.ID] && len(seen.Untrusted) == 0 { // a refusing server does not say which it is
			seen.Unreached = append(seen.Unreached, s.Name)
		}
	}
}

type visit struct {
	accounts *Accounts
	spec     ProbeSpec
	seen     *ProbeSeen
	urls     []string        // those of the spec first
	bad      map[string]bool // URLs that are not tried again
	met      map[string]bool // ids of servers
}

func (v *visit) metAll() bool { return len(v.met) == len(v.seen.Servers) }

func (v *visit) call(ctx context.Context, i int) {
	url, given := v.urls[i], i < len(v.spec.URLs)
	if v.bad[url] || v.metAll() && !given {
		return
	}
	id, others, err := v.accounts.connectOnce(ctx, url, v.spec.Keys)
	if err == nil {
		v.met[id] = true
		v.urls = appendNew(v.urls, others)
		return
	}
	v.bad[url] = true
	v.accounts.link.log.WarnContext(ctx, "Probe was refused", "url", url, "error", err)
	switch {
	case errors.Is(err, ErrUnauthorized):
		v.seen.Untrusted = append(v.seen.Untrusted, url)
	case given: // what servers tell of each other need not be reachable from here
		v.seen.Unanswered = append(v.seen.Unanswered, url)
	}
}

func appendNew(list, more []string) []string {
	for _, m := range more {
		if !slices.Contains(list, m) {
			list = append(list, m)
		}
	}
	return list
}

// connectOnce tells which server it met and which others that one knows.
func (a *Accounts) connectOnce(ctx context.Context, url string, keys AccountKeys) (server string, others []string, err error) {
	key, err := NewUserSeed()
	if err != nil {
		return "", nil, err
	}
	user, err := keys.StandaloneUser(key.Public())
	if err != nil {
		return "", nil, err
	}
	cfg := a.link.cfg
	cfg.Name, cfg.URLs, cfg.InProcess = "probe", []string{url}, nil
	cfg.Credentials = StaticCredentials(user, key, "")
	cfg.Link.Window = min(cfg.Link.Window, time.Second)
	l, err := dial(ctx, cfg, a.link.metrics)
	if err != nil {
		return "", nil, err
	}
	defer l.close()
	nc, _, _, err := l.current()
	if err != nil {
		return "", nil, err
	}
	return nc.ConnectedServerId(), nc.DiscoveredServers(), nil
}
