package backend

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/rigelbuild/compass-operator/api/v1alpha1"
	"github.com/rigelbuild/compass-operator/internal/fabric"
	"github.com/rigelbuild/compass-operator/internal/fault"
	"github.com/rigelbuild/compass-operator/internal/naming"
)

const (
	clientName = "compass-operator"
	// patience is how long a connection is tried for within one step; a pass that fails is repeated.
	patience = 5 * time.Second
)

type (
	natsAdmin   = fabric.Accounts
	natsStreams = fabric.Fabric
)

// NATSSeen is what the NATS servers said of themselves.
type NATSSeen struct {
	Version string // the oldest
	Servers int
	Trusted map[string]int // how many know a signing key of their operator
}

// User makes a user of a role: its public key, by which it can be revoked, and the text of its credentials file.
func User(keys fabric.AccountKeys, role fabric.Role, id string, now time.Time) (public string, creds []byte, err error) {
	seed, err := fabric.NewUserSeed()
	if err != nil {
		return "", nil, err
	}
	user, err := keys.Issuer(role).User(seed.Public(), id, 0, now)
	if err != nil {
		return "", nil, err
	}
	creds, err = fabric.CredsFile(user, seed)
	return seed.Public(), creds, err
}

// EnsureAccounts brings the accounts to every server, pushing what differs and reading it back, and then lets a probe user
// of the platform account in: an account that nobody can enter is none.
func (p *Pool) EnsureAccounts(ctx context.Context, at Place, servers int, accounts ...fabric.Account) (NATSSeen, error) {
	admin, err := p.accounts(ctx, at)
	if err != nil {
		return NATSSeen{}, err
	}
	there, err := admin.Servers(ctx, servers)
	if err != nil {
		return NATSSeen{}, at.interpretNATS(err)
	}
	seen := NATSSeen{Servers: len(there)}
	for _, s := range there {
		if !s.JetStream {
			return seen, fault.Transient(v1alpha1.ReasonFabricUnreachable, fmt.Errorf("NATS server %s runs without JetStream", s.Name))
		}
		if seen.Version == "" || olderThan(s.Version, seen.Version) {
			seen.Version = s.Version
		}
	}
	if seen.Trusted, err = admin.Trusted(ctx, len(there)); err != nil {
		return seen, at.interpretNATS(err)
	}
	for _, account := range accounts {
		if err := p.ensureAccount(ctx, admin, at, at.write(account, servers)); err != nil {
			return seen, at.interpretNATS(err)
		}
	}
	return seen, p.probe(ctx, at)
}

// EnsureAccount does the same for one account, without a probe. One that is there without our mark is taken over as the policy
// allows, with its key; what would be changed is said before anything is.
func (p *Pool) EnsureAccount(ctx context.Context, at Place, account fabric.Account, adopt v1alpha1.AdoptionPolicy) error {
	admin, err := p.accounts(ctx, at)
	if err != nil {
		return err
	}
	there, err := admin.Servers(ctx, max(at.Servers, 1))
	if err != nil {
		return at.interpretNATS(err)
	}
	w := at.write(account, len(there))
	err = p.ensureAccount(ctx, admin, at, w)
	if !errors.Is(err, fabric.ErrForeign) {
		return at.interpretNATS(err)
	}
	seen, err := admin.Observe(ctx, w)
	if err == nil {
		err = found{manager: seen.Manager, drift: seen.Drift}.mayBeTaken("NATS account "+account.Public, "", adopt)
	}
	if err == nil {
		w.Adopt = true
		err = p.ensureAccount(ctx, admin, at, w)
	}
	return at.interpretNATS(err)
}

func (p *Pool) ensureAccount(ctx context.Context, admin *natsAdmin, at Place, w fabric.AccountWrite) error {
	what := "NATS account " + w.Account.Name
	if at.Drift.Reporting() {
		seen, err := admin.Observe(ctx, w)
		if err != nil || seen.Copies == seen.Answered && len(seen.Drift) == 0 {
			return err
		}
		return at.Drift.Allow(what, seen.Drift...)
	}
	_, wrote, err := admin.Ensure(ctx, w)
	if wrote {
		p.log.InfoContext(ctx, "Pushed a NATS account", "server", at.Server.String(), "account", w.Account.Name, "taken over", w.Adopt)
		at.Drift.Wrote(what)
	}
	if err != nil {
		return err
	}
	refused, err := admin.RefusedImports(ctx, w)
	if len(refused) > 0 {
		return fault.Waiting(v1alpha1.ReasonFabricUnfit, fmt.Sprintf("NATS holds account %s and does not serve its imports %s: the account that "+
			"exports them is not as it must be, see condition FabricReady of the CompassServer", w.Account.Name, strings.Join(refused, ", ")))
	}
	return err
}

