package flow

import (
	"context"
	"errors"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/rigelbuild/compass-operator/api/v1alpha1"
	"github.com/rigelbuild/compass-operator/internal/fault"
	"github.com/rigelbuild/compass-operator/internal/naming"
)

const (
	normal  = corev1.EventTypeNormal
	warning = corev1.EventTypeWarning
	action  = "Reconcile"
)

// End reports and maps: one patch of the status, if it changed, and what the work queue is told. report fills the figures
// of the status from the scope and says what it wants said of conditions that are True; it must be pure. err is what the
// pass returned.
func (p *Pass[S]) End(ctx context.Context, report func(*S) Notes, err error) (reconcile.Result, error) {
	if ctx.Err() != nil && errors.Is(context.Cause(ctx), context.Canceled) {
		return reconcile.Result{}, nil // the process ends: whoever comes next looks again
	}
	if p.released || apierrors.IsConflict(err) {
		return p.result(err)
	}
	p.tellRepairs()
	p.report(report, err)
	if werr := p.write(ctx); werr != nil {
		return p.result(errors.Join(err, werr))
	}
	return p.result(err)
}

// tellRepairs says what was put back, in an event for each thing: it is the related object, by which the API tells one series
// of events from another.
func (p *Pass[S]) tellRepairs() {
	repaired := p.drift.Repaired()
	if len(repaired) == 0 {
		return
	}
	p.frame.Metrics.repaired(p.obj, len(repaired))
	for _, what := range repaired {
		p.eventOf(related(what), normal, v1alpha1.ReasonDriftRepaired, "Somebody else had changed, and it is put back: "+what)
	}
}

// related is what a ledger of drift names: a kind, and a name that may have a namespace and is followed by fields.
func related(what string) *corev1.ObjectReference {
	kind, rest, _ := strings.Cut(strings.TrimPrefix(what, "the "), " ")
	name, _, _ := strings.Cut(rest, " ")
	if namespace, of, ok := strings.Cut(name, "/"); ok {
		return &corev1.ObjectReference{Kind: kind, Namespace: namespace, Name: of}
	}
	return &corev1.ObjectReference{Kind: kind, Name: name}
}

// report puts conditions and figures into the object's status.
func (p *Pass[S]) report(report func(*S) Notes, err error) {
	status := p.obj.Common()
	var ready metav1.Condition
	switch {
	case p.Paused():
		ready = pausedCondition(p.Deleting())
	case p.Deleting():
		ready = blockedCondition(err)
	case !p.judged:
		ready = conditionOf(v1alpha1.ConditionReady, err)
	default:
		notes := report(p.scope)
		judged := conditionsOf(p.outcomes, notes)
		for _, c := range judged {
			p.set(status, c)
		}
		ready = readyOf(judged, p.outcomes)
		if note, said := notes[v1alpha1.ConditionReady]; said && ready.Status == metav1.ConditionTrue {
			ready.Reason, ready.Message = note.Reason, note.Message
		}
		if err == nil {
			status.ObservedGeneration = p.obj.GetGeneration()
		}
	}
	p.set(status, ready)
}

// set stamps the generation that was judged, and the time of a change by the frame's clock.
func (p *Pass[S]) set(status *v1alpha1.Status, c metav1.Condition) {
	c.ObservedGeneration = p.obj.GetGeneration()
	c.Message = clip(c.Message)
	c.LastTransitionTime = metav1.NewTime(p.frame.Now().Truncate(timeGrain))
	if old := meta.FindStatusCondition(status.Conditions, c.Type); old != nil && old.Status == c.Status {
		c.LastTransitionTime = old.LastTransitionTime
	}
	meta.SetStatusCondition(&status.Conditions, c)
}

