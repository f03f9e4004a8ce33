package server

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/rigelbuild/compass-operator/controllers/backend"
	"github.com/rigelbuild/compass-operator/internal/config"
	"github.com/rigelbuild/compass-operator/internal/kube"
	"github.com/rigelbuild/compass-operator/internal/store/admin"
)

// Keys of <name>-databases beside those that pods read.
const (
	keyPasswordApp       = "app.password"
	keyPasswordSystem    = "system.password"
	keyPasswordProvision = "provision.password"
	passwordBytes        = 24
)

// ensureDatabase makes database and roles. Passwords are stored before they are used, so that a crash in between costs
// nothing; connection strings are published once they open something.
func (r *Reconciler) ensureDatabase(ctx context.Context, s *scope) (err error) {
	spec := s.server.Spec.Database
	if s.admin, err = backend.ReadAdmin(ctx, s.kids, client.ObjectKey{Namespace: s.key.Namespace, Name: spec.AdminSecretRef.Name}); err != nil {
		return err
	}
	secret := s.secret(s.names.Databases)
	var refused error
	kept, err := kube.Keep(ctx, s.kids, s.server, secret, func(have map[string][]byte) (map[string][]byte, error) {
		missing, err := missingPasswords(have, r.Rand)
		if err == nil && len(missing) > 0 { // for a Postgres that lets nobody in there is nothing to make
			_, refused = r.Systems.Databases.Observe(ctx, s.admin, spec.Name)
		}
		return missing, errors.Join(err, refused)
	})
	switch {
	case refused != nil:
		return refused
	case err != nil:
		return err
	}
	passwords := admin.Passwords{
		App: string(kept[keyPasswordApp]), System: string(kept[keyPasswordSystem]), Provision: string(kept[keyPasswordProvision]),
	}
	seen, err := r.Systems.Databases.EnsureDatabase(ctx, s.admin, backend.Owner(s.key), admin.Spec{Database: spec.Name, Passwords: passwords})
	if err != nil {
		return err
	}
	s.database = &seen
	logins, err := s.admin.Logins(spec.Name, passwords, spec.Pooler)
	if err != nil {
		return err
	}
	rendered, err := backend.RenderDatabases([]config.Database{logins})
	if err != nil {
		return err
	}
	secret.Data = map[string][]byte{
		keyPasswordApp: kept[keyPasswordApp], keyPasswordSystem: kept[keyPasswordSystem], keyPasswordProvision: kept[keyPasswordProvision],
		backend.KeyDatabases: rendered,
	}
	if ca := s.admin.CA(); len(ca) > 0 {
		secret.Data[backend.KeyDatabaseCA] = ca
	}
	_, err = kube.Apply(ctx, s.kids, s.server, secret)
	s.logins = rendered
	return err
}

// ensureSchema migrates, and puts every table into its shape.
func (r *Reconciler) ensureSchema(ctx context.Context, s *scope) error {
	status, err := r.Systems.Databases.Migrate(ctx, s.admin, s.server.Spec.Database.Name)
	if status.Latest > 0 {
		s.schema = &status
	}
	return err
}

// missingPasswords makes those that are not there yet.
func missingPasswords(have map[string][]byte, rand io.Reader) (map[string][]byte, error) {
	missing := map[string][]byte{}
	for _, key := range []string{keyPasswordApp, keyPasswordSystem, keyPasswordProvision} {
		if len(have[key]) > 0 {
			continue
		}
		raw := make([]byte, passwordBytes)
		if _, err := io.ReadFull(rand, raw); err != nil {
			return nil, fmt.Errorf("make password: %w", err)
		}
		missing[key] = []byte(base64.RawURLEncoding.EncodeToString(raw))
	}
	return missing, nil
}

// secret is an empty Secret of this server's.
func (s *scope) secret(name string) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: s.meta(name, componentSecret)}
}
