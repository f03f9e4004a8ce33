package naming

import "strconv"

// Group is the API group; everything we put on an object begins with it.
const Group = "compass.rigel.build"

// What we put on objects, and what people put there for us to read.
const (
	Finalizer  = Group + "/cleanup"
	FieldOwner = Group + "/operator"

	LabelServer    = Group + "/server"    // name of the CompassServer
	LabelTenant    = Group + "/tenant"    // name of the CompassTenant
	LabelStream    = Group + "/stream"    // name of the DeliveryStream
	LabelSlug      = Group + "/slug"      // of the tenant that has a database or a fleet of its own
	LabelComponent = Group + "/component" // one of the Component… values; the admission policy matches it

	AnnotationPaused       = Group + "/paused"        // "true": nothing is written anywhere
	AnnotationForceRelease = Group + "/force-release" // "true": on deletion, let go of what cannot be reached
	AnnotationRotate       = Group + "/rotate"        // any new value: rotate credentials now
	AnnotationHash         = Group + "/hash"          // of configuration a pod reads; a change restarts it
	AnnotationDatabases    = Group + "/databases"     // on a Deployment: the numbers of the databases that its pods are told of, ,0,7,
	AnnotationApplied      = Group + "/applied"       // on a child: hash of what the operator applied last

	ComponentServer   = "server"
	ComponentNATS     = "nats"
	ComponentDelivery = "delivery"
	ComponentSecret   = "secret"
	ComponentDatabase = "database" // a Secret with the way into a database of a tenant's own
	ComponentFleet    = "fleet"    // a Secret with what lets Runners of a tenant's own fleet in

	LabelName      = "app.kubernetes.io/name"
	LabelInstance  = "app.kubernetes.io/instance"
	LabelPartOf    = "app.kubernetes.io/part-of"
	LabelManagedBy = "app.kubernetes.io/managed-by"
	PartOf         = "compass"
	ManagedBy      = "compass-operator"
)

// Ports of the pods we run.
const (
	ServerPort  = 8443 // Connect and gRPC, TLS
	MetricsPort = 9090
	HealthPort  = 8081
	NATSPort    = 4222
)

// ServerChildren are the names of a CompassServer's children.
type ServerChildren struct {
	Keys        string // Secret: NATS identity; never garbage-collected
	CA          string // Secret: certificate authority of the server
	TLS         string // Secret: its leaf
	Admin       string // Secret: url and token of the platform admin
	RunnerEnrol string // Secret: enrolment token of the shared fleet
	Databases   string // Secret: connection strings, mounted and watched
	Issuer      string // Secret: scoped signing seeds of the fleets
	CommandKey  string // Secret: Ed25519 of session commands
	NATSRoutes  string // Secret: certificate by which several NATS servers know each other
	Graves      string // Secret: NATS accounts that were deleted and must stay so
	Server      string // Deployment, Service, ServiceAccount, PodDisruptionBudget, NetworkPolicy
	NATS        string // StatefulSet, Service, ConfigMap, PodDisruptionBudget, NetworkPolicy
}

// ServerChildrenOf returns the names of the children of the CompassServer of that name.
func ServerChildrenOf(name string) (ServerChildren, error) {
	if err := ValidName(name); err != nil {
		return ServerChildren{}, err
	}
	return ServerChildren{
		Keys: name + "-keys", CA: name + "-ca", TLS: name + "-tls", Admin: name + "-admin", RunnerEnrol: name + "-runner-enrol",
		Databases: name + "-databases", Issuer: name + "-issuer", CommandKey: name + "-command-key",
		NATSRoutes: name + "-nats-routes", Graves: name + "-graves", Server: name + "-server", NATS: name + "-nats",
	}, nil
}

// DatabaseSecret is the name of the Secret with the way into one more database of a CompassServer.
func DatabaseSecret(server string, number int) string {
	return server + "-database-" + strconv.Itoa(number)
}

// FleetSecret is the name of the Secret beside a CompassServer's with what lets Runners of a tenant's own fleet in.
func FleetSecret(server, slug string) string { return server + "-fleet-" + slug }

// TenantChildren are the names of a CompassTenant's Secrets. Keys is also the name a CompassServer of the same name in the
// same namespace would use: the labels tell them apart, and the later one reports a conflict.
type TenantChildren struct {
	API  string // url, token, ca.crt of the tenant's admin account
	NATS string // url, ca.crt, and nats.creds of the tap, token of the fleet
	SQL  string // the Service Binding keys
	Keys string // seeds; not owned, removed by the finalizer under Delete
}

// TenantChildrenOf returns the names of the Secrets of the CompassTenant of that name.
func TenantChildrenOf(name string) (TenantChildren, error) {
	if err := ValidName(name); err != nil {
		return TenantChildren{}, err
	}
	return TenantChildren{API: name + "-api", NATS: name + "-nats", SQL: name + "-sql", Keys: name + "-keys"}, nil
}

// StreamChildren are the names of what belongs to a DeliveryStream.
type StreamChildren struct {
	Worker           string // Deployment, ServiceAccount, NetworkPolicy, and the Secret its pod mounts
	Stream           string // JetStream
	DeadLetterStream string // JetStream
}

// StreamChildrenOf returns the names of the children of the DeliveryStream of that name.
func StreamChildrenOf(name string) (StreamChildren, error) {
	stream, err := StreamName(name)
	if err != nil {
		return StreamChildren{}, err
	}
	dead, err := DeadLetterStreamName(name)
	if err != nil {
		return StreamChildren{}, err
	}
	return StreamChildren{Worker: name + "-compass-delivery", Stream: stream, DeadLetterStream: dead}, nil
}
