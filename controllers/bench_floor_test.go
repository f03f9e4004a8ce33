package controllers_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/rigelbuild/compass-operator/api/v1alpha1"
	"github.com/rigelbuild/compass-operator/controllers/backend"
	"github.com/rigelbuild/compass-operator/internal/fabric"
	"github.com/rigelbuild/compass-operator/internal/kube"
	"github.com/rigelbuild/compass-operator/internal/naming"
	"github.com/rigelbuild/compass-operator/internal/store"
)

// place is where the server's systems are.
func (w *bench) place(b *testing.B) backend.Place {
	b.Helper()
	server := &v1alpha1.CompassServer{}
	if err := w.api.Get(b.Context(), client.ObjectKey{Namespace: w.namespace, Name: "main"}, server); err != nil {
		b.Fatal(err)
	}
	at, err := backend.Resolve(b.Context(), kube.Children{Client: w.api, Live: w.api}, server)
	if err != nil {
		b.Fatal(err)
	}
	return at
}

// tenantFloor makes, for as many tenants as there will be, the calls that the operator makes for each, and decides nothing.
func (w *bench) tenantFloor(b *testing.B) time.Duration {
	b.Helper()
	at := w.place(b)
	ids := &naming.IDs{Now: time.Now, Rand: rand.Reader}
	began := time.Now()
	each(b, w.n, tenantsAtOnce, func(ctx context.Context, i int) error {
		name := fmt.Sprintf("floor-%d", i)
		for _, suffix := range []string{"-keys", "-api"} { // made, completed
			s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name + suffix}}
			// Whether it is somebody else's is asked before anything is written; the keys are read again for the token.
			if err := w.api.Get(ctx, client.ObjectKeyFromObject(s), s.DeepCopy()); client.IgnoreNotFound(err) != nil {
				return err
			}
			if err := w.api.Create(ctx, s); err != nil {
				return err
			}
			if suffix == "-api" {
				continue
			}
			if err := w.api.Get(ctx, client.ObjectKeyFromObject(s), s); err != nil {
				return err
			}
			for _, key := range []string{"account", "token"} {
				before := s.DeepCopy()
				s.Data = map[string][]byte{key: []byte(name)}
				if err := w.api.Patch(ctx, s, client.MergeFrom(before)); err != nil {
					return err
				}
			}
		}
		row, err := w.pool.EnsureTenant(ctx, at, store.TenantRow{ID: store.TenantID(ids.Tenant()), Slug: name, Limits: []byte(`{}`)})
		if err != nil {
			return err
		}
		keys, _, err := fabric.CompleteTenantKeys(nil)
		if err != nil {
			return err
		}
		account := fabric.TenantAccount(fabric.TenantAccountSpec{Tenant: string(row.ID), Keys: keys}, at.Keys.Compass, at.Owner())
		if err := w.pool.EnsureAccount(ctx, at, account, v1alpha1.AdoptionNever); err != nil {
			return err
		}
		token, err := ids.Token(string(row.ID))
		if err != nil {
			return err
		}
		if err := w.pool.EnsureAdmin(ctx, at, row.ID, token); err != nil {
			return err
		}
		if _, err := w.pool.TokenSince(ctx, at, row.ID, token); err != nil {
			return err
		}
		s := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name}} // in place of the status
		return w.api.Create(ctx, s)
	})
	took := time.Since(began)
	each(b, w.n, tenantsAtOnce, func(ctx context.Context, i int) error {
		return w.pool.RemoveTenant(ctx, at, fmt.Sprintf("floor-%d", i))
	})
	return took
}

// streamFloor is the same for streams; each does the calls for one tenant, and places nobody.
func (w *bench) streamFloor(b *testing.B) time.Duration {
	b.Helper()
	at := w.place(b)
	rows, err := w.pool.Tenants(b.Context(), at)
	if err != nil || len(rows) == 0 {
		b.Fatalf("%d tenants, %v", len(rows), err)
	}
	children := w.modelChildren(b)
	spec := func(i int) fabric.StreamSpec {
		return fabric.StreamSpec{Name: fmt.Sprintf("floor-s%d", i), MaxBytes: 1 << 20, DeadMaxBytes: 1 << 20}
	}
	began := time.Now()
	each(b, w.n, streamsAtOnce, func(ctx context.Context, i int) error {
		return w.streamCalls(ctx, at, spec(i), rows[i%len(rows)], children)
	})
	took := time.Since(began)
	each(b, w.n, streamsAtOnce, func(ctx context.Context, i int) error {
		err := w.pool.RemoveStream(ctx, at, spec(i).Name)
		for _, child := range copiesOf(children, spec(i).Name) {
			err = errors.Join(err, w.api.Delete(ctx, child))
		}
		return err
	})
	return took
}

