// Package v1alpha1 is the API group compass.rigel.build/v1alpha1: CompassServer, CompassTenant and DeliveryStream, as
// users write them and as the operator reports on them.
//
// A field is here when it works: the CRDs are validated strictly, so what is not here is refused instead of ignored.
// The package imports apimachinery and the core types of Kubernetes, and nothing of ours.
//
// +kubebuilder:object:generate=true
// +groupName=compass.rigel.build
package v1alpha1
