package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// CompassTenant is a tenant of a CompassServer.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=ctenant,categories=compass
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Server",type=string,JSONPath=`.spec.serverRef.name`
// +kubebuilder:printcolumn:name="Slug",type=string,JSONPath=`.status.slug`
// +kubebuilder:printcolumn:name="Stream",type=string,JSONPath=`.status.stream`
// +kubebuilder:printcolumn:name="Isolation",type=string,JSONPath=`.spec.isolation.mode`
// +kubebuilder:printcolumn:name="Owed",type=integer,JSONPath=`.status.usage.owed`
// +kubebuilder:printcolumn:name="Dead",type=integer,JSONPath=`.status.usage.deadLetters`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`,priority=1
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].message`,priority=1
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 40 && !self.metadata.name.contains('.')",message="metadata.name: at most 40 characters and no dots, because names of children are derived from it"
// +kubebuilder:validation:XValidation:rule="has(self.spec.slug) || self.metadata.name.matches('^[a-z0-9]([-a-z0-9]{0,46}[a-z0-9])?$')",message="metadata.name is not a slug: set spec.slug"
// +kubebuilder:validation:XValidation:rule="has(self.spec.slug) || !(self.metadata.name in ['admin', 'all', 'any', 'bcast', 'bootstrap', 'client', 'comms', 'compass', 'delivery', 'dlq', 'everyone', 'fleet', 'nats', 'none', 'platform', 'q', 'queue', 'runner', 'runners', 'server', 'shared', 'sys', 'system', 'tenant', 'worker'])",message="metadata.name is a reserved word: set spec.slug"
type CompassTenant struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   CompassTenantSpec   `json:"spec"`
	Status CompassTenantStatus `json:"status,omitempty"`
}

// CompassTenantList is a list of CompassTenants.
// +kubebuilder:object:root=true
type CompassTenantList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []CompassTenant `json:"items"`
}

// CompassTenantSpec is what a user asks for.
// +kubebuilder:validation:XValidation:rule="has(self.slug) == has(oldSelf.slug) && (!has(self.slug) || self.slug == oldSelf.slug)",message="spec.slug is immutable"
// +kubebuilder:validation:XValidation:rule="self.serverRef == oldSelf.serverRef",message="spec.serverRef is immutable: a tenant moves between databases, not between servers"
type CompassTenantSpec struct {
	ServerRef ServerReference `json:"serverRef"`
	// Slug is the tenant's name among people, unique in its server. Default: metadata.name.
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]{0,46}[a-z0-9])?$`
	// +kubebuilder:validation:XValidation:rule="!(self in ['admin', 'all', 'any', 'bcast', 'bootstrap', 'client', 'comms', 'compass', 'delivery', 'dlq', 'everyone', 'fleet', 'nats', 'none', 'platform', 'q', 'queue', 'runner', 'runners', 'server', 'shared', 'sys', 'system', 'tenant', 'worker'])",message="spec.slug: a reserved word"
	// +optional
	Slug string `json:"slug,omitempty"`
	// DisplayName is for people; no control characters.
	// +kubebuilder:validation:Pattern=`^[^\x00-\x1f\x7f]*$`
	// +kubebuilder:validation:MaxLength=200
	// +optional
	DisplayName string `json:"displayName,omitempty"`
	// +kubebuilder:default={}
	// +optional
	Isolation IsolationSpec `json:"isolation,omitempty"`
	// +kubebuilder:default={}
	// +optional
	Limits TenantLimits `json:"limits,omitempty"`
	// +kubebuilder:default={}
	// +optional
	NATS TenantNATS `json:"nats,omitempty"`
	// +kubebuilder:default={}
	// +optional
	SQLAccess SQLAccess `json:"sqlAccess,omitempty"`
	// +kubebuilder:default={}
	// +optional
	Credentials CredentialsSpec `json:"credentials,omitempty"`
	// AdoptionPolicy says whether a tenant that is there already, made through the API or kept from an earlier object, may be
	// moved to another database by being taken over. Taken over where it is it always is.
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

// IsolationMode says in whose database a tenant lives.
// +kubebuilder:validation:Enum=Shared;Dedicated
type IsolationMode string

