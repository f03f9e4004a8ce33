package backend

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/rigelbuild/compass-operator/api/v1alpha1"
	"github.com/rigelbuild/compass-operator/internal/config"
	"github.com/rigelbuild/compass-operator/internal/drift"
	"github.com/rigelbuild/compass-operator/internal/fabric"
	"github.com/rigelbuild/compass-operator/internal/fault"
	"github.com/rigelbuild/compass-operator/internal/kube"
	"github.com/rigelbuild/compass-operator/internal/naming"
)

// Keys of the Secrets that the kinds and the pods share.
const (
	KeyDatabases   = "databases.yaml"    // in <name>-databases: config.LoadDatabases reads it
	KeyCommandKeys = "command-keys.yaml" // in <name>-command-key: config.LoadCommandKeys reads it
	KeyCreds       = "nats.creds"
	KeyCA          = "ca.crt"
	KeyURL         = "url"
	KeyToken       = "token"
)

// IndexTenantServer is the field index of CompassTenants by the namespace and name of their server.
const IndexTenantServer = "tenant.server"

// Place is where a CompassServer's systems are and how the operator enters them.
type Place struct {
	Server client.ObjectKey
	// Databases are the connection strings as pods have them.
	Databases []config.Database
	// DatabaseCAs verify Postgres, by the name of the file that a string names. Where one names none, the system's roots do,
	// or nothing is verified.
	DatabaseCAs map[string][]byte
	NATS        []string // URLs
	// Servers of NATS that there are; each holds a copy of every account.
	Servers int
	// External opens somebody else's NATS; nil where it is our own, which Keys open.
	External *External
	// NATSCA verifies NATS; empty: the system's roots do, where it speaks TLS.
	NATSCA   []byte
	Keys     fabric.Keys
	Endpoint string // of the Connect API
	CA       []byte // verifies the endpoint
	// Drift is asked before something is put back that somebody else changed; it may be nil.
	Drift *drift.Ledger
}

// Owner marks in NATS whose accounts are whose.
func (at Place) Owner() string { return Owner(at.Server) }

// Owner is how a CompassServer is named outside Kubernetes.
func Owner(server client.ObjectKey) string { return server.Namespace + "/" + server.Name }

// NATSURL is where a managed NATS answers inside the cluster.
func NATSURL(server client.ObjectKey, service string) string {
	return fmt.Sprintf("nats://%s.%s.svc:%d", service, server.Namespace, naming.NATSPort)
}

// Endpoint is where the Connect API answers inside the cluster.
func Endpoint(server client.ObjectKey, service string) string {
	return fmt.Sprintf("https://%s.%s.svc:%d", service, server.Namespace, naming.ServerPort)
}

// Find reads the CompassServer that a tenant or a stream refers to. One that is not there, or is going, is waited for: as
// gone, where the object had been served before.
func Find(ctx context.Context, reader client.Reader, key client.ObjectKey, served bool) (*v1alpha1.CompassServer, error) {
	server := &v1alpha1.CompassServer{}
	err := reader.Get(ctx, key, server)
	reason, hint := v1alpha1.ReasonWaitingForServer, "create it, or correct spec.serverRef"
	if served {
		reason, hint = v1alpha1.ReasonServerGone, "what it held is kept; create it again, or delete this object"
	}
	switch {
	case client.IgnoreNotFound(err) != nil:
		return nil, fmt.Errorf("read CompassServer %s: %w", key, err)
	case err != nil:
		return nil, fault.Waiting(reason, fmt.Sprintf("CompassServer %s does not exist: %s", key, hint))
	case !server.DeletionTimestamp.IsZero():
		return nil, fault.Waiting(v1alpha1.ReasonServerGone, fmt.Sprintf("CompassServer %s is being deleted", key))
	}
	return server, nil
}