// RemoveAccount takes an account away and verifies that it is gone. Absent is success, and so is one that is not ours.
func (p *Pool) RemoveAccount(ctx context.Context, at Place, account fabric.Account) error {
	admin, err := p.accounts(ctx, at)
	if err != nil {
		return err
	}
	there, err := admin.Servers(ctx, max(at.Servers, 1))
	if err == nil {
		err = admin.Remove(ctx, at.write(account, len(there)))
	}
	if errors.Is(err, fabric.ErrForeign) {
		return nil
	}
	return at.interpretNATS(err)
}

func (at Place) write(account fabric.Account, servers int) fabric.AccountWrite {
	return fabric.AccountWrite{Account: account, Signer: at.Keys.Signing[0], Owner: at.Owner(), Servers: servers}
}

// probe connects as a Server would.
func (p *Pool) probe(ctx context.Context, at Place) error {
	seed, err := fabric.NewUserSeed()
	if err != nil {
		return err
	}
	user, err := at.Keys.Compass.Issuer(fabric.RoleServer).User(seed.Public(), "", time.Hour, p.now())
	if err != nil {
		return err
	}
	cfg, err := p.natsConfig(at, fabric.StaticCredentials(user, seed, fabric.InboxPrefix(fabric.RoleServer, "")))
	if err != nil {
		return err
	}
	f, err := fabric.Open(ctx, cfg)
	if err != nil {
		return at.interpretNATS(err)
	}
	return at.interpretNATS(f.Close(ctx))
}

// accounts opens, or finds open, the connection to the system account.
func (p *Pool) accounts(ctx context.Context, at Place) (*natsAdmin, error) {
	key := digest([]byte(strings.Join(at.NATS, " ")), at.NATSCA, at.systemMark())
	a, err := p.of(at.Server).admins.get(key, func() (*natsAdmin, func(), error) {
		creds, err := at.systemCreds()
		if err != nil {
			return nil, nil, err
		}
		cfg, err := p.natsConfig(at, creds)
		if err != nil {
			return nil, nil, err
		}
		a, err := fabric.OpenAccounts(ctx, cfg)
		if err != nil {
			return nil, nil, err
		}
		return a, a.Close, nil
	})
	if errors.Is(err, fabric.ErrUnauthorized) && at.External != nil {
		return nil, fault.Waiting(v1alpha1.ReasonInvalidSecret, fmt.Sprintf("NATS at %s refuses the credentials in "+
			"spec.nats.external.systemSecretRef: give those of a user of its system account", strings.Join(at.NATS, ", ")))
	}
	if errors.Is(err, fabric.ErrUnauthorized) {
		return nil, fault.Waiting(v1alpha1.ReasonIdentityConflict, fmt.Sprintf("NATS at %s trusts another operator than the keys of this "+
			"server: restore the Secret with its keys, or remove the volumes of NATS", strings.Join(at.NATS, ", ")))
	}
	return a, at.interpretNATS(err)
}

// streams opens, or finds open, the connection to the platform account.
func (p *Pool) streams(ctx context.Context, at Place) (*natsStreams, error) {
	key := digest([]byte(strings.Join(at.NATS, " ")), at.NATSCA, at.Keys.Compass.Signing.Text())
	f, err := p.of(at.Server).streams.get(key, func() (*natsStreams, func(), error) {
		creds, err := adminCreds(at.Keys.Compass, naming.AccountCompass)
		if err != nil {
			return nil, nil, err
		}
		cfg, err := p.natsConfig(at, creds)
		if err != nil {
			return nil, nil, err
		}
		f, err := fabric.Open(ctx, cfg)
		if err != nil {
			return nil, nil, err
		}
		end := func() { _ = f.Close(context.WithoutCancel(ctx)) }
		stop, err := p.hear(ctx, f, at.Server)
		if err != nil {
			end()
			return nil, nil, err
		}
		return f, func() { stop(); end() }, nil
	})
	return f, at.interpretNATS(err)
}

