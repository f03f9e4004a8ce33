package kube

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/rigelbuild/compass-operator/api/v1alpha1"
	"github.com/rigelbuild/compass-operator/internal/fault"
	"github.com/rigelbuild/compass-operator/internal/naming"
)

// Keep returns the data of a Secret that is made once and then never overwritten: what it holds was stored before anybody
// used it, and whoever looks later finds the same (REQ-212). fill gets what is there (nothing at first) and returns what is
// missing; it is called again by every pass, so a crash between two kinds of keys is completed, and never starts anew.
//
// The Secret is read from the API server itself, never from the cache: an old answer "absent" must not mint keys.
func Keep(
	ctx context.Context, c Children, owner client.Object, want *corev1.Secret, fill func(have map[string][]byte) (map[string][]byte, error),
) (map[string][]byte, error) {
	data, err := keep(ctx, c, owner, want, fill)
	if err != nil {
		return nil, fmt.Errorf("keep Secret %s/%s: %w", want.Namespace, want.Name, err)
	}
	return data, nil
}

func keep(
	ctx context.Context, c Children, owner client.Object, want *corev1.Secret, fill func(map[string][]byte) (map[string][]byte, error),
) (map[string][]byte, error) {
	live, err := ours(ctx, c, owner, want)
	if err != nil {
		return nil, err
	}
	if live == nil {
		return whole(c, want, removed, func() (map[string][]byte, error) {
			data, err := fill(nil)
			if err != nil {
				return nil, err
			}
			return create(ctx, c, owner, want, data)
		})
	}
	missing, err := lacking(live.Data, fill)
	if err != nil || len(missing) == 0 {
		return live.Data, err
	}
	return whole(c, want, slices.Sorted(maps.Keys(missing)), func() (map[string][]byte, error) {
		return complete(ctx, c, live, missing)
	})
}

// ours reads the Secret from the API server: nil where there is none, an error where it is somebody else's.
func ours(ctx context.Context, c Children, owner client.Object, want *corev1.Secret) (*corev1.Secret, error) {
	live := &corev1.Secret{}
	switch err := c.Live.Get(ctx, client.ObjectKeyFromObject(want), live); {
	case apierrors.IsNotFound(err):
		return nil, nil //nolint:nilnil // absent is an answer
	case err != nil:
		return nil, fault.Transient(v1alpha1.ReasonApplyFailed, err)
	}
	return live, mustBeOurs(c, live, want, owner)
}

// lacking is what fill adds to the data that are there. Nothing that is there may change.
func lacking(have map[string][]byte, fill func(map[string][]byte) (map[string][]byte, error)) (map[string][]byte, error) {
	missing, err := fill(maps.Clone(have))
	if err != nil {
		return nil, err
	}
	for key, value := range missing {
		switch is, there := have[key]; {
		case there && !bytes.Equal(is, value):
			return nil, fmt.Errorf("key %s would be overwritten", key)
		case there:
			delete(missing, key)
		}
	}
	return missing, nil
}

// whole writes what is gone, if drift may be repaired, and tells of it.
func whole(c Children, want *corev1.Secret, lost []string, write func() (map[string][]byte, error)) (map[string][]byte, error) {
	what := describe(c, want)
	if err := c.Drift.Allow(what, lost...); err != nil {
		return nil, err
	}
	data, err := write()
	if err == nil {
		c.Drift.Wrote(what, lost...)
	}
	return data, err
}

// create fails where another pass was faster; the next pass then finds the Secret of that one.
func create(ctx context.Context, c Children, owner client.Object, want *corev1.Secret, data map[string][]byte) (map[string][]byte, error) {
	secret := want.DeepCopy()
	secret.Data = data
	if owner != nil {
		if err := controllerutil.SetControllerReference(owner, secret, c.Client.Scheme()); err != nil {
			return nil, err
		}
	}
	if err := c.Client.Create(ctx, secret, client.FieldOwner(naming.FieldOwner)); err != nil {
		return nil, interpret(err)
	}
	return data, nil
}

// complete adds keys under a lock on the version that was read, so that two passes cannot each add their own.
func complete(ctx context.Context, c Children, live *corev1.Secret, missing map[string][]byte) (map[string][]byte, error) {
	before := live.DeepCopy()
	if live.Data == nil {
		live.Data = map[string][]byte{}
	}
	maps.Copy(live.Data, missing)
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	if err := c.Client.Patch(ctx, live, patch, client.FieldOwner(naming.FieldOwner)); err != nil {
		return nil, interpret(err)
	}
	return live.Data, nil
}

