package kube

import (
	"maps"
	"reflect"
	"slices"
	"strings"
)

// covers reports whether every field of want is in have with the same value; what have holds beside it does not matter.
// Lists must have the same length, because nobody but us adds to a list of ours; their elements are compared in order,
// each for what we set, since the API server fills in defaults.
func covers(have, want any) bool { //nolint:gocyclo // one case for each shape of a value
	switch w := want.(type) {
	case map[string]any:
		h, ok := have.(map[string]any)
		if !ok {
			return len(w) == 0 && have == nil
		}
		for key, value := range w {
			if got, there := h[key]; !covers(got, value) || !there && !hollow(value) {
				return false
			}
		}
		return true
	case []any:
		h, ok := have.([]any)
		if !ok {
			return len(w) == 0 && have == nil
		}
		if len(h) != len(w) {
			return false
		}
		for i := range w {
			if !covers(h[i], w[i]) {
				return false
			}
		}
		return true
	default:
		return reflect.DeepEqual(have, want)
	}
}

// differing names the fields in which have does not cover want: of an object each by its path, of a list the whole. It shows
// no values, which may be secrets.
func differing(path string, have, want any) []string {
	w, ok := want.(map[string]any)
	h, alike := have.(map[string]any)
	if !ok || !alike || len(w) == 0 {
		if covers(have, want) {
			return nil
		}
		return []string{strings.TrimPrefix(path, ".")}
	}
	var out []string
	for _, key := range slices.Sorted(maps.Keys(w)) {
		if got, there := h[key]; there || !hollow(w[key]) {
			out = append(out, differing(path+"."+key, got, w[key])...)
		}
	}
	return out
}

// hollow values may be dropped by the API server without a loss.
func hollow(v any) bool {
	switch v := v.(type) {
	case map[string]any:
		return len(v) == 0
	case []any:
		return len(v) == 0
	}
	return v == nil
}

// prune removes nulls, which typed objects produce for what nobody set.
func prune(v any) {
	switch v := v.(type) {
	case map[string]any:
		for key, value := range v {
			if value == nil {
				delete(v, key)
				continue
			}
			prune(value)
		}
	case []any:
		for _, item := range v {
			prune(item)
		}
	}
}
