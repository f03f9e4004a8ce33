package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Common returns what every kind reports, for whoever handles all kinds alike.
func (s *CompassServer) Common() *Status { return &s.Status.Status }

// Common returns what every kind reports, for whoever handles all kinds alike.
func (t *CompassTenant) Common() *Status { return &t.Status.Status }

// Common returns what every kind reports, for whoever handles all kinds alike.
func (d *DeliveryStream) Common() *Status { return &d.Status.Status }

// Policy returns the deletion policy in force.
func (s *CompassServer) Policy() DeletionPolicy { return policy(s.Spec.DeletionPolicy) }

// Policy returns the deletion policy in force.
func (t *CompassTenant) Policy() DeletionPolicy { return policy(t.Spec.DeletionPolicy) }

// Policy returns the deletion policy in force.
func (d *DeliveryStream) Policy() DeletionPolicy { return policy(d.Spec.DeletionPolicy) }

// policy: anything but an explicit Delete keeps.
func policy(p DeletionPolicy) DeletionPolicy {
	if p == DeletionPolicyDelete {
		return DeletionPolicyDelete
	}
	return DeletionPolicyRetain
}

// DriftPolicy returns the drift policy in force.
func (s *CompassServer) DriftPolicy() DriftPolicy { return driftPolicy(s.Spec.Drift) }

// DriftPolicy returns the drift policy in force.
func (t *CompassTenant) DriftPolicy() DriftPolicy { return driftPolicy(t.Spec.Drift) }

// DriftPolicy returns the drift policy in force.
func (d *DeliveryStream) DriftPolicy() DriftPolicy { return driftPolicy(d.Spec.Drift) }

// driftPolicy: anything but an explicit Report repairs.
func driftPolicy(p DriftPolicy) DriftPolicy {
	if p == DriftPolicyReport {
		return DriftPolicyReport
	}
	return DriftPolicyRepair
}

// SlugOrName is the slug in force.
func (t *CompassTenant) SlugOrName() string {
	if t.Spec.Slug != "" {
		return t.Spec.Slug
	}
	return t.Name
}

// String is the same for the same consent.
func (a AllowedTenants) String() string {
	if a.Namespaces.Selector == nil {
		return string(a.Namespaces.From)
	}
	return string(a.Namespaces.From) + " " + metav1.FormatLabelSelector(a.Namespaces.Selector)
}

// ExternalNATS is somebody else's NATS, or nil where the operator runs its own.
func (s *CompassServer) ExternalNATS() *ExternalNATSSpec {
	if s.Spec.NATS.Mode != NATSModeExternal {
		return nil
	}
	return s.Spec.NATS.External
}

// NATSServers is how many servers of NATS the operator runs.
func (s *CompassServer) NATSServers() int32 { return max(s.Spec.NATS.Managed.Replicas, 1) }