// Resolve reads what a CompassServer has published for its own parts. What is missing is waited for.
func Resolve(ctx context.Context, c kube.Children, server *v1alpha1.CompassServer) (Place, error) {
	names, err := naming.ServerChildrenOf(server.Name)
	if err != nil {
		return Place{}, fault.Terminal(v1alpha1.ReasonInvalidSpec, err)
	}
	key := client.ObjectKeyFromObject(server)
	p := Place{Server: key, Drift: c.Drift, NATS: []string{NATSURL(key, names.NATS)}, Endpoint: Endpoint(key, names.Server)}
	databases, err := published(ctx, c, server, names.Databases, KeyDatabases)
	if err != nil {
		return Place{}, err
	}
	if p.Databases, err = ParseDatabases(databases[KeyDatabases]); err != nil {
		return Place{}, fmt.Errorf("read Secret %s/%s: %w", key.Namespace, names.Databases, err)
	}
	p.DatabaseCAs = DatabaseCAs(databases)
	made, missing, err := p.keys(ctx, c, server, names.Keys)
	if fault.ReasonOf(err) != "" {
		return Place{}, err
	}
	if err != nil {
		return Place{}, fault.Waiting(v1alpha1.ReasonInvalidSecret,
			fmt.Sprintf("Secret %s/%s is damaged (%v): restore it from a backup", key.Namespace, names.Keys, err))
	}
	if missing != nil { // whatever was just made is thrown away: only the server's own pass mints keys
		return Place{}, waitingFor(server)
	}
	p.Keys = made
	if server.Spec.Server.TLSSecretRef != nil {
		data, _, err := ReadCertificate(ctx, shared(c), server)
		p.CA = data[KeyCA]
		return p, err
	}
	authority, err := published(ctx, c, server, names.CA, corev1.TLSCertKey)
	if err != nil {
		return Place{}, err
	}
	p.CA = authority[corev1.TLSCertKey]
	return p, nil
}

// shared reads what every object of a server refers to.
func shared(c kube.Children) kube.Children {
	if c.Shared != nil {
		c.Live = c.Shared
	}
	return c
}

// ReadCertificate reads the certificate of the Servers that somebody else renews.
func ReadCertificate(ctx context.Context, c kube.Children, server *v1alpha1.CompassServer) (map[string][]byte, client.ObjectKey, error) {
	key := client.ObjectKey{Namespace: server.Namespace, Name: server.Spec.Server.TLSSecretRef.Name}
	data, err := kube.Read(ctx, c, key, corev1.TLSCertKey, corev1.TLSPrivateKeyKey)
	return data, key, err
}

// keys reads the server's keys of NATS, and what opens it where it is somebody else's.
func (at *Place) keys(ctx context.Context, c kube.Children, server *v1alpha1.CompassServer, name string) (fabric.Keys, map[string][]byte, error) {
	kept, err := published(ctx, c, server, name)
	if err != nil {
		return fabric.Keys{}, nil, err
	}
	spec := server.ExternalNATS()
	if spec == nil {
		at.Servers = int(server.NATSServers())
		return fabric.CompleteKeys(kept)
	}
	x, err := ReadExternal(ctx, shared(c), server.Namespace, spec)
	if err != nil {
		return fabric.Keys{}, nil, err
	}
	at.Enter(x)
	if server.Status.NATS != nil {
		at.Servers = int(server.Status.NATS.Servers)
	}
	return fabric.CompleteExternalKeys(kept, x.Signer)
}

// Enter makes somebody else's NATS the one of this place.
func (at *Place) Enter(x External) {
	at.NATS, at.External, at.NATSCA = x.URLs, &x, x.CA
}

func published(ctx context.Context, c kube.Children, server *v1alpha1.CompassServer, name string, keys ...string) (map[string][]byte, error) {
	c.Live = c.Client // ours, so the cache has them
	data, err := kube.Read(ctx, c, client.ObjectKey{Namespace: server.Namespace, Name: name}, keys...)
	if fault.IsWaiting(err) {
		return nil, waitingFor(server)
	}
	return data, err
}

func waitingFor(server *v1alpha1.CompassServer) error {
	return fault.Waiting(v1alpha1.ReasonWaitingForServer,
		fmt.Sprintf("CompassServer %s/%s is not ready: see its conditions", server.Namespace, server.Name))
}

type databasesFile struct {
	Databases []config.Database `json:"databases"`
}

// RenderDatabases is the inverse of what config.LoadDatabases reads.
func RenderDatabases(databases []config.Database) ([]byte, error) {
	return yaml.Marshal(databasesFile{databases})
}

// ParseDatabases is the inverse of RenderDatabases.
func ParseDatabases(text []byte) ([]config.Database, error) {
	var file databasesFile
	if err := yaml.UnmarshalStrict(text, &file); err != nil || len(file.Databases) == 0 {
		return nil, fmt.Errorf("key %s is not what the operator writes", KeyDatabases) // the cause would quote it
	}
	return file.Databases, nil
}
