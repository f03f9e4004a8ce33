package backend

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/rigelbuild/compass-operator/api/v1alpha1"
	"github.com/rigelbuild/compass-operator/internal/config"
	"github.com/rigelbuild/compass-operator/internal/drift"
	"github.com/rigelbuild/compass-operator/internal/fault"
	"github.com/rigelbuild/compass-operator/internal/kube"
	"github.com/rigelbuild/compass-operator/internal/naming"
	"github.com/rigelbuild/compass-operator/internal/store/admin"
)

// dirDatabases is where pods find what opens the databases, and what verifies them.
const dirDatabases = "/etc/compass/databases/"

const (
	defaultPostgresPort = "5432"
	defaultDatabase     = "postgres"
	paramMode           = "sslmode"
	paramRoot           = "sslrootcert"
)

// Admin is Postgres as the user's Secret opens it. It shows itself to nobody.
type Admin struct {
	url    url.URL
	ca     []byte
	secret client.ObjectKey
	keys   string // of the Secret, that the URL is made of
	drift  *drift.Ledger
}

// ReadAdmin reads the Secret that spec.database.adminSecretRef names: either uri, or host, port, username, password,
// [database], [sslmode]; and [ca.crt]. What is missing, or cannot be, is waited for and named.
func ReadAdmin(ctx context.Context, c kube.Children, key client.ObjectKey) (Admin, error) {
	data, err := kube.Read(ctx, c, key)
	if err != nil {
		return Admin{}, err
	}
	a := Admin{ca: data["ca.crt"], secret: key, drift: c.Drift}
	switch {
	case len(data["uri"]) > 0:
		err = a.fromURI(string(data["uri"]))
	case len(data["host"]) == 0: // or a misspelt uri would be asked for one part after the other
		err = fault.Waiting(v1alpha1.ReasonWaitingForSecret, fmt.Sprintf("Secret %s has neither key uri nor key host: add uri "+
			"(postgres://user:password@host:port/database), or host, port, username and password", key))
	default:
		if _, err = kube.Read(ctx, c, key, "username", "password"); err == nil {
			err = a.fromParts(data)
		}
	}
	if err != nil {
		return Admin{}, err
	}
	q := a.url.Query()
	if len(a.ca) > 0 && q.Get(paramMode) == "" {
		q.Set(paramMode, "verify-full")
	}
	a.url.RawQuery = q.Encode()
	return a, nil
}

func (a *Admin) fromURI(text string) error {
	a.keys = "key uri"
	u, err := url.Parse(text)
	switch {
	case err != nil || !slices.Contains([]string{"postgres", "postgresql"}, u.Scheme) || u.Hostname() == "" || u.User == nil:
		return a.invalid("key uri is not postgres://user:password@host:port/database, with special characters escaped")
	case u.Query().Get(paramRoot) != "":
		return a.invalid("key uri names a certificate file with sslrootcert: put the certificate under key ca.crt instead")
	case u.Port() != "" && !isPort(u.Port()):
		return a.invalid("key uri: " + noPort)
	}
	u.Scheme = "postgres"
	if u.Path == "" || u.Path == "/" {
		u.Path = "/" + defaultDatabase
	}
	a.url = *u
	return nil
}

func (a *Admin) fromParts(data map[string][]byte) error {
	a.keys = "keys host, port, database and sslmode"
	or := func(key, def string) string {
		if len(data[key]) > 0 {
			return string(data[key])
		}
		return def
	}
	port := or("port", defaultPostgresPort)
	if !isPort(port) {
		return a.invalid("key port: " + noPort)
	}
	a.url = url.URL{
		Scheme: "postgres", Host: net.JoinHostPort(or("host", ""), port),
		User: url.UserPassword(or("username", ""), or("password", "")), Path: "/" + or("database", defaultDatabase),
	}
	if mode := or(paramMode, ""); mode != "" {
		a.url.RawQuery = url.Values{paramMode: {mode}}.Encode()
	}
	return nil
}

// noPort quotes nothing: with a mistake in the text before it, what stands where the port should be is part of a password.
const noPort = "the port is not a number from 1 to 65535: correct it"

func isPort(text string) bool {
	n, err := strconv.ParseUint(text, 10, 16)
	return err == nil && n > 0
}

// unreadable: the client of Postgres does not take what the Secret holds. What it says itself would quote it.
func (a *Admin) unreadable() error {
	return a.invalid("with " + a.keys + " no connection can be made: correct sslmode and the other parameters, " +
		"and see that ca.crt, if it is there, holds certificates in PEM")
}

func (a *Admin) invalid(what string) error {
	return fault.Waiting(v1alpha1.ReasonInvalidSecret, fmt.Sprintf("Secret %s: %s", a.secret, what))
}

// String shows where, never who or with what.
func (a Admin) String() string { return a.url.Host }

// GoString is String.
func (a Admin) GoString() string { return a.String() }

// CA is the certificate that verifies the server; empty for none.
func (a Admin) CA() []byte { return a.ca }

// dsn is the admin's own URL, with the certificate at a path of this process.
func (a Admin) dsn(caFile string) string {
	u := a.url
	if caFile != "" {
		q := u.Query()
		q.Set(paramRoot, caFile)
		u.RawQuery = q.Encode()
	}
	return u.String()
}

// Logins are the connection strings of the database of that number for pods, as config.Database has them. Those of the
// request path lead to the pooler, if there is one.
func (a Admin) Logins(number int, database string, pass admin.Passwords, pooler *v1alpha1.PoolerSpec) (config.Database, error) {
	roles, err := naming.RolesOf(database)
	if err != nil {
		return config.Database{}, fault.Terminal(v1alpha1.ReasonInvalidSpec, err)
	}
	login := func(role, password string) string {
		u := a.url
		u.User, u.Path = url.UserPassword(role, password), "/"+database
		q := u.Query()
		if len(a.ca) > 0 {
			q.Set(paramRoot, dirDatabases+DatabaseCAFile(number))
		}
		u.RawQuery = q.Encode()
		return u.String()
	}
	out := config.Database{ID: number, Direct: login(roles.System, pass.System)}
	if pooler != nil {
		a.url.Host = net.JoinHostPort(pooler.Host, strconv.Itoa(int(pooler.Port)))
	}
	out.App, out.System, out.Provision = login(roles.App, pass.App), login(roles.System, pass.System), login(roles.Provision, pass.Provision)
	return out, nil
}