const (
	// IsolationShared is in the database of its server, with others. The default.
	IsolationShared IsolationMode = "Shared"
	// IsolationDedicated is in a database of its own, with the same schema, maybe on another Postgres.
	IsolationDedicated IsolationMode = "Dedicated"
)

// IsolationSpec says where the tenant lives. An edit moves it, with everything that it has: see condition DatabaseReady.
// +kubebuilder:validation:XValidation:rule="(has(self.mode) && self.mode == 'Dedicated') == has(self.dedicated)",message="spec.isolation.dedicated: with mode Dedicated, and only with it"
// +kubebuilder:validation:XValidation:rule="!has(self.dedicated) || !has(oldSelf.dedicated) || self.dedicated.database == oldSelf.dedicated.database",message="spec.isolation.dedicated.database is immutable: move the tenant to Shared first"
type IsolationSpec struct {
	// +kubebuilder:default=Shared
	// +optional
	Mode IsolationMode `json:"mode,omitempty"`
	// +optional
	Dedicated *DedicatedSpec `json:"dedicated,omitempty"`
}

// DedicatedSpec is a database of the tenant's own.
type DedicatedSpec struct {
	// AdminSecretRef names a Secret in the tenant's namespace that opens the Postgres, with the keys that
	// CompassServer.spec.database.adminSecretRef has. It is needed as long as the tenant lives there, and to move it back.
	AdminSecretRef LocalReference `json:"adminSecretRef"`
	// Database is made if it is absent.
	// +kubebuilder:validation:Pattern=`^[a-z][a-z0-9_-]{0,52}$`
	// +kubebuilder:validation:XValidation:rule="!self.startsWith('pg_') && !(self in ['postgres', 'template0', 'template1'])",message="spec.isolation.dedicated.database: a name that Postgres keeps for itself"
	Database string `json:"database"`
}

// TenantNATS says what the tenant itself may do in NATS, with its own account.
type TenantNATS struct {
	// EventTap publishes credentials with which the tenant reads references of its own broadcasts, and does nothing else.
	// +optional
	EventTap bool `json:"eventTap,omitempty"`
	// Runners gives the tenant a fleet of its own beside the shared one: Runners that enrol with the token in <name>-nats serve
	// this tenant alone, and reach NATS by its account.
	// +optional
	Runners bool `json:"runners,omitempty"`
}

// SQLAccess gives the tenant's own tools a login that reads its rows.
type SQLAccess struct {
	// +optional
	Enabled bool `json:"enabled,omitempty"`
	// Connections of the login at the same time.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	// +kubebuilder:default=5
	// +optional
	Connections int32 `json:"connections,omitempty"`
}

// CredentialsSpec says how long what was published is good. The annotation compass.rigel.build/rotate asks for new ones now.
// +kubebuilder:validation:XValidation:rule="!has(self.rotationPeriod) || !has(self.overlap) || duration(self.rotationPeriod) == duration('0s') || duration(self.overlap) < duration(self.rotationPeriod)",message="spec.credentials.overlap: shorter than rotationPeriod; it is 24h where it is not set"
type CredentialsSpec struct {
	// RotationPeriod after which credentials are replaced; 0s means only when asked.
	// +kubebuilder:validation:XValidation:rule="duration(self) == duration('0s') || duration(self) >= duration('1h')",message="spec.credentials.rotationPeriod: 0s, or at least 1h"
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:default="720h"
	// +optional
	RotationPeriod string `json:"rotationPeriod,omitempty"`
	// Overlap in which the old ones are good beside the new ones.
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('0s')",message="spec.credentials.overlap: not negative"
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:default="24h"
	// +optional
	Overlap string `json:"overlap,omitempty"`
}

// TenantLimits keep one tenant from crowding out the others.
type TenantLimits struct {
	// +kubebuilder:default={}
	// +optional
	Messages MessageLimits `json:"messages,omitempty"`
	// +kubebuilder:default={}
	// +optional
	Database DatabaseLimits `json:"database,omitempty"`
	// +kubebuilder:default={}
	// +optional
	NATS AccountLimits `json:"nats,omitempty"`
}

