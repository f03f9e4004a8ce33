package controllers_test

import (
	"crypto/rand"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/rigelbuild/compass-operator/api/v1alpha1"
	"github.com/rigelbuild/compass-operator/internal/fabric"
	"github.com/rigelbuild/compass-operator/internal/store/storetest"
)

// What bit other operators, by the number of the scenario. Those that are not here are held by the test that names them.

// Lesson 1: NATS is away at the first apply: nobody gives up, and everything appears when it comes.
func TestLesson1FirstApplyWithoutNATS(t *testing.T) {
	t.Parallel()
	g := newGround(t)
	op := newOperator(t, g, &calls{})
	g.halted["main-nats"] = true
	server, acme, stream := g.newServer(t, "main"), g.newTenant(t, "acme", "main"), g.newStream(t, "main", "main")
	op.settle(t, server, acme, stream)
	g.says(t, server, v1alpha1.ConditionFabricReady, is("False", "WaitingForPods"), "describe pods")
	for range 2 {
		if res, err := op.once(t, &v1alpha1.DeliveryStream{}, "main"); err == nil && res.RequeueAfter == 0 {
			t.Fatal("nobody tries again")
		}
	}
	g.halted["main-nats"] = false
	op.settle(t, server, acme, stream)
	op.settle(t, server, acme, stream)
	g.mustBeReady(t, server, acme, stream)
}

// Lesson 6: Secrets that go before their objects hold no deletion up; only that of the Postgres admin does, and says so.
func TestLesson6SecretsGoFirst(t *testing.T) {
	t.Parallel()
	th := newThread(t, v1alpha1.DeletionPolicyDelete)
	for _, name := range []string{"acme-api", "acme-keys", "main-compass-delivery", "main-databases", "postgres-admin"} {
		th.delete(t, &corev1.Secret{}, name)
	}
	th.removeObject(t, th.server)
	th.says(t, th.server, v1alpha1.ConditionReady, is("False", "DeletionBlocked"), "Secret "+th.namespace+"/postgres-admin does not exist", "force-release")
	th.adminSecret(t, "postgres-admin")
	th.settle(t, th.server)
	if !th.isGone(t, th.server) {
		t.Errorf("the server is held: %v", th.condition(t, th.server, v1alpha1.ConditionReady))
	}
	th.removeObject(t, th.tenant)
	th.removeObject(t, th.stream)
	if !th.isGone(t, th.tenant) || !th.isGone(t, th.stream) {
		t.Error("a child is held")
	}
}

// Lesson 11: of two objects with one slug the younger is deleted with everything it has, which is nothing.
func TestLesson11LoserTakesNothing(t *testing.T) {
	t.Parallel()
	th := newThread(t, v1alpha1.DeletionPolicyRetain)
	twin := th.newTenant(t, "twin", "main", func(o *v1alpha1.CompassTenant) {
		o.Spec.Slug, o.Spec.DeletionPolicy = "acme", v1alpha1.DeletionPolicyDelete
	})
	th.settle(t, twin)
	th.says(t, twin, v1alpha1.ConditionServerAccepted, is("False", "SlugConflict"))
	token := string(th.secret(t, "acme-api")["token"])
	th.removeObject(t, twin)
	if !th.isGone(t, twin) {
		t.Error("the loser is held")
	}
	th.settle(t, th.tenant)
	th.mustBeReady(t, th.tenant)
	if !opens(t, th.open(t, "main-databases"), token) {
		t.Error("the survivor's token is gone")
	}
}

// Lesson 19: what was set and is taken away again returns to its default on the server.
func TestLesson19BackToTheDefault(t *testing.T) {
	t.Parallel()
	th := newThread(t, v1alpha1.DeletionPolicyRetain)
	d := &v1alpha1.DeliveryStream{}
	drift := func() []string {
		t.Helper()
		seen, err := th.pool.EnsureStream(t.Context(), th.place(t), fabric.StreamSpec{Name: "main", MaxAge: 168 * time.Hour}, v1alpha1.AdoptionNever)
		if err != nil {
			t.Fatal(err)
		}
		return seen.Drift
	}
	th.update(t, d, "main", func() { d.Spec.Stream.MaxAge = "1h" })
	th.settle(t, th.stream)
	th.mustBeReady(t, th.stream)
	th.update(t, d, "main", func() { d.Spec.Stream.MaxAge = "" })
	if th.get(t, d, "main"); d.Spec.Stream.MaxAge != "168h" {
		t.Errorf("maxAge %q", d.Spec.Stream.MaxAge)
	}
	th.settle(t, th.stream)
	th.mustBeReady(t, th.stream)
	if left := drift(); len(left) > 0 {
		t.Errorf("still differs: %v", left)
	}
}

// Lessons 35 and 39: a password is whatever it is, and the one that the Secret has now is used, without a restart.
func TestLessons35And39AdminPassword(t *testing.T) {
	t.Parallel()
	th := newThread(t, v1alpha1.DeletionPolicyRetain)
	super := storetest.Connect(t, th.superDSN(t))
	role := "adm_" + strings.ToLower(rand.Text())[:12]
	const odd = `% @ : / # ? ' \ "word`
	quoted := "'" + strings.ReplaceAll(odd, "'", "''") + "'"
	for _, sql := range []string{
		"create role " + role + " login createrole createdb password " + quoted, "grant " + th.database + "_owner to " + role + " with admin option",
	} {
		if _, err := super.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	secret := &corev1.Secret{}
	parts := th.adminParts(t)
	parts["username"], parts["password"] = role, odd
	th.update(t, secret, "postgres-admin", func() { secret.Data, secret.StringData = nil, parts })
	th.settle(t, th.server)
	th.mustBeReady(t, th.server)
	// And the reference may name another Secret.
	parts["password"] = "wrong"
	th.create(t, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: th.namespace, Name: "other"}, StringData: parts})
	o := &v1alpha1.CompassServer{}
	th.update(t, o, "main", func() { o.Spec.Database.AdminSecretRef.Name = "other" })
	th.settle(t, th.server)
	th.says(t, th.server, v1alpha1.ConditionDatabaseReady, is("False", "DatabaseAuthFailed"), "correct username and password in Secret "+th.namespace+"/other")
	parts["password"] = odd
	th.update(t, secret, "other", func() { secret.Data, secret.StringData = nil, parts })
	th.settle(t, th.server)
	th.mustBeReady(t, th.server)
}
