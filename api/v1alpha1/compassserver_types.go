package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// CompassServer runs Compass on a Postgres, with a NATS that is run for it or that is there already.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=cserver,categories=compass
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Schema",type=integer,JSONPath=`.status.schema.version`
// +kubebuilder:printcolumn:name="NATS",type=string,JSONPath=`.status.nats.version`
// +kubebuilder:printcolumn:name="Servers",type=integer,JSONPath=`.status.availableServers`
// +kubebuilder:printcolumn:name="Tenants",type=integer,JSONPath=`.status.tenants`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`,priority=1
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].message`,priority=1
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 40 && !self.metadata.name.contains('.')",message="metadata.name: at most 40 characters and no dots, because names of children are derived from it"
type CompassServer struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   CompassServerSpec   `json:"spec"`
	Status CompassServerStatus `json:"status,omitempty"`
}

// CompassServerList is a list of CompassServers.
// +kubebuilder:object:root=true
type CompassServerList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []CompassServer `json:"items"`
}

// CompassServerSpec is what a user asks for.
type CompassServerSpec struct {
	// Image of the Servers and delivery workers. Default: the operator's own registry, tag and pull policy.
	// +optional
	Image ImageSpec `json:"image,omitempty"`

	Database DatabaseSpec `json:"database"`

	// +kubebuilder:default={}
	// +optional
	NATS NATSSpec `json:"nats,omitempty"`

	// +kubebuilder:default={}
	// +optional
	Server ServerSpec `json:"server,omitempty"`

	// +kubebuilder:default={}
	// +optional
	Sessions SessionsSpec `json:"sessions,omitempty"`

	// +kubebuilder:default={}
	// +optional
	Telemetry TelemetrySpec `json:"telemetry,omitempty"`

	// AllowedTenants says whose CompassTenants the server takes. Those of its own namespace always may.
	// +kubebuilder:default={}
	// +optional
	AllowedTenants AllowedTenants `json:"allowedTenants,omitempty"`

	// +kubebuilder:default=Repair
	// +optional
	Drift DriftPolicy `json:"drift,omitempty"`

	// +kubebuilder:default=Retain
	// +optional
	DeletionPolicy DeletionPolicy `json:"deletionPolicy,omitempty"`
}

// ImageSpec names a container image; what is empty comes from the operator's own.
type ImageSpec struct {
	// Repository without a tag.
	// +kubebuilder:validation:Pattern=`^([a-zA-Z0-9][-a-zA-Z0-9._:/]*)?$`
	// +kubebuilder:validation:MaxLength=255
	// +optional
	Repository string `json:"repository,omitempty"`
	// Tag of the image.
	// +kubebuilder:validation:Pattern=`^([a-zA-Z0-9_][-a-zA-Z0-9_.]*)?$`
	// +kubebuilder:validation:MaxLength=128
	// +optional
	Tag string `json:"tag,omitempty"`
	// +kubebuilder:validation:Enum=Always;IfNotPresent;Never
	// +optional
	PullPolicy corev1.PullPolicy `json:"pullPolicy,omitempty"`
	// +kubebuilder:validation:MaxItems=16
	// +listType=map
	// +listMapKey=name
	// +optional
	PullSecrets []corev1.LocalObjectReference `json:"pullSecrets,omitempty"`
}

// DatabaseSpec names the Postgres that holds everything.
// +kubebuilder:validation:XValidation:rule="self.name == oldSelf.name",message="spec.database.name is immutable: make another CompassServer and move its tenants"
type DatabaseSpec struct {
	// AdminSecretRef names a Secret with either uri, or host, port, username, password, [database], [sslmode] and
	// [ca.crt]. The login needs CREATEROLE and CREATEDB and must not be a superuser.
	AdminSecretRef LocalReference `json:"adminSecretRef"`
	// Name of the database; it is made if absent. Roles carry it as a prefix.
	// +kubebuilder:validation:Pattern=`^[a-z][a-z0-9_]{0,39}$`
	// +kubebuilder:validation:XValidation:rule="!self.startsWith('pg_') && !(self in ['postgres', 'template0', 'template1'])",message="spec.database.name: reserved by Postgres"
	// +kubebuilder:default=compass
	// +optional
	Name string `json:"name,omitempty"`
	// Pooler is a PgBouncer in transaction mode for the request path; migrations and leases go past it.
	// +optional
	Pooler *PoolerSpec `json:"pooler,omitempty"`
	// MaxConnections of each Server and worker process.
	// +kubebuilder:validation:Minimum=4
	// +kubebuilder:validation:Maximum=1000
	// +kubebuilder:default=20
	// +optional
	MaxConnections int32 `json:"maxConnections,omitempty"`
}

// PoolerSpec is where a pooler of the same Postgres listens.
type PoolerSpec struct {
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Host string `json:"host"`
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	// +kubebuilder:default=6432
	// +optional
	Port int32 `json:"port,omitempty"`
}

// NATSMode says who runs NATS.
// +kubebuilder:validation:Enum=Managed;External
type NATSMode string

const (
	// NATSModeManaged says: the operator runs a StatefulSet. The default.
	NATSModeManaged NATSMode = "Managed"
	// NATSModeExternal says: somebody else runs NATS, and lets us have accounts there.
	NATSModeExternal NATSMode = "External"
)

// NATSSpec says which NATS carries references and commands.
// +kubebuilder:validation:XValidation:rule="(has(self.mode) && self.mode == 'External') == has(self.external)",message="spec.nats.external: goes with mode: External, and only with it"
type NATSSpec struct {
	// +kubebuilder:default=Managed
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="spec.nats.mode is immutable"
	// +optional
	Mode NATSMode `json:"mode,omitempty"`
	// +kubebuilder:default={}
	// +optional
	Managed ManagedNATSSpec `json:"managed,omitempty"`
	// +optional
	External *ExternalNATSSpec `json:"external,omitempty"`
}

// ExternalNATSSpec says where somebody else's NATS is, and what they handed over: it runs in operator mode, with JetStream and
// a resolver that stores accounts. Only accounts that carry our mark are touched.
type ExternalNATSSpec struct {
	// URLs of every server, so that each can be seen to trust the key: nats:// or tls://.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.all(u, u.matches('^(nats|tls)://[^/@ ]+$'))",message="spec.nats.external.urls: each is nats://host:port or tls://host:port, without a user"
	// +listType=set
	URLs []string `json:"urls"`
	// OperatorSecretRef names a Secret with the key operator.seed: a signing key of their operator.
	OperatorSecretRef LocalReference `json:"operatorSecretRef"`
	// SystemSecretRef names a Secret with the key nats.creds: a user of their system account.
	SystemSecretRef LocalReference `json:"systemSecretRef"`
	// CASecretRef names a Secret with the key ca.crt, which verifies the servers; absent: the system's roots do.
	// +optional
	CASecretRef *LocalReference `json:"caSecretRef,omitempty"`
}

// ManagedNATSSpec shapes the NATS that the operator runs: servers in operator mode, each with JetStream on a volume.
type ManagedNATSSpec struct {
	// Replicas: one server, or three that go on while one of them is away. One may become three, which sets aside what JetStream
	// holds: references, which are made again from what is owed, and announcements of dead letters, whose rows stay.
	// +kubebuilder:validation:Enum=1;3
	// +kubebuilder:validation:XValidation:rule="self >= oldSelf",message="spec.nats.managed.replicas: 3 cannot become 1; make another CompassServer and move its tenants"
	// +kubebuilder:default=1
	// +optional
	Replicas int32 `json:"replicas,omitempty"`
	// +kubebuilder:default={size:"5Gi",className:""}
	// +optional
	Storage StorageSpec `json:"storage,omitempty"`
	// SyncInterval is how long an acknowledged reference may live in the page cache alone, or "always". A lost one costs
	// latency, never a message.
	// +kubebuilder:validation:XValidation:rule="self == 'always' || (duration(self) >= duration('10ms') && duration(self) <= duration('2m'))",message="spec.nats.managed.syncInterval: a duration from 10ms to 2m, or always"
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:default="100ms"
	// +optional
	SyncInterval string `json:"syncInterval,omitempty"`
	// +optional
	Resources corev1.ResourceRequirements `json:"resources,omitempty"`
	// Pod of each NATS server.
	// +optional
	Pod PodOverrides `json:"pod,omitempty"`
}

// StorageSpec asks for a volume.
// +kubebuilder:validation:XValidation:rule="has(self.size) == has(oldSelf.size) && (!has(self.size) || self.size == oldSelf.size) && self.className == oldSelf.className",message="spec.nats.managed.storage is immutable: a StatefulSet cannot change its volumes"
type StorageSpec struct {
	// Size of which streams reserve spec.stream.maxBytes and spec.deadLetter.maxBytes each: 1280Mi by default.
	// +kubebuilder:validation:XValidation:rule="quantity(string(self)).compareTo(quantity('1Gi')) >= 0",message="spec.nats.managed.storage.size: at least 1Gi; a stream with the default limits needs 1280Mi of it"
	// +kubebuilder:default="5Gi"
	// +optional
	Size resource.Quantity `json:"size,omitzero"`
	// ClassName of the volume; empty means the cluster's default class.
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:default=""
	// +optional
	ClassName string `json:"className"`
}

// ServerSpec shapes the Deployment and Service of the Servers.
type ServerSpec struct {
	// Replicas; absent means that somebody else, such as an autoscaler, owns the number.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	// +optional
	Replicas *int32 `json:"replicas,omitempty"`
	// +optional
	Resources corev1.ResourceRequirements `json:"resources,omitempty"`
	// +kubebuilder:default={}
	// +optional
	Service ServiceSpec `json:"service,omitempty"`
	// TLSSecretRef names a Secret with tls.crt, tls.key and, where clients need it, ca.crt, which somebody else renews. Absent:
	// the operator keeps an authority and a certificate of its own.
	// +optional
	TLSSecretRef *LocalReference `json:"tlsSecretRef,omitempty"`
	// Pod of each Server.
	// +optional
	Pod PodOverrides `json:"pod,omitempty"`
}

// SessionsSpec bounds how long what an agent began may stay open.
type SessionsSpec struct {
	// Lease of a Runner: without a word for so long, while everything else is well, its sessions end.
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('5s') && duration(self) <= duration('10m')",message="spec.sessions.lease: from 5s to 10m"
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:default="30s"
	// +optional
	Lease string `json:"lease,omitempty"`
	// MaxTurn after which a turn is settled for its agent, and its messages are delivered; 0s: never.
	// +kubebuilder:validation:XValidation:rule="duration(self) == duration('0s') || duration(self) >= duration('1m')",message="spec.sessions.maxTurn: 0s, or at least 1m"
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:default="0s"
	// +optional
	MaxTurn string `json:"maxTurn,omitempty"`
}

// ServiceSpec shapes a Service.
type ServiceSpec struct {
	// +kubebuilder:validation:Enum=ClusterIP;NodePort;LoadBalancer
	// +kubebuilder:default=ClusterIP
	// +optional
	Type corev1.ServiceType `json:"type,omitempty"`
	// +kubebuilder:validation:MaxProperties=64
	// +optional
	Annotations map[string]string `json:"annotations,omitempty"`
}

// AllowedTenants is a server's consent.
type AllowedTenants struct {
	// +kubebuilder:default={}
	// +optional
	Namespaces TenantNamespaces `json:"namespaces,omitempty"`
}

// NamespacesFrom says which namespaces are meant.
// +kubebuilder:validation:Enum=Same;All;Selector
type NamespacesFrom string

const (
	// NamespacesFromSame is the object's own namespace. The default.
	NamespacesFromSame NamespacesFrom = "Same"
	// NamespacesFromAll is every namespace.
	NamespacesFromAll NamespacesFrom = "All"
	// NamespacesFromSelector is every namespace whose labels match.
	NamespacesFromSelector NamespacesFrom = "Selector"
)

// TenantNamespaces are the namespaces from which tenants are taken.
// +kubebuilder:validation:XValidation:rule="(has(self.from) && self.from == 'Selector') == has(self.selector)",message="spec.allowedTenants.namespaces: a selector goes with from: Selector, and only with it"
type TenantNamespaces struct {
	// +kubebuilder:default=Same
	// +optional
	From NamespacesFrom `json:"from,omitempty"`
	// Selector matches labels of namespaces.
	// +optional
	Selector *metav1.LabelSelector `json:"selector,omitempty"`
}

// TelemetrySpec says where traces go and how much is logged.
type TelemetrySpec struct {
	// OTLPEndpoint is a gRPC collector, host:port; empty means no traces are sent.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	OTLPEndpoint string `json:"otlpEndpoint,omitempty"`
	// +kubebuilder:validation:Enum=debug;info;warn;error
	// +kubebuilder:default=info
	// +optional
	LogLevel string `json:"logLevel,omitempty"`
}

// CompassServerStatus is what was seen.
type CompassServerStatus struct {
	Status `json:",inline"`

	// +optional
	Schema *SchemaStatus `json:"schema,omitempty"`
	// +optional
	NATS *NATSStatus `json:"nats,omitempty"`
	// Endpoint of the Connect API inside the cluster.
	// +optional
	Endpoint string `json:"endpoint,omitempty"`
	// AvailableServers is how many Server pods are available.
	// +optional
	AvailableServers int32 `json:"availableServers,omitempty"`
	// Tenants that the database holds, the system tenant not counted.
	// +optional
	Tenants int64 `json:"tenants,omitempty"`
	// Streams that refer to this server.
	// +optional
	Streams int32 `json:"streams,omitempty"`
}

// SchemaStatus tells the version of the database's schema, and the newest that this operator has.
type SchemaStatus struct {
	Version int32 `json:"version"`
	Latest  int32 `json:"latest"`
}

// NATSStatus is what the NATS servers said of themselves.
type NATSStatus struct {
	// Version of the oldest server.
	Version string `json:"version"`
	// OperatorKey is the public key of the operator that the servers trust; empty where it is not ours.
	// +optional
	OperatorKey string `json:"operatorKey,omitempty"`
	// Servers that answered.
	Servers int32 `json:"servers"`
	// SigningKeys of the operator, by public key: current signs accounts, next is trusted so that it can; and where not every
	// server trusts one, how many do.
	// +optional
	SigningKeys map[string]string `json:"signingKeys,omitempty"`
}
