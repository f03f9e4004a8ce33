package embedded

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/rigelbuild/compass-operator/internal/fabric"
	"github.com/rigelbuild/compass-operator/internal/naming"
)

// loadKeys reads the keys of an earlier start and makes what is missing. Each is stored before it is used.
func loadKeys(dir string) (fabric.Keys, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fabric.Keys{}, fmt.Errorf("keep keys: %w", err)
	}
	files, err := os.ReadDir(dir)
	if err != nil {
		return fabric.Keys{}, fmt.Errorf("read keys: %w", err)
	}
	have := map[string][]byte{}
	for _, f := range files {
		if !strings.HasSuffix(f.Name(), ".seed") {
			continue
		}
		if have[f.Name()], err = os.ReadFile(filepath.Join(dir, f.Name())); err != nil {
			return fabric.Keys{}, fmt.Errorf("read keys: %w", err)
		}
	}
	keys, store, err := fabric.CompleteKeys(have)
	if err != nil {
		return fabric.Keys{}, fmt.Errorf("read keys in %s: %w", dir, err)
	}
	for name, text := range store {
		if have[name] != nil {
			continue
		}
		if err := writeWhole(filepath.Join(dir, name), text); err != nil {
			return fabric.Keys{}, fmt.Errorf("keep keys: %w", err)
		}
	}
	return keys, nil
}

// writeWhole leaves either all of the file or none of it.
func writeWhole(path string, text []byte) error {
	part := path + ".part"
	if err := os.WriteFile(part, text, 0o600); err != nil {
		return err
	}
	return os.Rename(part, path)
}

// Keys are the server's own; the process that embeds it is its operator.
func (s *Server) Keys() fabric.Keys { return s.keys }

// Standalone are credentials that may do what Server, worker and operator do together, for the one process that is all
// of them.
func (s *Server) Standalone() (fabric.Credentials, error) {
	return s.user(func(public string) (string, error) { return s.keys.Compass.StandaloneUser(public) }, fabric.AdminInbox)
}

// Operator are those of the system account.
func (s *Server) Operator() (fabric.Credentials, error) {
	return s.user(func(public string) (string, error) {
		return s.keys.System.AdminUser(public, naming.AccountSystem)
	}, fabric.AdminInbox)
}

// Credentials are those of one role in COMPASS or RUNNERS; see fabric.Issuer for id.
func (s *Server) Credentials(role fabric.Role, id string) (fabric.Credentials, error) {
	issuer := s.keys.Compass.Issuer(role)
	if role == fabric.RoleRunner {
		issuer = s.Runners()
	}
	return s.user(func(public string) (string, error) {
		return issuer.User(public, id, 0, s.started)
	}, fabric.InboxPrefix(role, id))
}

// Runners issues users of the shared fleet.
func (s *Server) Runners() fabric.Issuer { return s.keys.Runners.Issuer(fabric.RoleRunner) }

func (s *Server) user(issue func(public string) (string, error), inbox string) (fabric.Credentials, error) {
	key, err := fabric.NewUserSeed()
	if err != nil {
		return fabric.Credentials{}, err
	}
	text, err := issue(key.Public())
	if err != nil {
		return fabric.Credentials{}, err
	}
	return fabric.StaticCredentials(text, key, inbox), nil
}