// Change edits the data of a Secret that Keep made, under a lock on the version that was read: a key that edit gives nil is
// taken away. It is for what the spec or the clock asks for, and no drift.
func Change(ctx context.Context, c Children, want *corev1.Secret, edit map[string][]byte) (map[string][]byte, error) {
	live := &corev1.Secret{}
	if err := c.Live.Get(ctx, client.ObjectKeyFromObject(want), live); err != nil {
		return nil, fault.Transient(v1alpha1.ReasonApplyFailed, fmt.Errorf("read %s: %w", describe(c, want), err))
	}
	if err := mustBeOurs(c, live, want, nil); err != nil {
		return nil, err
	}
	before := live.DeepCopy()
	for key, value := range edit {
		if value == nil {
			delete(live.Data, key)
			continue
		}
		if live.Data == nil {
			live.Data = map[string][]byte{}
		}
		live.Data[key] = value
	}
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	if err := c.Client.Patch(ctx, live, patch, client.FieldOwner(naming.FieldOwner)); err != nil {
		return nil, fmt.Errorf("change %s: %w", describe(c, want), interpret(err))
	}
	return live.Data, nil
}

// Read returns the data of a Secret that a user made, as the API server has it now. A missing one, or a missing key, is
// waited for and named.
func Read(ctx context.Context, c Children, key client.ObjectKey, keys ...string) (map[string][]byte, error) {
	secret := &corev1.Secret{}
	switch err := c.Live.Get(ctx, key, secret); {
	case apierrors.IsNotFound(err):
		return nil, fault.Waiting(v1alpha1.ReasonWaitingForSecret, fmt.Sprintf("Secret %s does not exist: create it", key))
	case err != nil:
		return nil, fault.Transient(v1alpha1.ReasonReconcileFailed, fmt.Errorf("read Secret %s: %w", key, err))
	}
	for _, k := range keys {
		if len(secret.Data[k]) == 0 {
			return nil, fault.Waiting(v1alpha1.ReasonWaitingForSecret, fmt.Sprintf("Secret %s has no key %q: add it", key, k))
		}
	}
	return secret.Data, nil
}

// Held returns the data of a Secret of ours as the cache has it, nil where it has none: for what can be made anew if that is old.
func Held(ctx context.Context, c Children, want *corev1.Secret) (map[string][]byte, error) {
	live := &corev1.Secret{}
	if err := c.Client.Get(ctx, client.ObjectKeyFromObject(want), live); client.IgnoreNotFound(err) != nil {
		return nil, fault.Transient(v1alpha1.ReasonReconcileFailed, fmt.Errorf("read %s: %w", describe(c, want), err))
	}
	return live.Data, nil
}

// Find returns the data of a Secret of ours; nil where the cache has none, else what the API server has now.
func Find(ctx context.Context, c Children, want *corev1.Secret) (map[string][]byte, error) {
	live := &corev1.Secret{}
	for _, from := range []client.Reader{c.Client, c.Live} {
		switch err := from.Get(ctx, client.ObjectKeyFromObject(want), live); {
		case apierrors.IsNotFound(err):
			return nil, nil
		case err != nil:
			return nil, fault.Transient(v1alpha1.ReasonReconcileFailed, fmt.Errorf("read %s: %w", describe(c, want), err))
		}
	}
	if !sameLabels(live, want) {
		return nil, nil
	}
	return live.Data, nil
}

// Remove deletes a child that is ours and says whether it is gone: absent is success, asked for is waiting, somebody else's
// is left alone and counts as gone.
func Remove(ctx context.Context, c Children, owner, child client.Object) error {
	live := child.DeepCopyObject().(client.Object) //nolint:forcetypeassert // a copy has its type
	switch err := c.Live.Get(ctx, client.ObjectKeyFromObject(child), live); {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("read %s: %w", describe(c, child), err)
	}
	if mustBeOurs(c, live, child, owner) != nil {
		return nil //nolint:nilerr // what is not ours is left alone, which is all that was asked
	}
	uid := live.GetUID()
	err := c.Client.Delete(ctx, live, client.Preconditions{UID: &uid}, client.PropagationPolicy(propagation(child)))
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete %s: %w", describe(c, child), err)
	}
	return fault.Waiting(v1alpha1.ReasonDeleting, describe(c, child)+" is still being deleted")
}

// propagation: a workload is gone when its pods are; nothing else has anybody to wait for.
func propagation(child client.Object) metav1.DeletionPropagation {
	switch child.(type) {
	case *appsv1.Deployment, *appsv1.StatefulSet:
		return metav1.DeletePropagationForeground
	}
	return metav1.DeletePropagationBackground
}
