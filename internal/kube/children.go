package kube

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/rigelbuild/compass-operator/api/v1alpha1"
	"github.com/rigelbuild/compass-operator/internal/drift"
	"github.com/rigelbuild/compass-operator/internal/fault"
	"github.com/rigelbuild/compass-operator/internal/naming"
)

// Children writes the children of our objects. Client reads from the cache; Live asks the API server itself and is used
// where acting on an old answer would lose something. Drift, which may be nil, is asked before a child that somebody else
// changed is put back, and told of it. Shared, which may be nil, reads what many refer to and nobody changes often.
type Children struct {
	Client client.Client
	Live   client.Reader
	Shared client.Reader
	Drift  *drift.Ledger
}

// In is the same for one pass.
func (c Children) In(pass *drift.Ledger) Children {
	c.Drift = pass
	return c
}

// removed is what differs of a child that is not there.
var removed = []string{"removed"}

// Apply makes the child as wanted, if it is not, and returns it as it then is. The child must carry the labels of Labels.
// A nil owner makes a child that outlives everything: garbage collection knows nothing of Retain (ruling O1).
func Apply[T client.Object](ctx context.Context, c Children, owner client.Object, want T) (T, error) {
	seen, err := apply(ctx, c, owner, want)
	if err != nil {
		return seen, fmt.Errorf("apply %s: %w", describe(c, want), err)
	}
	return seen, nil
}

func apply[T client.Object](ctx context.Context, c Children, owner client.Object, want T) (T, error) {
	if owner != nil {
		if err := controllerutil.SetControllerReference(owner, want, c.Client.Scheme()); err != nil {
			return want, err
		}
	}
	wish, err := wishOf(c.Client.Scheme(), want)
	if err != nil {
		return want, err
	}
	live := reflect.New(reflect.TypeOf(want).Elem()).Interface().(T) //nolint:forcetypeassert // T is a pointer to this struct
	switch err := c.Client.Get(ctx, client.ObjectKeyFromObject(want), live); {
	case apierrors.IsNotFound(err):
	case err != nil:
		return want, fault.Transient(v1alpha1.ReasonApplyFailed, err)
	default:
		if err := mustBeOurs(c, live, want, owner); err != nil {
			return live, err
		}
		differs, err := differences(live, wish)
		if err != nil || len(differs) == 0 {
			return live, err
		}
		if appliedBefore(live, wish) {
			return putBack(ctx, c, owner, wish, live, differs)
		}
	}
	return write(ctx, c, owner, wish, live)
}

// putBack writes over what somebody else changed, if it may.
func putBack[T client.Object](
	ctx context.Context, c Children, owner client.Object, wish *unstructured.Unstructured, live T, differs []string,
) (T, error) {
	what := describe(c, live)
	if err := c.Drift.Allow(what, differs...); err != nil {
		return live, err
	}
	seen, err := write(ctx, c, owner, wish, live)
	if err == nil {
		c.Drift.Wrote(what, differs...)
	}
	return seen, err
}

// appliedBefore: what is wished for is what was applied last, so that it was somebody else who changed it.
func appliedBefore(live client.Object, wish *unstructured.Unstructured) bool {
	return live.GetAnnotations()[naming.AnnotationApplied] == wish.GetAnnotations()[naming.AnnotationApplied]
}

// write applies with force: fields we set are ours. The answer of the API server is what is then seen.
func write[T client.Object](ctx context.Context, c Children, owner client.Object, wish *unstructured.Unstructured, seen T) (T, error) {
	// The cache holds only what carries our label, so an object of somebody else looks absent there. Look once more before
	// a first write, or force would take it over.
	absent := false
	if seen.GetUID() == "" {
		switch err := c.Live.Get(ctx, client.ObjectKeyFromObject(wish), seen); {
		case apierrors.IsNotFound(err):
			if err := c.Drift.Allow(describe(c, wish), removed...); err != nil {
				return seen, err
			}
			absent = true
		case err != nil:
			return seen, fault.Transient(v1alpha1.ReasonApplyFailed, err)
		default:
			if err := mustBeOurs(c, seen, wish, owner); err != nil {
				return seen, err
			}
		}
	}
	live, err := runtime.DefaultUnstructuredConverter.ToUnstructured(seen)
	if err != nil {
		return seen, err
	}
	is, err := applyWhole(ctx, c, wish, live)
	if err != nil {
		return seen, interpret(err)
	}
	if absent {
		c.Drift.Wrote(describe(c, wish), removed...)
	}
	fresh := reflect.New(reflect.TypeOf(seen).Elem()).Interface().(T) //nolint:forcetypeassert // as above
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(is.Object, fresh); err != nil {
		return seen, err
	}
	return fresh, nil
}

// interpret gives an answer of the API server its class: what it calls invalid cannot work as it stands.
func interpret(err error) error {
	if apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) {
		return fault.Terminal(v1alpha1.ReasonInvalidSpec, err)
	}
	if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) { // everything in it goes, so there is nothing to hurry for
		return fault.Waiting(v1alpha1.ReasonDeleting, "the namespace is being deleted, and nothing more is made in it")
	}
	return fault.Transient(v1alpha1.ReasonApplyFailed, err)
}

// wishOf is the typed object as an apply configuration, with the hash of itself. Status is not ours to wish for.
func wishOf(scheme *runtime.Scheme, want client.Object) (*unstructured.Unstructured, error) {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(want)
	if err != nil {
		return nil, err
	}
	delete(content, "status")
	prune(content)
	u := &unstructured.Unstructured{Object: content}
	gvk, err := apiutil.GVKForObject(want, scheme)
	if err != nil {
		return nil, err
	}
	u.SetGroupVersionKind(gvk)
	text, err := json.Marshal(content) // sorted keys
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(text)
	notes := maps.Clone(u.GetAnnotations())
	if notes == nil {
		notes = map[string]string{}
	}
	notes[naming.AnnotationApplied] = hex.EncodeToString(sum[:8])
	u.SetAnnotations(notes)
	return u, nil
}

// differences are the fields of a wish that the live object has otherwise.
func differences(live client.Object, wish *unstructured.Unstructured) ([]string, error) {
	have, err := runtime.DefaultUnstructuredConverter.ToUnstructured(live)
	if err != nil {
		return nil, err
	}
	want := maps.Clone(wish.Object)
	delete(want, "apiVersion") // typed objects do not keep them
	delete(want, "kind")
	if covers(have, want) {
		return nil, nil
	}
	return differing("", have, want), nil
}

// describe names a child in a message, as kubectl would.
func describe(c Children, obj client.Object) string {
	return kindOf(c, obj) + " " + obj.GetNamespace() + "/" + obj.GetName()
}

func kindOf(c Children, obj client.Object) string {
	gvk, err := apiutil.GVKForObject(obj, c.Client.Scheme())
	if err != nil {
		return "object"
	}
	return gvk.Kind
}
