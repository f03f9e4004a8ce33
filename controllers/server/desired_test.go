package server

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/yaml"

	"github.com/rigelbuild/compass-operator/api/v1alpha1"
	"github.com/rigelbuild/compass-operator/controllers/backend"
	"github.com/rigelbuild/compass-operator/internal/config"
	"github.com/rigelbuild/compass-operator/internal/fabric"
	"github.com/rigelbuild/compass-operator/internal/kube"
	"github.com/rigelbuild/compass-operator/internal/naming"
)

var update = flag.Bool("update", false, "write the golden files")

func goldenScope(t *testing.T, edit func(*v1alpha1.CompassServerSpec)) *scope {
	t.Helper()
	s := &v1alpha1.CompassServer{ObjectMeta: metav1.ObjectMeta{Namespace: "compass", Name: "main"}}
	s.Spec.Database = v1alpha1.DatabaseSpec{Name: "compass", MaxConnections: 20}
	s.Spec.NATS.Managed = v1alpha1.ManagedNATSSpec{Storage: v1alpha1.StorageSpec{Size: resource.MustParse("5Gi")}, SyncInterval: "100ms"}
	s.Spec.Server.Service.Type = corev1.ServiceTypeClusterIP
	s.Spec.Telemetry.LogLevel = "info"
	s.Spec.Sessions = v1alpha1.SessionsSpec{Lease: "30s", MaxTurn: "0s"}
	if edit != nil {
		edit(&s.Spec)
	}
	names, err := naming.ServerChildrenOf(s.Name)
	if err != nil {
		t.Fatal(err)
	}
	keys, _, err := fabric.CompleteKeys(nil)
	if err != nil {
		t.Fatal(err)
	}
	return &scope{
		server: s, key: client.ObjectKeyFromObject(s), names: names,
		identity: &identity{keys: keys, operator: "OPERATOR.JWT", system: "SYSTEM.JWT"},
	}
}

// Holds REQ-204, REQ-205: what the operator wants of Kubernetes, as a reviewer reads it.
func TestDesiredObjects(t *testing.T) {
	t.Parallel()
	images := kube.Images{Compass: "compass:1", NATS: "nats:2", PullPolicy: corev1.PullIfNotPresent}
	for name, edit := range map[string]func(*v1alpha1.CompassServerSpec){
		"minimal": nil,
		"three":   func(spec *v1alpha1.CompassServerSpec) { spec.NATS.Managed.Replicas = 3 },
		"full": func(spec *v1alpha1.CompassServerSpec) {
			spec.Image = v1alpha1.ImageSpec{
				Repository: "registry.example:5000/compass", Tag: "2", PullPolicy: corev1.PullAlways,
				PullSecrets: []corev1.LocalObjectReference{{Name: "pull"}},
			}
			spec.Server.Replicas = new(int32(3))
			spec.Server.Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("250m")}
			spec.Server.Service = v1alpha1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, Annotations: map[string]string{"example.com/lb": "internal"}}
			spec.NATS.Managed.Storage.ClassName = "fast"
			spec.NATS.Managed.SyncInterval = "always"
			spec.NATS.Managed.Resources.Limits = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Gi")}
			spec.NATS.Managed.Pod = v1alpha1.PodOverrides{NodeSelector: map[string]string{"disk": "fast"}, PriorityClassName: "high"}
			spec.Server.Pod = everyOverride()
			spec.Server.TLSSecretRef = &v1alpha1.LocalReference{Name: "mine"}
			spec.Sessions = v1alpha1.SessionsSpec{Lease: "10s", MaxTurn: "1h"}
			spec.Telemetry = v1alpha1.TelemetrySpec{LogLevel: "debug", OTLPEndpoint: "otel.example:4317"}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := goldenScope(t, edit)
			at, err := s.place()
			if err != nil {
				t.Fatal(err)
			}
			text, err := s.serverConfig(at)
			if err != nil {
				t.Fatal(err)
			}
			nats, err := s.natsConfig()
			if err != nil {
				t.Fatal(err)
			}
			nats = strings.ReplaceAll(nats, s.identity.keys.System.Identity.Public(), "SYSTEM")
			got := render(t, s.natsConfigMap(nats), s.natsService(), s.natsStatefulSet(images, "conf"), s.natsBudget(), s.serverConfigMap(text),
				s.serverAccount(), s.serverService(), s.serverBudget(), s.natsDoors(), s.serverDoors(), s.serverDeployment(images, "hash"))
			golden(t, name+".yaml", got)
		})
	}
}

// everyOverride is one of each.
func everyOverride() v1alpha1.PodOverrides {
	return v1alpha1.PodOverrides{
		Labels: map[string]string{"team": "x", "compass.rigel.build/component": "other"}, Annotations: map[string]string{"note": "y"},
		Env:          []corev1.EnvVar{{Name: "GOMEMLIMIT", Value: "200MiB"}},
		NodeSelector: map[string]string{"disk": "fast"}, Tolerations: []corev1.Toleration{{Key: "infra", Operator: corev1.TolerationOpExists}},
		Affinity: &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
			TopologyKey: corev1.LabelTopologyZone,
		}}}},
		TopologySpreadConstraints: []corev1.TopologySpreadConstraint{{
			MaxSkew: 1, TopologyKey: corev1.LabelTopologyZone, WhenUnsatisfiable: corev1.DoNotSchedule,
		}},
		PriorityClassName: "high", SecurityContext: &corev1.PodSecurityContext{RunAsUser: new(int64(1000))},
	}
}

func render(t *testing.T, objects ...client.Object) []byte {
	t.Helper()
	var out bytes.Buffer
	for _, o := range objects {
		gvk, err := apiutil.GVKForObject(o, scheme.Scheme)
		if err != nil {
			t.Fatal(err)
		}
		o.GetObjectKind().SetGroupVersionKind(gvk)
		text, err := yaml.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		out.WriteString("---\n")
		out.Write(text)
	}
	return out.Bytes()
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s differs; -update writes it:\n%s", path, diff)
	}
}

// Holds REQ-024: what the operator writes is what a Server reads, and enough for it to start.
func TestServerConfigIsRead(t *testing.T) {
	t.Parallel()
	s := goldenScope(t, nil)
	at, err := s.place()
	if err != nil {
		t.Fatal(err)
	}
	text, err := s.serverConfig(at)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), keyConfig)
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := config.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.ValidateServer(); err != nil {
		t.Error(err)
	}
	if c.Fabric.URLs[0] != backend.NATSURL(s.key, s.names.NATS) || c.Server.Listen != ":8443" {
		t.Errorf("%+v", c)
	}
}

// Holds REQ-210: an autoscaler's number of replicas is nobody's business but its own.
func TestReplicasMayBeSomebodyElses(t *testing.T) {
	t.Parallel()
	if n := goldenScope(t, nil).serverDeployment(kube.Images{Compass: "c"}, "h").Spec.Replicas; n != nil {
		t.Errorf("replicas %d, want none", *n)
	}
}
