package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// DeliveryStream delivers the messages of some tenants of a CompassServer, with exactly one worker. It lives in its
// server's namespace, because its worker holds credentials for every tenant of the server.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=dstream,categories=compass
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Tenants",type=integer,JSONPath=`.status.tenants`
// +kubebuilder:printcolumn:name="Backlog",type=integer,JSONPath=`.status.backlog.pending`
// +kubebuilder:printcolumn:name="Owed",type=integer,JSONPath=`.status.backlog.owed`
// +kubebuilder:printcolumn:name="Dead",type=integer,JSONPath=`.status.deadLetters`
// +kubebuilder:printcolumn:name="Writer",type=string,JSONPath=`.status.writer.pod`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`,priority=1
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].message`,priority=1
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 40 && !self.metadata.name.contains('.')",message="metadata.name: at most 40 characters and no dots, because names of children are derived from it"
type DeliveryStream struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   DeliveryStreamSpec   `json:"spec"`
	Status DeliveryStreamStatus `json:"status,omitempty"`
}

// DeliveryStreamList is a list of DeliveryStreams.
// +kubebuilder:object:root=true
type DeliveryStreamList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []DeliveryStream `json:"items"`
}

// DeliveryStreamSpec is what a user asks for. There is no replica field, on purpose (OQ-4): more streams, not more workers.
// +kubebuilder:validation:XValidation:rule="self.serverRef == oldSelf.serverRef",message="spec.serverRef is immutable"
type DeliveryStreamSpec struct {
	// ServerRef names a CompassServer in the same namespace.
	ServerRef LocalReference `json:"serverRef"`

	Tenants TenantSelection `json:"tenants"`

	// +kubebuilder:default={}
	// +optional
	Stream StreamSpec `json:"stream,omitempty"`

	// +kubebuilder:default={}
	// +optional
	Delivery DeliverySpec `json:"delivery,omitempty"`

	// +kubebuilder:default={}
	// +optional
	DeadLetter DeadLetterSpec `json:"deadLetter,omitempty"`

	// +kubebuilder:default={}
	// +optional
	Recovery RecoverySpec `json:"recovery,omitempty"`

	// +kubebuilder:default={}
	// +optional
	Worker WorkerSpec `json:"worker,omitempty"`

	// Suspend takes the worker to zero. What is owed stays owed.
	// +optional
	Suspend bool `json:"suspend,omitempty"`

	// AdoptionPolicy says what becomes of a stream or consumer in JetStream that has our name and not our mark. It is never
	// made anew: what differs is changed, and where that cannot be, the condition says so.
	// +kubebuilder:default=Never
	// +optional
	AdoptionPolicy AdoptionPolicy `json:"adoptionPolicy,omitempty"`
	// +kubebuilder:default=Repair
	// +optional
	Drift DriftPolicy `json:"drift,omitempty"`

	// +kubebuilder:default=Retain
	// +optional
	DeletionPolicy DeletionPolicy `json:"deletionPolicy,omitempty"`
}

// TenantSelection says whom the stream carries: exactly one of its fields is set.
// +kubebuilder:validation:XValidation:rule="[has(self.all) && self.all, has(self.names) && size(self.names) > 0, has(self.selector)].filter(s, s).size() == 1",message="spec.tenants: set one of all: true, names and selector"
type TenantSelection struct {
	// All: every tenant of the server that no other stream names.
	// +optional
	All bool `json:"all,omitempty"`
	// Names are slugs.
	// +kubebuilder:validation:MaxItems=10000
	// +kubebuilder:validation:items:MaxLength=48
	// +kubebuilder:validation:items:Pattern=`^[a-z0-9]([-a-z0-9]{0,46}[a-z0-9])?$`
	// +listType=set
	// +optional
	Names []string `json:"names,omitempty"`
	// Selector takes the tenants whose CompassTenant has these labels, so that a tenant is moved by an edit of its own. What
	// was made through the API has no CompassTenant and no labels.
	// +optional
	Selector *metav1.LabelSelector `json:"selector,omitempty"`
}

// StreamSpec shapes the JetStream stream of references: work queue, file storage.
// +kubebuilder:validation:XValidation:rule="!has(self.duplicateWindow) || !has(self.maxAge) || duration(self.duplicateWindow) <= duration(self.maxAge)",message="spec.stream.duplicateWindow: not longer than spec.stream.maxAge"
type StreamSpec struct {
	// Replicas of stream, consumer and dead letters; NATS needs as many servers.
	// +kubebuilder:validation:Enum=1;3
	// +kubebuilder:default=1
	// +optional
	Replicas int32 `json:"replicas,omitempty"`
	// MaxAge of a reference. One that ages out costs latency: the floor tick finds what is owed.
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1m')",message="spec.stream.maxAge: at least 1m"
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:default="168h"
	// +optional
	MaxAge string `json:"maxAge,omitempty"`
	// +kubebuilder:validation:XValidation:rule="quantity(string(self)).compareTo(quantity('1')) >= 0",message="must be a byte at least"
	// +kubebuilder:validation:XValidation:rule="quantity(string(self)).compareTo(quantity('1Pi')) <= 0",message="at most 1Pi"
	// +kubebuilder:default="1Gi"
	// +optional
	MaxBytes resource.Quantity `json:"maxBytes,omitzero"`
	// DuplicateWindow in which a repeated publish of the same reference is dropped.
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('100ms') && duration(self) <= duration('10m')",message="spec.stream.duplicateWindow: from 100ms to 10m"
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:default="30s"
	// +optional
	DuplicateWindow string `json:"duplicateWindow,omitempty"`
	// +kubebuilder:default={}
	// +optional
	PerTenant PerTenantSpec `json:"perTenant,omitempty"`
}

// PerTenantSpec bounds what one tenant may have waiting in the stream.
type PerTenantSpec struct {
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:default=10000
	// +optional
	MaxMessages int64 `json:"maxMessages,omitempty"`
}

// DeliverySpec is how often and how patiently a message is tried.
type DeliverySpec struct {
	// MaxDeliver is the number of attempts, not of retries, after which a message becomes a dead letter.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	// +kubebuilder:default=5
	// +optional
	MaxDeliver int32 `json:"maxDeliver,omitempty"`
	// AckWait is how long the worker waits for a Runner to take a message before it sends it again.
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1s') && duration(self) <= duration('10m')",message="spec.delivery.ackWait: from 1s to 10m"
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:default="30s"
	// +optional
	AckWait string `json:"ackWait,omitempty"`
	// Backoff between attempts; the last value repeats.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=16
	// +kubebuilder:validation:XValidation:rule="self.all(d, duration(d) >= duration('100ms') && duration(d) <= duration('1h'))",message="spec.delivery.backoff: each from 100ms to 1h"
	// +kubebuilder:default={"1s","5s","30s"}
	// +listType=atomic
	// +optional
	Backoff []string `json:"backoff,omitempty"`
	// MaxAckPending is how many references may be on their way to the worker.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=10000
	// +kubebuilder:default=256
	// +optional
	MaxAckPending int32 `json:"maxAckPending,omitempty"`
}

// DeadLetterSpec shapes the stream that announces dead letters. Their truth is in Postgres and does not age.
type DeadLetterSpec struct {
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1h')",message="spec.deadLetter.maxAge: at least 1h"
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:default="720h"
	// +optional
	MaxAge string `json:"maxAge,omitempty"`
	// +kubebuilder:validation:XValidation:rule="quantity(string(self)).compareTo(quantity('1')) >= 0",message="must be a byte at least"
	// +kubebuilder:validation:XValidation:rule="quantity(string(self)).compareTo(quantity('1Pi')) <= 0",message="at most 1Pi"
	// +kubebuilder:default="256Mi"
	// +optional
	MaxBytes resource.Quantity `json:"maxBytes,omitzero"`
}

// RecoverySpec bounds how late a message can be whose reference was lost.
type RecoverySpec struct {
	// FloorTick is the period of the sweep over everybody who is live and owed.
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1s') && duration(self) <= duration('1h')",message="spec.recovery.floorTick: from 1s to 1h"
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:default="2m"
	// +optional
	FloorTick string `json:"floorTick,omitempty"`
}

// WorkerSpec shapes the one delivery worker.
type WorkerSpec struct {
	// +optional
	Resources corev1.ResourceRequirements `json:"resources,omitempty"`
	// Pod of the worker.
	// +optional
	Pod PodOverrides `json:"pod,omitempty"`
	// Lease is how long the worker may be silent before another takes over.
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('3s') && duration(self) <= duration('1m')",message="spec.worker.lease: from 3s to 1m"
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:default="6s"
	// +optional
	Lease string `json:"lease,omitempty"`
}

// DeliveryStreamStatus is what was seen.
type DeliveryStreamStatus struct {
	Status `json:",inline"`

	// Tenants that the stream carries.
	// +optional
	Tenants int64 `json:"tenants,omitempty"`
	// +optional
	Backlog *BacklogStatus `json:"backlog,omitempty"`
	// DeadLetters of the stream's tenants, as rows: one for each message and recipient that was set aside.
	// +optional
	DeadLetters int64 `json:"deadLetters,omitempty"`
	// +optional
	Writer *WriterStatus `json:"writer,omitempty"`
}

// BacklogStatus counts by order of magnitude: references as the stream tells, deliveries as the database does.
type BacklogStatus struct {
	// Pending references wait for the worker.
	Pending int64 `json:"pending"`
	// Redelivered references were handed out more than once.
	Redelivered int64 `json:"redelivered"`
	// Owed deliveries: messages, mentions and answers that a recipient has not acknowledged.
	// +optional
	Owed int64 `json:"owed,omitempty"`
	// Held messages, whose author's turn is open.
	// +optional
	Held int64 `json:"held,omitempty"`
}

// WriterStatus is who holds the stream's lease, as the database tells.
type WriterStatus struct {
	Pod string `json:"pod"`
	// Epoch of the lease; it only goes up.
	Epoch int64 `json:"epoch"`
	// Since is when the operator first saw this pod hold the lease.
	// +optional
	Since metav1.Time `json:"since,omitzero"`
}
