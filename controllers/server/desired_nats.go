package server

import (
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/rigelbuild/compass-operator/internal/fabric"
	"github.com/rigelbuild/compass-operator/internal/kube"
	"github.com/rigelbuild/compass-operator/internal/naming"
)

const (
	natsServers = 1
	portNATS    = "nats"
	portMonitor = "monitor"
	monitorPort = 8222
	dirNATSConf = "/etc/nats"
	keyNATSConf = "nats.conf"
	dirData     = "/data"
	volumeData  = "data"
	graceNATS   = 60 // seconds; a stop takes about 10 ms per consumer, and streams are flushed
	podName     = "POD_NAME"
)

// natsConfig is the configuration file of the NATS servers. It holds no secret.
func (s *scope) natsConfig() (string, error) {
	spec := s.server.Spec.NATS.Managed
	system := s.identity.keys.System.Identity.Public()
	c := fabric.ServerConfig{
		Name: "$" + podName, Operator: s.identity.operator, System: system, Preload: map[string]string{system: s.identity.system},
		JWTDir: dirData + "/jwt", StoreDir: dirData + "/js", Port: naming.NATSPort, Monitor: monitorPort,
		MaxFile: spec.Storage.Size.Value(), SyncEvery: spec.SyncInterval,
	}
	if err := c.Check(); err != nil {
		return "", fmt.Errorf("configure NATS: %w", err)
	}
	return c.Render(), nil
}

func (s *scope) natsConfigMap(text string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: s.meta(s.names.NATS, naming.ComponentNATS), Data: map[string]string{keyNATSConf: text}}
}

// natsService names the pods, also those that are not ready: the operator has to reach a server that has no accounts yet.
func (s *scope) natsService() *corev1.Service {
	return &corev1.Service{
		ObjectMeta: s.meta(s.names.NATS, naming.ComponentNATS),
		Spec: corev1.ServiceSpec{
			ClusterIP: corev1.ClusterIPNone, PublishNotReadyAddresses: true,
			Selector: kube.Selector(naming.LabelServer, s.key.Name, naming.ComponentNATS),
			Ports: []corev1.ServicePort{{
				Name: portNATS, Port: naming.NATSPort, TargetPort: intstr.FromString(portNATS), Protocol: corev1.ProtocolTCP, AppProtocol: new("nats"),
			}},
		},
	}
}

// natsDoors: Runners and tenants may be anywhere; nobody but the kubelet asks the monitor.
func (s *scope) natsDoors() *networkingv1.NetworkPolicy {
	return kube.Doors(s.meta(s.names.NATS, naming.ComponentNATS), s.selector(naming.ComponentNATS).MatchLabels, kube.Door{Port: portNATS})
}

func (s *scope) natsStatefulSet(images kube.Images, config string) *appsv1.StatefulSet {
	storage := s.server.Spec.NATS.Managed.Storage
	labels := kube.Labels(naming.LabelServer, s.key.Name, naming.ComponentNATS)
	claim := corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: volumeData, Labels: kube.Selector(naming.LabelServer, s.key.Name, naming.ComponentNATS)},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: storage.Size}},
		},
	}
	if storage.ClassName != "" {
		claim.Spec.StorageClassName = new(storage.ClassName)
	}
	return &appsv1.StatefulSet{
		ObjectMeta: s.meta(s.names.NATS, naming.ComponentNATS),
		Spec: appsv1.StatefulSetSpec{
			ServiceName: s.names.NATS, Replicas: new(int32(natsServers)), Selector: s.selector(naming.ComponentNATS),
			PodManagementPolicy: appsv1.ParallelPodManagement, RevisionHistoryLimit: new(int32(3)),
			UpdateStrategy: appsv1.StatefulSetUpdateStrategy{Type: appsv1.RollingUpdateStatefulSetStrategyType},
			// What NATS holds outlives the object; a deletion under Delete removes the claims itself.
			PersistentVolumeClaimRetentionPolicy: &appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy{
				WhenDeleted: appsv1.RetainPersistentVolumeClaimRetentionPolicyType, WhenScaled: appsv1.RetainPersistentVolumeClaimRetentionPolicyType,
			},
			VolumeClaimTemplates: []corev1.PersistentVolumeClaim{claim},
			Template: kube.Override(corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels, Annotations: map[string]string{naming.AnnotationHash: kube.Hash(config)}},
				Spec: corev1.PodSpec{
					AutomountServiceAccountToken: new(false), EnableServiceLinks: new(false), SecurityContext: kube.RestrictedPod(),
					TerminationGracePeriodSeconds: new(int64(graceNATS)),
					Containers:                    []corev1.Container{s.natsContainer(images)},
					Volumes:                       []corev1.Volume{kube.ConfigVolume("config", s.names.NATS)},
				},
			}, s.server.Spec.NATS.Managed.Pod),
		},
	}
}

func (s *scope) natsContainer(images kube.Images) corev1.Container {
	return corev1.Container{
		Name: naming.ComponentNATS, Image: images.NATS, ImagePullPolicy: images.PullPolicy,
		Args: []string{"--config", dirNATSConf + "/" + keyNATSConf},
		Env: []corev1.EnvVar{{Name: podName, ValueFrom: &corev1.EnvVarSource{
			FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "metadata.name"},
		}}},
		Ports: []corev1.ContainerPort{
			{Name: portNATS, ContainerPort: naming.NATSPort, Protocol: corev1.ProtocolTCP},
			{Name: portMonitor, ContainerPort: monitorPort, Protocol: corev1.ProtocolTCP},
		},
		Resources: s.server.Spec.NATS.Managed.Resources, SecurityContext: kube.RestrictedContainer(),
		StartupProbe:   &corev1.Probe{ProbeHandler: probe("/healthz?js-enabled-only=true", portMonitor), PeriodSeconds: 2, TimeoutSeconds: 5, FailureThreshold: 90},
		ReadinessProbe: &corev1.Probe{ProbeHandler: probe("/healthz?js-server-only=true", portMonitor), PeriodSeconds: 5, TimeoutSeconds: 5, FailureThreshold: 3},
		LivenessProbe:  &corev1.Probe{ProbeHandler: probe("/healthz?js-enabled-only=true", portMonitor), PeriodSeconds: 15, TimeoutSeconds: 5, FailureThreshold: 6},
		VolumeMounts:   []corev1.VolumeMount{kube.Mount("config", dirNATSConf), {Name: volumeData, MountPath: dirData}},
	}
}
