package main

import (
	"bytes"
	"context"
	"encoding/pem"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"connectrpc.com/connect"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	compassv1 "github.com/rigelbuild/compass-operator/api/proto/compass/v1"
	"github.com/rigelbuild/compass-operator/api/proto/compass/v1/compassv1connect"
	"github.com/rigelbuild/compass-operator/api/v1alpha1"
)

// shell runs the plugin against a cluster with some objects.
type shell struct {
	client client.Client
}

func newShell(t *testing.T, objects ...client.Object) shell {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	return shell{fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).Build()}
}

func (s shell) run(t *testing.T, args ...string) (code int, out, log string) {
	t.Helper()
	var o, l bytes.Buffer
	code = run(t.Context(), args, &o, &l, func(_, _, namespace string) (client.Client, string, error) {
		if namespace == "" {
			namespace = "compass"
		}
		return s.client, namespace, nil
	})
	return code, o.String(), l.String()
}

func condition(kind string, status metav1.ConditionStatus, reason, message string) metav1.Condition {
	return metav1.Condition{Type: kind, Status: status, Reason: reason, Message: message}
}

func objects() []client.Object {
	meta := func(namespace, name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: namespace, Name: name}
	}
	ready := []metav1.Condition{condition("Ready", metav1.ConditionTrue, "Available", "")}
	s := &v1alpha1.CompassServer{ObjectMeta: meta("compass", "main")}
	s.Status.Conditions, s.Status.Schema, s.Status.AvailableServers, s.Status.Tenants = ready, &v1alpha1.SchemaStatus{Version: 7, Latest: 7}, 2, 2
	d := &v1alpha1.DeliveryStream{ObjectMeta: meta("compass", "main")}
	d.Spec.ServerRef.Name = "main"
	d.Status.Conditions = []metav1.Condition{
		condition("SingleWriter", metav1.ConditionFalse, "ScaleContested", "somebody keeps scaling"),
		condition("Ready", metav1.ConditionFalse, "ScaleContested", "SingleWriter: somebody keeps scaling"),
	}
	d.Status.Tenants, d.Status.DeadLetters, d.Status.Backlog = 1, 3, &v1alpha1.BacklogStatus{Owed: 10}
	d.Status.Writer = &v1alpha1.WriterStatus{Pod: "main-compass-delivery-x"}
	tenant := func(namespace, name, stream string) *v1alpha1.CompassTenant {
		o := &v1alpha1.CompassTenant{ObjectMeta: meta(namespace, name)}
		o.Spec.ServerRef = v1alpha1.ServerReference{Name: "main", Namespace: "compass"}
		o.Status.Conditions, o.Status.Stream, o.Status.TenantID = ready, stream, "t_1"
		o.Status.Secrets.API = name + "-api"
		return o
	}
	lost := tenant("away", "lost", "")
	lost.Status.Conditions = []metav1.Condition{
		condition("Delivering", metav1.ConditionFalse, "NoStream", "no DeliveryStream carries this tenant"),
		condition("Ready", metav1.ConditionFalse, "NoStream", "Delivering: no DeliveryStream carries this tenant"),
	}
	return []client.Object{s, d, tenant("compass", "acme", "main"), lost}
}

// Holds REQ-218: the tree tells in one look who carries whom and what is wrong.
func TestStatus(t *testing.T) {
	t.Parallel()
	s := newShell(t, objects()...)
	code, out, log := s.run(t, "status")
	want := `✓ server main  (schema 7 of 7, 2 servers, 2 tenants)
  ✗ stream main  (1 tenants, 10 owed, 0 held, 3 dead letters, written by main-compass-delivery-x)  ScaleContested: SingleWriter: somebody keeps scaling
    ✓ tenant acme
    ✗ tenant lost  NoStream: Delivering: no DeliveryStream carries this tenant
`
	if code != 0 || out != want {
		t.Errorf("code %d, %s\n%s\nwant\n%s", code, log, out, want)
	}
	code, out, _ = s.run(t, "status", "acme")
	if code != 0 || !strings.Contains(out, "id t_1, account none, stream main") {
		t.Errorf("code %d, %s", code, out)
	}
	if code, _, log = s.run(t, "status", "nobody"); code != 1 || !strings.Contains(log, `no CompassTenant has the name or slug "nobody"`) {
		t.Errorf("code %d, %s", code, log)
	}
}

// Holds REQ-218: what is wrong is told with what it means, and a script sees it.
func TestDoctor(t *testing.T) {
	t.Parallel()
	code, out, log := newShell(t, objects()...).run(t, "doctor")
	for _, part := range []string{
		"DeliveryStream main: SingleWriter is False: ScaleContested: somebody keeps scaling", "ScaleContested: somebody keeps scaling the worker",
		"CompassTenant lost: Delivering is False: NoStream",
	} {
		if !strings.Contains(out, part) {
			t.Errorf("%q is not in\n%s", part, out)
		}
	}
	if code != 1 || !strings.Contains(log, "2 findings") {
		t.Errorf("code %d, %s", code, log)
	}
	code, out, _ = newShell(t, objects()[0]).run(t, "doctor")
	if code != 0 || out != "Everything is Ready.\n" {
		t.Errorf("code %d, %s", code, out)
	}
}

