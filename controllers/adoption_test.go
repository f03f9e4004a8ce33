package controllers_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/rigelbuild/compass-operator/api/v1alpha1"
	"github.com/rigelbuild/compass-operator/internal/fabric"
	"github.com/rigelbuild/compass-operator/internal/kube"
	"github.com/rigelbuild/compass-operator/internal/naming"
)

// Holds REQ-206, REQ-211: an account that another operator made in somebody else's NATS, whose key was handed over in the
// tenant's Secret, is told with what would be changed of it, refused while it carries a managed-by tag, and taken over by an
// edit of adoptionPolicy with the key that it has.
func TestAccountIsTakenOver(t *testing.T) {
	t.Parallel()
	g := newGround(t)
	op := newOperator(t, g, &calls{})
	operator, system := g.theirs(t)
	for name, data := range map[string]map[string][]byte{"nats-operator": {"operator.seed": operator}, "nats-system": {"nats.creds": system}} {
		g.create(t, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: g.namespace, Name: name}, Data: data})
	}
	server := g.newServer(t, "main", func(s *v1alpha1.CompassServer) {
		s.Spec.NATS = v1alpha1.NATSSpec{Mode: v1alpha1.NATSModeExternal, External: &v1alpha1.ExternalNATSSpec{
			URLs: []string{theirURL}, OperatorSecretRef: v1alpha1.LocalReference{Name: "nats-operator"}, SystemSecretRef: v1alpha1.LocalReference{Name: "nats-system"},
		}}
	})
	op.settle(t, server)
	g.mustBeReady(t, server)

	keys, made, err := fabric.CompleteTenantKeys(nil)
	if err != nil || len(made["account.seed"]) == 0 {
		t.Fatalf("%d keys, %v", len(made), err)
	}
	g.create(t, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: g.namespace, Name: "acme-keys", Labels: kube.Labels(naming.LabelTenant, "acme", naming.ComponentSecret),
		},
		Data: map[string][]byte{"account.seed": made["account.seed"]},
	})
	them := g.nats[theirURL].Foreign(t, system, "_INBOX")
	them.Account(t, made["account.seed"], operator, "managed-by:somebody")
	acme, stream := g.newTenant(t, "acme", "main"), g.newStream(t, "main", "main")
	const ready = v1alpha1.ConditionAccountReady
	o := &v1alpha1.CompassTenant{}
	adopt := func(p v1alpha1.AdoptionPolicy) {
		t.Helper()
		g.update(t, o, "acme", func() { o.Spec.AdoptionPolicy = p })
		op.settle(t, acme, stream)
	}
	op.settle(t, acme, stream)
	g.says(t, acme, ready, is("False", "ObjectConflict"), keys.Identity.Public(), "is managed by somebody", "to be changed are", "name", "signingKeys")
	adopt(v1alpha1.AdoptionIfUnowned)
	g.says(t, acme, ready, is("False", "ObjectConflict"), "is managed by somebody")
	them.Account(t, made["account.seed"], operator)
	adopt(v1alpha1.AdoptionNever)
	g.says(t, acme, ready, is("False", "ObjectConflict"), "is not ours", "set spec.adoptionPolicy to IfUnowned")
	adopt(v1alpha1.AdoptionIfUnowned)
	op.settle(t, acme)
	g.mustBeReady(t, acme)
	if g.get(t, o, "acme"); o.Status.Account != keys.Identity.Public() {
		t.Errorf("account %s, want the one that was there, %s", o.Status.Account, keys.Identity.Public())
	}
	if string(g.secret(t, "acme-keys")["account.seed"]) != string(made["account.seed"]) {
		t.Error("its key is another")
	}
	adopt(v1alpha1.AdoptionNever) // it is ours now
	g.mustBeReady(t, acme)
}
