package kube_test

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/rigelbuild/compass-operator/internal/kube"
)

// asked is a reader that counts.
type asked struct {
	client.Reader
	value string // empty: there is none
	n     int
}

func (a *asked) Get(_ context.Context, key client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
	a.n++
	secret, ok := obj.(*corev1.Secret)
	if !ok || a.value == "" {
		return apierrors.NewNotFound(schema.GroupResource{Resource: "secrets"}, key.Name)
	}
	secret.Data = map[string][]byte{"x": []byte(a.value)}
	return nil
}

// What many refer to is asked for once in a while, also when it is not there, and nobody changes the answer of another.
func TestRecent(t *testing.T) {
	t.Parallel()
	now, from := time.Unix(0, 0), &asked{value: "one"}
	recent := &kube.Recent{Reader: from, After: 3 * time.Second, Now: func() time.Time { return now }}
	get := func() (string, error) {
		s := &corev1.Secret{}
		err := recent.Get(t.Context(), client.ObjectKey{Namespace: "n", Name: "s"}, s)
		is := string(s.Data["x"])
		if err == nil {
			s.Data["x"][0] = '!'
		}
		return is, err
	}
	for range 3 {
		if is, err := get(); is != "one" || err != nil {
			t.Errorf("%q, %v", is, err)
		}
	}
	from.value = "two"
	if is, _ := get(); is != "one" || from.n != 1 {
		t.Errorf("%q after %d reads", is, from.n)
	}
	now = now.Add(3 * time.Second)
	if is, _ := get(); is != "two" || from.n != 2 {
		t.Errorf("%q after %d reads", is, from.n)
	}
	from.value, now = "", now.Add(3*time.Second)
	for range 2 {
		if _, err := get(); !apierrors.IsNotFound(err) || from.n != 3 {
			t.Errorf("%v after %d reads", err, from.n)
		}
	}
}
