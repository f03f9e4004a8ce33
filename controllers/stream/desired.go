package stream

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"

	"github.com/rigelbuild/compass-operator/api/v1alpha1"
	"github.com/rigelbuild/compass-operator/controllers/backend"
	"github.com/rigelbuild/compass-operator/internal/config"
	"github.com/rigelbuild/compass-operator/internal/fabric"
	"github.com/rigelbuild/compass-operator/internal/kube"
	"github.com/rigelbuild/compass-operator/internal/naming"
)

// Where a worker finds its files.
const (
	dirConfig     = "/etc/compass/config"
	dirDatabases  = "/etc/compass/databases"
	dirNATS       = "/etc/compass/nats"
	dirCommandKey = "/etc/compass/command-key"
	keyConfig     = "config.yaml"
	keyNATSCA     = "nats-ca.crt" // beside that of Postgres in the worker's Secret

	portMetrics = "metrics"
	// nodeLost is how long a worker's pod stays bound to a node that does not answer: the lease is over long before (F6).
	nodeLost = 15 // seconds
	grace    = 45 // seconds; longer than a process takes to say goodbye
)

// desireStream is what JetStream should hold.
func desireStream(d *v1alpha1.DeliveryStream) (fabric.StreamSpec, error) {
	spec := d.Spec
	var ds durations
	out := fabric.StreamSpec{
		Name: d.Name, Replicas: max(int(spec.Stream.Replicas), 1), MaxAge: ds.parse("spec.stream.maxAge", spec.Stream.MaxAge), MaxBytes: spec.Stream.MaxBytes.Value(),
		DuplicateWindow: ds.parse("spec.stream.duplicateWindow", spec.Stream.DuplicateWindow), MaxPerTenant: spec.Stream.PerTenant.MaxMessages,
		AckWait: ds.parse("spec.delivery.ackWait", spec.Delivery.AckWait), MaxAckPending: int(spec.Delivery.MaxAckPending),
		DeadMaxAge: ds.parse("spec.deadLetter.maxAge", spec.DeadLetter.MaxAge), DeadMaxBytes: spec.DeadLetter.MaxBytes.Value(),
	}
	return out, errors.Join(ds.errs...)
}

// durations parses what the API server has validated, and says which field it was where that is not so.
type durations struct{ errs []error }

func (d *durations) parse(field, text string) time.Duration {
	v, err := time.ParseDuration(text)
	if err != nil {
		d.errs = append(d.errs, fmt.Errorf("%s: %q is no duration", field, text))
	}
	return v
}

// workerConfig is what a worker is told at its start.
func (s *scope) workerConfig() ([]byte, error) {
	spec, server := s.stream.Spec, s.server.Spec
	var ds durations
	duration := func(field, text string) config.Duration { return config.Duration(ds.parse(field, text)) }
	c := config.Config{
		Log:       config.Log{Level: server.Telemetry.LogLevel},
		Telemetry: config.Telemetry{Listen: fmt.Sprintf(":%d", naming.MetricsPort), OTLPEndpoint: server.Telemetry.OTLPEndpoint},
		Store: config.Store{
			DatabasesFile: path.Join(dirDatabases, backend.KeyDatabases), MaxConnections: int(server.Database.MaxConnections),
		},
		Fabric: config.Fabric{
			URLs: s.at.NATS, CredsFile: path.Join(dirNATS, backend.KeyCreds), CAFile: s.natsCAFile(),
			CommandKeysFile: path.Join(dirCommandKey, backend.KeyCommandKeys),
		},
		Delivery: config.Delivery{
			Stream: s.key.Name, MaxDeliver: int(spec.Delivery.MaxDeliver), MaxAckPending: int(spec.Delivery.MaxAckPending),
			AckWait:   duration("spec.delivery.ackWait", spec.Delivery.AckWait),
			FloorTick: duration("spec.recovery.floorTick", spec.Recovery.FloorTick), Lease: duration("spec.worker.lease", spec.Worker.Lease),
		},
	}
	for _, b := range spec.Delivery.Backoff {
		c.Delivery.Backoff = append(c.Delivery.Backoff, duration("spec.delivery.backoff", b))
	}
	text, err := yaml.Marshal(c)
	return text, errors.Join(append(ds.errs, err)...)
}

func (s *scope) natsCAFile() string {
	if len(s.at.NATSCA) == 0 {
		return ""
	}
	return path.Join(dirNATS, keyNATSCA)
}

// workerDatabases are the connection strings that a worker has: it makes no tenants.
func (s *scope) workerDatabases() ([]byte, error) {
	var mine []config.Database
	for _, d := range s.at.Databases {
		d.Provision = ""
		mine = append(mine, d)
	}
	return backend.RenderDatabases(mine)
}

func (s *scope) meta(component string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: s.key.Namespace, Name: s.names.Worker, Labels: kube.Labels(naming.LabelStream, s.key.Name, component),
	}
}

func (s *scope) workerSecret() *corev1.Secret {
	return &corev1.Secret{ObjectMeta: s.meta(naming.ComponentSecret)}
}

