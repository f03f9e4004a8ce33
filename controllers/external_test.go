package controllers_test

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/rigelbuild/compass-operator/api/v1alpha1"
	"github.com/rigelbuild/compass-operator/internal/fabric"
	"github.com/rigelbuild/compass-operator/internal/fabric/natstest"
	"github.com/rigelbuild/compass-operator/internal/naming"
)

const theirURL = "nats://nats.example:4222"

// theirs is a NATS that somebody else runs, and what they hand over: a signing key and a user of the system account.
func (g *ground) theirs(tb testing.TB) (operatorSeed, systemCreds []byte) {
	tb.Helper()
	keys, _, err := fabric.CompleteKeys(nil)
	if err != nil {
		tb.Fatal(err)
	}
	operator, err := fabric.OperatorJWT(keys, "theirs")
	if err != nil {
		tb.Fatal(err)
	}
	system, err := fabric.SystemAccount(keys, "theirs").Sign(keys.Signing[0])
	if err != nil {
		tb.Fatal(err)
	}
	public, dir := keys.System.Identity.Public(), tb.TempDir()
	conf := fabric.ServerConfig{
		Name: "theirs", Operator: operator, System: public, Preload: map[string]string{public: system},
		JWTDir: dir + "/jwt", StoreDir: dir + "/js", Port: naming.NATSPort, MaxFile: 8 << 30, SyncEvery: "100ms",
	}
	s := natstest.New(tb)
	s.Start(tb, conf.Render())
	g.mu.Lock()
	g.nats[theirURL] = s
	g.mu.Unlock()
	seed, err := fabric.NewUserSeed()
	if err != nil {
		tb.Fatal(err)
	}
	user, err := keys.System.AdminUser(seed.Public(), naming.AccountSystem)
	if err != nil {
		tb.Fatal(err)
	}
	creds, err := fabric.CredsFile(user, seed)
	if err != nil {
		tb.Fatal(err)
	}
	return keys.Signing[1].Text(), creds
}

// Holds REQ-204, REQ-241: on a NATS of somebody else the three kinds become Ready without a StatefulSet, but only when a
// connection has proved that it trusts the key that was handed over; what is wrong with what was handed over is said.
func TestExternalNATS(t *testing.T) {
	t.Parallel()
	g := newGround(t)
	op := newOperator(t, g, &calls{})
	seed, creds := g.theirs(t)
	stranger, _, err := fabric.CompleteKeys(nil)
	if err != nil {
		t.Fatal(err)
	}
	hand := func(name, key string, value []byte) {
		t.Helper()
		s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: g.namespace, Name: name}}
		if g.get(t, s, name) {
			g.update(t, s, name, func() { s.Data = map[string][]byte{key: value} })
			return
		}
		s.Data = map[string][]byte{key: value}
		g.create(t, s)
	}
	server := g.newServer(t, "main", func(s *v1alpha1.CompassServer) {
		s.Spec.DeletionPolicy = v1alpha1.DeletionPolicyDelete
		s.Spec.NATS = v1alpha1.NATSSpec{Mode: v1alpha1.NATSModeExternal, External: &v1alpha1.ExternalNATSSpec{
			URLs: []string{theirURL}, OperatorSecretRef: v1alpha1.LocalReference{Name: "nats-operator"}, SystemSecretRef: v1alpha1.LocalReference{Name: "nats-system"},
		}}
	})
	const ready = v1alpha1.ConditionFabricReady
	op.settle(t, server)
	g.says(t, server, ready, is("False", "WaitingForSecret"), "nats-operator does not exist")
	hand("nats-operator", "operator.seed", []byte("secret-word"))
	hand("nats-system", "nats.creds", creds)
	op.settle(t, server)
	g.says(t, server, ready, is("False", "InvalidSecret"), "key operator.seed of Secret "+g.namespace+"/nats-operator")
	hand("nats-operator", "operator.seed", stranger.Signing[0].Text())
	op.settle(t, server)
	g.says(t, server, ready, is("False", "FabricUnfit"), "refuse accounts signed with the key in spec.nats.external.operatorSecretRef")

	hand("nats-operator", "operator.seed", seed)
	acme, stream := g.newTenant(t, "acme", "main", func(o *v1alpha1.CompassTenant) { o.Spec.NATS.EventTap = true }), g.newStream(t, "main", "main")
	op.settle(t, server, acme, stream)
	op.settle(t, server, acme, stream)
	g.mustBeReady(t, server, acme, stream)
	if g.get(t, &appsv1.StatefulSet{}, "main-nats") {
		t.Error("a NATS of our own runs")
	}
	o := &v1alpha1.CompassServer{}
	if g.get(t, o, "main"); o.Status.NATS.Servers != 1 || o.Status.NATS.OperatorKey != "" || len(o.Status.NATS.SigningKeys) != 1 {
		t.Errorf("NATS %+v", o.Status.NATS)
	}
	if url := string(g.secret(t, "acme-nats")["url"]); url != theirURL {
		t.Errorf("the tap is at %s", url)
	}
	op.calls.writes = nil
	for range 3 {
		for _, o := range []named{server, acme, stream} {
			if _, err := op.once(t, o.kind(), o.name); err != nil {
				t.Error(err)
			}
		}
	}
	if len(op.calls.writes) != 0 {
		t.Errorf("idle passes wrote %v", op.calls.writes)
	}
	// What was handed over may be gone, and the deletion says so instead of forgetting the accounts.
	g.delete(t, &v1alpha1.CompassServer{}, "main")
	op.settle(t, server)
	if g.get(t, &v1alpha1.CompassServer{}, "main") || g.secret(t, "main-keys") != nil {
		t.Errorf("the server or its keys are left: %v", g.condition(t, server, v1alpha1.ConditionReady))
	}
	if err := g.enter(t, g.secret(t, "main-server")["nats.creds"], fabric.InboxPrefix(fabric.RoleServer, "")); err == nil {
		t.Error("our account is left in their NATS")
	}
}
