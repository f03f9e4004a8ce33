package server

import (
	"context"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/rigelbuild/compass-operator/controllers/backend"
	"github.com/rigelbuild/compass-operator/internal/fabric"
	"github.com/rigelbuild/compass-operator/internal/store"
	"github.com/rigelbuild/compass-operator/internal/store/admin"
	"github.com/rigelbuild/compass-operator/internal/store/schema"
)

// databases is Postgres as its admin sees it. Errors are faults, ready for a condition.
type databases interface {
	// Observe only looks; what cannot be reached or entered is an error.
	Observe(ctx context.Context, at backend.Admin, database string) (admin.Observation, error)
	EnsureDatabase(ctx context.Context, at backend.Admin, owner string, spec admin.Spec) (admin.Observation, error)
	Migrate(ctx context.Context, at backend.Admin, database string) (schema.Status, error)
	RemoveDatabase(ctx context.Context, at backend.Admin, owner, database string) error
}

// tokens open a tenant's admin account.
type tokens interface {
	// EnsureAdmin makes a tenant's admin account, and sees that the token opens it.
	EnsureAdmin(ctx context.Context, at backend.Place, tenant store.TenantID, token string) error
	// TokenSince tells when a token was made; the zero time where there is none.
	TokenSince(ctx context.Context, at backend.Place, tenant store.TenantID, token string) (time.Time, error)
	// RevokeToken ends a token. Absent is success.
	RevokeToken(ctx context.Context, at backend.Place, tenant store.TenantID, token string) error
}

// platform is what a database holds before any tenant does.
type platform interface {
	// EnsureSystem makes the bootstrap tenant.
	EnsureSystem(ctx context.Context, at backend.Place) error
	tokens
	// EnsureEnrolment stores an enrolment token's hash, and tells whether it can still enrol somebody.
	EnsureEnrolment(ctx context.Context, at backend.Place, token, fleet string) (usable bool, err error)
	CountTenants(ctx context.Context, at backend.Place) (int64, error)
}

// transport is NATS as its operator sees it.
type transport interface {
	// Probe sees that somebody else's NATS is fit for us.
	Probe(ctx context.Context, at backend.Place) error
	// EnsureAccounts pushes what differs, reads it back from every server, and lets a probe user in.
	EnsureAccounts(ctx context.Context, at backend.Place, servers int, accounts ...fabric.Account) (backend.NATSSeen, error)
	// Bury deletes again what a NATS server brought back that had slept while it was deleted.
	Bury(ctx context.Context, at backend.Place, servers int, stones []fabric.Tombstone) error
	// RemoveAccount verifies that no server holds it. Absent is success.
	RemoveAccount(ctx context.Context, at backend.Place, account fabric.Account) error
}

// sessions are what is kept open of a server.
type sessions interface{ Forget(server client.ObjectKey) }
