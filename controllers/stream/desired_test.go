package stream

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

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

func goldenScope(t *testing.T) *scope {
	t.Helper()
	d := &v1alpha1.DeliveryStream{ObjectMeta: metav1.ObjectMeta{Namespace: "compass", Name: "main"}}
	d.Spec = v1alpha1.DeliveryStreamSpec{
		ServerRef: v1alpha1.LocalReference{Name: "main"}, Tenants: v1alpha1.TenantSelection{All: true},
		Stream: v1alpha1.StreamSpec{
			MaxAge: "168h", MaxBytes: resource.MustParse("1Gi"), DuplicateWindow: "30s", PerTenant: v1alpha1.PerTenantSpec{MaxMessages: 10000},
		},
		Delivery:   v1alpha1.DeliverySpec{MaxDeliver: 5, AckWait: "30s", Backoff: []string{"1s", "5s"}, MaxAckPending: 256},
		DeadLetter: v1alpha1.DeadLetterSpec{MaxAge: "720h", MaxBytes: resource.MustParse("256Mi")},
		Recovery:   v1alpha1.RecoverySpec{FloorTick: "2m"}, Worker: v1alpha1.WorkerSpec{Lease: "6s"},
	}
	server := &v1alpha1.CompassServer{ObjectMeta: metav1.ObjectMeta{Namespace: "compass", Name: "main"}}
	server.Spec.Database.MaxConnections = 20
	server.Spec.Telemetry.LogLevel = "info"
	names, err := naming.StreamChildrenOf(d.Name)
	if err != nil {
		t.Fatal(err)
	}
	return &scope{
		stream: d, key: client.ObjectKeyFromObject(d), names: names, server: server,
		at: backend.Place{
			Server: client.ObjectKeyFromObject(server), NATS: []string{"nats://main-nats.compass.svc:4222"},
			Databases: []config.Database{{App: "postgres://app@h/d", System: "postgres://system@h/d", Provision: "postgres://provision@h/d", Direct: "postgres://direct@h/d"}},
		},
	}
}

// Holds REQ-208, REQ-209: what the operator wants of Kubernetes, as a reviewer reads it: one worker, recreated, soon
// replaced when its node is lost.
func TestDesiredObjects(t *testing.T) {
	t.Parallel()
	images := kube.Images{Compass: "compass:1", NATS: "nats:2", PullPolicy: corev1.PullIfNotPresent}
	for name, suspend := range map[string]bool{"running": false, "suspended": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := goldenScope(t)
			s.stream.Spec.Suspend = suspend
			text, err := s.workerConfig()
			if err != nil {
				t.Fatal(err)
			}
			var got bytes.Buffer
			for _, o := range []client.Object{s.workerConfigMap(text), s.workerAccount(), s.workerDoors(), s.workerDeployment(images, "main-command-key", "hash")} {
				gvk, err := apiutil.GVKForObject(o, scheme.Scheme)
				if err != nil {
					t.Fatal(err)
				}
				o.GetObjectKind().SetGroupVersionKind(gvk)
				text, err := yaml.Marshal(o)
				if err != nil {
					t.Fatal(err)
				}
				got.WriteString("---\n")
				got.Write(text)
			}
			path := filepath.Join("testdata", name+".yaml")
			if *update {
				if err := os.WriteFile(path, got.Bytes(), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got.String()); diff != "" {
				t.Errorf("%s differs; -update writes it:\n%s", path, diff)
			}
		})
	}
}

// Holds REQ-024: what the operator writes is what a worker reads, and the same numbers as JetStream has.
func TestWorkerConfigIsRead(t *testing.T) {
	t.Parallel()
	s := goldenScope(t)
	text, err := s.workerConfig()
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
	if err := c.ValidateDelivery(); err != nil {
		t.Error(err)
	}
	spec, err := desireStream(s.stream)
	if err != nil {
		t.Fatal(err)
	}
	if time.Duration(c.Delivery.AckWait) != spec.AckWait || c.Delivery.MaxAckPending != spec.MaxAckPending || c.Delivery.Stream != spec.Name {
		t.Errorf("the worker has %+v, JetStream %+v", c.Delivery, spec)
	}
}

// Holds REQ-236: a worker cannot make tenants.
func TestWorkerDatabases(t *testing.T) {
	t.Parallel()
	s := goldenScope(t)
	text, err := s.workerDatabases()
	if err != nil || strings.Contains(string(text), "provision") || !strings.Contains(string(text), "direct") {
		t.Errorf("%s, %v", text, err)
	}
	if s.at.Databases[0].Provision == "" {
		t.Error("the operator lost its own right")
	}
}

func TestDesireStream(t *testing.T) {
	t.Parallel()
	s := goldenScope(t)
	got, err := desireStream(s.stream)
	want := fabric.StreamSpec{
		Name: "main", Replicas: 1, MaxAge: 168 * time.Hour, MaxBytes: 1 << 30, DuplicateWindow: 30 * time.Second, MaxPerTenant: 10000,
		AckWait: 30 * time.Second, MaxAckPending: 256, DeadMaxAge: 720 * time.Hour, DeadMaxBytes: 256 << 20,
	}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v\n%s", err, diff)
	}
	s.stream.Spec.Delivery.AckWait = "soon"
	if _, err := desireStream(s.stream); err == nil || !strings.Contains(err.Error(), "spec.delivery.ackWait") {
		t.Errorf("%v; want the field named", err)
	}
}