func (s *scope) workerConfigMap(text []byte) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: s.meta(naming.ComponentDelivery), Data: map[string]string{keyConfig: string(text)}}
}

// workerAccount has no rights and no token: a worker does not talk to Kubernetes.
func (s *scope) workerAccount() *corev1.ServiceAccount {
	return &corev1.ServiceAccount{ObjectMeta: s.meta(naming.ComponentDelivery), AutomountServiceAccountToken: new(false)}
}

// workerDoors: a worker is asked for its metrics and for nothing else.
func (s *scope) workerDoors() *networkingv1.NetworkPolicy {
	return kube.Doors(s.meta(naming.ComponentDelivery), kube.Selector(naming.LabelStream, s.key.Name, naming.ComponentDelivery), kube.Door{Port: portMetrics})
}

// workerDeployment runs the one worker. Recreate, because two must not meet; the fence holds where this does not.
func (s *scope) workerDeployment(images kube.Images, commandKey, hash string) *appsv1.Deployment {
	image, pull := images.CompassFor(s.server.Spec.Image)
	replicas := int32(1)
	if s.stream.Spec.Suspend {
		replicas = 0
	}
	labels := kube.Labels(naming.LabelStream, s.key.Name, naming.ComponentDelivery)
	files := append([]string{backend.KeyDatabases}, slices.Sorted(maps.Keys(s.at.DatabaseCAs))...)
	return &appsv1.Deployment{
		ObjectMeta: s.meta(naming.ComponentDelivery),
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas, RevisionHistoryLimit: new(int32(3)),
			Selector: &metav1.LabelSelector{MatchLabels: kube.Selector(naming.LabelStream, s.key.Name, naming.ComponentDelivery)},
			Strategy: appsv1.DeploymentStrategy{Type: appsv1.RecreateDeploymentStrategyType},
			Template: kube.Override(corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels, Annotations: map[string]string{naming.AnnotationHash: hash}},
				Spec: corev1.PodSpec{
					ServiceAccountName: s.names.Worker, AutomountServiceAccountToken: new(false), EnableServiceLinks: new(false),
					SecurityContext: kube.RestrictedPod(), ImagePullSecrets: s.server.Spec.Image.PullSecrets,
					TerminationGracePeriodSeconds: new(int64(grace)), Tolerations: tolerations(),
					Containers: []corev1.Container{s.workerContainer(image, pull)},
					Volumes: []corev1.Volume{
						kube.ConfigVolume("config", s.names.Worker), kube.SecretVolume("databases", s.names.Worker, files...),
						kube.SecretVolume("nats", s.names.Worker, s.natsFiles()...),
						kube.SecretVolume("command-key", commandKey, backend.KeyCommandKeys),
					},
				},
			}, s.stream.Spec.Worker.Pod),
		},
	}
}

func (s *scope) natsFiles() []string {
	files := []string{backend.KeyCreds}
	if len(s.at.NATSCA) > 0 {
		files = append(files, keyNATSCA)
	}
	return files
}

// tolerations: a worker whose node is lost is replaced soon.
func tolerations() []corev1.Toleration {
	var out []corev1.Toleration
	for _, key := range []string{corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable} {
		out = append(out, corev1.Toleration{
			Key: key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: new(int64(nodeLost)),
		})
	}
	return out
}

func (s *scope) workerContainer(image string, pull corev1.PullPolicy) corev1.Container {
	probe := func(path string) corev1.ProbeHandler {
		return corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: path, Port: intstr.FromString(portMetrics)}}
	}
	return corev1.Container{
		Name: naming.ComponentDelivery, Image: image, ImagePullPolicy: pull,
		Command: []string{"/compass"},
		Args:    []string{"delivery", "--config", dirConfig + "/" + keyConfig},
		Env: []corev1.EnvVar{{Name: config.EnvPod, ValueFrom: &corev1.EnvVarSource{
			FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "metadata.name"},
		}}},
		Ports:     []corev1.ContainerPort{{Name: portMetrics, ContainerPort: naming.MetricsPort, Protocol: corev1.ProtocolTCP}},
		Resources: s.stream.Spec.Worker.Resources, SecurityContext: kube.RestrictedContainer(),
		StartupProbe:   &corev1.Probe{ProbeHandler: probe("/healthz"), PeriodSeconds: 2, TimeoutSeconds: 5, FailureThreshold: 90},
		ReadinessProbe: &corev1.Probe{ProbeHandler: probe("/readyz"), PeriodSeconds: 5, TimeoutSeconds: 5, FailureThreshold: 3},
		LivenessProbe:  &corev1.Probe{ProbeHandler: probe("/healthz"), PeriodSeconds: 10, TimeoutSeconds: 5, FailureThreshold: 6},
		VolumeMounts: []corev1.VolumeMount{
			kube.Mount("config", dirConfig), kube.Mount("databases", dirDatabases), kube.Mount("nats", dirNATS),
			kube.Mount("command-key", dirCommandKey),
		},
	}
}