// write patches the status subresource, if anything differs from what is stored.
func (p *Pass[S]) write(ctx context.Context) error {
	if equality.Semantic.DeepEqual(p.before, client.Object(p.obj)) {
		return nil
	}
	before, _ := p.before.(Object)
	was := meta.FindStatusCondition(before.Common().Conditions, v1alpha1.ConditionReady)
	is := meta.FindStatusCondition(p.obj.Common().Conditions, v1alpha1.ConditionReady)
	// A merge patch replaces the whole list of conditions, so it is bound to the version that was read.
	patch := client.MergeFromWithOptions(p.before, client.MergeFromWithOptimisticLock{})
	next, _ := p.obj.DeepCopyObject().(client.Object)
	if err := p.frame.Client.Status().Patch(ctx, next, patch, client.FieldOwner(naming.FieldOwner)); err != nil {
		return client.IgnoreNotFound(err)
	}
	if is != nil && (was == nil || was.Status != is.Status || was.Reason != is.Reason) {
		p.event(eventType(is), is.Reason, is.Message)
	}
	return nil
}

// eventType: only what needs somebody is a warning; waiting is not.
func eventType(c *metav1.Condition) string {
	if c.Status == metav1.ConditionTrue || !needsAttention(c.Reason) {
		return normal
	}
	return warning
}

func (p *Pass[S]) event(kind, reason, note string) { p.eventOf(nil, kind, reason, note) }

func (p *Pass[S]) eventOf(other runtime.Object, kind, reason, note string) {
	if p.frame.Events == nil {
		return
	}
	if note == "" {
		note = reason
	}
	p.frame.Events.Eventf(p.obj, other, kind, reason, action, "%s", clip(note))
}

// result tells the work queue. Several steps may have failed in several ways: an error that is worth trying again is tried
// again although another step is beyond help.
func (p *Pass[S]) result(err error) (reconcile.Result, error) {
	switch {
	case err == nil && (p.released || p.Paused()):
		return reconcile.Result{}, nil
	case err == nil:
		return p.later(p.frame.Resync), nil
	case apierrors.IsConflict(err):
		return reconcile.Result{RequeueAfter: p.frame.Spread(quiet)}, nil
	}
	switch p.classes(err) { //nolint:exhaustive // the others are transient, and go on below
	case fault.ClassWaiting:
		if p.told(err) {
			return p.later(p.frame.Resync), nil
		}
		return p.later(p.frame.Poll), nil
	case fault.ClassTerminal, fault.ClassPoison:
		return reconcile.Result{}, reconcile.TerminalError(err)
	}
	if d, asked := fault.DelayOf(err); asked {
		return reconcile.Result{RequeueAfter: p.frame.Spread(d)}, nil
	}
	return reconcile.Result{}, err
}

// told reports whether word will come of everything that is waited for.
func (p *Pass[S]) told(err error) bool {
	waits := 0
	for _, o := range p.outcomes {
		switch {
		case o.err == nil:
		case !fault.IsTold(o.err):
			return false
		default:
			waits++
		}
	}
	return waits > 0 || fault.IsTold(err)
}

// later looks again when nobody asks for it sooner, after all that somebody asks for: without a priority of its own the next
// look would have that of the user's edit.
func (p *Pass[S]) later(d time.Duration) reconcile.Result {
	return reconcile.Result{RequeueAfter: p.frame.Spread(d), Priority: new(handler.LowPriority)}
}

// NoLater makes the next look of a pass that would wait longer happen after d: for figures that move without a word to us.
func (p *Pass[S]) NoLater(res reconcile.Result, d time.Duration) reconcile.Result {
	if res.RequeueAfter > d {
		return p.later(d)
	}
	return res
}

// classes returns what to do about a pass: transient before waiting before terminal, the order in which looking again soon
// can help.
func (p *Pass[S]) classes(err error) fault.Class {
	seen := map[fault.Class]bool{}
	for _, o := range p.outcomes {
		if o.err != nil {
			seen[fault.ClassOf(o.err)] = true
		}
	}
	if len(seen) == 0 {
		return fault.ClassOf(err)
	}
	for _, c := range []fault.Class{fault.ClassTransient, fault.ClassWaiting} {
		if seen[c] {
			return c
		}
	}
	return fault.ClassTerminal
}
