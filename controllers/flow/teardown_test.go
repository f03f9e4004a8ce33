package flow_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/rigelbuild/compass-operator/api/v1alpha1"
	"github.com/rigelbuild/compass-operator/controllers/flow"
	"github.com/rigelbuild/compass-operator/internal/fault"
	"github.com/rigelbuild/compass-operator/internal/naming"
)

func deleting(policy v1alpha1.DeletionPolicy, notes map[string]string) func(*v1alpha1.CompassTenant) {
	return func(o *v1alpha1.CompassTenant) {
		o.Finalizers = []string{naming.Finalizer, "example.com/other"}
		now := metav1.NewTime(time.Date(2030, 5, 1, 11, 0, 0, 0, time.UTC))
		o.DeletionTimestamp = &now
		o.Spec.DeletionPolicy = policy
		o.Annotations = notes
	}
}

// Holds REQ-211: under Retain nothing is removed and nothing waited for; under Delete things go in order, and what is in
// the way is said, until it goes or the user lets go.
func TestTeardown(t *testing.T) {
	t.Parallel()
	force := map[string]string{naming.AnnotationForceRelease: "true"}
	invalid := fault.Terminal(v1alpha1.ReasonInvalidSpec, errors.New("never"))
	leaving := fault.Waiting(v1alpha1.ReasonDeleting, "Deployment x is still being deleted")
	cases := map[string]struct {
		reason   string
		policy   v1alpha1.DeletionPolicy
		notes    map[string]string
		errs     []error // of the removals
		ran      int
		released bool
		ready    string // reason
		message  string
	}{
		"retain": {
			reason: "an unreachable system cannot block what is not removed from it",
			policy: v1alpha1.DeletionPolicyRetain, errs: []error{errDown}, released: true,
		},
		"delete": {
			reason: "all gone", policy: v1alpha1.DeletionPolicyDelete, errs: []error{nil, nil}, ran: 2, released: true,
		},
		"blocked": {
			reason: "the first that fails stops the rest, and says how to let go",
			policy: v1alpha1.DeletionPolicyDelete, errs: []error{errDown, nil}, ran: 1,
			ready: v1alpha1.ReasonDeletionBlocked, message: errDown.Error() + `; set the annotation compass.rigel.build/force-release="true" to let go without it`,
		},
		"still going": {
			reason: "asked is not gone, and is nothing to act on",
			policy: v1alpha1.DeletionPolicyDelete, errs: []error{leaving}, ran: 1,
			ready: v1alpha1.ReasonDeleting, message: "Deployment x is still being deleted",
		},
		"terminal": {
			reason: "a deletion is never given up",
			policy: v1alpha1.DeletionPolicyDelete, errs: []error{invalid}, ran: 1,
			ready: v1alpha1.ReasonDeletionBlocked, message: `never; set the annotation compass.rigel.build/force-release="true" to let go without it`,
		},
		"forced": {
			reason: "what cannot be reached is left behind",
			policy: v1alpha1.DeletionPolicyDelete, notes: force, errs: []error{errDown, nil}, ran: 1, released: true,
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, deleting(c.policy, c.notes))
			ran := 0
			var removes []flow.Remove[scope]
			for _, err := range c.errs {
				removes = append(removes, func(context.Context, *scope) error { ran++; return err })
			}
			res, err := w.pass(t, plan{steps: []flow.Step[scope]{step("A", nil)}, removes: removes})
			if errors.Is(err, reconcile.TerminalError(nil)) {
				t.Errorf("terminal error %v: a deletion is never given up", err)
			}
			if ran != c.ran {
				t.Errorf("%d removals ran, want %d (%s)", ran, c.ran, c.reason)
			}
			obj := w.read(t)
			if held := slices.Contains(obj.Finalizers, naming.Finalizer); held == c.released {
				t.Errorf("finalizers %v, want released: %v (%s)", obj.Finalizers, c.released, c.reason)
			}
			if !slices.Contains(obj.Finalizers, "example.com/other") {
				t.Error("somebody else's finalizer was taken off")
			}
			if c.released {
				if err != nil || res != (reconcile.Result{}) {
					t.Errorf("result %v, error %v after the release", res, err)
				}
				return
			}
			if err == nil && res.RequeueAfter == 0 {
				t.Error("nobody looks again")
			}
			if got := shapes(obj)["Ready"]; got.Reason != c.ready || got.Message != c.message || got.Status != metav1.ConditionFalse {
				t.Errorf("Ready %v, want %s %q (%s)", got, c.ready, c.message, c.reason)
			}
		})
	}
}

func TestForcedReleaseIsSaid(t *testing.T) {
	t.Parallel()
	w := newWorld(t, deleting(v1alpha1.DeletionPolicyDelete, map[string]string{naming.AnnotationForceRelease: "true"}))
	_, _ = w.pass(t, plan{removes: []flow.Remove[scope]{func(context.Context, *scope) error { return errDown }}})
	if len(w.events) != 1 || !strings.Contains(w.events[0], "Warning Released") || !strings.Contains(w.events[0], errDown.Error()) {
		t.Errorf("events: %v", w.events)
	}
}

// Holds REQ-211: the finalizer is there exactly while there would be something to remove.
func TestFinalizerFollowsPolicy(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(o *v1alpha1.CompassTenant) { o.Spec.DeletionPolicy = v1alpha1.DeletionPolicyDelete })
	held := func(want bool) {
		t.Helper()
		seen := false
		_, err := w.pass(t, plan{steps: []flow.Step[scope]{{Condition: "A", Run: func(context.Context, *scope) error {
			seen = slices.Contains(w.read(t).Finalizers, naming.Finalizer)
			return nil
		}}}})
		if err != nil {
			t.Fatal(err)
		}
		if seen != want {
			t.Errorf("while the steps ran, finalizer there: %v, want %v", seen, want)
		}
	}
	held(true)
	obj := w.read(t)
	obj.Spec.DeletionPolicy = v1alpha1.DeletionPolicyRetain
	if err := w.client.Update(t.Context(), obj); err != nil {
		t.Fatal(err)
	}
	held(false)
}

func TestPausedDeletionWaits(t *testing.T) {
	t.Parallel()
	w := newWorld(t, deleting(v1alpha1.DeletionPolicyDelete, map[string]string{naming.AnnotationPaused: "true"}))
	ran := false
	_, err := w.pass(t, plan{removes: []flow.Remove[scope]{func(context.Context, *scope) error { ran = true; return nil }}})
	if err != nil || ran || w.gone(t) {
		t.Errorf("error %v, removed %v", err, ran)
	}
	if got := shapes(w.read(t))["Ready"]; !strings.Contains(got.Message, "deletion") {
		t.Errorf("Ready: %v", got)
	}
}

func TestRounded(t *testing.T) {
	t.Parallel()
	for n, want := range map[int64]int64{0: 0, 7: 7, 10: 10, 19: 10, 99: 90, 1_234: 1_000, 98_765: 90_000} {
		if got := flow.Rounded(n); got != want {
			t.Errorf("Rounded(%d) = %d, want %d", n, got, want)
		}
	}
}
