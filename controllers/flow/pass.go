package flow

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/rigelbuild/compass-operator/api/v1alpha1"
	"github.com/rigelbuild/compass-operator/internal/drift"
	"github.com/rigelbuild/compass-operator/internal/fault"
	"github.com/rigelbuild/compass-operator/internal/naming"
)

// Step is one thing to bring about. Several steps may share a condition: they run in order, and it is True when all of
// them are.
type Step[S any] struct {
	Condition string
	// Needs are the conditions without which the step has no input.
	Needs []string
	Run   func(ctx context.Context, s *S) error
}

// Pass is one look at one object. S is the kind's scope: what was read and seen, filled in order.
type Pass[S any] struct {
	frame Frame
	obj   Object
	scope *S
	drift *drift.Ledger
	// before is the object as it was last known to be stored; End writes the difference.
	before client.Object

	steps    []Step[S]
	outcomes []outcome // one per condition, in the order of the steps
	judged   bool      // Steps ran
	released bool      // the finalizer is off: the object is gone or going
}

// outcome is what became of one condition.
type outcome struct {
	condition string
	err       error
	skipped   bool // not looked at, because something it needs failed
}

// Begin starts a pass over obj, which was just read. steps are all steps of the kind, also for a pass that will run none:
// they say which conditions there are.
func Begin[S any](frame Frame, obj Object, scope *S, steps ...Step[S]) *Pass[S] {
	settled := obj.GetGeneration() > 0 && obj.Common().ObservedGeneration == obj.GetGeneration()
	p := &Pass[S]{
		frame: frame.withDefaults(), obj: obj, scope: scope, steps: steps,
		drift: drift.Open(settled, obj.DriftPolicy() == v1alpha1.DriftPolicyReport),
	}
	for _, step := range steps {
		if p.outcome(step.Condition) == nil {
			p.outcomes = append(p.outcomes, outcome{condition: step.Condition})
		}
	}
	p.remember()
	return p
}

func (p *Pass[S]) remember() {
	p.before, _ = p.obj.DeepCopyObject().(client.Object)
}

// Paused reports whether the user asked us to write nothing.
func (p *Pass[S]) Paused() bool { return p.obj.GetAnnotations()[naming.AnnotationPaused] == "true" }

// Drift is asked before something is put back that somebody else changed.
func (p *Pass[S]) Drift() *drift.Ledger { return p.drift }

// Deleting reports whether the object is being deleted.
func (p *Pass[S]) Deleting() bool { return !p.obj.GetDeletionTimestamp().IsZero() }

// EnsureFinalizer puts our finalizer on an object whose policy is Delete, before anything exists outside that it would have
// to remove, and takes it off one whose policy is Retain: there is nothing to remove, so nothing may ever wait for us.
func (p *Pass[S]) EnsureFinalizer(ctx context.Context) error {
	return p.finalizer(ctx, p.obj.Policy() == v1alpha1.DeletionPolicyDelete)
}

func (p *Pass[S]) finalizer(ctx context.Context, on bool) error {
	if controllerutil.ContainsFinalizer(p.obj, naming.Finalizer) == on {
		return nil
	}
	// A copy, so that what this pass already knows of status is not replaced by the answer.
	next, _ := p.obj.DeepCopyObject().(client.Object)
	base, _ := next.DeepCopyObject().(client.Object)
	if on {
		controllerutil.AddFinalizer(next, naming.Finalizer)
	} else {
		controllerutil.RemoveFinalizer(next, naming.Finalizer)
	}
	// A merge patch replaces the whole list, so it is bound to the version that was read.
	patch := client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{})
	if err := p.frame.Client.Patch(ctx, next, patch, client.FieldOwner(naming.FieldOwner)); err != nil {
		if !on && client.IgnoreNotFound(err) == nil {
			return nil
		}
		return fmt.Errorf("write finalizer: %w", err)
	}
	p.obj.SetFinalizers(next.GetFinalizers())
	p.obj.SetResourceVersion(next.GetResourceVersion())
	p.remember()
	return nil
}

// Steps runs every step whose needs are met and returns what went wrong, joined.
func (p *Pass[S]) Steps(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, p.frame.Budget)
	defer cancel()
	p.judged = true
	for _, step := range p.steps {
		o := p.outcome(step.Condition)
		switch {
		case o.err != nil || o.skipped:
		case !p.met(step.Needs):
			o.skipped = true
		default:
			o.err = p.run(ctx, step)
			logDetail(ctx, step.Condition, o.err)
		}
	}
	var errs []error
	for _, o := range p.outcomes {
		if o.err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", o.condition, o.err))
		}
	}
	return errors.Join(errs...)
}

// logDetail logs what a condition leaves out: a message for users keeps still while the cause's words change.
func logDetail(ctx context.Context, condition string, err error) {
	var detailed interface{ Detail() string }
	if errors.As(err, &detailed) {
		log.FromContext(ctx).Info("Step failed", "condition", condition, "detail", detailed.Detail())
	}
}

func (p *Pass[S]) run(ctx context.Context, step Step[S]) error {
	ctx, cancel := context.WithTimeout(ctx, p.frame.Step)
	defer cancel()
	return step.Run(ctx, p.scope)
}

func (p *Pass[S]) outcome(condition string) *outcome {
	i := slices.IndexFunc(p.outcomes, func(o outcome) bool { return o.condition == condition })
	if i < 0 {
		return nil
	}
	return &p.outcomes[i]
}

func (p *Pass[S]) met(needs []string) bool {
	return !slices.ContainsFunc(needs, func(need string) bool {
		o := p.outcome(need)
		return o == nil || o.err != nil || o.skipped
	})
}

// Remove is one thing to take away on deletion.
type Remove[S any] func(ctx context.Context, s *S) error

// Teardown removes, in the given order and stopping at the first that is not gone yet, what the object made outside, and
// then lets go of it. Under Retain there is nothing to remove. With the force-release annotation what cannot be removed is
// left behind.
func (p *Pass[S]) Teardown(ctx context.Context, removals ...Remove[S]) error {
	if !controllerutil.ContainsFinalizer(p.obj, naming.Finalizer) {
		p.released = true
		return nil
	}
	if p.obj.Policy() == v1alpha1.DeletionPolicyDelete {
		if err := p.removeAll(ctx, removals); err != nil {
			if p.obj.GetAnnotations()[naming.AnnotationForceRelease] != "true" {
				return err
			}
			p.event(warning, v1alpha1.ReasonReleased, "Released without removing everything: "+err.Error())
		}
	}
	if err := p.finalizer(ctx, false); err != nil {
		return err
	}
	p.released = true
	return nil
}

// Left tells of what a deletion that is over should have removed and could not reach any more. It is logged as well: a
// namespace that is being deleted takes no events.
func (p *Pass[S]) Left(ctx context.Context, note string) {
	log.FromContext(ctx).Info("Released without removing everything", "why", note)
	p.event(warning, v1alpha1.ReasonReleased, note)
}

func (p *Pass[S]) removeAll(ctx context.Context, removals []Remove[S]) error {
	ctx, cancel := context.WithTimeout(ctx, p.frame.Budget)
	defer cancel()
	for _, remove := range removals {
		if err := p.run(ctx, Step[S]{Run: remove}); err != nil {
			// Whatever stands in the way may go away by itself, so a deletion is never given up.
			if fault.IsTerminal(err) {
				return fault.Waiting(v1alpha1.ReasonDeletionBlocked, err.Error())
			}
			return err
		}
	}
	return nil
}
