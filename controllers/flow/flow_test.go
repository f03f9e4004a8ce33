package flow_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/rigelbuild/compass-operator/api/v1alpha1"
	"github.com/rigelbuild/compass-operator/controllers/flow"
	"github.com/rigelbuild/compass-operator/internal/fault"
	"github.com/rigelbuild/compass-operator/internal/naming"
)

// Holds REQ-213: what a step returns becomes its condition, Ready sums up, and the work queue is told.
func TestOutcomes(t *testing.T) {
	t.Parallel()
	const a, b = v1alpha1.ConditionDatabaseReady, v1alpha1.ConditionAccountReady
	down := fault.Transient(v1alpha1.ReasonDatabaseUnreachable, errDown)
	waits := fault.Waiting(v1alpha1.ReasonWaitingForSecret, "Secret x does not exist: create it")
	invalid := fault.Terminal(v1alpha1.ReasonInvalidSpec, errors.New("size: too large"))
	fine := shape{metav1.ConditionTrue, "Applied", ""}
	cases := map[string]struct {
		reason   string
		steps    []flow.Step[scope]
		want     map[string]shape
		after    time.Duration
		wantErr  bool
		terminal bool
		observed int64
	}{
		"all well": {
			reason: "True means looked at and so; the next look is a resync",
			steps:  []flow.Step[scope]{step(a, nil), step(b, nil)},
			want:   map[string]shape{a: fine, b: fine, "Ready": {metav1.ConditionTrue, "Available", ""}},
			after:  time.Hour, observed: 1,
		},
		"waiting": {
			reason: "waiting is no error and is polled",
			steps:  []flow.Step[scope]{step(a, waits), step(b, nil)},
			want: map[string]shape{
				a:       {metav1.ConditionFalse, "WaitingForSecret", "Secret x does not exist: create it"},
				b:       fine,
				"Ready": {metav1.ConditionFalse, "WaitingForSecret", a + ": Secret x does not exist: create it"},
			},
			after: time.Minute,
		},
		"told": {
			reason: "where word will come nobody need ask again and again",
			steps:  []flow.Step[scope]{step(a, fault.Told("NoStream", "make one")), step(b, nil)},
			want: map[string]shape{
				a: {metav1.ConditionFalse, "NoStream", "make one"}, b: fine,
				"Ready": {metav1.ConditionFalse, "NoStream", a + ": make one"},
			},
			after: time.Hour,
		},
		"told beside waiting": {
			reason: "of the other no word comes",
			steps:  []flow.Step[scope]{step(a, fault.Told("NoStream", "make one")), step(b, waits)},
			want: map[string]shape{
				a:       {metav1.ConditionFalse, "NoStream", "make one"},
				b:       {metav1.ConditionFalse, "WaitingForSecret", "Secret x does not exist: create it"},
				"Ready": {metav1.ConditionFalse, "NoStream", a + ": make one"},
			},
			after: time.Minute,
		},
		"transient": {
			reason: "could not tell is Unknown, and an error with backoff; an independent step advances",
			steps:  []flow.Step[scope]{step(a, down), step(b, nil)},
			want: map[string]shape{
				a: {metav1.ConditionUnknown, "DatabaseUnreachable", "dial tcp: refused"}, b: fine,
				"Ready": {metav1.ConditionUnknown, "DatabaseUnreachable", a + ": dial tcp: refused"},
			},
			wantErr: true,
		},
		"plain error": {
			reason: "an error without a class is transient",
			steps:  []flow.Step[scope]{step(a, errDown)},
			want: map[string]shape{
				a:       {metav1.ConditionUnknown, "ReconcileFailed", "dial tcp: refused"},
				"Ready": {metav1.ConditionUnknown, "ReconcileFailed", a + ": dial tcp: refused"},
			},
			wantErr: true,
		},
		"terminal": {
			reason: "what cannot work is not tried again",
			steps:  []flow.Step[scope]{step(a, invalid), step(b, nil)},
			want: map[string]shape{
				a: {metav1.ConditionFalse, "InvalidSpec", "size: too large"}, b: fine,
				"Ready": {metav1.ConditionFalse, "InvalidSpec", a + ": size: too large"},
			},
			wantErr: true, terminal: true,
		},
		"terminal beside transient": {
			reason: "Ready tells the worst, and what may pass is tried again although another part is beyond help",
			steps:  []flow.Step[scope]{step(a, down), step(b, invalid)},
			want: map[string]shape{
				a:       {metav1.ConditionUnknown, "DatabaseUnreachable", "dial tcp: refused"},
				b:       {metav1.ConditionFalse, "InvalidSpec", "size: too large"},
				"Ready": {metav1.ConditionFalse, "InvalidSpec", b + ": size: too large"},
			},
			wantErr: true,
		},
		"transient beside waiting": {
			reason: "False beats Unknown, and the reason is of the worse class",
			steps:  []flow.Step[scope]{step(a, waits), step(b, down)},
			want: map[string]shape{
				a:       {metav1.ConditionFalse, "WaitingForSecret", "Secret x does not exist: create it"},
				b:       {metav1.ConditionUnknown, "DatabaseUnreachable", "dial tcp: refused"},
				"Ready": {metav1.ConditionFalse, "DatabaseUnreachable", b + ": dial tcp: refused"},
			},
			wantErr: true,
		},
		"needs": {
			reason: "a step without its input does not run, nor does what needs that one",
			steps:  []flow.Step[scope]{step(a, waits), step(b, nil, a), step("Third", nil, b)},
			want: map[string]shape{
				a:       {metav1.ConditionFalse, "WaitingForSecret", "Secret x does not exist: create it"},
				b:       {metav1.ConditionUnknown, "WaitingForDependency", "not looked at, because something it needs is not ready"},
				"Third": {metav1.ConditionUnknown, "WaitingForDependency", "not looked at, because something it needs is not ready"},
				"Ready": {metav1.ConditionFalse, "WaitingForSecret", a + ": Secret x does not exist: create it"},
			},
			after: time.Minute,
		},
		"two steps of one condition": {
			reason: "the second does not run once the first failed",
			steps:  []flow.Step[scope]{step(a, waits), step(a, nil)},
			want: map[string]shape{
				a:       {metav1.ConditionFalse, "WaitingForSecret", "Secret x does not exist: create it"},
				"Ready": {metav1.ConditionFalse, "WaitingForSecret", a + ": Secret x does not exist: create it"},
			},
			after: time.Minute,
		},
		"retry after": {
			reason: "a delay that was asked for is kept, without an error",
			steps:  []flow.Step[scope]{step(a, fault.RetryAfter(7*time.Second, errDown))},
			want: map[string]shape{
				a:       {metav1.ConditionUnknown, "ReconcileFailed", "dial tcp: refused"},
				"Ready": {metav1.ConditionUnknown, "ReconcileFailed", a + ": dial tcp: refused"},
			},
			after: 7 * time.Second,
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, nil)
			res, err := w.pass(t, plan{steps: c.steps})
			if (err != nil) != c.wantErr || errors.Is(err, reconcile.TerminalError(nil)) != c.terminal {
				t.Errorf("error %v, want one: %v, terminal: %v (%s)", err, c.wantErr, c.terminal, c.reason)
			}
			if res.RequeueAfter != c.after {
				t.Errorf("again after %v, want %v (%s)", res.RequeueAfter, c.after, c.reason)
			}
			// What nobody asked for comes after what somebody did.
			if last := res.Priority != nil && *res.Priority < 0; last != (c.after >= time.Minute) {
				t.Errorf("after what users ask for: %v (%s)", last, c.reason)
			}
			obj := w.read(t)
			if diff := cmp.Diff(c.want, shapes(obj)); diff != "" {
				t.Errorf("conditions (%s):\n%s", c.reason, diff)
			}
			if obj.Status.ObservedGeneration != c.observed {
				t.Errorf("observedGeneration %d, want %d: it moves with a clean pass only", obj.Status.ObservedGeneration, c.observed)
			}
			if diff := cmp.Diff([]string{"status"}, w.writes); diff != "" {
				t.Errorf("writes: %s", diff)
			}
		})
	}
}

