package main

import (
	"bytes"
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/rigelbuild/compass-operator/api/v1alpha1"
	"github.com/rigelbuild/compass-operator/internal/fabric"
	"github.com/rigelbuild/compass-operator/internal/fabric/embedded"
	"github.com/rigelbuild/compass-operator/internal/fabric/fabrictest"
	"github.com/rigelbuild/compass-operator/internal/naming"
)

// place is a cluster with a stream, and the NATS that its keys open.
func place(t *testing.T) (c client.Client, ns *embedded.Server) {
	t.Helper()
	ns, err := embedded.Start(embedded.Config{Dir: t.TempDir(), Listen: "127.0.0.1:0", Logger: slog.New(slog.DiscardHandler), SyncEvery: "10s"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(ns.Stop)
	keys := ns.Keys().Compass
	data := map[string][]byte{
		"compass.seed": keys.Identity.Text(), "compass-signing.seed": keys.Signing.Text(),
		"compass-server.seed": keys.Scoped[fabric.RoleServer].Text(), "compass-worker.seed": keys.Scoped[fabric.RoleWorker].Text(),
	}
	names, err := naming.ServerChildrenOf("main")
	if err != nil {
		t.Fatal(err)
	}
	meta := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: "compass", Name: name} }
	stream := &v1alpha1.DeliveryStream{ObjectMeta: meta(fabrictest.Stream)}
	stream.Spec.ServerRef.Name = "main"
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	return fake.NewClientBuilder().WithScheme(scheme).WithObjects(
		stream, &v1alpha1.CompassServer{ObjectMeta: meta("main")}, &corev1.Secret{ObjectMeta: meta(names.Keys), Data: data},
	).Build(), ns
}

func shell(t *testing.T, c client.Client, args ...string) (code int, out, log string) {
	t.Helper()
	var o, l bytes.Buffer
	code = run(t.Context(), args, &o, &l, func(_, _, _ string) (client.Client, string, error) { return c, "compass", nil })
	return code, o.String(), l.String()
}

// What a person types: a backup, and a restore, which is refused while there is something to lose.
func TestBackupAndRestore(t *testing.T) {
	t.Parallel()
	c, ns := place(t)
	creds, err := ns.Standalone()
	if err != nil {
		t.Fatal(err)
	}
	f, err := fabric.New(fabric.Config{
		Name: "test", InProcess: ns, Credentials: creds, Stream: fabrictest.Stream, Manage: true, Logger: slog.New(slog.DiscardHandler),
		StreamOf: func(string) (string, bool) { return fabrictest.Stream, true },
	})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close(t.Context()) //nolint:errcheck // the test is over
	if _, _, err := f.EnsureStream(t.Context(), fabric.StreamSpec{Name: fabrictest.Stream}, false); err != nil {
		t.Fatal(err)
	}
	subject, err := fabric.CommsSubject(fabrictest.TenantA, fabric.KindMessagePosted)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Publish(t.Context(), subject, fabrictest.Ref(fabrictest.TenantA, "kept-1")); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "monday")
	if code, out, log := shell(t, c, "backup", fabrictest.Stream, dir, "--nats", ns.URL()); code != 0 || !strings.Contains(out, "CMP_main ") {
		t.Fatalf("backup: %d, %s, %s", code, out, log)
	}
	code, _, log := shell(t, c, "restore", fabrictest.Stream, dir, "--nats", ns.URL())
	if code != 1 || !strings.Contains(log, "--replace") {
		t.Errorf("restore over a message: %d, %s", code, log)
	}
	if err := f.RemoveStream(t.Context(), fabrictest.Stream); err != nil {
		t.Fatal(err)
	}
	if code, out, log := shell(t, c, "restore", fabrictest.Stream, dir, "--nats", ns.URL()); code != 0 || !strings.Contains(out, "RESTORED") {
		t.Fatalf("restore: %d, %s, %s", code, out, log)
	}
	queue, _, _, err := f.ObserveStream(t.Context(), fabric.StreamSpec{Name: fabrictest.Stream})
	if err != nil || queue.Messages != 1 {
		t.Errorf("%d messages, %v, want 1", queue.Messages, err)
	}
	if code, _, log := shell(t, c, "backup", "nobody", dir); code != 1 || !strings.Contains(log, "no DeliveryStream compass/nobody") {
		t.Errorf("a stream that there is not: %d, %s", code, log)
	}
}
