package server

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/rigelbuild/compass-operator/controllers/backend"
	"github.com/rigelbuild/compass-operator/internal/fabric"
	"github.com/rigelbuild/compass-operator/internal/fault"
	"github.com/rigelbuild/compass-operator/internal/kube"
	"github.com/rigelbuild/compass-operator/internal/naming"
)

// removeWorkloads stops what would use the database, and waits until it has stopped.
func (r *Reconciler) removeWorkloads(ctx context.Context, s *scope) error {
	if err := kube.Remove(ctx, s.kids, s.server, &appsv1.Deployment{ObjectMeta: s.meta(s.names.Server, naming.ComponentServer)}); err != nil {
		return err
	}
	if err := kube.Remove(ctx, s.kids, s.server, &appsv1.StatefulSet{ObjectMeta: s.meta(s.names.NATS, naming.ComponentNATS)}); err != nil {
		return err
	}
	for i := range s.server.NATSServers() {
		if err := r.removeClaim(ctx, s, fmt.Sprintf("%s-%s-%d", volumeData, s.names.NATS, i)); err != nil {
			return err
		}
	}
	return nil
}

// removeClaim: a claim is made by the StatefulSet's controller and has no owner; its name and our selector say whose it is.
func (r *Reconciler) removeClaim(ctx context.Context, s *scope, name string) error {
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: s.key.Namespace, Name: name}}
	err := s.kids.Live.Get(ctx, client.ObjectKeyFromObject(claim), claim)
	if err != nil || claim.Labels[naming.LabelServer] != s.key.Name {
		return client.IgnoreNotFound(err)
	}
	return client.IgnoreNotFound(s.kids.Client.Delete(ctx, claim))
}

// removeAccounts takes our accounts out of somebody else's NATS; our own goes with its volumes.
func (r *Reconciler) removeAccounts(ctx context.Context, s *scope) error {
	spec := s.server.ExternalNATS()
	if spec == nil {
		return nil
	}
	x, err := backend.ReadExternal(ctx, s.kids, s.key.Namespace, spec)
	if err != nil {
		return err
	}
	kept, err := kube.Read(ctx, s.kids, client.ObjectKey{Namespace: s.key.Namespace, Name: s.names.Keys})
	if fault.IsWaiting(err) {
		return nil // without keys there is no account that could be named
	}
	if err != nil {
		return err
	}
	keys, missing, err := fabric.CompleteExternalKeys(kept, x.Signer)
	if err != nil || missing != nil {
		return damaged(s, err)
	}
	s.identity = &identity{keys: keys, external: &x}
	at, err := s.place()
	if err != nil {
		return err
	}
	at.Servers = 0
	if s.server.Status.NATS != nil {
		at.Servers = int(s.server.Status.NATS.Servers)
	}
	owner := backend.Owner(s.key)
	for _, account := range []fabric.Account{fabric.RunnersAccount(keys, owner), fabric.CompassAccount(keys, owner)} {
		if err := r.Systems.Transport.RemoveAccount(ctx, at, account); err != nil {
			return err
		}
	}
	return nil
}

// removeDatabase drops database and roles. Without the admin's Secret nobody can, and the deletion says so.
func (r *Reconciler) removeDatabase(ctx context.Context, s *scope) error {
	spec := s.server.Spec.Database
	at, err := backend.ReadAdmin(ctx, s.kids, client.ObjectKey{Namespace: s.key.Namespace, Name: spec.AdminSecretRef.Name})
	if err != nil {
		return err
	}
	return r.Systems.Databases.RemoveDatabase(ctx, at, backend.Owner(s.key), spec.Name)
}

// removeIdentity comes last: until then every earlier step could be repeated with the same keys.
func (r *Reconciler) removeIdentity(ctx context.Context, s *scope) error {
	for _, name := range []string{s.names.Graves, s.names.Keys} {
		err := kube.Remove(ctx, s.kids, nil, s.secret(name))
		if err != nil && !fault.IsWaiting(err) { // a Secret without finalizers is gone as soon as it was asked to go
			return err
		}
	}
	return nil
}
