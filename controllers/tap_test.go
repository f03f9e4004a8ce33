package controllers_test

import (
	"encoding/json"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/rigelbuild/compass-operator/api/v1alpha1"
	"github.com/rigelbuild/compass-operator/internal/fabric"
)

// Holds REQ-206, REQ-212: the event tap is a NATS user of the tenant's own account, good beside its successor for the overlap
// and refused after it, and at once when the tap is no longer asked for: proved by refused connections.
func TestEventTap(t *testing.T) {
	t.Parallel()
	th := newThread(t, v1alpha1.DeletionPolicyRetain)
	acme := &v1alpha1.CompassTenant{}
	edit := func(change func()) {
		t.Helper()
		th.update(t, acme, "acme", change)
		th.settle(t, th.tenant)
		th.mustBeReady(t, th.tenant)
	}
	edit(func() { acme.Spec.NATS.EventTap = true })
	th.get(t, acme, "acme")
	inbox := fabric.InboxPrefix(fabric.RoleTap, "")
	enters := func(creds []byte) bool { t.Helper(); return th.enter(t, creds, inbox) == nil }
	first := th.secret(t, "acme-nats")["nats.creds"]
	if acme.Status.Secrets.NATS != "acme-nats" || !enters(first) {
		t.Fatalf("secrets %+v; enters: %v", acme.Status.Secrets, enters(first))
	}
	edit(func() { acme.Annotations = map[string]string{v1alpha1.AnnotationRotate: "1"} })
	second := th.secret(t, "acme-nats")["nats.creds"]
	if string(first) == string(second) || !enters(first) || !enters(second) {
		t.Errorf("replaced: %v; enters: old %v, new %v", string(first) != string(second), enters(first), enters(second))
	}
	th.later(25 * time.Hour)
	th.settle(t, th.tenant)
	if enters(first) || !enters(second) {
		t.Errorf("after the overlap: old %v, new %v; want the new alone", enters(first), enters(second))
	}
	edit(func() { acme.Spec.NATS.EventTap = false })
	th.settle(t, th.tenant)
	if enters(second) || th.secret(t, "acme-nats") != nil {
		t.Error("without a tap its credentials enter, or are published")
	}
}

// Lessons 14 and 29, REQ-221: looking at an object changes nothing of its spec, and a newer operator changes no byte of any
// credential.
func TestLessons14And29NothingIsRewritten(t *testing.T) {
	t.Parallel()
	g := newGround(t)
	server, acme, stream := g.newServer(t, "main"), g.newTenant(t, "acme", "main", func(o *v1alpha1.CompassTenant) {
		o.Spec.NATS.EventTap, o.Spec.SQLAccess.Enabled = true, true
	}), g.newStream(t, "main", "main")
	all := []named{server, acme, stream}
	specs := func() string {
		t.Helper()
		out := ""
		for _, o := range all {
			obj := o.kind()
			g.get(t, obj, o.name)
			text, err := json.Marshal(obj)
			if err != nil {
				t.Fatal(err)
			}
			var parts struct {
				Spec json.RawMessage `json:"spec"`
			}
			if err := json.Unmarshal(text, &parts); err != nil {
				t.Fatal(err)
			}
			out += string(parts.Spec) + "\n"
		}
		return out
	}
	before := specs()
	newOperator(t, g, &calls{}).settle(t, all...)
	old := newOperator(t, g, &calls{})
	old.settle(t, all...)
	g.mustBeReady(t, all...)
	if after := specs(); after != before {
		t.Errorf("specs were\n%sand are\n%s", before, after)
	}
	held := g.credentials(t)
	next := newOperator(t, g, &calls{}) // of another version: what differs is the image
	next.settle(t, all...)
	g.mustBeReady(t, all...)
	for name, data := range g.credentials(t) {
		if !sameData(held[name], data) {
			t.Errorf("Secret %s changed", name)
		}
	}
	if len(held) < 12 {
		t.Errorf("only %d Secrets were compared", len(held))
	}
}

func (g *ground) credentials(t *testing.T) map[string]map[string][]byte {
	t.Helper()
	list := &corev1.SecretList{}
	if err := g.api.List(t.Context(), list, client.InNamespace(g.namespace)); err != nil {
		t.Fatal(err)
	}
	out := map[string]map[string][]byte{}
	for _, s := range list.Items {
		out[s.Name] = s.Data
	}
	return out
}
