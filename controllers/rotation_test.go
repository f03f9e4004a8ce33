package controllers_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/rigelbuild/compass-operator/api/v1alpha1"
	"github.com/rigelbuild/compass-operator/internal/naming"
	"github.com/rigelbuild/compass-operator/internal/store"
)

// opens tells whether a token opens its tenant, as a Server asks.
func opens(t *testing.T, s *store.Store, token string) bool {
	t.Helper()
	tenant, _, err := naming.ParseToken(token)
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.Authenticate(store.WithTenant(t.Context(), store.TenantID(tenant)), naming.TokenHash(token))
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		t.Fatal(err)
	}
	return err == nil
}

// Holds REQ-206, REQ-212: credentials are replaced when somebody asks and when their time has come, the old ones are good for
// the overlap and refused after it, and an annotation that was obeyed is not obeyed again.
func TestRotation(t *testing.T) {
	t.Parallel()
	th := newThread(t, v1alpha1.DeletionPolicyRetain)
	s := th.open(t, "main-databases")
	acme := &v1alpha1.CompassTenant{}
	token := func() string { t.Helper(); return string(th.secret(t, "acme-api")["token"]) }
	ask := func(value string) {
		t.Helper()
		th.update(t, acme, "acme", func() { acme.Annotations = map[string]string{v1alpha1.AnnotationRotate: value} })
		th.settle(t, th.tenant)
		th.mustBeReady(t, th.tenant)
	}
	first := token()
	th.get(t, acme, "acme")
	if r := acme.Status.Rotation; r == nil || r.Last.IsZero() || r.Next.Sub(r.Last.Time) != 720*time.Hour {
		t.Errorf("rotation %+v", acme.Status.Rotation)
	}
	ask("1")
	second := token()
	if second == first || !opens(t, s, first) || !opens(t, s, second) {
		t.Fatalf("another token: %v; the old one opens: %v, the new one: %v", second != first, opens(t, s, first), opens(t, s, second))
	}
	th.get(t, acme, "acme")
	if acme.Status.Rotation.Asked != "1" || acme.Annotations[v1alpha1.AnnotationRotate] != "1" {
		t.Errorf("asked %q, annotation %q; want both 1", acme.Status.Rotation.Asked, acme.Annotations[v1alpha1.AnnotationRotate])
	}
	th.later(time.Hour)
	th.settle(t, th.tenant)
	if token() != second || !opens(t, s, first) {
		t.Error("the same annotation was obeyed again, or the overlap was cut short")
	}
	th.later(24 * time.Hour)
	th.settle(t, th.tenant)
	if opens(t, s, first) || !opens(t, s, second) || token() != second {
		t.Error("after the overlap the old token opens, or the new one does not")
	}
	// The database's clock stays where it is, so a token that is made now is old at once: one look, and back.
	th.later(720 * time.Hour)
	_, _ = th.once(t, &v1alpha1.CompassTenant{}, "acme")
	th.ahead = 0
	third := token()
	if third == second || opens(t, s, second) || !opens(t, s, third) {
		t.Error("its time has come, and it was not replaced")
	}
	// A token that somebody revoked is said, and replaced when asked for.
	seen, err := s.FindToken(store.WithTenant(t.Context(), store.TenantID(acme.Status.TenantID)), naming.TokenHash(third))
	if err == nil {
		err = s.RevokeToken(store.WithTenant(t.Context(), store.TenantID(acme.Status.TenantID)), seen.ID, "test")
	}
	if err != nil {
		t.Fatal(err)
	}
	th.settle(t, th.tenant)
	th.says(t, th.tenant, v1alpha1.ConditionCredentialsReady, is("False", "TokenConflict"), "annotation compass.rigel.build/rotate")
	ask("2")
	if !opens(t, s, token()) {
		t.Error("the token in place of the revoked one does not open")
	}
}

// Holds REQ-212, REQ-223: wherever a rotation is interrupted, it ends with one token that is published and opens, and the one
// before it, and with nothing else that opens.
func TestInterruptedRotation(t *testing.T) {
	t.Parallel()
	th := newThread(t, v1alpha1.DeletionPolicyRetain)
	s := th.open(t, "main-databases")
	acme := &v1alpha1.CompassTenant{}
	rotate := func(value string, failAt int) int {
		t.Helper()
		th.update(t, acme, "acme", func() { acme.Annotations = map[string]string{v1alpha1.AnnotationRotate: value} })
		th.calls.from(failAt)
		th.settle(t, th.tenant)
		n := th.calls.n
		th.calls.from(0)
		th.settle(t, th.tenant)
		th.mustBeReady(t, th.tenant)
		return n
	}
	before := string(th.secret(t, "acme-api")["token"])
	calls := rotate("0", 0)
	t.Logf("%d calls", calls)
	older := before
	before = string(th.secret(t, "acme-api")["token"])
	for n := 1; n <= calls; n++ {
		rotate(fmt.Sprint(n), n)
		now := string(th.secret(t, "acme-api")["token"])
		if now == before || !opens(t, s, now) || !opens(t, s, before) || opens(t, s, older) {
			t.Errorf("interrupted at %d: replaced %v; opens: new %v, old %v, older %v", n, now != before, opens(t, s, now), opens(t, s, before), opens(t, s, older))
		}
		older, before = before, now
	}
}

// Holds REQ-212: the platform admin's token is replaced when the annotation asks, and both are good for a day.
func TestAdminRotation(t *testing.T) {
	t.Parallel()
	th := newThread(t, v1alpha1.DeletionPolicyRetain)
	s := th.open(t, "main-databases")
	first := string(th.secret(t, "main-admin")["token"])
	o := &v1alpha1.CompassServer{}
	th.update(t, o, "main", func() { o.Annotations = map[string]string{v1alpha1.AnnotationRotate: "1"} })
	th.settle(t, th.server)
	th.mustBeReady(t, th.server)
	second := string(th.secret(t, "main-admin")["token"])
	if second == first || !opens(t, s, first) || !opens(t, s, second) {
		t.Errorf("replaced %v; opens: old %v, new %v", second != first, opens(t, s, first), opens(t, s, second))
	}
	th.later(25 * time.Hour)
	th.settle(t, th.server)
	if opens(t, s, first) || !opens(t, s, second) {
		t.Error("after a day the old token opens, or the new one does not")
	}
}
