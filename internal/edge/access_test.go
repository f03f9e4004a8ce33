package edge

import (
	"testing"

	"github.com/rigelbuild/compass-operator/internal/store"
)

// A procedure that nobody gave a role is refused to everybody, also to a platform admin.
func TestUnlistedProcedureIsNobodys(t *testing.T) {
	t.Parallel()
	root := store.Caller{Tenant: store.BootstrapTenantID, Account: store.Account{Role: store.RoleAdmin}}
	if err := allow(platform, root); err != nil {
		t.Fatalf("a platform admin is none: %v", err)
	}
	if allow(roles()["/compass.v1.AdminService/Forgotten"], root) == nil {
		t.Error("a procedure without a role was allowed")
	}
}
