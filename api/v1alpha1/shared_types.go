package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Annotations that a user may set on any of the kinds.
const (
	// AnnotationPaused with the value "true": nothing is written anywhere, and the condition Ready says so.
	AnnotationPaused = "compass.rigel.build/paused"
	// AnnotationForceRelease with the value "true": on deletion, let go of what cannot be reached.
	AnnotationForceRelease = "compass.rigel.build/force-release"
	// AnnotationRotate with any new value: replace credentials now. It is remembered in the status and never cleared.
	AnnotationRotate = "compass.rigel.build/rotate"
)

// DeletionPolicy says what becomes of what an object made outside Kubernetes when the object is deleted: Retain, the default,
// leaves it; Delete removes it first.
// +kubebuilder:validation:Enum=Retain;Delete
type DeletionPolicy string

const (
	// DeletionPolicyRetain leaves databases, accounts, streams and keys where they are. The default.
	DeletionPolicyRetain DeletionPolicy = "Retain"
	// DeletionPolicyDelete removes them, and waits until it has.
	DeletionPolicyDelete DeletionPolicy = "Delete"
)

// DriftPolicy says what is done about what somebody else changed of what an object made: Repair, the default, puts it back;
// Report only tells.
// +kubebuilder:validation:Enum=Repair;Report
type DriftPolicy string

const (
	// DriftPolicyRepair puts it back. The default.
	DriftPolicyRepair DriftPolicy = "Repair"
	// DriftPolicyReport writes nothing and says in a condition what differs. What the spec newly asks for is still done.
	DriftPolicyReport DriftPolicy = "Report"
)

// AdoptionPolicy says whether what is there already, and was made by somebody else, may be taken over: Never, the default,
// IfUnowned where it carries nobody's mark, or Force.
// +kubebuilder:validation:Enum=Never;IfUnowned;Force
type AdoptionPolicy string

const (
	// AdoptionNever leaves alone what is there and not ours, and a condition says so. The default.
	AdoptionNever AdoptionPolicy = "Never"
	// AdoptionIfUnowned takes over what carries nobody's mark.
	AdoptionIfUnowned AdoptionPolicy = "IfUnowned"
	// AdoptionForce takes over also what somebody else marked as his.
	AdoptionForce AdoptionPolicy = "Force"
)

// LocalReference names an object in the same namespace.
type LocalReference struct {
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
}

// ServerReference names a CompassServer.
type ServerReference struct {
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=40
	Name string `json:"name"`
	// Namespace of the server; empty means the namespace of the referring object. A server in another namespace must
	// consent with spec.allowedTenants.
	// +kubebuilder:validation:MaxLength=63
	// +optional
	Namespace string `json:"namespace,omitempty"`
}

// Status is what every kind reports.
type Status struct {
	// ObservedGeneration is the newest generation that a whole pass ended without error for.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Conditions: Ready, and one for each step on the way to it, with a reason that `kubectl compass explain` explains.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}