// RemoveStream deletes queue, consumer and dead letters. Absent is success, and so is what is not ours.
func (p *Pool) RemoveStream(ctx context.Context, at Place, name string) error {
	f, err := p.streams(ctx, at)
	if err != nil {
		return err
	}
	if err := f.RemoveStream(ctx, name); err != nil && !errors.Is(err, fabric.ErrForeign) {
		return at.interpretNATS(err)
	}
	return nil
}

// systemCreds opens the system account: with our own key, or with what somebody else gave us.
func (at Place) systemCreds() (fabric.Credentials, error) {
	if at.External != nil {
		return at.External.System, nil
	}
	return adminCreds(at.Keys.System, naming.AccountSystem)
}

func (at Place) systemMark() []byte {
	if at.External != nil {
		return []byte(at.External.mark)
	}
	return at.Keys.System.Signing.Text()
}

func (p *Pool) natsConfig(at Place, creds fabric.Credentials) (fabric.Config, error) {
	var urls []string
	for _, u := range at.NATS {
		urls = append(urls, p.dial(u)...)
	}
	ca, err := p.file(at.NATSCA)
	return fabric.Config{
		Name: clientName, URLs: urls, Credentials: creds, CAFile: ca, Logger: p.log, Now: p.now, Link: fabric.Link{Window: patience, Drain: patience},
	}, err
}

func adminCreds(keys fabric.AccountKeys, account string) (fabric.Credentials, error) {
	seed, err := fabric.NewUserSeed()
	if err != nil {
		return fabric.Credentials{}, err
	}
	user, err := keys.AdminUser(seed.Public(), account)
	if err != nil {
		return fabric.Credentials{}, err
	}
	return fabric.StaticCredentials(user, seed, fabric.AdminInbox), nil
}

// interpretNATS is the one place that says what an answer of NATS means for a condition.
func (at Place) interpretNATS(err error) error {
	where := strings.Join(at.NATS, ", ")
	switch {
	case err == nil || fault.ReasonOf(err) != "":
		return err
	case errors.Is(err, fabric.ErrForeign):
		return fault.Waiting(v1alpha1.ReasonObjectConflict, fmt.Sprintf("%v: rename or remove it in NATS", err))
	case errors.Is(err, fabric.ErrImmutable):
		return fault.Waiting(v1alpha1.ReasonObjectConflict, fmt.Sprintf("%v: let it run empty, or remove it in NATS", err))
	case errors.Is(err, fabric.ErrNoRoom):
		return fault.Waiting(v1alpha1.ReasonInvalidSpec, "the volume of NATS has no room for what this stream may hold, because of streams that are "+
			"there, maybe kept from a deleted DeliveryStream: lower spec.stream.maxBytes or spec.deadLetter.maxBytes, or remove those")
	case errors.Is(err, fabric.ErrRejected):
		return fault.Transient(v1alpha1.ReasonAccountFailed, err)
	case errors.Is(err, fabric.ErrNoDelete):
		return fault.Waiting(v1alpha1.ReasonDeletionBlocked, err.Error())
	case errors.Is(err, fabric.ErrUnavailable), errors.Is(err, fabric.ErrUnauthorized), errors.Is(err, context.DeadlineExceeded):
		return fault.Transient(v1alpha1.ReasonFabricUnreachable,
			&said{fmt.Sprintf("NATS at %s does not answer, or not yet with our accounts: see that its pods run", where), err})
	}
	return err
}

// olderThan compares versions by their numbers.
func olderThan(a, b string) bool {
	var x, y [3]int
	_, _ = fmt.Sscanf(a, "%d.%d.%d", &x[0], &x[1], &x[2]) // what cannot be read counts as 0
	_, _ = fmt.Sscanf(b, "%d.%d.%d", &y[0], &y[1], &y[2])
	for i := range x {
		if x[i] != y[i] {
			return x[i] < y[i]
		}
	}
	return false
}