// MessageLimits are applied by each Server at its edge.
type MessageLimits struct {
	// PerSecond is how many messages a second are taken over time.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:default=50
	// +optional
	PerSecond int32 `json:"perSecond,omitempty"`
	// Burst is how many are taken at once after a pause.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:default=200
	// +optional
	Burst int32 `json:"burst,omitempty"`
	// MaxBytes of one message.
	// +kubebuilder:validation:XValidation:rule="quantity(string(self)).compareTo(quantity('1')) >= 0",message="must be a byte at least"
	// +kubebuilder:validation:XValidation:rule="quantity(string(self)).compareTo(quantity('1Mi')) <= 0",message="spec.limits.messages.maxBytes: at most 1Mi, because a Server takes no larger request"
	// +kubebuilder:default="256Ki"
	// +optional
	MaxBytes resource.Quantity `json:"maxBytes,omitzero"`
}

// DatabaseLimits are applied by each process to the tenant's statements.
type DatabaseLimits struct {
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('100ms') && duration(self) <= duration('5m')",message="spec.limits.database.statementTimeout: a duration from 100ms to 5m"
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:default="5s"
	// +optional
	StatementTimeout string `json:"statementTimeout,omitempty"`
	// Transactions at the same time, per process.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	// +kubebuilder:default=10
	// +optional
	Transactions int32 `json:"transactions,omitempty"`
}

// AccountLimits are those of the tenant's NATS account.
type AccountLimits struct {
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:default=20
	// +optional
	Connections *int64 `json:"connections,omitempty"`
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:default=1000
	// +optional
	Subscriptions *int64 `json:"subscriptions,omitempty"`
	// Payload of one NATS message.
	// +kubebuilder:validation:XValidation:rule="quantity(string(self)).compareTo(quantity('1')) >= 0",message="must be a byte at least"
	// +kubebuilder:default="64Ki"
	// +optional
	Payload resource.Quantity `json:"payload,omitzero"`
}

// CompassTenantStatus is what was seen.
type CompassTenantStatus struct {
	Status `json:",inline"`

	// Slug in use.
	// +optional
	Slug string `json:"slug,omitempty"`
	// TenantID is the id of the tenant's row, and the token of its subjects.
	// +optional
	TenantID string `json:"tenantID,omitempty"`
	// Account is the public key of the tenant's NATS account.
	// +optional
	Account string `json:"account,omitempty"`
	// Stream is the DeliveryStream that carries the tenant; empty where none does.
	// +optional
	Stream string `json:"stream,omitempty"`
	// +optional
	Secrets TenantSecrets `json:"secrets,omitempty"`
	// +optional
	Rotation *RotationStatus `json:"rotation,omitempty"`
	// Usage by order of magnitude; exact figures are metrics.
	// +optional
	Usage *TenantUsage `json:"usage,omitempty"`
}

// TenantUsage is what the tenant has, and what of it was not delivered to its recipients.
type TenantUsage struct {
	// Messages that are kept.
	// +optional
	Messages int64 `json:"messages,omitempty"`
	// Owed deliveries: messages, mentions and answers that a recipient has not acknowledged.
	Owed int64 `json:"owed"`
	// DeadLetters: one for each message and recipient that was set aside.
	DeadLetters int64 `json:"deadLetters"`
}

// RotationStatus tells when credentials were replaced.
type RotationStatus struct {
	// Last is when those that are published were made.
	Last metav1.Time `json:"last"`
	// Next is when they will be replaced; absent where only on demand.
	// +optional
	Next *metav1.Time `json:"next,omitempty"`
	// Asked is the value of the annotation compass.rigel.build/rotate that was obeyed.
	// +optional
	Asked string `json:"asked,omitempty"`
}

// TenantSecrets names the Secrets that were published for the tenant, in its namespace.
type TenantSecrets struct {
	// API holds url, token and ca.crt of the tenant's admin account.
	// +optional
	API string `json:"api,omitempty"`
	// NATS holds url and ca.crt; nats.creds with an event tap; the token that enrols the next Runner with a fleet of its own.
	// +optional
	NATS string `json:"nats,omitempty"`
	// SQL holds the Service Binding keys of the tenant's SQL login.
	// +optional
	SQL string `json:"sql,omitempty"`
}
