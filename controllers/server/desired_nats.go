package server

import (
	"fmt"
	"path"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/rigelbuild/compass-operator/controllers/backend"
	"github.com/rigelbuild/compass-operator/internal/fabric"
	"github.com/rigelbuild/compass-operator/internal/kube"
	"github.com/rigelbuild/compass-operator/internal/naming"
)

const (
	portNATS    = "nats"
	portRoutes  = "routes"
	routesPort  = 6222
	portMonitor = "monitor"
	monitorPort = 8222
	dirNATSConf = "/etc/nats"
	dirRoutes   = "/etc/nats-routes"
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
	if s.natsClustered() {
		c.Cluster = &fabric.ServerCluster{Name: s.names.NATS, Port: routesPort, TLS: &fabric.ServerTLS{
			CertFile: path.Join(dirRoutes, corev1.TLSCertKey), KeyFile: path.Join(dirRoutes, corev1.TLSPrivateKeyKey),
			CAFile: path.Join(dirRoutes, backend.KeyCA),
		}}
		for i := range s.server.NATSServers() {
			c.Cluster.Routes = append(c.Cluster.Routes, fmt.Sprintf("nats://%s-%d.%s:%d", s.names.NATS, i, s.natsDomain(), routesPort))
		}
	}
	if err := c.Check(); err != nil {
		return "", fmt.Errorf("configure NATS: %w", err)
	}
	return c.Render(), nil
}

func (s *scope) natsClustered() bool { return s.server.NATSServers() > 1 }

// natsDomain is that in which each NATS server has its pod's name.
func (s *scope) natsDomain() string { return s.names.NATS + "." + s.key.Namespace + ".svc" }

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

// natsDoors: Runners and tenants may be anywhere, other NATS servers are ours; nobody but the kubelet asks the monitor.
func (s *scope) natsDoors() *networkingv1.NetworkPolicy {
	ours := s.selector(naming.ComponentNATS).MatchLabels
	doors := []kube.Door{{Port: portNATS}}
	if s.natsClustered() {
		doors = append(doors, kube.Door{Port: portRoutes, From: ours})
	}
	return kube.Doors(s.meta(s.names.NATS, naming.ComponentNATS), ours, doors...)
}

// natsBudget lets one server go at a time: of three, two are the least that agree.
func (s *scope) natsBudget() *policyv1.PodDisruptionBudget {
	return s.budget(s.names.NATS, naming.ComponentNATS)
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
	pod := corev1.PodSpec{
		AutomountServiceAccountToken: new(false), EnableServiceLinks: new(false), SecurityContext: kube.RestrictedPod(),
		TerminationGracePeriodSeconds: new(int64(graceNATS)),
		Containers:                    []corev1.Container{s.natsContainer(images)},
		Volumes:                       []corev1.Volume{kube.ConfigVolume("config", s.names.NATS)},
	}
	if s.natsClustered() {
		pod.Volumes = append(pod.Volumes, kube.SecretVolume(portRoutes, s.names.NATSRoutes,
			corev1.TLSCertKey, corev1.TLSPrivateKeyKey, backend.KeyCA))
		pod.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
			MaxSkew: 1, TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.ScheduleAnyway, LabelSelector: s.selector(naming.ComponentNATS),
		}}
	}
	return &appsv1.StatefulSet{
		ObjectMeta: s.meta(s.names.NATS, naming.ComponentNATS),
		Spec: appsv1.StatefulSetSpec{
			ServiceName: s.names.NATS, Replicas: new(s.server.NATSServers()), Selector: s.selector(naming.ComponentNATS),
			PodManagementPolicy: appsv1.ParallelPodManagement, RevisionHistoryLimit: new(int32(3)),
			UpdateStrategy: appsv1.StatefulSetUpdateStrategy{Type: appsv1.RollingUpdateStatefulSetStrategyType},
			// What NATS holds outlives the object; a deletion under Delete removes the claims itself.
			PersistentVolumeClaimRetentionPolicy: &appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy{
				WhenDeleted: appsv1.RetainPersistentVolumeClaimRetentionPolicyType, WhenScaled: appsv1.RetainPersistentVolumeClaimRetentionPolicyType,
			},
			VolumeClaimTemplates: []corev1.PersistentVolumeClaim{claim},
			Template: kube.Override(corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels, Annotations: map[string]string{naming.AnnotationHash: kube.Hash(config)}},
				Spec:       pod,
			}, s.server.Spec.NATS.Managed.Pod),
		},
	}
}

func (s *scope) natsContainer(images kube.Images) corev1.Container {
	c := corev1.Container{
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
	if s.natsClustered() {
		c.Ports = append(c.Ports, corev1.ContainerPort{Name: portRoutes, ContainerPort: routesPort, Protocol: corev1.ProtocolTCP})
		c.VolumeMounts = append(c.VolumeMounts, kube.Mount(portRoutes, dirRoutes))
		// The next of the three is restarted only when this one has caught up with all it holds a copy of.
		c.StartupProbe = &corev1.Probe{ProbeHandler: probe("/healthz", portMonitor), PeriodSeconds: 5, TimeoutSeconds: 5, FailureThreshold: 180}
	}
	return c
}
