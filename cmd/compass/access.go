package main

import (
	"context"
	"crypto/ed25519"
	"fmt"
	"os"
	"sync"
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
	file        string // of the issuers; empty: they never change
	urls        []string
	ca          string
	commandKeys map[string][]byte
	now         func() time.Time

	mu      sync.Mutex
	issuers map[string]fabric.Issuer // by fleet
	read    os.FileInfo              // file, as it was when they were read
}

func newRunnerAccess(c config.Config, keys []config.CommandKey) (*runnerAccess, error) {
	a := &runnerAccess{file: c.Fabric.IssuerFile, urls: c.Server.RunnerURLs, commandKeys: publicKeys(keys), now: time.Now}
	if a.file == "" {
		return a, nil
	}
	if _, err := a.current(); err != nil {
		return nil, err
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

// current are the issuers, read again when their file has changed: tenants get and lose fleets of their own.
func (a *runnerAccess) current() (map[string]fabric.Issuer, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.file == "" {
		return a.issuers, nil
	}
	is, err := os.Stat(a.file)
	if err != nil {
		return nil, fmt.Errorf("look at the issuers of fleets: %w", err)
	}
	if a.read != nil && os.SameFile(a.read, is) && a.read.ModTime().Equal(is.ModTime()) {
		return a.issuers, nil
	}
	fleets, err := config.LoadIssuers(a.file)
	if err != nil {
		return nil, err
	}
	issuers := map[string]fabric.Issuer{}
	for fleet, i := range fleets {
		seed, err := fabric.ParseSeed([]byte(i.Seed))
		if err != nil {
			return nil, fmt.Errorf("%s: fleet %s: %w", a.file, fleet, err)
		}
		issuers[fleet] = fabric.Issuer{Account: i.Account, Role: fabric.RoleRunner, Key: seed}
	}
	a.issuers, a.read = issuers, is
	return issuers, nil
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
	issuers, err := a.current()
	if err != nil {
		return hub.Access{}, err
	}
	issuer, ok := issuers[r.Fleet]
	if !ok {
		return hub.Access{CommandKeys: a.commandKeys}, nil
	}
	user, err := issuer.User(r.PublicKey, r.ID, runnerCredentialTTL, a.now())
	if err != nil {
		return hub.Access{}, err
	}
	return hub.Access{JWT: user, URLs: a.urls, CA: a.ca, CommandKeys: a.commandKeys}, nil
}
