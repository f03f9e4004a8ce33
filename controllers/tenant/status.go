package tenant

import (
	"github.com/rigelbuild/compass-operator/api/v1alpha1"
	"github.com/rigelbuild/compass-operator/controllers/flow"
)

// report puts what was seen into the status. What was not looked at in this pass stays as it was: the conditions say that
// nobody could tell.
func report(s *scope) flow.Notes {
	status := &s.tenant.Status
	if s.row != nil {
		status.Slug, status.TenantID, status.Stream = s.row.Slug, string(s.row.ID), s.row.Stream
	}
	if s.account != "" {
		status.Account = s.account
	}
	if s.published {
		status.Secrets.API = s.names.API
	}
	return flow.Notes{v1alpha1.ConditionDelivering: {Reason: v1alpha1.ReasonAvailable, Message: "carried by DeliveryStream " + status.Stream}}
}
