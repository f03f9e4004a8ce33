package server

import (
	"fmt"
	"path"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"

	"github.com/rigelbuild/compass-operator/controllers/backend"
	"github.com/rigelbuild/compass-operator/internal/config"
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
	return yaml.Marshal(config.Config{
		Log:       config.Log{Level: spec.Telemetry.LogLevel},
		Telemetry: config.Telemetry{Listen: fmt.Sprintf(":%d", naming.MetricsPort), OTLPEndpoint: spec.Telemetry.OTLPEndpoint},
		Store: config.Store{
			DatabasesFile: path.Join(dirDatabases, backend.KeyDatabases), MaxConnections: int(spec.Database.MaxConnections),
		},
		Fabric: config.Fabric{
			URLs: at.NATS, CredsFile: path.Join(dirNATS, backend.KeyCreds),
			CommandKeysFile: path.Join(dirCommandKey, backend.KeyCommandKeys), IssuerFile: path.Join(dirIssuer, keyIssuers),
		},
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
