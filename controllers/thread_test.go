package controllers_test

import (
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/rigelbuild/compass-operator/api/v1alpha1"
	"github.com/rigelbuild/compass-operator/internal/fabric"
	"github.com/rigelbuild/compass-operator/internal/naming"
	"github.com/rigelbuild/compass-operator/internal/store"
)

// Holds REQ-203, REQ-204, REQ-205, REQ-206, REQ-208, REQ-213: the three kinds become Ready on a real Postgres and a real
// NATS, with what the operator made for them in use; and then nothing is written any more (REQ-210).
func TestThread(t *testing.T) {
	t.Parallel()
	g := newGround(t)
	op := newOperator(t, g, &calls{})
	server := g.newServer(t, "main")
	acme := g.newTenant(t, "acme", "main", func(o *v1alpha1.CompassTenant) { o.Spec.DisplayName = "Acme" })
	stream := g.newStream(t, "main", "main")
	all := []named{server, acme, stream}
	op.settle(t, all...)
	g.mustBeReady(t, all...)

	t.Run("server", func(t *testing.T) {
		s := &v1alpha1.CompassServer{}
		g.get(t, s, "main")
		if s.Status.Schema.Version != s.Status.Schema.Latest || s.Status.Schema.Version == 0 {
			t.Errorf("schema %+v", s.Status.Schema)
		}
		if s.Status.NATS.Servers != 1 || s.Status.NATS.Version == "" || !strings.HasPrefix(s.Status.NATS.OperatorKey, "O") {
			t.Errorf("NATS %+v", s.Status.NATS)
		}
		if s.Status.Tenants != 1 || s.Status.Streams != 1 || s.Status.AvailableServers != 2 || s.Status.ObservedGeneration != s.Generation {
			t.Errorf("status %+v", s.Status)
		}
	})
	t.Run("tenant", func(t *testing.T) {
		o := &v1alpha1.CompassTenant{}
		g.get(t, o, "acme")
		if naming.ValidTenant(o.Status.TenantID) != nil || o.Status.Slug != "acme" || o.Status.Stream != "main" || o.Status.Secrets.API != "acme-api" ||
			!strings.HasPrefix(o.Status.Account, "A") {
			t.Errorf("status %+v", o.Status)
		}
	})
	t.Run("stream", func(t *testing.T) {
		o := &v1alpha1.DeliveryStream{}
		g.get(t, o, "main")
		if o.Status.Tenants != 1 || o.Status.Writer == nil || o.Status.Writer.Pod != "main-compass-delivery-0" || o.Status.Writer.Epoch == 0 {
			t.Errorf("status %+v", o.Status)
		}
	})
	t.Run("credentials", func(t *testing.T) { g.checkCredentials(t) })
	t.Run("pods", func(t *testing.T) { g.checkPods(t) })

	t.Run("enrolment", func(t *testing.T) { g.checkEnrolment(t, op, server) })

	keys := g.secret(t, "main-keys")
	op.calls.writes = nil
	events := len(op.events)
	for range 3 {
		for _, o := range all {
			if _, err := op.once(t, o.kind(), o.name); err != nil {
				t.Error(err)
			}
		}
	}
	if len(op.calls.writes) != 0 || len(op.events) != events {
		t.Errorf("idle passes wrote %v and said %v", op.calls.writes, op.events[events:])
	}
	if !sameData(keys, g.secret(t, "main-keys")) {
		t.Error("an idle pass changed the keys")
	}
}

func sameData(a, b map[string][]byte) bool {
	if len(a) != len(b) {
		return false
	}
	for k, v := range a {
		if string(b[k]) != string(v) {
			return false
		}
	}
	return true
}

// checkCredentials uses what was published.
func (g *ground) checkCredentials(t *testing.T) {
	t.Helper()
	if err := g.enter(t, g.secret(t, "main-server")["nats.creds"], fabric.InboxPrefix(fabric.RoleServer, "")); err != nil {
		t.Error(err)
	}
	s := g.open(t, "main-databases")
	for secret, slug := range map[string]string{"main-admin": naming.SystemSlug, "acme-api": "acme"} {
		data := g.secret(t, secret)
		tenant, _, err := naming.ParseToken(string(data["token"]))
		if err != nil {
			t.Fatal(err)
		}
		caller, err := s.Authenticate(store.WithTenant(t.Context(), store.TenantID(tenant)), naming.TokenHash(string(data["token"])))
		if err != nil || caller.Slug != slug || !caller.Admin() {
			t.Errorf("%s opens %+v, %v; want an admin of %s", secret, caller, err, slug)
		}
		if string(data["url"]) != "https://main-server."+g.namespace+".svc:8443" || !strings.Contains(string(data["ca.crt"]), "BEGIN CERTIFICATE") {
			t.Errorf("%s: url %s", secret, data["url"])
		}
	}
}

// checkEnrolment: the published token lets one Runner in, and then the next takes its place (REQ-234).
func (g *ground) checkEnrolment(t *testing.T, op *operator, server named) {
	t.Helper()
	s := g.open(t, "main-databases")
	seen := map[string]bool{}
	for _, key := range []string{"U1", "U2"} {
		token := string(g.secret(t, "main-runner-enrol")["token"])
		if seen[token] {
			t.Error("a token that was used is still published")
		}
		seen[token] = true
		r, err := s.EnrollRunner(t.Context(), store.Enrolment{TokenHash: naming.TokenHash(token), PublicKey: key, ID: "r-" + key})
		if err != nil || r.Fleet != naming.SharedFleet {
			t.Errorf("enrolment: %+v, %v", r, err)
		}
		op.settle(t, server)
	}
}

// checkPods holds every pod to the restricted standard, and secrets out of arguments and environment (REQ-224).
func (g *ground) checkPods(t *testing.T) {
	t.Helper()
	var pods []corev1.PodTemplateSpec
	for _, name := range []string{"main-server", "main-compass-delivery"} {
		dep := &appsv1.Deployment{}
		g.get(t, dep, name)
		pods = append(pods, dep.Spec.Template)
	}
	set := &appsv1.StatefulSet{}
	g.get(t, set, "main-nats")
	for _, pod := range append(pods, set.Spec.Template) {
		sc := pod.Spec.SecurityContext
		if !*sc.RunAsNonRoot || *sc.RunAsUser == 0 || sc.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault || *pod.Spec.AutomountServiceAccountToken {
			t.Errorf("pod of %v is not restricted", pod.Labels)
		}
		for _, c := range pod.Spec.Containers {
			if *c.SecurityContext.AllowPrivilegeEscalation || !*c.SecurityContext.ReadOnlyRootFilesystem ||
				!slices.Equal(c.SecurityContext.Capabilities.Drop, []corev1.Capability{"ALL"}) {
				t.Errorf("container %s is not restricted", c.Name)
			}
			if len(c.Env) > 1 || len(c.EnvFrom) > 0 {
				t.Errorf("container %s has an environment: %v", c.Name, c.Env)
			}
		}
	}
	worker := &appsv1.Deployment{}
	g.get(t, worker, "main-compass-delivery")
	if *worker.Spec.Replicas != 1 || worker.Spec.Strategy.Type != appsv1.RecreateDeploymentStrategyType {
		t.Errorf("worker: %d replicas, %s", *worker.Spec.Replicas, worker.Spec.Strategy.Type)
	}
	for _, tol := range worker.Spec.Template.Spec.Tolerations {
		if *tol.TolerationSeconds != 15 {
			t.Errorf("toleration %+v", tol)
		}
	}
}
