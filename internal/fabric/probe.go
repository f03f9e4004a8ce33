package fabric

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nkeys"
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
// condition can name it.
type ProbeSeen struct {
	Servers   []ServerSeen
	Outdated  []string // names of servers older than MinServerVersion
	NoJS      []string // names of servers without JetStream
	Untrusted []string // URLs whose server refused a user of the probe account: another operator's, or not pushed there
	Unreached []string // names of servers that no URL led to
	CanDelete bool     // the resolver deletes accounts; without it, deletion means lock-out
}

// Ready reports whether all that is needed is there. Deletion is not needed.
func (p ProbeSeen) Ready() bool {
	return len(p.Servers) > 0 && len(p.Outdated)+len(p.NoJS)+len(p.Untrusted)+len(p.Unreached) == 0
}

// ProbeSpec says what to probe with.
type ProbeSpec struct {
	Signer  Seed     // an operator signing key
	Owner   string   // the mark of our accounts
	Servers int      // how many servers there should be; 0: as many as answer
	URLs    []string // every client URL that is known
}

// Probe pushes an account of its own, connects to every server as a user of it, and removes it. A resolver stores what a
// stranger signed and says yes, so only a connection proves that the signing key is trusted.
func (a *Accounts) Probe(ctx context.Context, spec ProbeSpec) (ProbeSeen, error) {
	var seen ProbeSeen
	servers, err := a.Servers(ctx, spec.Servers)
	if err != nil {
		return seen, err
	}
	seen.Servers = servers
	for _, s := range servers {
		if !Supported(s.Version) {
			seen.Outdated = append(seen.Outdated, s.Name)
		}
		if !s.JetStream {
			seen.NoJS = append(seen.NoJS, s.Name)
		}
	}
	keys, err := probeKeys()
	if err != nil {
		return seen, err
	}
	account := Account{Name: "probe", Public: keys.Identity.Public(), claims: newClaims("probe", keys, spec.Owner)}
	w := AccountWrite{Account: account, Signer: spec.Signer, Owner: spec.Owner, Servers: len(servers)}
	if _, _, err := a.Ensure(ctx, w); err != nil {
		return seen, fmt.Errorf("probe: %w", err)
	}
	a.visit(ctx, spec, keys, &seen)
	err = a.Remove(ctx, w)
	seen.CanDelete = err == nil
	if errors.Is(err, ErrNoDelete) {
		err = nil
	}
	return seen, err
}

// visit connects to each URL as a user of the probe account and notes which servers were met.
func (a *Accounts) visit(ctx context.Context, spec ProbeSpec, keys AccountKeys, seen *ProbeSeen) {
	met := map[string]bool{}
	for _, url := range spec.URLs {
		id, err := a.connectOnce(ctx, url, keys)
		if err != nil {
			a.link.log.WarnContext(ctx, "Probe was refused", "url", url, "error", err)
			seen.Untrusted = append(seen.Untrusted, url)
			continue
		}
		met[id] = true
	}
	for _, s := range seen.Servers {
		if !met[s.ID] && len(seen.Untrusted) == 0 { // a refusing server does not say which it is
			seen.Unreached = append(seen.Unreached, s.Name)
		}
	}
}

func (a *Accounts) connectOnce(ctx context.Context, url string, keys AccountKeys) (server string, err error) {
	key, err := NewUserSeed()
	if err != nil {
		return "", err
	}
	user, err := keys.StandaloneUser(key.Public())
	if err != nil {
		return "", err
	}
	cfg := a.link.cfg
	cfg.Name, cfg.URLs, cfg.InProcess = "probe", []string{url}, nil
	cfg.Credentials = StaticCredentials(user, key, "")
	cfg.Link.Window = min(cfg.Link.Window, 3*time.Second)
	l, err := dial(ctx, cfg, a.link.metrics)
	if err != nil {
		return "", err
	}
	defer l.close()
	nc, _, _, err := l.current()
	if err != nil {
		return "", err
	}
	return nc.ConnectedServerId(), nil
}

func probeKeys() (AccountKeys, error) {
	identity, err := newSeed(nkeys.PrefixByteAccount)
	if err != nil {
		return AccountKeys{}, err
	}
	signing, err := newSeed(nkeys.PrefixByteAccount)
	return AccountKeys{Identity: identity, Signing: signing}, err
}
