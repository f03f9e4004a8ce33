package kube

import (
	"context"
	"encoding/json"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/rigelbuild/compass-operator/internal/naming"
)

// applyWhole applies with force, and returns what the API server then has. A server-side apply merges most lists by a key of
// their elements: an element that somebody else added, or whose key he edited, stays beside ours, and may even make the whole
// invalid (the port of a Service under another number). A list of ours is ours alone (covers), so it is then set as a whole.
func applyWhole(ctx context.Context, c Children, wish *unstructured.Unstructured, live map[string]any) (*unstructured.Unstructured, error) {
	seen, err := applyOnce(ctx, c, wish)
	switch {
	case apierrors.IsInvalid(err):
	case err != nil:
		return nil, err
	default:
		live = seen.Object
	}
	ours := listsOf(live, wish.Object)
	if len(ours) == 0 {
		return seen, err
	}
	patch, err := json.Marshal(ours)
	if err != nil {
		return nil, err
	}
	err = c.Client.Patch(ctx, wish.DeepCopy(), client.RawPatch(types.MergePatchType, patch), client.FieldOwner(naming.FieldOwner))
	if err != nil {
		return nil, err
	}
	return applyOnce(ctx, c, wish)
}

func applyOnce(ctx context.Context, c Children, wish *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	seen := wish.DeepCopy() // the answer is written into it
	err := c.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(seen), client.FieldOwner(naming.FieldOwner), client.ForceOwnership)
	return seen, err
}

// listsOf is the part of a wish that is lists which are there and hold something else.
func listsOf(have, want map[string]any) map[string]any {
	out := map[string]any{}
	for key, value := range want {
		switch w := value.(type) {
		case map[string]any:
			if h, ok := have[key].(map[string]any); ok {
				if inner := listsOf(h, w); len(inner) > 0 {
					out[key] = inner
				}
			}
		case []any:
			if _, ok := have[key].([]any); ok && !covers(have[key], w) {
				out[key] = w
			}
		}
	}
	return out
}
