package tenant

import (
	"context"
	"time"

	"github.com/rigelbuild/compass-operator/api/v1alpha1"
	"github.com/rigelbuild/compass-operator/controllers/backend"
	"github.com/rigelbuild/compass-operator/internal/fabric"
	"github.com/rigelbuild/compass-operator/internal/store"
	"github.com/rigelbuild/compass-operator/internal/store/admin"
	"github.com/rigelbuild/compass-operator/internal/store/schema"
)

// tokens open the tenant's admin account.
type tokens interface {
	// EnsureAdmin makes the tenant's admin account, and sees that the token opens it.
	EnsureAdmin(ctx context.Context, at backend.Place, tenant store.TenantID, token string) error
	// TokenSince tells when a token was made; the zero time where there is none.
	TokenSince(ctx context.Context, at backend.Place, tenant store.TenantID, token string) (time.Time, error)
	// RevokeToken ends a token. Absent is success.
	RevokeToken(ctx context.Context, at backend.Place, tenant store.TenantID, token string) error
}

// homes are databases of tenants' own, and the way there and back.
type homes interface {
	EnsureDatabase(ctx context.Context, at backend.Admin, owner string, spec admin.Spec) (admin.Observation, error)
	Migrate(ctx context.Context, at backend.Admin, database string) (schema.Status, error)
	// RemoveDatabase drops what is owner's. Absent is success.
	RemoveDatabase(ctx context.Context, at backend.Admin, owner, database string) error
	// MoveTenant is to be called until done; an earlier one that was cut off is gone on with.
	MoveTenant(ctx context.Context, at backend.Place, tenant store.TenantID, from, to backend.Home) (done bool, err error)
}

// rows are a tenant's rows in its server's database. Errors are faults, ready for a condition.
type rows interface {
	// FindTenant finds the tenant's row by its slug; nil where there is none.
	FindTenant(ctx context.Context, at backend.Place, slug string) (*store.TenantRow, error)
	// EnsureTenant makes or finds the tenant's row, by its slug.
	EnsureTenant(ctx context.Context, at backend.Place, want store.TenantRow) (store.TenantRow, error)
	tokens
	// TenantUsage counts what it has, and what of it is not delivered.
	TenantUsage(ctx context.Context, at backend.Place, row store.TenantRow) (backend.Usage, error)
	// RemoveTenant purges the tenant with everything that it has. Absent is success.
	RemoveTenant(ctx context.Context, at backend.Place, slug string) error
}

// accounts are those of NATS, and who may enrol in them.
type accounts interface {
	// EnsureAccount pushes what differs and reads it back from every server; somebody else's it takes over as the policy allows.
	EnsureAccount(ctx context.Context, at backend.Place, account fabric.Account, adopt v1alpha1.AdoptionPolicy) error
	// RemoveAccount verifies that no server holds it. Absent is success.
	RemoveAccount(ctx context.Context, at backend.Place, account fabric.Account) error
	// EnsureEnrolment stores an enrolment token of a fleet, and tells whether it can still let somebody in.
	EnsureEnrolment(ctx context.Context, at backend.Place, token, fleet string) (usable bool, err error)
}

// logins are the tenants' own in Postgres.
type logins interface {
	EnsureLogin(ctx context.Context, at backend.Place, by backend.Admin, want backend.Login) error
	// RemoveLogin drops the tenant's login and its mapping. Absent is success.
	RemoveLogin(ctx context.Context, at backend.Place, by backend.Admin, database string, tenant store.TenantID) error
}