// Holds REQ-210, REQ-214: an idle pass writes nothing and says nothing, whatever its outcome.
func TestSecondPassIsSilent(t *testing.T) {
	t.Parallel()
	for name, err := range map[string]error{
		"well": nil, "waiting": fault.Waiting(v1alpha1.ReasonWaitingForSecret, "x"), "transient": errDown,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, nil)
			p := plan{steps: []flow.Step[scope]{step("A", err)}}
			first, _ := w.pass(t, p)
			if len(w.writes) != 1 || len(w.events) != 1 {
				t.Fatalf("first pass: writes %v, events %v; want one each", w.writes, w.events)
			}
			w.now = w.now.Add(time.Hour)
			second, _ := w.pass(t, p)
			if len(w.writes) != 1 || len(w.events) != 1 {
				t.Errorf("second pass: writes %v, events %v; want none more", w.writes, w.events)
			}
			if diff := cmp.Diff(first, second); diff != "" {
				t.Errorf("results differ: %s", diff)
			}
		})
	}
}

// Holds REQ-213: a condition keeps its time until its status changes.
func TestTransitionTime(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	start := w.now
	run := func(err error) {
		w.now = w.now.Add(time.Minute)
		_, _ = w.pass(t, plan{steps: []flow.Step[scope]{step("A", err)}})
	}
	at := func() time.Time {
		return meta.FindStatusCondition(w.read(t).Status.Conditions, "A").LastTransitionTime.UTC()
	}
	run(fault.Waiting("WaitingForX", "one"))
	run(fault.Waiting("WaitingForX", "two"))
	if got, want := at(), start.Add(time.Minute); !got.Equal(want) {
		t.Errorf("after another message: %v, want %v", got, want)
	}
	run(nil)
	if got, want := at(), start.Add(3*time.Minute); !got.Equal(want) {
		t.Errorf("after another status: %v, want %v", got, want)
	}
}

