package v1alpha1

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

// SlugOrName is the slug in force.
func (t *CompassTenant) SlugOrName() string {
	if t.Spec.Slug != "" {
		return t.Spec.Slug
	}
	return t.Name
}
