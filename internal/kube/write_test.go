package kube_test

import (
	"context"
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/rigelbuild/compass-operator/api/v1alpha1"
	"github.com/rigelbuild/compass-operator/internal/fault"
	"github.com/rigelbuild/compass-operator/internal/kube"
	"github.com/rigelbuild/compass-operator/internal/naming"
)

// store is an API server that counts writes. hidden objects are there and not in the cache.
type store struct {
	kube.Children
	writes int
}

func newStore(t *testing.T, hidden bool, objects ...client.Object) *store {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	s := &store{}
	live := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).Build()
	s.Live = live
	empty := fake.NewClientBuilder().WithScheme(scheme).Build()
	s.Client = interceptor.NewClient(live, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			if hidden {
				return empty.Get(ctx, key, o, opts...)
			}
			return c.Get(ctx, key, o, opts...)
		},
		Apply: func(ctx context.Context, c client.WithWatch, o runtime.ApplyConfiguration, opts ...client.ApplyOption) error {
			s.writes++
			return c.Apply(ctx, o, opts...)
		},
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			s.writes++
			return c.Create(ctx, o, opts...)
		},
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
			s.writes++
			return c.Patch(ctx, o, p, opts...)
		},
	})
	return s
}

func owner() *v1alpha1.CompassServer {
	return &v1alpha1.CompassServer{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "main", UID: "1"}}
}

func secret(data map[string]string, labels map[string]string) *corev1.Secret {
	s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "main-x", Labels: labels}}
	for k, v := range data {
		if s.Data == nil {
			s.Data = map[string][]byte{}
		}
		s.Data[k] = []byte(v)
	}
	return s
}

var (
	ours   = kube.Labels(naming.LabelServer, "main", naming.ComponentSecret)
	theirs = map[string]string{"app": "other"}
)

// fill wants keys a and b.
func fill(made *int) func(map[string][]byte) (map[string][]byte, error) {
	return func(have map[string][]byte) (map[string][]byte, error) {
		missing := map[string][]byte{}
		for _, key := range []string{"a", "b"} {
			if len(have[key]) == 0 {
				*made++
				missing[key] = []byte("made " + key)
			}
		}
		return missing, nil
	}
}

// Holds REQ-212: what was stored is never made again, also where the cache does not know it yet, and a half is completed.
func TestKeep(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		there  *corev1.Secret
		hidden bool
		a, b   string
		made   int
		reason string // of the refusal
	}{
		"absent":              {a: "made a", b: "made b", made: 2},
		"whole":               {there: secret(map[string]string{"a": "1", "b": "2"}, ours), a: "1", b: "2"},
		"half":                {there: secret(map[string]string{"a": "1"}, ours), a: "1", b: "made b", made: 1},
		"not in the cache":    {there: secret(map[string]string{"a": "1", "b": "2"}, ours), hidden: true, a: "1", b: "2"},
		"somebody else's":     {there: secret(map[string]string{"a": "1"}, theirs), reason: v1alpha1.ReasonSecretConflict},
		"of another server's": {there: secret(nil, kube.Labels(naming.LabelServer, "other", naming.ComponentSecret)), reason: v1alpha1.ReasonSecretConflict},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var objects []client.Object
			if c.there != nil {
				objects = append(objects, c.there)
			}
			s := newStore(t, c.hidden, objects...)
			made := 0
			data, err := kube.Keep(t.Context(), s.Children, owner(), secret(nil, ours), fill(&made))
			if fault.ReasonOf(err) != c.reason || c.reason != "" && !fault.IsWaiting(err) {
				t.Fatalf("error %v, want reason %q", err, c.reason)
			}
			if c.reason == "" && (string(data["a"]) != c.a || string(data["b"]) != c.b) || made != c.made {
				t.Errorf("a %q, b %q, made %d; want %q, %q, %d", data["a"], data["b"], made, c.a, c.b, c.made)
			}
			stored := &corev1.Secret{}
			if err := s.Live.Get(t.Context(), client.ObjectKey{Namespace: "ns", Name: "main-x"}, stored); err != nil {
				t.Fatal(err)
			}
			if c.reason == "" && string(stored.Data["b"]) != c.b {
				t.Errorf("stored %v", stored.Data)
			}
		})
	}
}

func TestKeepOverwritesNothing(t *testing.T) {
	t.Parallel()
	s := newStore(t, false, secret(map[string]string{"a": "1"}, ours))
	_, err := kube.Keep(t.Context(), s.Children, owner(), secret(nil, ours), func(map[string][]byte) (map[string][]byte, error) {
		return map[string][]byte{"a": []byte("2")}, nil
	})
	if err == nil || s.writes != 0 {
		t.Errorf("error %v, %d writes; want a refusal", err, s.writes)
	}
}

// Keep cannot tell "absent" from "could not tell" unless the reader does: an error makes no keys.
func TestKeepMakesNothingOnAnError(t *testing.T) {
	t.Parallel()
	s := newStore(t, false)
	s.Live = failing{s.Live}
	made := 0
	if _, err := kube.Keep(t.Context(), s.Children, owner(), secret(nil, ours), fill(&made)); err == nil || made != 0 || s.writes != 0 {
		t.Errorf("error %v, made %d, %d writes; want an error and nothing made", err, made, s.writes)
	}
}

type failing struct{ client.Reader }

func (failing) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	return errors.New("no answer")
}

