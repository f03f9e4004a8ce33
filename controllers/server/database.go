package server

import (
	"context"
	"errors"
	"maps"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/rigelbuild/compass-operator/controllers/backend"
	"github.com/rigelbuild/compass-operator/internal/config"
	"github.com/rigelbuild/compass-operator/internal/kube"
	"github.com/rigelbuild/compass-operator/internal/naming"
	"github.com/rigelbuild/compass-operator/internal/store/admin"
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
		missing, err := backend.MissingPasswords(have, r.Rand)
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
	passwords := backend.Passwords(kept)
	seen, err := r.Systems.Databases.EnsureDatabase(ctx, s.admin, backend.Owner(s.key), admin.Spec{Database: spec.Name, Passwords: passwords})
	if err != nil {
		return err
	}
	s.database = &seen
	logins, err := s.admin.Logins(naming.DatabaseZero, spec.Name, passwords, spec.Pooler)
	if err != nil {
		return err
	}
	// Those of tenants of their own come with their Secrets.
	others, cas, err := backend.Homes(ctx, s.kids, s.key)
	if err != nil {
		return err
	}
	rendered, err := backend.RenderDatabases(append([]config.Database{logins}, others...))
	if err != nil {
		return err
	}
	if ca := s.admin.CA(); len(ca) > 0 {
		cas[backend.DatabaseCAFile(naming.DatabaseZero)] = ca
	}
	secret.Data = backend.PasswordKeys(kept)
	secret.Data[backend.KeyDatabases] = rendered
	maps.Copy(secret.Data, cas)
	_, err = kube.Apply(ctx, s.kids, s.server, secret)
	s.logins, s.databaseCAs = rendered, cas
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

// secret is an empty Secret of this server's.
func (s *scope) secret(name string) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: s.meta(name, componentSecret)}
}