// Holds REQ-213, REQ-218: every condition and reason of the API is documented, and can be asked for.
func TestExplain(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	for name, part := range map[string]string{"singlewriter": "one worker holds the lease", "NoStream": "no DeliveryStream carries the tenant"} {
		if code, out, log := s.run(t, "explain", name); code != 0 || !strings.Contains(out, part) {
			t.Errorf("%s: code %d, %s%s", name, code, out, log)
		}
	}
	if code, _, log := s.run(t, "explain", "Nonsense"); code != 1 || !strings.Contains(log, "there are: AccountConflict") {
		t.Errorf("code %d, %s", code, log)
	}
	if n := len(v1alpha1.Explain()); n < 50 {
		t.Errorf("only %d are documented", n)
	}
}

// Holds REQ-218: a rotation is asked for by an annotation with a value that was not there before.
func TestRotate(t *testing.T) {
	t.Parallel()
	s := newShell(t, objects()...)
	seen := map[string]bool{}
	for range 2 {
		if code, _, log := s.run(t, "tenant", "rotate", "acme"); code != 0 {
			t.Fatal(log)
		}
		o := &v1alpha1.CompassTenant{}
		if err := s.client.Get(t.Context(), client.ObjectKey{Namespace: "compass", Name: "acme"}, o); err != nil {
			t.Fatal(err)
		}
		if value := o.Annotations[v1alpha1.AnnotationRotate]; value == "" || seen[value] {
			t.Errorf("annotation %q", value)
		} else {
			seen[value] = true
		}
	}
}

// letterbox is an API with two dead letters on two pages.
type letterbox struct {
	compassv1connect.UnimplementedAdminServiceHandler
	token string
	last  *compassv1.DeadLetterFilter
}

func (l *letterbox) ListDeadLetters(_ context.Context, r *connect.Request[compassv1.ListDeadLettersRequest]) (*connect.Response[compassv1.ListDeadLettersResponse], error) {
	l.token = r.Header().Get("Authorization")
	if r.Msg.GetPageToken() == "" {
		return connect.NewResponse(&compassv1.ListDeadLettersResponse{
			DeadLetters: []*compassv1.DeadLetter{{MessageId: "m_1", RecipientId: "a_1", Attempts: 5, Reason: "rejected"}}, NextPageToken: "2",
		}), nil
	}
	return connect.NewResponse(&compassv1.ListDeadLettersResponse{DeadLetters: []*compassv1.DeadLetter{{MessageId: "m_2"}}}), nil
}

func (l *letterbox) ReplayDeadLetters(_ context.Context, r *connect.Request[compassv1.ReplayDeadLettersRequest]) (*connect.Response[compassv1.ReplayDeadLettersResponse], error) {
	l.last = r.Msg.GetFilter()
	return connect.NewResponse(&compassv1.ReplayDeadLettersResponse{Count: 2}), nil
}

func (l *letterbox) PurgeDeadLetters(_ context.Context, r *connect.Request[compassv1.PurgeDeadLettersRequest]) (*connect.Response[compassv1.PurgeDeadLettersResponse], error) {
	l.last = r.Msg.GetFilter()
	return connect.NewResponse(&compassv1.PurgeDeadLettersResponse{Count: 1}), nil
}

// Holds REQ-218: dead letters through the API, as the tenant's admin, over a verified connection, with a dry run; nothing is
// given up without a word.
func TestDeadLetters(t *testing.T) {
	t.Parallel()
	box := &letterbox{}
	mux := http.NewServeMux()
	mux.Handle(compassv1connect.NewAdminServiceHandler(box))
	server := httptest.NewTLSServer(mux)
	t.Cleanup(server.Close)
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	secret := func(url string) *corev1.Secret {
		return &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: "compass", Name: "acme-api"},
			Data:       map[string][]byte{"url": []byte(url), "token": []byte("cmp_t_secret-word"), "ca.crt": ca},
		}
	}
	// The test server's certificate is of example.com; the port that is forwarded is elsewhere.
	s := newShell(t, append(objects(), secret("https://example.com:8443"))...)
	run := func(args ...string) (int, string, string) {
		t.Helper()
		return s.run(t, append(args, "--server", server.URL)...)
	}

	code, out, log := run("dlq", "list", "acme")
	if code != 0 || !strings.Contains(out, "m_1") || !strings.Contains(out, "m_2") || !strings.Contains(out, "rejected") || box.token != "Bearer cmp_t_secret-word" {
		t.Errorf("code %d, %s%s, token %q", code, out, log, box.token)
	}
	if code, out, _ = run("dlq", "show", "acme", "m_2"); code != 0 || strings.Contains(out, "m_1") {
		t.Errorf("code %d, %s", code, out)
	}
	if code, out, _ = run("dlq", "replay", "acme", "--message", "m_1", "--dry-run"); code != 0 || out != "Would be owed again: 2.\n" || box.last.GetMessageId() != "m_1" {
		t.Errorf("code %d, %s, %v", code, out, box.last)
	}
	if code, _, log = run("dlq", "purge", "acme"); code != 1 || !strings.Contains(log, "cannot be undone") {
		t.Errorf("code %d, %s", code, log)
	}
	if code, out, _ = run("dlq", "purge", "acme", "--recipient", "a_1", "--yes"); code != 0 || out != "Given up: 1.\n" || box.last.GetRecipientId() != "a_1" {
		t.Errorf("code %d, %s, %v", code, out, box.last)
	}
	// A certificate of somebody else is refused, and the token is not in the words.
	stranger := newShell(t, append(objects(), secret("https://other.test:8443"))...)
	if code, out, log = stranger.run(t, "dlq", "list", "acme", "--server", server.URL); code != 1 || strings.Contains(out+log, "secret-word") || !strings.Contains(log, "certificate") {
		t.Errorf("code %d, %s%s", code, out, log)
	}
}
