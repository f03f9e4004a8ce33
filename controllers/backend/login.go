package backend

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/rigelbuild/compass-operator/api/v1alpha1"
	"github.com/rigelbuild/compass-operator/internal/fault"
	"github.com/rigelbuild/compass-operator/internal/naming"
	"github.com/rigelbuild/compass-operator/internal/store"
	"github.com/rigelbuild/compass-operator/internal/store/admin"
)

// Login is the SQL login of one tenant in the database of its server.
type Login struct {
	Tenant      store.TenantID
	Database    string
	Password    string
	Connections int
}

// EnsureLogin makes role and mapping. The role comes first: without a mapping it sees nothing.
func (p *Pool) EnsureLogin(ctx context.Context, at Place, by Admin, want Login) error {
	role, err := naming.TenantLogin(want.Database, string(want.Tenant))
	if err != nil {
		return fault.Terminal(v1alpha1.ReasonInvalidSpec, err)
	}
	a, err := p.admin(by)
	if err != nil {
		return err
	}
	spec := admin.LoginSpec{Database: want.Database, Login: role, Password: want.Password, Connections: want.Connections}
	changed, err := a.EnsureLogin(ctx, spec)
	if err != nil {
		return by.interpret(err)
	}
	if len(changed) > 0 {
		if err := by.drift.Allow("the SQL login", changed...); err != nil {
			return err
		}
		by.drift.Wrote("the SQL login", changed...)
	}
	s, err := p.store(ctx, at)
	if err != nil {
		return err
	}
	return interpretStore(s.MapLogin(ctx, want.Tenant, role))
}

// RemoveLogin ends the tenant's SQL login. Absent is success.
func (p *Pool) RemoveLogin(ctx context.Context, at Place, by Admin, database string, tenant store.TenantID) error {
	role, err := naming.TenantLogin(database, string(tenant))
	if err != nil {
		return nil //nolint:nilerr // a tenant without an id, or a name that cannot be, has no login
	}
	s, err := p.store(ctx, at)
	if err != nil {
		return err
	}
	if err := s.MapLogin(ctx, tenant, ""); err != nil {
		return interpretStore(err)
	}
	a, err := p.admin(by)
	if err != nil {
		return err
	}
	err = a.RemoveLogin(ctx, role)
	if owns, ok := errors.AsType[admin.OwnsError](err); ok {
		return fault.Waiting(v1alpha1.ReasonRoleOwnsObjects, fmt.Sprintf("role %s in Postgres at %s owns %d objects, which are not dropped with "+
			"it: run, in each database where it has some: reassign owned by %s to …, or drop owned by %s", owns.Role, by, owns.Count, owns.Role, owns.Role))
	}
	return by.interpret(err)
}

// Binding is what the tenant's tools need to log in, under the keys of the Service Binding specification.
func (l Login) Binding(by Admin) (map[string][]byte, error) {
	role, err := naming.TenantLogin(l.Database, string(l.Tenant))
	if err != nil {
		return nil, err
	}
	u := by.url
	u.User, u.Path = url.UserPassword(role, l.Password), "/"+l.Database
	port := u.Port()
	if port == "" {
		port = defaultPostgresPort
	}
	out := map[string]string{
		"type": "postgresql", "provider": "compass", "host": u.Hostname(), "port": port, "database": l.Database, "username": role,
		"password": l.Password, "uri": strings.Replace(u.String(), "postgres://", "postgresql://", 1),
	}
	data := map[string][]byte{}
	for key, value := range out {
		data[key] = []byte(value)
	}
	if len(by.ca) > 0 {
		data[KeyCA] = by.ca
	}
	return data, nil
}
