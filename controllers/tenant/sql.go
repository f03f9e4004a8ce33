package tenant

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/rigelbuild/compass-operator/api/v1alpha1"
	"github.com/rigelbuild/compass-operator/controllers/backend"
	"github.com/rigelbuild/compass-operator/internal/fault"
	"github.com/rigelbuild/compass-operator/internal/kube"
)

// Keys, in <name>-keys, of the SQL login. A role has one password, so a rotation has no overlap.
const (
	keySQLPassword = "sql.password"
	keySQLMade     = "sql.made" // the time, or the value of the annotation, that the password was made for
	passwordBytes  = 24
)

// ensureSQL makes the tenant's SQL login, or takes it away where it is no longer asked for.
func (r *Reconciler) ensureSQL(ctx context.Context, s *scope) error {
	kept := s.token.Kept
	switch {
	case s.tenant.Spec.SQLAccess.Enabled:
		return r.giveSQL(ctx, s, kept)
	case len(kept[keySQLPassword]) > 0:
		return r.takeSQL(ctx, s)
	}
	return nil
}

// giveSQL stores a password before Postgres hears of it, and publishes it when it opens (operator lesson 36).
func (r *Reconciler) giveSQL(ctx context.Context, s *scope, kept map[string][]byte) error {
	made := s.rotation()
	if len(kept[keySQLPassword]) == 0 || string(kept[keySQLMade]) != made {
		raw := make([]byte, passwordBytes)
		if _, err := rand.Read(raw); err != nil {
			return fmt.Errorf("make password: %w", err)
		}
		var err error
		kept, err = kube.Change(ctx, s.kids, s.secret(s.names.Keys), map[string][]byte{
			keySQLPassword: []byte(base64.RawURLEncoding.EncodeToString(raw)), keySQLMade: []byte(made),
		})
		if err != nil {
			return err
		}
	}
	at, err := s.lives(ctx)
	if err != nil {
		return err
	}
	login := backend.Login{
		Tenant: s.row.ID, Database: at.Database, Password: string(kept[keySQLPassword]),
		Connections: int(s.tenant.Spec.SQLAccess.Connections),
	}
	if err := r.Systems.Logins.EnsureLogin(ctx, s.at, at.By, login); err != nil {
		return err
	}
	secret := s.secret(s.names.SQL)
	if secret.Data, err = login.Binding(at.By); err != nil {
		return fault.Terminal(v1alpha1.ReasonInvalidSpec, err)
	}
	secret.Type = corev1.SecretType("servicebinding.io/postgresql")
	if _, err = kube.Apply(ctx, s.kids, s.tenant, secret); err != nil {
		return err
	}
	s.sql = true
	return nil
}

// takeSQL ends the login first: a Secret that opens nothing harms nobody.
func (r *Reconciler) takeSQL(ctx context.Context, s *scope) error {
	if err := r.removeLogin(ctx, s); err != nil {
		return err
	}
	if err := kube.Remove(ctx, s.kids, s.tenant, s.secret(s.names.SQL)); err != nil && !fault.IsWaiting(err) {
		return err
	}
	_, err := kube.Change(ctx, s.kids, s.secret(s.names.Keys), map[string][]byte{keySQLPassword: nil, keySQLMade: nil})
	return err
}

// removeLogin ends the login wherever the tenant may have one: a move that was cut off leaves two.
func (r *Reconciler) removeLogin(ctx context.Context, s *scope) error {
	zero, err := s.zero(ctx)
	if err != nil {
		return err
	}
	homes := []backend.Home{zero}
	own, err := s.findHome(ctx)
	if err != nil {
		return err
	}
	if own != nil {
		homes = append(homes, own.Home)
	}
	for _, h := range homes {
		if err := r.Systems.Logins.RemoveLogin(ctx, s.at, h.By, h.Database, s.row.ID); err != nil {
			return err
		}
	}
	return nil
}

// rotation names the credentials that are in force: what follows a rotation of the token is made anew when this changes.
func (s *scope) rotation() string {
	return fmt.Sprintf("%d %s", s.token.Since.UnixMilli(), s.life.Asked)
}
