package controllers_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
			if err := w.api.Create(ctx, s); err != nil {
				return err
			}
			if suffix == "-api" {
				continue
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
		if err := w.pool.EnsureAccount(ctx, at, account); err != nil {
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

// streamFloor is the same for streams: each carries nobody.
func (w *bench) streamFloor(b *testing.B) time.Duration {
	b.Helper()
	at := w.place(b)
	spec := func(i int) fabric.StreamSpec {
		return fabric.StreamSpec{Name: fmt.Sprintf("floor-s%d", i), MaxBytes: 1 << 20, DeadMaxBytes: 1 << 20}
	}
	children := func(name string) []client.Object {
		meta := metav1.ObjectMeta{Namespace: w.namespace, Name: name, Labels: map[string]string{naming.LabelStream: name}}
		pod := corev1.PodTemplateSpec{ObjectMeta: meta, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "x", Image: "x"}}}}
		return []client.Object{
			&corev1.Secret{ObjectMeta: meta}, &corev1.ConfigMap{ObjectMeta: meta}, &corev1.ServiceAccount{ObjectMeta: meta},
			&networkingv1.NetworkPolicy{ObjectMeta: meta},
			&appsv1.Deployment{ObjectMeta: meta, Spec: appsv1.DeploymentSpec{
				Replicas: new(int32(1)), Selector: &metav1.LabelSelector{MatchLabels: meta.Labels}, Template: pod,
			}},
		}
	}
	began := time.Now()
	each(b, w.n, streamsAtOnce, func(ctx context.Context, i int) error {
		name := spec(i).Name
		_, err1 := w.pool.EnsureStream(ctx, at, spec(i), v1alpha1.AdoptionNever)
		_, err2 := w.pool.EnsureDeadLetters(ctx, at, spec(i), v1alpha1.AdoptionNever)
		_, err3 := w.pool.EnsureConsumer(ctx, at, spec(i), v1alpha1.AdoptionNever)
		_, err4 := w.pool.TenantsOf(ctx, at, name, nil)
		if err := errors.Join(err1, err2, err3, err4); err != nil {
			return err
		}
		for _, child := range children(name) {
			if err := w.api.Create(ctx, child); err != nil {
				return err
			}
			if s, ok := child.(*corev1.Secret); ok { // made, completed
				before := s.DeepCopy()
				s.Data = map[string][]byte{"databases": []byte(name)}
				if err := w.api.Patch(ctx, s, client.MergeFrom(before)); err != nil {
					return err
				}
			}
		}
		_, err1 = w.pool.Lease(ctx, at, name, 0)
		_, err2 = w.pool.Backlog(ctx, at, name)
		for range 3 { // in place of the status, as it is when the worker's pod is not there yet, has no lease, and is ready
			c := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, GenerateName: name + "-"}}
			err1 = errors.Join(err1, w.api.Create(ctx, c))
		}
		return errors.Join(err1, err2)
	})
	took := time.Since(began)
	each(b, w.n, streamsAtOnce, func(ctx context.Context, i int) error {
		err := w.pool.RemoveStream(ctx, at, spec(i).Name)
		for _, child := range children(spec(i).Name) {
			err = errors.Join(err, w.api.Delete(ctx, child))
		}
		return err
	})
	return took
}