// Holds REQ-210: a child that is as wanted is not written; a difference is; what somebody else set stays; what is no longer
// wanted goes.
func TestApply(t *testing.T) {
	t.Parallel()
	s := newStore(t, false)
	want := func(data map[string]string) *corev1.ConfigMap {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "main-x", Labels: ours}, Data: data}
	}
	apply := func(data map[string]string, writes int) *corev1.ConfigMap {
		t.Helper()
		s.writes = 0
		seen, err := kube.Apply(t.Context(), s.Children, owner(), want(data))
		if err != nil || s.writes != writes {
			t.Fatalf("error %v, %d writes; want %d", err, s.writes, writes)
		}
		return seen
	}
	apply(map[string]string{"a": "1", "b": "2"}, 1)
	apply(map[string]string{"a": "1", "b": "2"}, 0)

	live := &corev1.ConfigMap{}
	edit := func(change func()) {
		t.Helper()
		if err := s.Live.Get(t.Context(), client.ObjectKey{Namespace: "ns", Name: "main-x"}, live); err != nil {
			t.Fatal(err)
		}
		change()
		if err := s.Client.Update(t.Context(), live); err != nil {
			t.Fatal(err)
		}
	}
	edit(func() { live.Data["a"] = "drift"; live.Data["theirs"] = "x"; live.Annotations["theirs"] = "y" })
	seen := apply(map[string]string{"a": "1", "b": "2"}, 1)
	if seen.Data["a"] != "1" || seen.Data["theirs"] != "x" || seen.Annotations["theirs"] != "y" {
		t.Errorf("%v %v", seen.Data, seen.Annotations)
	}
	seen = apply(map[string]string{"a": "1"}, 1)
	if _, there := seen.Data["b"]; there || seen.Data["theirs"] != "x" {
		t.Errorf("%v; want b given up", seen.Data)
	}
}

// Holds REQ-211: what is not ours is not touched, also where the cache, which holds only ours, does not show it.
func TestApplyLeavesForeign(t *testing.T) {
	t.Parallel()
	for name, labels := range map[string]map[string]string{"unlabelled": nil, "of another server": kube.Labels(naming.LabelServer, "other", naming.ComponentSecret)} {
		for _, hidden := range []bool{false, true} {
			s := newStore(t, hidden, secret(map[string]string{"a": "theirs"}, labels))
			_, err := kube.Apply(t.Context(), s.Children, owner(), secret(map[string]string{"a": "ours"}, ours))
			if fault.ReasonOf(err) != v1alpha1.ReasonSecretConflict || s.writes != 0 {
				t.Errorf("%s, hidden %v: %v, %d writes; want SecretConflict and none", name, hidden, err, s.writes)
			}
		}
	}
}

// A child of a deleted object of the same name is waited for, not adopted: garbage collection is about to take it.
func TestApplyWaitsForTheOldOnesChild(t *testing.T) {
	t.Parallel()
	old := secret(map[string]string{"a": "1"}, ours)
	old.OwnerReferences = []metav1.OwnerReference{{
		APIVersion: v1alpha1.GroupVersion.String(), Kind: "CompassServer", Name: "main", UID: "another", Controller: new(true),
	}}
	s := newStore(t, false, old)
	_, err := kube.Apply(t.Context(), s.Children, owner(), secret(map[string]string{"a": "2"}, ours))
	if !fault.IsWaiting(err) || s.writes != 0 {
		t.Errorf("%v, %d writes; want to wait", err, s.writes)
	}
}

func TestReadNamesWhatIsMissing(t *testing.T) {
	t.Parallel()
	s := newStore(t, false, secret(map[string]string{"a": "1", "empty": ""}, nil))
	key := client.ObjectKey{Namespace: "ns", Name: "main-x"}
	if _, err := kube.Read(t.Context(), s.Children, key, "a"); err != nil {
		t.Error(err)
	}
	for _, missing := range []string{"b", "empty"} {
		_, err := kube.Read(t.Context(), s.Children, key, "a", missing)
		if fault.ReasonOf(err) != v1alpha1.ReasonWaitingForSecret || err.Error() != `Secret ns/main-x has no key "`+missing+`": add it` {
			t.Errorf("%v", err)
		}
	}
}

// Holds REQ-211: asked is not gone, absent is, and what is not ours is left alone.
func TestRemove(t *testing.T) {
	t.Parallel()
	held := secret(nil, ours)
	held.Finalizers = []string{"example.com/slow"}
	for name, c := range map[string]struct {
		there   *corev1.Secret
		waiting bool
		left    bool
	}{
		"absent":  {},
		"ours":    {there: secret(nil, ours), waiting: true},
		"held":    {there: held, waiting: true, left: true},
		"foreign": {there: secret(nil, theirs), left: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var objects []client.Object
			if c.there != nil {
				objects = append(objects, c.there)
			}
			s := newStore(t, false, objects...)
			err := kube.Remove(t.Context(), s.Children, nil, secret(nil, ours))
			if fault.IsWaiting(err) != c.waiting || err != nil && !c.waiting {
				t.Errorf("%v, want waiting: %v", err, c.waiting)
			}
			if left := s.Live.Get(t.Context(), client.ObjectKey{Namespace: "ns", Name: "main-x"}, &corev1.Secret{}) == nil; left != c.left {
				t.Errorf("left: %v, want %v", left, c.left)
			}
		})
	}
}