// modelStream is a stream that the operator makes the children of, so that the floor writes what the operator writes.
const modelStream = "modelstream"

// modelChildren are those of one worker, Secret first, as they were applied.
func (w *bench) modelChildren(b *testing.B) []string {
	b.Helper()
	w.create(b, w.stream(modelStream, "nobody"))
	name := client.ObjectKey{Namespace: w.namespace, Name: modelStream + "-compass-delivery"}
	for deadline := time.Now().Add(time.Minute); w.api.Get(b.Context(), name, &appsv1.Deployment{}) != nil; pause(b, 100*time.Millisecond) {
		if time.Now().After(deadline) {
			b.Fatal("the worker of the model is not made")
		}
	}
	var out []string
	for _, child := range []client.Object{
		&corev1.Secret{}, &corev1.ConfigMap{}, &corev1.ServiceAccount{}, &networkingv1.NetworkPolicy{}, &appsv1.Deployment{},
	} {
		gvk, err := w.api.GroupVersionKindFor(child)
		if err != nil {
			b.Fatal(err)
		}
		u := &unstructured.Unstructured{}
		u.SetGroupVersionKind(gvk)
		if err := w.api.Get(b.Context(), name, u); err != nil {
			b.Fatal(err)
		}
		for _, field := range []string{"uid", "resourceVersion", "managedFields", "creationTimestamp", "generation", "ownerReferences"} {
			unstructured.RemoveNestedField(u.Object, "metadata", field)
		}
		unstructured.RemoveNestedField(u.Object, "status")
		text, err := u.MarshalJSON()
		if err != nil {
			b.Fatal(err)
		}
		out = append(out, string(text))
	}
	if err := w.api.Delete(b.Context(), w.stream(modelStream, "nobody")); err != nil {
		b.Fatal(err)
	}
	return out
}

// copiesOf are the model's children for another stream.
func copiesOf(children []string, stream string) (out []*unstructured.Unstructured) {
	for _, text := range children {
		u := &unstructured.Unstructured{}
		if err := u.UnmarshalJSON([]byte(strings.ReplaceAll(text, modelStream, stream))); err != nil {
			panic(err) // it was marshalled a moment ago
		}
		out = append(out, u)
	}
	return out
}

// streamCalls are those that a stream takes until it is Ready, each once, and those that tell its tenant of it.
func (w *bench) streamCalls(ctx context.Context, at backend.Place, spec fabric.StreamSpec, tenant store.TenantRow, children []string) error {
	_, err1 := w.pool.EnsureStream(ctx, at, spec, v1alpha1.AdoptionNever)
	_, err2 := w.pool.EnsureDeadLetters(ctx, at, spec, v1alpha1.AdoptionNever)
	_, err3 := w.pool.EnsureConsumer(ctx, at, spec, v1alpha1.AdoptionNever)
	_, err4 := w.pool.TenantsOf(ctx, at, spec.Name, []string{tenant.Slug})
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return err
	}
	for _, child := range copiesOf(children, spec.Name) {
		// Whether it is somebody else's is asked before anything is written.
		if err := w.api.Get(ctx, client.ObjectKeyFromObject(child), child.DeepCopy()); client.IgnoreNotFound(err) != nil {
			return err
		}
		err := w.api.Apply(ctx, client.ApplyConfigurationFromUnstructured(child), client.FieldOwner("floor"), client.ForceOwnership)
		if err != nil {
			return err
		}
	}
	_, err1 = w.pool.Lease(ctx, at, spec.Name, 0)
	_, err2 = w.pool.Backlog(ctx, at, spec.Name)
	_, err3 = w.pool.TenantUsage(ctx, at, tenant)
	for range 3 { // in place of the status: the stream's when the worker is not there yet and when it is, and the tenant's
		c := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, GenerateName: spec.Name + "-"}}
		e := &eventsv1.Event{
			ObjectMeta: c.ObjectMeta, EventTime: metav1.NowMicro(), ReportingController: "floor", ReportingInstance: "floor", Action: "Reconcile",
			Reason: "Available", Type: corev1.EventTypeNormal, Regarding: corev1.ObjectReference{Kind: "ConfigMap", Namespace: w.namespace, Name: spec.Name},
		}
		err1 = errors.Join(err1, w.api.Create(ctx, c), w.api.Create(ctx, e))
	}
	return errors.Join(err1, err2, err3)
}
