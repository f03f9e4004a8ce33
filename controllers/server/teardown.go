package server

import (
	"context"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/rigelbuild/compass-operator/controllers/backend"
	"github.com/rigelbuild/compass-operator/internal/fault"
	"github.com/rigelbuild/compass-operator/internal/kube"
	"github.com/rigelbuild/compass-operator/internal/naming"
)

// removeWorkloads stops what would use the database, and waits until it has stopped.
func (r *Reconciler) removeWorkloads(ctx context.Context, s *scope) error {
	if err := kube.Remove(ctx, r.Children, s.server, &appsv1.Deployment{ObjectMeta: s.meta(s.names.Server, naming.ComponentServer)}); err != nil {
		return err
	}
	if err := kube.Remove(ctx, r.Children, s.server, &appsv1.StatefulSet{ObjectMeta: s.meta(s.names.NATS, naming.ComponentNATS)}); err != nil {
		return err
	}
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{
		Namespace: s.key.Namespace, Name: volumeData + "-" + s.names.NATS + "-0",
	}}
	// A claim is made by the StatefulSet's controller and has no owner; its name and our selector say whose it is.
	err := r.Children.Live.Get(ctx, client.ObjectKeyFromObject(claim), claim)
	if client.IgnoreNotFound(err) != nil || err != nil || claim.Labels[naming.LabelServer] != s.key.Name {
		return client.IgnoreNotFound(err)
	}
	return client.IgnoreNotFound(r.Children.Client.Delete(ctx, claim))
}

// removeDatabase drops database and roles. Without the admin's Secret nobody can, and the deletion says so.
func (r *Reconciler) removeDatabase(ctx context.Context, s *scope) error {
	spec := s.server.Spec.Database
	at, err := backend.ReadAdmin(ctx, r.Children, client.ObjectKey{Namespace: s.key.Namespace, Name: spec.AdminSecretRef.Name})
	if err != nil {
		return err
	}
	return r.Systems.Databases.RemoveDatabase(ctx, at, backend.Owner(s.key), spec.Name)
}

// removeIdentity comes last: until then every earlier step could be repeated with the same keys.
func (r *Reconciler) removeIdentity(ctx context.Context, s *scope) error {
	err := kube.Remove(ctx, r.Children, nil, s.secret(s.names.Keys))
	if fault.IsWaiting(err) { // a Secret without finalizers is gone as soon as it was asked to go
		return nil
	}
	return err
}
