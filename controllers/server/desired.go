package server

import (
	"errors"
	"fmt"
	"path"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"

	"github.com/rigelbuild/compass-operator/api/v1alpha1"
	"github.com/rigelbuild/compass-operator/controllers/backend"
	"github.com/rigelbuild/compass-operator/internal/config"
	"github.com/rigelbuild/compass-operator/internal/fault"
	"github.com/rigelbuild/compass-operator/internal/kube"
	"github.com/rigelbuild/compass-operator/internal/naming"
)

const componentSecret = naming.ComponentSecret

// Where a Server finds its files.
const (
	dirConfig     = "/etc/compass/config"
	dirDatabases  = "/etc/compass/databases"
	dirNATS       = "/etc/compass/nats"
	dirCommandKey = "/etc/compass/command-key"
	dirIssuer     = "/etc/compass/issuer"
	dirTLS        = "/etc/compass/tls"
	keyConfig     = "config.yaml"
)

// meta is that of a child.
func (s *scope) meta(name, component string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: s.key.Namespace, Name: name, Labels: kube.Labels(naming.LabelServer, s.key.Name, component),
	}
}

// selector selects the pods of a component.
func (s *scope) selector(component string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: kube.Selector(naming.LabelServer, s.key.Name, component)}
}

// serverConfig is what a Server is told at its start.
func (s *scope) serverConfig(at backend.Place) ([]byte, error) {
	spec := s.server.Spec
	lease, err1 := time.ParseDuration(spec.Sessions.Lease)
	maxTurn, err2 := time.ParseDuration(spec.Sessions.MaxTurn)
	if err := errors.Join(err1, err2); err != nil {
		return nil, fault.Terminal(v1alpha1.ReasonInvalidSpec, fmt.Errorf("spec.sessions: %w", err))
	}
	caFile := ""
	if len(at.NATSCA) > 0 {
		caFile = path.Join(dirNATS, backend.KeyCA)
	}
	return yaml.Marshal(config.Config{
		Log:       config.Log{Level: spec.Telemetry.LogLevel},
		Telemetry: config.Telemetry{Listen: fmt.Sprintf(":%d", naming.MetricsPort), OTLPEndpoint: spec.Telemetry.OTLPEndpoint},
		Store: config.Store{
			DatabasesFile: path.Join(dirDatabases, backend.KeyDatabases), MaxConnections: int(spec.Database.MaxConnections),
		},
		Fabric: config.Fabric{
			URLs: at.NATS, CredsFile: path.Join(dirNATS, backend.KeyCreds), CAFile: caFile,
			CommandKeysFile: path.Join(dirCommandKey, backend.KeyCommandKeys), IssuerFile: path.Join(dirIssuer, keyIssuers),
		},
		Sessions: config.Sessions{Lease: config.Duration(lease), MaxTurn: config.Duration(maxTurn)},
		Server: config.Server{
			Listen: fmt.Sprintf(":%d", naming.ServerPort), RunnerURLs: at.NATS,
			TLSCertFile: path.Join(dirTLS, corev1.TLSCertKey), TLSKeyFile: path.Join(dirTLS, corev1.TLSPrivateKeyKey),
		},
	})
}

// probe asks a path of a port.
func probe(path, port string) corev1.ProbeHandler {
	return corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: path, Port: intstr.FromString(port)}}
}
