package fabric

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/jwt/v2"
)

// ErrNoDelete says: the servers' resolver does not delete accounts. The account was locked out instead: nobody can connect.
var ErrNoDelete = errors.New("resolver does not delete accounts; the account was locked out")

// ErrRejected says: a server refused the account JWT; its words follow.
var ErrRejected = errors.New("account was rejected")

// AccountSeen is what the servers hold of one account, looked at just now. Every server keeps a copy of its own.
type AccountSeen struct {
	Answered int      // servers that answered
	Copies   int      // of those, how many hold the account
	Foreign  int      // of those, how many hold one without our mark
	Manager  string   // whose mark a foreign one carries; empty: nobody's
	Drift    []string // in which fields any copy differs; sorted
}

// ServerSeen is one server.
type ServerSeen struct {
	ID        string
	Name      string
	Version   string
	JetStream bool
}

// AccountWrite is one account as it should be.
type AccountWrite struct {
	Account Account
	Signer  Seed   // the operator signing key in use
	Owner   string // the mark that Account was built with
	Servers int    // how many must hold it
	Adopt   bool   // take over an account without our mark
}

// AccountPort is what the operator asks of the resolver. It looks up what it owns and never lists (design section 6).
type AccountPort interface {
	Servers(ctx context.Context, expect int) ([]ServerSeen, error)
	// Observe writes nothing. ErrUnavailable if fewer than w.Servers answered: then nothing is known.
	Observe(ctx context.Context, w AccountWrite) (AccountSeen, error)
	// Ensure pushes the account if any server lacks it or holds another, and returns what every server then holds.
	// ErrForeign: one holds an account of that key without our mark; nothing was written. ErrRejected: a server refused.
	Ensure(ctx context.Context, w AccountWrite) (AccountSeen, bool, error)
	// Remove locks the account out, purges its streams, deletes it and verifies that no server holds it. Absent is success.
	// ErrNoDelete: it stays, locked. A server that was away may bring it back: keep a Tombstone and Bury.
	Remove(ctx context.Context, w AccountWrite) error
}

// Accounts is the operator's connection to the system account. It implements AccountPort.
type Accounts struct {
	link *link
	now  func() time.Time
}

var _ AccountPort = (*Accounts)(nil)

// OpenAccounts connects with credentials of the system account; errors as New.
func OpenAccounts(ctx context.Context, cfg Config) (*Accounts, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	m, err := newMetrics(cfg.Meter)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	l, err := dial(ctx, cfg, m)
	if err != nil {
		return nil, err
	}
	return &Accounts{link: l, now: cfg.Now}, nil
}

// Close disconnects.
func (a *Accounts) Close() { a.link.close() }

// Servers see AccountPort. With expect 0 it waits for late answers; else it returns when that many have answered.
func (a *Accounts) Servers(ctx context.Context, expect int) ([]ServerSeen, error) {
	answers, err := a.gather(ctx, "$SYS.REQ.SERVER.PING", nil, expect)
	if err != nil {
		return nil, fmt.Errorf("ask for servers: %w", err)
	}
	var out []ServerSeen
	for _, msg := range answers {
		var s struct {
			Server struct {
				ID, Name string
				Version  string `json:"ver"`
				JS       bool   `json:"jetstream"`
			} `json:"server"`
		}
		if err := json.Unmarshal(msg.Data, &s); err != nil {
			return nil, fmt.Errorf("read answer of a server: %w", err)
		}
		out = append(out, ServerSeen{ID: s.Server.ID, Name: s.Server.Name, Version: s.Server.Version, JetStream: s.Server.JS})
	}
	slices.SortFunc(out, func(x, y ServerSeen) int { return strings.Compare(x.Name+x.ID, y.Name+y.ID) })
	if len(out) < max(expect, 1) {
		return out, fmt.Errorf("%w: %d of %d servers answered", ErrUnavailable, len(out), max(expect, 1))
	}
	return out, nil
}

// Trusted asks the servers, of which there are expect, which signing keys of operators they know, and tells how many know each.
func (a *Accounts) Trusted(ctx context.Context, expect int) (map[string]int, error) {
	answers, err := a.gather(ctx, "$SYS.REQ.SERVER.PING.VARZ", nil, expect)
	if err != nil {
		return nil, fmt.Errorf("ask servers whom they trust: %w", err)
	}
	known := map[string]int{}
	for _, msg := range answers {
		var s struct {
			Data struct {
				Operators []struct {
					NATS struct {
						SigningKeys []string `json:"signing_keys"`
					} `json:"nats"`
				} `json:"trusted_operators_claim"`
			} `json:"data"`
		}
		if err := json.Unmarshal(msg.Data, &s); err != nil {
			return nil, fmt.Errorf("read whom a server trusts: %w", err)
		}
		for _, operator := range s.Data.Operators {
			for _, key := range operator.NATS.SigningKeys {
				known[key]++
			}
		}
	}
	return known, nil
}

