package main

import (
	"context"
	"crypto/ed25519"
	"fmt"
	"os"
	"time"

	"github.com/rigelbuild/compass-operator/internal/config"
	"github.com/rigelbuild/compass-operator/internal/fabric"
	"github.com/rigelbuild/compass-operator/internal/hub"
	"github.com/rigelbuild/compass-operator/internal/store"
)

// runnerCredentialTTL is how long a Runner's NATS user lives; it asks again at half of it.
const runnerCredentialTTL = 24 * time.Hour

// runnerAccess lets enrolled Runners into NATS: it signs a user for the Runner's own key, so no seed ever travels.
type runnerAccess struct {
	issuers     map[string]fabric.Issuer // by fleet
	urls        []string
	ca          string
	commandKeys map[string][]byte
	now         func() time.Time
}

func newRunnerAccess(c config.Config, keys []config.CommandKey) (*runnerAccess, error) {
	a := &runnerAccess{issuers: map[string]fabric.Issuer{}, urls: c.Server.RunnerURLs, commandKeys: publicKeys(keys), now: time.Now}
	if c.Fabric.IssuerFile == "" {
		return a, nil
	}
	fleets, err := config.LoadIssuers(c.Fabric.IssuerFile)
	if err != nil {
		return nil, err
	}
	for fleet, i := range fleets {
		seed, err := fabric.ParseSeed([]byte(i.Seed))
		if err != nil {
			return nil, fmt.Errorf("%s: fleet %s: %w", c.Fabric.IssuerFile, fleet, err)
		}
		a.issuers[fleet] = fabric.Issuer{Account: i.Account, Role: fabric.RoleRunner, Key: seed}
	}
	if c.Fabric.CAFile != "" {
		ca, err := os.ReadFile(c.Fabric.CAFile)
		if err != nil {
			return nil, fmt.Errorf("read CA of NATS: %w", err)
		}
		a.ca = string(ca)
	}
	return a, nil
}

func commandPublicKeys(keys []config.CommandKey) map[string]ed25519.PublicKey {
	out := map[string]ed25519.PublicKey{}
	for _, k := range keys {
		out[k.ID] = k.Public
	}
	return out
}

func publicKeys(keys []config.CommandKey) map[string][]byte {
	out := map[string][]byte{}
	for _, k := range keys {
		out[k.ID] = k.Public
	}
	return out
}

// RunnerAccess is hub.Options.Access. A fleet without a signing key has no NATS; its Runners speak Connect alone.
func (a *runnerAccess) RunnerAccess(_ context.Context, r store.Runner) (hub.Access, error) {
	issuer, ok := a.issuers[r.Fleet]
	if !ok {
		return hub.Access{CommandKeys: a.commandKeys}, nil
	}
	user, err := issuer.User(r.PublicKey, r.ID, runnerCredentialTTL, a.now())
	if err != nil {
		return hub.Access{}, err
	}
	return hub.Access{JWT: user, URLs: a.urls, CA: a.ca, CommandKeys: a.commandKeys}, nil
}
