package stream

import (
	"context"

	"github.com/rigelbuild/compass-operator/api/v1alpha1"
	"github.com/rigelbuild/compass-operator/controllers/backend"
	"github.com/rigelbuild/compass-operator/internal/fabric"
	"github.com/rigelbuild/compass-operator/internal/store"
)

// placements say who carries which tenant. Errors are faults, ready for a condition.
type placements interface {
	// Tenants lists every tenant but the bootstrap tenant, sorted by slug.
	Tenants(ctx context.Context, at backend.Place) ([]store.TenantRow, error)
	// TenantsOf lists the tenants with a stream and those of some slugs, sorted by slug.
	TenantsOf(ctx context.Context, at backend.Place, stream string, slugs []string) ([]store.TenantRow, error)
	// PlaceTenant hands a tenant from the stream that it was seen with to another; nobody is "". moved is false where somebody
	// was faster.
	PlaceTenant(ctx context.Context, at backend.Place, tenant store.TenantRow, to string) (moved bool, err error)
	// DrainTenant asks a stream's worker to let go of a tenant.
	DrainTenant(ctx context.Context, at backend.Place, id store.TenantID, stream string) error
}

// leases say who writes for a stream.
type leases interface {
	Lease(ctx context.Context, at backend.Place, stream string, database int) (store.LeaseSeen, error)
	// Backlog counts what is not delivered; it reads much, so it is asked after everything else.
	Backlog(ctx context.Context, at backend.Place, stream string) (store.Backlog, error)
}

// streams are JetStream's. Each call observes, writes a difference, and returns what is then seen. What has our name and not
// our mark is taken over as the policy says.
type streams interface {
	EnsureStream(ctx context.Context, at backend.Place, spec fabric.StreamSpec, adopt v1alpha1.AdoptionPolicy) (fabric.StreamSeen, error)
	EnsureDeadLetters(ctx context.Context, at backend.Place, spec fabric.StreamSpec, adopt v1alpha1.AdoptionPolicy) (fabric.StreamSeen, error)
	EnsureConsumer(ctx context.Context, at backend.Place, spec fabric.StreamSpec, adopt v1alpha1.AdoptionPolicy) (fabric.ConsumerSeen, error)
	// RemoveStream deletes all three. Absent is success.
	RemoveStream(ctx context.Context, at backend.Place, name string) error
}