// Observe see AccountPort.
func (a *Accounts) Observe(ctx context.Context, w AccountWrite) (AccountSeen, error) {
	answers, err := a.gather(ctx, "$SYS.REQ.ACCOUNT."+w.Account.Public+".CLAIMS.LOOKUP", nil, w.Servers)
	if err != nil {
		return AccountSeen{}, fmt.Errorf("look up account %s: %w", w.Account.Name, err)
	}
	seen := AccountSeen{Answered: len(answers)}
	differs := map[string]bool{}
	for _, msg := range answers {
		if len(msg.Data) == 0 { // this server has none
			continue
		}
		seen.Copies++
		if !owned(string(msg.Data), w.Owner) {
			seen.Foreign++
			seen.Manager = max(seen.Manager, managerOfAccount(string(msg.Data)))
		}
		fields, err := w.Account.Drift(string(msg.Data), w.Signer.Public())
		if err != nil {
			return seen, fmt.Errorf("look up account %s: %w", w.Account.Name, err)
		}
		for _, f := range fields {
			differs[f] = true
		}
	}
	for f := range differs {
		seen.Drift = append(seen.Drift, f)
	}
	slices.Sort(seen.Drift)
	if seen.Answered < w.Servers {
		return seen, fmt.Errorf("look up account %s: %w: %d of %d servers answered", w.Account.Name, ErrUnavailable, seen.Answered, w.Servers)
	}
	return seen, nil
}

// Ensure see AccountPort.
func (a *Accounts) Ensure(ctx context.Context, w AccountWrite) (AccountSeen, bool, error) {
	seen, err := a.Observe(ctx, w)
	switch {
	case err != nil:
		return seen, false, err
	case seen.Foreign > 0 && !w.Adopt:
		return seen, false, fmt.Errorf("ensure account %s: %w", w.Account.Name, ErrForeign)
	case seen.Copies == seen.Answered && len(seen.Drift) == 0:
		return seen, false, nil
	}
	if err := a.push(ctx, w); err != nil {
		return seen, false, err
	}
	seen, err = a.Observe(ctx, w)
	if err == nil && (seen.Copies < seen.Answered || len(seen.Drift) > 0) {
		err = fmt.Errorf("read back account %s: %w: %d of %d servers hold it, differing in %v",
			w.Account.Name, ErrRejected, seen.Copies, seen.Answered, seen.Drift)
	}
	return seen, true, err
}

// Remove see AccountPort.
func (a *Accounts) Remove(ctx context.Context, w AccountWrite) error {
	seen, err := a.Observe(ctx, w)
	switch {
	case err != nil:
		return err
	case seen.Copies == 0:
		return nil
	case seen.Foreign > 0 && !w.Adopt:
		return fmt.Errorf("remove account %s: %w", w.Account.Name, ErrForeign)
	}
	locked := w
	locked.Account = w.Account.Locked(a.now())
	if err := a.push(ctx, locked); err != nil {
		return err
	}
	if err := a.purge(ctx, w); err != nil {
		return err
	}
	if err := a.erase(ctx, w); err != nil {
		return err
	}
	if seen, err = a.Observe(ctx, w); err == nil && seen.Copies > 0 {
		err = fmt.Errorf("remove account %s: %w", w.Account.Name, ErrNoDelete)
	}
	return err
}

// push sends the account to every server and hears each of them.
func (a *Accounts) push(ctx context.Context, w AccountWrite) error {
	text, err := w.Account.Sign(w.Signer)
	if err != nil {
		return err
	}
	answers, err := a.gather(ctx, "$SYS.REQ.CLAIMS.UPDATE", []byte(text), w.Servers)
	if err != nil {
		return fmt.Errorf("push account %s: %w", w.Account.Name, err)
	}
	return refusals(answers, "push account "+w.Account.Name, ErrRejected)
}

// purge deletes the streams of the account, which would outlive it: an account of the same key would find them again.
func (a *Accounts) purge(ctx context.Context, w AccountWrite) error {
	if w.Account.claims.Limits.DiskStorage == 0 && w.Account.claims.Limits.MemoryStorage == 0 {
		return nil // it could have none
	}
	what := "purge account " + w.Account.Name
	answers, err := a.gather(ctx, "$JS.API.ACCOUNT.PURGE."+w.Account.Public, nil, 1)
	if errors.Is(err, errNobodyServes) { // no JetStream anywhere
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	if len(answers) == 0 {
		return fmt.Errorf("%s: %w: JetStream does not answer", what, ErrUnavailable)
	}
	return refusals(answers, what, ErrRejected)
}

// erase asks every server to delete the account. The request itself is a claim, signed by an operator signing key.
func (a *Accounts) erase(ctx context.Context, w AccountWrite) error {
	kp, err := w.Signer.pair()
	if err != nil {
		return err
	}
	defer kp.Wipe()
	c := jwt.NewGenericClaims(w.Signer.Public())
	c.Data["accounts"] = []string{w.Account.Public}
	text, err := c.Encode(kp)
	if err != nil {
		return fmt.Errorf("remove account %s: %w", w.Account.Name, err)
	}
	answers, err := a.gather(ctx, "$SYS.REQ.CLAIMS.DELETE", []byte(text), w.Servers)
	if err != nil {
		return fmt.Errorf("remove account %s: %w", w.Account.Name, err)
	}
	return refusals(answers, "remove account "+w.Account.Name, ErrNoDelete)
}