func TestNotesAndFigures(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	_, err := w.pass(t, plan{
		steps: []flow.Step[scope]{step("A", nil), step("B", errDown)},
		report: func(s *scope) flow.Notes {
			s.obj.Status.Stream = "main"
			return flow.Notes{"A": {Reason: "Available", Message: "two pods"}, "B": {Reason: "Available", Message: "never said"}}
		},
	})
	if err == nil {
		t.Error("the failed step is no error")
	}
	obj := w.read(t)
	want := map[string]shape{
		"A": {metav1.ConditionTrue, "Available", "two pods"}, "B": {metav1.ConditionUnknown, "ReconcileFailed", errDown.Error()},
	}
	if diff := cmp.Diff(want, shapes(obj), cmpopts.IgnoreMapEntries(func(k string, _ shape) bool { return k == "Ready" })); diff != "" {
		t.Error(diff)
	}
	if obj.Status.Stream != "main" {
		t.Error("the figures of a pass that failed in part are lost")
	}
}

// What is said to be no later is brought forward and never put off.
func TestNoLater(t *testing.T) {
	t.Parallel()
	waits := fault.Waiting("Waits", "for somebody")
	for name, c := range map[string]struct {
		err   error
		after time.Duration
	}{"all is well": {nil, 5 * time.Minute}, "waiting": {waits, time.Minute}, "failed": {errDown, 0}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			res, _ := newWorld(t, nil).pass(t, plan{noLater: 5 * time.Minute, steps: []flow.Step[scope]{step("A", c.err)}})
			if res.RequeueAfter != c.after {
				t.Errorf("again after %v, want %v", res.RequeueAfter, c.after)
			}
		})
	}
}

// A newer version of the object, and the end of the process, are nobody's fault.
func TestQuietEnds(t *testing.T) {
	t.Parallel()
	t.Run("conflict", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, nil)
		w.refuse = apierrors.NewConflict(schema.GroupResource{Resource: "compasstenants"}, "acme", errors.New("newer"))
		res, err := w.pass(t, plan{steps: []flow.Step[scope]{step("A", nil)}})
		if err != nil || res.RequeueAfter <= 0 || res.RequeueAfter > time.Second {
			t.Errorf("result %v, error %v; want soon and no error", res, err)
		}
	})
	t.Run("shutdown", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, nil)
		ctx, cancel := context.WithCancel(t.Context())
		res, err := w.pass(t, plan{ctx: ctx, steps: []flow.Step[scope]{{Condition: "A", Run: func(ctx context.Context, _ *scope) error {
			cancel()
			return context.Cause(ctx)
		}}}})
		if err != nil || res != (reconcile.Result{}) || len(w.writes) != 0 {
			t.Errorf("result %v, error %v, writes %v; want nothing of each", res, err, w.writes)
		}
	})
	t.Run("status write fails", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, nil)
		w.refuse = errDown
		if _, err := w.pass(t, plan{steps: []flow.Step[scope]{step("A", nil)}}); !errors.Is(err, errDown) {
			t.Errorf("error %v, want that of the write", err)
		}
	})
}

// A step has a shorter deadline than the pass, so a hanging system is still reported.
func TestStepDeadline(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.frame.Step = time.Millisecond
	hang := flow.Step[scope]{Condition: "A", Run: func(ctx context.Context, _ *scope) error {
		<-ctx.Done()
		return fmt.Errorf("ask: %w", ctx.Err())
	}}
	if _, err := w.pass(t, plan{steps: []flow.Step[scope]{hang, step("B", nil)}}); err == nil {
		t.Error("no error of the hanging step")
	}
	got := shapes(w.read(t))
	if got["A"].Status != metav1.ConditionUnknown || got["B"].Status != metav1.ConditionTrue {
		t.Errorf("conditions: %v", got)
	}
}

// Holds REQ-210: a paused object is not touched, and says so; what it said of its parts stays.
func TestPaused(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(o *v1alpha1.CompassTenant) {
		o.Annotations = map[string]string{naming.AnnotationPaused: "true"}
		o.Spec.DeletionPolicy = v1alpha1.DeletionPolicyDelete
	})
	var s []string
	ran := flow.Step[scope]{Condition: "A", Run: func(context.Context, *scope) error { s = append(s, "A"); return nil }}
	for range 2 {
		if res, err := w.pass(t, plan{steps: []flow.Step[scope]{ran}}); err != nil || res != (reconcile.Result{}) {
			t.Errorf("result %v, error %v; want to be left alone", res, err)
		}
	}
	if len(s) != 0 || len(w.writes) != 1 {
		t.Errorf("ran %v, wrote %v; want no step and one status", s, w.writes)
	}
	obj := w.read(t)
	if c := meta.FindStatusCondition(obj.Status.Conditions, "Ready"); c.Reason != v1alpha1.ReasonPaused || c.Status != metav1.ConditionUnknown {
		t.Errorf("Ready: %v", c)
	}
	if len(obj.Finalizers) != 0 || obj.Status.ObservedGeneration != 0 {
		t.Errorf("finalizers %v, observedGeneration %d", obj.Finalizers, obj.Status.ObservedGeneration)
	}
}
