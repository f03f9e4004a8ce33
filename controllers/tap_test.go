package controllers_test

import (
	"testing"
	"time"

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
