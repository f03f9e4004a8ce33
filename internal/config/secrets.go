package config

import (
	"crypto/ed25519"
	"encoding/base64"
	"errors"
	"fmt"
	"os"

	"sigs.k8s.io/yaml"
)

// Database is where one database is, and as whom to enter it. Every field but ID is a connection string; one that is
// absent is a right that this process does not have. Strings never appear in an error or a log.
type Database struct {
	ID int `json:"id"`
	// App is the request path, System the named background loops, Provision the making of tenants; each possibly through a
	// pooler.
	App       string `json:"app,omitempty"`
	System    string `json:"system,omitempty"`
	Provision string `json:"provision,omitempty"`
	// Direct leads to the server itself as the system role, for leases.
	Direct string `json:"direct,omitempty"`
}

// LoadDatabases reads a file that holds a list of databases under the key databases. Database 0 must be among them.
func LoadDatabases(path string) ([]Database, error) {
	var file struct {
		Databases []Database `json:"databases"`
	}
	if err := loadSecret(path, &file); err != nil {
		return nil, err
	}
	for _, d := range file.Databases {
		if d.ID == 0 {
			return file.Databases, nil
		}
	}
	return nil, fmt.Errorf("%s: database 0, the shared one, is missing", path)
}

// CommandKey signs commands to Runners, or verifies them where Private is nil.
type CommandKey struct {
	ID      string
	Public  ed25519.PublicKey
	Private ed25519.PrivateKey
}

// LoadCommandKeys reads a file that holds, under the key keys, a list of {id, seed} in base64. The first signs; all are
// told to Runners, so that rotation overlaps.
func LoadCommandKeys(path string) ([]CommandKey, error) {
	var file struct {
		Keys []struct {
			ID   string `json:"id"`
			Seed string `json:"seed"`
		} `json:"keys"`
	}
	if err := loadSecret(path, &file); err != nil {
		return nil, err
	}
	if len(file.Keys) == 0 {
		return nil, fmt.Errorf("%s: holds no key; list one under keys, with an id and a base64 seed of %d bytes", path, ed25519.SeedSize)
	}
	keys := make([]CommandKey, 0, len(file.Keys))
	for i, k := range file.Keys {
		seed, err := base64.StdEncoding.DecodeString(k.Seed)
		if err != nil || len(seed) != ed25519.SeedSize || k.ID == "" {
			return nil, fmt.Errorf("%s: key %d is not an id and a base64 seed of %d bytes", path, i, ed25519.SeedSize)
		}
		private := ed25519.NewKeyFromSeed(seed)
		public, _ := private.Public().(ed25519.PublicKey)
		keys = append(keys, CommandKey{ID: k.ID, Public: public, Private: private})
	}
	return keys, nil
}

// FleetIssuer is what a Server needs to let Runners of one fleet into NATS: the account, and the seed of the signing key
// that is scoped to Runners.
type FleetIssuer struct {
	Account string `json:"account"`
	Seed    string `json:"seed"`
}

// LoadIssuers reads a file that holds, under the key fleets, an issuer per fleet: shared, or a tenant's id.
func LoadIssuers(path string) (map[string]FleetIssuer, error) {
	var file struct {
		Fleets map[string]FleetIssuer `json:"fleets"`
	}
	if err := loadSecret(path, &file); err != nil {
		return nil, err
	}
	for fleet, i := range file.Fleets {
		if i.Account == "" || i.Seed == "" {
			return nil, fmt.Errorf("%s: fleet %s lacks its account or its seed", path, fleet)
		}
	}
	return file.Fleets, nil
}

// loadSecret decodes a YAML file without ever quoting its content in an error.
func loadSecret(path string, into any) error {
	raw, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read secret file: %w", err)
	}
	if err := yaml.UnmarshalStrict(raw, into); err != nil {
		return fmt.Errorf("read secret file %s: %w", path, errNotYAML)
	}
	return nil
}

var errNotYAML = errors.New("it is not the expected YAML (the content is not shown)")
