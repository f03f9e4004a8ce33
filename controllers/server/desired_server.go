package server

import (
	"maps"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/rigelbuild/compass-operator/controllers/backend"
	"github.com/rigelbuild/compass-operator/internal/kube"
	"github.com/rigelbuild/compass-operator/internal/naming"
)

const (
	portAPI     = "https"
	portMetrics = "metrics"
	graceServer = 45 // seconds; longer than a process takes to say goodbye
)

// serverAccount has no rights and no token: a Server does not talk to Kubernetes.
func (s *scope) serverAccount() *corev1.ServiceAccount {
	return &corev1.ServiceAccount{ObjectMeta: s.meta(s.names.Server, naming.ComponentServer), AutomountServiceAccountToken: new(false)}
}

func (s *scope) serverConfigMap(text []byte) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: s.meta(s.names.Server, naming.ComponentServer), Data: map[string]string{keyConfig: string(text)}}
}

func (s *scope) serverService() *corev1.Service {
	spec := s.server.Spec.Server.Service
	svc := &corev1.Service{ObjectMeta: s.meta(s.names.Server, naming.ComponentServer)}
	svc.Annotations = kube.Merge(spec.Annotations)
	svc.Spec = corev1.ServiceSpec{
		Type: spec.Type, Selector: kube.Selector(naming.LabelServer, s.key.Name, naming.ComponentServer),
		Ports: []corev1.ServicePort{{
			Name: portAPI, Port: naming.ServerPort, TargetPort: intstr.FromString(portAPI), Protocol: corev1.ProtocolTCP, AppProtocol: new("https"),
		}},
	}
	return svc
}

// serverBudget lets one Server go at a time.
func (s *scope) serverBudget() *policyv1.PodDisruptionBudget {
	return s.budget(s.names.Server, naming.ComponentServer)
}

func (s *scope) budget(name, component string) *policyv1.PodDisruptionBudget {
	return &policyv1.PodDisruptionBudget{
		ObjectMeta: s.meta(name, component),
		Spec: policyv1.PodDisruptionBudgetSpec{
			MaxUnavailable: new(intstr.FromInt32(1)), Selector: s.selector(component),
			UnhealthyPodEvictionPolicy: new(policyv1.AlwaysAllow),
		},
	}
}

// serverDoors: clients may be anywhere, and so may who reads metrics.
func (s *scope) serverDoors() *networkingv1.NetworkPolicy {
	return kube.Doors(s.meta(s.names.Server, naming.ComponentServer), s.selector(naming.ComponentServer).MatchLabels,
		kube.Door{Port: portAPI}, kube.Door{Port: portMetrics})
}

// serverDeployment runs the Servers. hash is that of everything a Server reads only once.
func (s *scope) serverDeployment(images kube.Images, hash string) *appsv1.Deployment {
	spec := s.server.Spec
	image, pull := images.CompassFor(spec.Image)
	selector := s.selector(naming.ComponentServer)
	labels := kube.Labels(naming.LabelServer, s.key.Name, naming.ComponentServer)
	return &appsv1.Deployment{
		ObjectMeta: s.meta(s.names.Server, naming.ComponentServer),
		Spec: appsv1.DeploymentSpec{
			Replicas: spec.Server.Replicas, Selector: selector, RevisionHistoryLimit: new(int32(3)),
			Strategy: appsv1.DeploymentStrategy{Type: appsv1.RollingUpdateDeploymentStrategyType, RollingUpdate: &appsv1.RollingUpdateDeployment{
				MaxUnavailable: new(intstr.FromInt32(0)), MaxSurge: new(intstr.FromInt32(1)),
			}},
			Template: kube.Override(corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels, Annotations: map[string]string{naming.AnnotationHash: hash}},
				Spec: corev1.PodSpec{
					ServiceAccountName: s.names.Server, AutomountServiceAccountToken: new(false), EnableServiceLinks: new(false),
					SecurityContext: kube.RestrictedPod(), ImagePullSecrets: spec.Image.PullSecrets,
					TerminationGracePeriodSeconds: new(int64(graceServer)),
					TopologySpreadConstraints: []corev1.TopologySpreadConstraint{{
						MaxSkew: 1, TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.ScheduleAnyway, LabelSelector: selector,
					}},
					Containers: []corev1.Container{s.serverContainer(image, pull)},
					Volumes: []corev1.Volume{
						kube.ConfigVolume("config", s.names.Server),
						kube.SecretVolume("databases", s.names.Databases, s.databaseFiles()...),
						kube.SecretVolume("nats", s.names.Server, s.natsFiles()...),
						kube.SecretVolume("command-key", s.names.CommandKey, backend.KeyCommandKeys),
						kube.SecretVolume("issuer", s.names.Issuer, keyIssuers),
						kube.SecretVolume("tls", s.tlsSecret(), corev1.TLSCertKey, corev1.TLSPrivateKeyKey),
					},
				},
			}, spec.Server.Pod),
		},
	}
}

// databaseFiles are the keys of <name>-databases that a Server may read: not the bare passwords.
func (s *scope) databaseFiles() []string {
	return append([]string{backend.KeyDatabases}, slices.Sorted(maps.Keys(s.databaseCAs))...)
}

// tlsSecret is where the Servers' certificate is.
func (s *scope) tlsSecret() string {
	if ref := s.server.Spec.Server.TLSSecretRef; ref != nil {
		return ref.Name
	}
	return s.names.TLS
}

func (s *scope) natsFiles() []string {
	files := []string{backend.KeyCreds}
	if s.identity.external != nil && len(s.identity.external.CA) > 0 {
		files = append(files, backend.KeyCA)
	}
	return files
}

func (s *scope) serverContainer(image string, pull corev1.PullPolicy) corev1.Container {
	return corev1.Container{
		Name: naming.ComponentServer, Image: image, ImagePullPolicy: pull,
		Command: []string{"/compass"}, Args: []string{"server", "--config", dirConfig + "/" + keyConfig},
		Ports: []corev1.ContainerPort{
			{Name: portAPI, ContainerPort: naming.ServerPort, Protocol: corev1.ProtocolTCP},
			{Name: portMetrics, ContainerPort: naming.MetricsPort, Protocol: corev1.ProtocolTCP},
		},
		Resources: s.server.Spec.Server.Resources, SecurityContext: kube.RestrictedContainer(),
		// NATS that is away for long neither kills a Server nor takes it out of service (design section 6).
		LivenessProbe:  &corev1.Probe{ProbeHandler: probe("/healthz", portMetrics), PeriodSeconds: 10, TimeoutSeconds: 5, FailureThreshold: 6},
		ReadinessProbe: &corev1.Probe{ProbeHandler: probe("/readyz", portMetrics), PeriodSeconds: 5, TimeoutSeconds: 5, FailureThreshold: 3},
		// A Server waits two minutes for NATS at its start before it gives up.
		StartupProbe: &corev1.Probe{ProbeHandler: probe("/healthz", portMetrics), PeriodSeconds: 2, TimeoutSeconds: 5, FailureThreshold: 90},
		VolumeMounts: []corev1.VolumeMount{
			kube.Mount("config", dirConfig), kube.Mount("databases", dirDatabases), kube.Mount("nats", dirNATS),
			kube.Mount("command-key", dirCommandKey), kube.Mount("issuer", dirIssuer), kube.Mount("tls", dirTLS),
		},
	}
}
